"""CrewAI: its three tools for sandboxes of E2B."""

from crewai_tools.tools.e2b_sandbox_tool import E2BExecTool, E2BFileTool, E2BPythonTool

python = E2BPythonTool(persistent=True)
assert python.run(code="x = 6\nprint('seen')")["stdout"] == ["seen\n"]
assert python.run(code="x * 7")["text"] == "42"
assert python.run(code="1 / 0")["error"]["name"] == "ZeroDivisionError"
python.close()
ran = E2BExecTool().run(command="python3 -c 'print(6 * 7)'")
assert (ran["exit_code"], ran["stdout"]) == (0, "42\n"), ran
files = E2BFileTool(persistent=True)
# Its "append" gives the newest SDK a bytearray, which that refuses before anything is sent.
files.run(action="write", path="/home/user/a.txt", content="one two")
assert "one two" in str(files.run(action="read", path="/home/user/a.txt"))
files.close()
