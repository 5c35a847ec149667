"""Runs OpenAI's own API tests (of the Python client's source) against a real `aludel serve`, and compares with what is known to fail.

    conform.py SDIST
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from conftest import Server  # noqa: E402

import vendor_tests  # noqa: E402

TESTS = ["containers", "conversations", "responses", "uploads"]
TESTS += ["beta/test_assistants.py", "beta/test_threads.py", "beta/threads"]
TESTS += [f"test_{name}.py" for name in ("containers", "conversations", "files", "models", "responses", "uploads")]


def main():
    with (
        vendor_tests.started(HERE.parent / "upstream.py") as port,
        Server(port) as server,
        vendor_tests.started(HERE / "placeholders.py", server.url) as port,
    ):
        url = f"http://127.0.0.1:{port}/v1"
        return vendor_tests.run(sys.argv[1], TESTS, url, HERE / "known.txt", "-o", "addopts=", "-n", "3")


if __name__ == "__main__":
    sys.exit(main())
