"""As much of OpenSandbox as LiteLLM's interceptor asks for. It really runs the code, in a Python process that is there already: what a
sandbox costs is not counted against LiteLLM here, while aludel's figures have its own sandbox in them."""

import contextlib
import io
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self, status, data, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def json(self, status, value):
        self.answer(status, json.dumps(value).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
        if not self.path.endswith("/code"):
            return self.json(202, {"id": "sbx-1", "status": {"state": "Running"}, "createdAt": "2026-01-01T00:00:00Z", "entrypoint": []})
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(body["code"], {})
        events = [{"type": "init", "text": "e1"}, {"type": "stdout", "text": printed.getvalue()}, {"type": "execution_complete", "execution_time": 1}]
        self.answer(200, b"".join(json.dumps({**event, "timestamp": 1}).encode() + b"\n\n" for event in events), "text/event-stream")

    def do_GET(self):
        if "/endpoints/" in self.path:
            return self.json(200, {"endpoint": f"127.0.0.1:{self.server.server_address[1]}/run", "headers": {}})
        self.json(200, {"id": "sbx-1", "status": {"state": "Running"}, "createdAt": "2026-01-01T00:00:00Z", "entrypoint": []})

    def do_DELETE(self):
        self.answer(204, b"")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
