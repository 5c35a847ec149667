"""Names below a domain, with a certificate, for a server: `domain.py NAME PORT DIRECTORY [nginx | caddy]`. Makes an authority of its own in the
directory (`ca.pem`) and a certificate for `*.NAME`, and hands everything on to the server's port; by nginx or Caddy, with the configuration of the
guide, if one is named. Prints its own port. The names lead here only for clients that resolve them so."""

import asyncio
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

GUIDE = Path(__file__).parents[3] / "docs/guide/sandboxes.md"


def certify(name, directory):
    """Makes the authority and the certificate. Returns the paths of the certificate and its key."""

    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=directory)

    key = ["-newkey", "rsa:2048", "-nodes"]
    openssl("req", "-x509", *key, "-days", 2, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *key, "-subj", f"/CN={name}", "-keyout", "key.pem", "-out", "request")
    (directory / "names").write_text(f"subjectAltName=DNS:*.{name}\n")
    authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    openssl("x509", "-req", "-in", "request", *authority, "-days", 2, "-extfile", "names", "-out", "certificate.pem")
    return directory / "certificate.pem", directory / "key.pem"


async def copy(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def hand_on(port, certificate, key):
    """A proxy that takes the encryption away and changes nothing."""

    async def serve(reader, writer):
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def of_guide(proxy, name, port, directory, own):
    """The configuration of the guide with these names and ports, and the command that takes it."""
    text = re.search(rf"```{proxy}file\n(.*?)```" if proxy == "caddy" else rf"```{proxy}\n(.*?)```", GUIDE.read_text(), re.S)[1]
    for theirs, ours in {
        "sandboxes.example.com": name,
        "127.0.0.1:8080": f"127.0.0.1:{port}",
        "/etc/ssl/sandboxes.pem": str(directory / "certificate.pem"),
        "/etc/ssl/sandboxes.key": str(directory / "key.pem"),
        "listen 443 ssl": f"listen 127.0.0.1:{own} ssl",
    }.items():
        text = text.replace(theirs, ours)
    file = directory / proxy
    if proxy == "caddy":
        file.write_text("{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + text.replace(f"*.{name} {{", f"*.{name}:{own} {{"))
        return ["caddy", "run", "--adapter", "caddyfile", "--config", file]
    paths = "".join(f"{kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file.write_text(f"daemon off;\npid {directory}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{text}}}\n")
    return ["nginx", "-e", "stderr", "-c", file]


def main(name, port, directory, proxy=None):
    directory = Path(directory)
    certificate, key = certify(name, directory)
    if proxy is None:
        asyncio.run(hand_on(int(port), certificate, key))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = listener.getsockname()[1]
    process = subprocess.Popen(of_guide(proxy, name, port, directory, own), stdout=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    for _ in range(100):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", own)) == 0:
                break
        time.sleep(0.1)
    print(own, flush=True)
    sys.exit(process.wait())


if __name__ == "__main__":
    main(*sys.argv[1:])
