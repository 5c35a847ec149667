"""openai-agents: a sandbox agent's session by `E2BSandboxClient`, which asks for pausing in time and resuming by itself."""

import asyncio
import io
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions, E2BSandboxType
from agents.sandbox import Manifest


async def main():
    client = E2BSandboxClient()
    options = E2BSandboxClientOptions(sandbox_type=E2BSandboxType.CODE_INTERPRETER, timeout=60)
    session = await client.create(manifest=Manifest(root="/home/user/workspace"), options=options)
    try:
        await session.start()
        await session.write(Path("in.txt"), io.BytesIO(b"one\ntwo\n"))
        ran = await session.exec("wc -l < in.txt; python3 -c 'print(6 * 7)'")
        assert ran.exit_code == 0 and ran.stdout.decode().split() == ["2", "42"], ran
        assert (await session.read(Path("in.txt"))).read() == b"one\ntwo\n"
        kept = await session.persist_workspace()
        assert kept.read(2)
        await session.stop()
        resumed = await client.resume(session.state)
        await resumed.start()
        assert (await resumed.read(Path("in.txt"))).read() == b"one\ntwo\n"
    finally:
        await client.delete(session)


asyncio.run(main())
