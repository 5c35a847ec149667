"""LiteLLM: one program in a sandbox of each protocol. Its E2B provider goes to `https://49999-ID.DOMAIN`, so a proxy with a certificate stands
before the server, as in the guide."""

import asyncio
import os
import socket

import litellm

TLS, PLAIN = os.environ["TLS_PORT"], os.environ["E2B_API_URL"]
usual = socket.getaddrinfo


def getaddrinfo(host, *rest, **options):
    """A resolver that knows names below localhost, as many do."""
    name = host.decode() if isinstance(host, bytes) else host
    return usual("127.0.0.1" if name and name.endswith(".localhost") else host, *rest, **options)


socket.getaddrinfo = getaddrinfo


async def main():
    tool = litellm.sandbox.main.acode_interpreter_tool
    for provider, base in (("e2b", f"https://api.e2b.localhost:{TLS}"), ("opensandbox", f"{PLAIN}/v1")):
        key = os.environ["ALUDEL_KEY"]
        result = await tool(provider=provider, code="print('seen')\n6 * 7", api_key=key, api_base=base)
        assert "seen" in str(result.stdout), result
        assert "42" in str(result), result
        failed = await tool(provider=provider, code="1 / 0", api_key=key, api_base=base)
        assert "ZeroDivisionError" in str(failed), failed


asyncio.run(main())
