"""A client of E2B's that knows `E2B_DOMAIN` alone: `domain_client.py [DIRECTORY OF THE SDK]`."""

import os
import socket
import sys
import time
import urllib.error
import urllib.request

sys.path[:0] = sys.argv[1:]
domain = os.environ["E2B_DOMAIN"].split(":")[0]
usual = socket.getaddrinfo


def getaddrinfo(host, *rest, **options):
    """A resolver that knows the domain."""
    name = host.decode() if isinstance(host, bytes) else host
    return usual("127.0.0.1" if name and name.endswith(f".{domain}") else host, *rest, **options)


socket.getaddrinfo = getaddrinfo

from e2b_code_interpreter import Sandbox  # noqa: E402


def page(address):
    """The page at an address, once somebody serves it."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(address) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code != 502:
                raise
        time.sleep(0.1)
    raise TimeoutError(address)


with Sandbox.create(timeout=60) as sandbox:
    assert sandbox.run_code("x = 1; x + 1").text == "2"
    assert sandbox.run_code("print(x)").logs.stdout == ["1\n"]
    assert sandbox.run_code("x", context=sandbox.create_code_context()).error.name == "NameError"
    sandbox.files.write("a/b.txt", "content")
    assert sandbox.files.read("a/b.txt") == "content"
    assert [entry.name for entry in sandbox.files.list("a")] == ["b.txt"]
    assert sandbox.commands.run("cat a/b.txt").stdout == "content"
    told = []
    sandbox.commands.run("echo first; sleep 0.5; echo second", on_stdout=told.append)
    assert told == ["first\n", "second\n"], told
    sandbox.commands.run("python3 -m http.server 8000 --directory a", background=True)
    assert page(f"https://{sandbox.get_host(8000)}/b.txt") == "content"
    assert page(sandbox.download_url("a/b.txt", "user")) == "content"
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.is_running() and again.run_code("x").text == "1"
    assert sandbox.sandbox_id in [known.sandbox_id for known in Sandbox.list().next_items()]
    assert sandbox.kill() and not again.is_running()
