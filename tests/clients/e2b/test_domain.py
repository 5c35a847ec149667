"""Clients that reach sandboxes at `https://PORT-ID.DOMAIN`, unchanged, through a proxy with a certificate: the SDKs of today, the generation
before, and one that knows no other way. `PROXY=nginx` or `PROXY=caddy` takes that program with the configuration of the guide."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Server

HERE = Path(__file__).parent
# Below localhost, since the SDK of today asks a resolver of its own, which knows those names.
NAME = "sandboxes.localhost"


@contextmanager
def running(command):
    """A program, and the first line that it prints."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def domain(tmp_path_factory):
    """The variables by which clients find a server at a domain. It has a key: without one, none is answered but who calls it localhost."""
    directory = tmp_path_factory.mktemp("domain")
    with Server("[sandbox]\npool = 0\n") as server:
        key = server.key("domain").replace("sk-aludel-", "e2b_")
        proxy = [os.environ["PROXY"]] if "PROXY" in os.environ else []
        command = [sys.executable, HERE / "domain.py", NAME, server.url.rsplit(":")[-1], directory, *proxy]
        with running(command) as port:
            authority = str(directory / "ca.pem")
            variables = {key: value for key, value in os.environ.items() if not key.startswith("E2B_")}
            own = {"E2B_DOMAIN": f"{NAME}:{port}", "E2B_API_KEY": key, "SSL_CERT_FILE": authority, "NODE_EXTRA_CA_CERTS": authority}
            yield {**variables, **own}


@pytest.mark.parametrize("client", ["", "OLD_CLIENT", "FIRST_CLIENT"])
def test_python_by_host_names(domain, client):
    packages = [os.environ[client]] if client else []
    subprocess.run([sys.executable, HERE / "domain_client.py", *packages], env=domain, check=True, timeout=120)


def test_node_by_host_names(domain):
    if "NODE_CLIENTS" not in os.environ:
        pytest.skip("npm is not installed")
    program = Path(os.environ["NODE_CLIENTS"]) / "domain.mjs"
    program.write_text((HERE / "domain.mjs").read_text())
    subprocess.run(["node", program], env=domain, check=True, timeout=120)
