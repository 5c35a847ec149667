"""Lets the tests that Anthropic's Python client has of the API run against a server that has state.

They ask for things by fixed ids, on a server where nothing was made. This stands between them and the server: it makes what a request names,
puts the real id in, and passes everything else on as it is. The answers come back unchanged.
"""

import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SERVER = sys.argv[1]
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nx\r\n--b--\r\n'


def file():
    headers = {"content-type": "multipart/form-data; boundary=b", "anthropic-version": "2023-06-01"}
    with urllib.request.urlopen(urllib.request.Request(SERVER + "/v1/files", FILE, headers)) as answer:
        return json.load(answer)["id"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.path.replace("/v1/models/model_id", "/v1/models/scripted")
        if "/v1/files/file_id" in path:
            path = path.replace("file_id", file())
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if body.startswith(b"{"):
            body = json.dumps({**json.loads(body), "model": "scripted"}).encode()
        dropped = ("host", "content-length", "connection", "accept-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        request = urllib.request.Request(SERVER + path, body or None, headers, method=self.command)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_DELETE = do_GET

    def log_message(self, *_):
        pass


class Listener(ThreadingHTTPServer):
    request_queue_size = 100
    daemon_threads = True


if __name__ == "__main__":
    listener = Listener(("127.0.0.1", 0), Handler)
    print(listener.server_address[1], flush=True)
    listener.serve_forever()
