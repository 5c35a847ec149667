"""A stand-in for an OpenSandbox server: as much of its API as LiteLLM uses.

It really runs the programs, in one Python process that lives on, in names of their own for each sandbox. That is less work than any real
sandbox makes, so LiteLLM is not measured with somebody else's cost.
"""

import json
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RUNNER = """
import contextlib, io, json, sys, traceback
names = {}
for line in sys.stdin:
    ask = json.loads(line)
    said, error = io.StringIO(), None
    with contextlib.redirect_stdout(said):
        try:
            exec(compile(ask["code"], "<program>", "exec"), names.setdefault(ask["sandbox"], {}))
        except BaseException as raised:
            error = {"ename": type(raised).__name__, "evalue": str(raised), "traceback": traceback.format_exc().splitlines()}
    print(json.dumps({"stdout": said.getvalue(), "error": error}), flush=True)
"""
runner = subprocess.Popen([sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
turn = threading.Lock()


def execute(sandbox, code):
    with turn:
        print(json.dumps({"sandbox": sandbox, "code": code}), file=runner.stdin, flush=True)
        return json.loads(runner.stdout.readline())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def say(self, status, value):
        self.answer(status, json.dumps(value).encode())

    def body(self):
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def do_POST(self):
        body, parts = self.body(), self.path.strip("/").split("/")
        if self.path == "/v1/sandboxes":
            return self.say(202, sandbox(uuid.uuid4().hex))
        if parts[0] == "at" and parts[-1] == "code":
            done = execute(parts[1], body["code"])
            events = [{"type": "init", "text": uuid.uuid4().hex}]
            if done["stdout"]:
                events.append({"type": "stdout", "text": done["stdout"]})
            events.append({"type": "error", "error": done["error"]} if done["error"] else {"type": "execution_complete", "execution_time": 1})
            # Each event is a bare object: that is how OpenSandbox frames them.
            framed = "".join(json.dumps({"timestamp": 0, **event}) + "\n\n" for event in events)
            return self.answer(200, framed.encode(), "text/event-stream")
        self.say(404, {"code": "NOT_FOUND", "message": self.path})

    def do_GET(self):
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["v1", "sandboxes"] and len(parts) == 3:
            return self.say(200, sandbox(parts[2]))
        if parts[:2] == ["v1", "sandboxes"] and len(parts) == 5 and parts[3] == "endpoints":
            host, port = self.server.server_address
            return self.say(200, {"endpoint": f"{host}:{port}/at/{parts[2]}", "headers": {}})
        self.say(404, {"code": "NOT_FOUND", "message": self.path})

    def do_DELETE(self):
        self.body()
        self.answer(204)


def sandbox(id):
    return {"id": id, "status": {"state": "Running"}, "createdAt": "2026-01-01T00:00:00Z"}


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(f"listening on http://127.0.0.1:{server.server_address[1]}", flush=True)
try:
    server.serve_forever()
finally:
    runner.kill()
