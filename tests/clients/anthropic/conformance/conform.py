"""Runs the tests that Anthropic's Python client has of the API against a real `aludel serve`, and compares with what is known to fail.

    conform.py SDIST
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from conftest import Server, shared  # noqa: E402

import vendor_tests  # noqa: E402

TESTS = [f"{folder}test_{name}.py" for folder in ("", "beta/") for name in ("files", "messages", "models")]


def main():
    with (
        shared.scripted_model() as port,
        Server(port) as server,
        vendor_tests.started(HERE / "placeholders.py", server.url) as port,
    ):
        url = f"http://127.0.0.1:{port}"
        return vendor_tests.run(sys.argv[1], TESTS, url, HERE / "known.txt", "-o", "addopts=-p tests._alias_httpx")


if __name__ == "__main__":
    sys.exit(main())
