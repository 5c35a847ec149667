"""langchain-e2b: the sandbox of deep agents, with its commands and files."""

from e2b import Sandbox
from langchain_e2b import E2BSandbox

with Sandbox.create() as created:
    backend = E2BSandbox(sandbox=created)
    ran = backend.execute("python3 -c 'print(6 * 7)'")
    assert (ran.output.strip(), ran.exit_code) == ("42", 0), ran
    [uploaded] = backend.upload_files([("/home/user/in.txt", b"one\ntwo\n")])
    assert uploaded.error is None, uploaded
    assert "two" in str(backend.read("/home/user/in.txt"))
    assert backend.edit("/home/user/in.txt", "two", "three").error is None
    [downloaded] = backend.download_files(["/home/user/in.txt"])
    assert downloaded.content == b"one\nthree\n", downloaded
    assert "in.txt" in str(backend.ls("/home/user"))
    assert "in.txt" in str(backend.grep("three", "/home/user"))
