"""Gives a command an input where the service has none. Its input is posted to a port, and its output is printed as base64.

The arguments are a secret that each request brings, and the command. The first line is the number of the port; every line ends with a full stop.
"""

import base64
import http.server
import os
import subprocess
import sys
import threading

# Bytes of one request.
MAX_BODY = 4 << 20
# Bytes of one line, before they are base64.
MAX_PIECE = 24 << 10


class Handler(http.server.BaseHTTPRequestHandler):
    """Requests: POST brings bytes that begin at `x-position`, DELETE ends the input."""

    protocol_version = "HTTP/1.1"
    secret = None
    child = None
    lock = threading.Lock()
    # Bytes of input so far. A request that comes twice is told by it.
    position = 0

    def do_POST(self):
        length, position = (int(self.headers.get(name, 0)) for name in ("content-length", "x-position"))
        if not self.is_known() or not 0 <= length <= MAX_BODY:
            self.close_connection = True
            return self.answer(403)
        body = self.rfile.read(length)
        with self.lock:
            rest = body[max(Handler.position - position, 0) :]
            if position > Handler.position or len(body) < length:
                return self.answer(409)
            try:
                while rest:
                    written = self.child.stdin.write(rest)
                    Handler.position += written
                    rest = rest[written:]
            except (OSError, ValueError):
                return self.answer(410)
        self.answer(204)

    def do_DELETE(self):
        if not self.is_known():
            return self.answer(403)
        with self.lock:
            self.child.stdin.close()
        self.answer(204)

    def is_known(self):
        return self.headers.get("x-aludel-token") == self.secret

    def answer(self, status):
        self.send_response_only(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def tell(line):
    print(line, end=".\n", flush=True)


def main():
    _, Handler.secret, *arguments = sys.argv
    Handler.child = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tell(server.server_port)
    output = Handler.child.stdout.fileno()
    while piece := os.read(output, MAX_PIECE):
        tell(base64.b64encode(piece).decode())
    status = Handler.child.wait()
    sys.stdout.flush()
    os._exit(status if status >= 0 else 128 - status)


main()
