"""A scripted model behind the Chat Completions API, streaming like the real ones.

What it answers depends on the conversation alone: the last message of the user chooses the script, the number of tool outputs since then
the step in it. So it needs no state, and tests can run side by side.
"""

import json
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHART = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"
SALES = """import pandas as pd
import matplotlib.pyplot as plt
sales = pd.read_csv('/mnt/data/sales.csv', parse_dates=['date'])
monthly = sales.groupby(sales.date.dt.strftime('%Y-%m')).amount.sum()
monthly.plot.bar()
plt.savefig('/mnt/data/monthly.png')
plt.show()
monthly.to_csv('/mnt/data/monthly.csv')
print(monthly.to_string())"""


ANALYST = """import pandas as pd
import matplotlib.pyplot as plt
sales = pd.read_csv('/mnt/data/sales.csv', parse_dates=['date'])
report = sales.groupby(sales.date.dt.strftime('%Y-%m')).amount.agg(['sum', 'mean', 'count'])
report['growth'] = report['sum'].pct_change().round(3)
report['sum'].plot.bar()
plt.savefig('/mnt/data/report.png')
plt.close()
report.to_csv('/mnt/data/report.csv')
report.to_excel('/mnt/data/report.xlsx')
print(report.to_string())"""


def bash(command):
    return {"name": "bash_code_execution", "arguments": {"command": command}}


def edit(command, **arguments):
    return {"name": "text_editor_code_execution", "arguments": {"command": command, **arguments}}


# By a word of the question: steps, each a program or, last, a text in which {output} is what the last program put out.
SCRIPTS = {
    "factorial of 7": ["import math\nmath.factorial(7)", "The factorial of 7 is {output}."],
    "2**20": ["2**20", "2**20 is {output}."],
    "first 100 primes": [
        "primes = []\nn = 2\nwhile len(primes) < 100:\n    if all(n % p for p in primes): primes.append(n)\n    n += 1\nprint(sum(primes))",
        "The sum of the first 100 primes is {output}.",
    ],
    "first 6 primes": ["import math\nprint(math.prod([2, 3, 5, 7, 11, 13]))", "{output}"],
    "financial report": [
        ANALYST,
        "See [the table](sandbox:/mnt/data/report.csv), [the chart](sandbox:/mnt/data/report.png) and "
        "[the workbook](sandbox:/mnt/data/report.xlsx).",
    ],
    "region of sales": ["import os\nprint(os.environ['REGION'])", "It is for the {output}."],
    "sales.csv": [SALES, "It’s done: [the table](sandbox:/mnt/data/monthly.csv) has the sums by month, and the chart shows them."],
    "a chart": [CHART, "Here is the chart."],
    "two programs": ["x = 20", "print(x + 1)", "x plus one is {output}."],
    "fails first": ["import os\n1 / 0", "print('mended')", "It is {output}."],
    "three programs and a link": [
        "sums = [7, 5, 9]\nsum(sums)",
        "open('/mnt/data/sums.csv', 'w').write('7,5,9')",
        "sums[:2]",
        "Here’s the file: [the sums](sandbox:/mnt/data/sums.csv).",
    ],
    "set y": ["y = 'kept'", "y is set."],
    "get y": ["print(y)", "y is {output}."],
    "write a file": ["open('/mnt/data/note.txt', 'w').write('a note')\nprint('written')", "See sandbox:/mnt/data/note.txt"],
    "read the file": ["print(open('/mnt/data/note.txt').read())", "It says {output}."],
    "runs long": ["import time\nprint('on', flush=True)\ntime.sleep(20)\nopen('/mnt/data/late.txt', 'w')", "It took long."],
    "naps": ["import time\nopen('nap.txt', 'w').write('z' * 1000)\ntime.sleep(0.3)", "I slept."],
    "rests and counts": [
        "import os, time\ntime.sleep(1.5)\nn = len([f for f in os.listdir() if f.startswith('run')])\nopen(f'run{n}', 'w')\nprint(n + 1)",
        "Run {output} times.",
    ],
    "counts slowly": ["import time\nfor n in range(10): print(n, flush=True); time.sleep(0.05)", "Counted to {output}."],
    "dies": ["import os\nos.abort()", "It died."],
    "count": ["import os\nn = len([f for f in os.listdir() if f.startswith('run')])\nopen(f'run{n}', 'w')\nprint(n + 1)", "Run {output} times."],
    "weather": [{"name": "get_weather", "arguments": {"city": "Paris"}}, "It is {output} in Paris."],
    "runs and asks": [
        ["x = 6 * 7\nprint(x)", {"name": "get_weather", "arguments": {"city": "Paris"}}],
        "print(x + 1)",
        "Both: {output}.",
    ],
    "talks first": [["Let me compute. ", "print(40 + 2)"], "It is {output}."],
    "two at once": [["a = 5\nprint(a)", "print(a + 1)"], "Last: {output}."],
    "silent": ["pass", "Nothing was printed."],
    "stderr": ["import sys\nprint('to err', file=sys.stderr)\n2 + 2", "Seen: {output}."],
    "runs a command": ["import os\nos.system('id')", "print('mended')", "It is {output}."],
    "hides it": ["import os as o", "o.system('id')", "It is {output}."],
    "asks the network": ["import socket", "There is one."],
    "bad arguments": [{"name": "python", "arguments": [1]}, "I could not run it."],
    "unknown tool": [{"name": "no_such_tool", "arguments": {}}, "There is none."],
    "asks a price": ["n = await get_price({'item': 'tea'})\nprint('tea costs', n)", "It says {output}."],
    "asks three prices": [
        "import asyncio\nprint('asking')\nprices = await asyncio.gather(*(get_price({'item': item}) for item in ('tea', 'milk', 'rice')))\n"
        "print(sum(map(int, prices)))",
        "They cost {output}.",
    ],
    "asks price by price": [
        "total = 0\nfor item in ('tea', 'milk', 'rice'):\n    total += int(await get_price({'item': item}))\n    print(item, total)",
        "print('still', total)",
        "All is {output}.",
    ],
    "asks a wrong price": [
        "try:\n    await get_price({'item': 'gold'})\nexcept ToolError as error:\n    print('caught:', error)\nawait get_price({'item': 'gold'})",
        "It failed.",
    ],
    "asks and fails": ["price = int(await get_price({'item': 'tea'}))\nprint(price)\nprice / 0", "print(price)", "It was {output}."],
    "asks, then runs": [["a = await get_price({'item': 'tea'})\nprint(a)", "print('second', a)"], "Last: {output}."],
    "asks, and its kernel ends": [
        "import os, threading\nprint('dying')\nthreading.Timer(0.2, lambda: os._exit(3)).start()\nawait get_price({'item': 'tea'})",
        "It died.",
    ],
    "asks without await": ["price = get_price({'item': 'tea'})\nprint(int(price))", "It failed."],
    "asks after the cell": ["print('get_price' in globals())", "{output}"],
    "uses the shell": [bash("echo \"it's\"; echo err >&2; echo kept > kept.txt; exit 3"), bash("cat kept.txt"), "It ended."],
    "edits a file": [
        edit("create", path="notes/a.txt", file_text="one\ntwo \"2\"\nthree\n"),
        edit("str_replace", path="notes/a.txt", old_str="two \"2\"", new_str="zwei\ndrei"),
        edit("view", path="/mnt/data/notes/a.txt", view_range=[2, 3]),
        edit("view", path="notes"),
        "print(open('notes/a.txt').read())",
        "It is edited.",
    ],
    "edits in vain": [
        edit("view", path="nowhere.txt"),
        edit("create", path="b.txt", file_text="x x"),
        edit("str_replace", path="b.txt", old_str="x", new_str="y"),
        edit("move", path="b.txt"),
        "It is not edited.",
    ],
    "sleeps in the shell": [bash("echo on; sleep 20"), "It slept."],
    "always calls": ["print('forced')"] * 50,
    "loops": ["print(1)"] * 50,
    "prints much": ["for _ in range(20): print('x' * 100000)", "x" * 3_000_000],
    "who am I": ["name = QUESTION[-1]\nopen('/mnt/data/' + name + '.txt', 'w').write(name)\nprint(name)", "You are {output}."],
}
SCRIPTS["milk and rice cost"] = SCRIPTS["asks three prices"]


def last_question(messages):
    for place in range(len(messages) - 1, -1, -1):
        if messages[place]["role"] == "user":
            content = messages[place]["content"]
            text = content if isinstance(content, str) else " ".join(p.get("text", "") for p in content)
            # The server names the files of the container.
            return place, re.sub(r"\s*\[Files now: [^]]*]", "", text)
    return -1, ""


def text_of(message):
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def printed(text):
    """Returns the text between the marks of an observation: its first section."""
    lines = text.splitlines()
    kept, inside = [], False
    for line in lines:
        if re.match(r"^\W*(stdout|result)\b", line.strip("[]<>#= ")) or "stdout" in line[:40] or "result" in line[:40]:
            inside = True
            continue
        if inside and (not line.strip() or line.startswith(("<", "[", "#", "=", "-"))):
            break
        if inside:
            kept.append(line)
    return " ".join(kept).strip() or text.strip()


def reply(body):
    place, question = last_question(body["messages"])
    outputs = [message for message in body["messages"][place + 1 :] if message["role"] == "tool"]
    script = next((steps for words, steps in SCRIPTS.items() if words in question), None)
    if body.get("tool_choice") == "none":
        return "Enough."
    if script is None or not body.get("tools") and any(isinstance(step, dict) for step in script):
        return f"You said: {question}"
    # A step may be several calls: what was put out counts for as many.
    place, seen = 0, len(outputs)
    while seen > 0 and place < len(script) - 1:
        seen -= sum(not is_said(call) for call in script[place]) if isinstance(script[place], list) else 1
        place += 1
    step = script[place]
    is_last = place == len(script) - 1
    if "always calls" in question:
        return "I was not forced." if body.get("tool_choice", "auto") == "auto" and outputs else program(step, question)
    if is_last and isinstance(step, str) and "loops" not in question:
        return step.replace("{output}", printed(text_of(outputs[-1]))) if outputs else step
    return step if isinstance(step, list) else program(step, question)


def unanswered(messages):
    """The calls that are not answered right behind them, which OpenAI refuses."""
    open = set()
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            open.discard(message["tool_call_id"])
        elif open:
            return open
        else:
            open = {call["id"] for call in message.get("tool_calls") or []}
    return open


def is_said(call):
    return isinstance(call, str) and call.endswith(". ")


def program(step, question):
    return step if isinstance(step, dict) else {"name": "python", "arguments": {"code": step.replace("QUESTION", repr(question.split()))}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Pieces of a stream are told at once; each answer took 40 ms otherwise.
    disable_nagle_algorithm = True

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if misplaced := unanswered(body["messages"]):
            return self.answer(400, {"error": {"message": f"'tool_calls' must be followed by tool messages: {misplaced}", "type": "x"}})
        _, question = last_question(body["messages"])
        if fault := re.search(r"upstream says (\d+)", question):
            return self.answer(int(fault[1]), {"error": {"message": "scripted", "type": "x"}})
        if "a long story" in question and len(body["messages"]) > 3:
            return self.answer(400, {"error": {"message": "maximum context length exceeded", "type": "x"}})
        if "upstream hangs up" in question:
            self.close_connection = True
            return self.connection.close()
        answer = reply(body)
        if isinstance(answer, str) and "response_format" in body:
            schema = body["response_format"]["json_schema"]
            answer = json.dumps({"schema": schema["name"], "said": answer})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if "think" in question or "ponder" in question:
            for piece in ("Let me ", "see. "):
                self.chunk({"reasoning_content": piece})
            if "think" in question and any("Let me see." in (message.get("reasoning_content") or "") for message in body["messages"]):
                self.chunk({"content": "I remember. "})
        if isinstance(answer, str):
            for piece in re.findall(r".{1,7}", answer, re.S) or [""]:
                self.chunk({"content": piece})
            self.chunk({}, "length" if "stops short" in question else "stop")
        else:
            for index, one in enumerate(answer if isinstance(answer, list) else [answer]):
                if is_said(one):
                    self.chunk({"content": one})
                    continue
                one = program(one, question)
                call = {"index": index, "id": f"call_{time.time_ns()}", "type": "function"}
                self.chunk({"tool_calls": [{**call, "function": {"name": one["name"], "arguments": ""}}]})
                for piece in re.findall(r".{1,11}", json.dumps(one["arguments"]), re.S):
                    self.chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            self.chunk({}, "tool_calls")
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        self.data(json.dumps({**self.base(), "choices": [], "usage": usage}))
        self.data("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def base(self):
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}

    def chunk(self, delta, finish=None):
        choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
        self.data(json.dumps({**self.base(), "choices": [choice]}))

    def data(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def answer(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Listener(ThreadingHTTPServer):
    """Takes as many connections at once as tests make: with five, which is usual, the kernel turned some away, to come again in seconds."""

    request_queue_size = 1000
    daemon_threads = True


if __name__ == "__main__":
    server = Listener(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
