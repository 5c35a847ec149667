"""A model's server that keeps what it was asked, byte by byte, and answers as a test says."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler

from upstream import Listener


class Recorder:
    """`answers` are functions of the handler, one for each request in turn; the last one goes on."""

    def __init__(self, *answers):
        self.answers, self.requests = answers, []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                number = len(recorder.requests)
                recorder.requests.append((self.path, dict(self.headers), body))
                recorder.answers[min(number, len(recorder.answers) - 1)](self)

            def log_message(self, *_):
                pass

        self.server = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        # Interval of checks for its end, in seconds.
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def begin(self, *answers):
        """Forgets what it was asked, and answers as from now on."""
        self.answers, self.requests = answers, []

    def model(self, **more):
        return {"url": f'"{self.url}"', "key": '"sk-upstream"', **more}

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def answers(status, body, headers=()):
    """An answer as it is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(handler):
        handler.send_response(status)
        for name, value in [("content-type", "application/json"), *headers]:
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def streams(*frames, end=True, last=None):
    """Events as they are, one chunk each; without an end the connection breaks off. The last frame waits for an event of the test's: if
    that does not come, the connection breaks off, too."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for frame in frames:
            if last and frame is frames[-1] and not last.wait(60):
                return hangs_up(handler)
            handler.wfile.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
            handler.wfile.flush()
        if end:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            hangs_up(handler)

    return answer


def hangs_up(handler):
    handler.close_connection = True
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)


def hangs(handler):
    time.sleep(30)


def chunk(delta, finish=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'c', 'object': 'chat.completion.chunk', 'created': 1, 'model': 'm', 'choices': [choice]})}\n\n".encode()


def call(code, name="python"):
    return {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps({"code": code})}}]}


def runs(code):
    """The model calls the interpreter."""
    return streams(chunk(call(code)), chunk({}, "tool_calls"), b"data: [DONE]\n\n")


def says(text):
    """The model answers."""
    return streams(chunk({"content": text}), chunk({}, "stop"), b"data: [DONE]\n\n")
