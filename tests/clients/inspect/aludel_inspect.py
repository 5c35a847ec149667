"""Aludel as a sandbox of Inspect (https://inspect.aisi.org.uk): each sample gets one, made by an `aludel sandbox stdio` that runs beside.

Use it with `sandbox="aludel"` after importing this module; the variable ALUDEL names the executable.
"""

import asyncio
import base64
import itertools
import json
import os
import shlex

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)

DIRECTORY = "/mnt/data"
# A line of the protocol may hold a whole file.
MAX_LINE = 1 << 30


class Aludel:
    """A running `aludel sandbox stdio`."""

    def __init__(self, process):
        self.process = process
        self.numbers = itertools.count(1)
        self.waiting = {}
        self.reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls):
        command = [*shlex.split(os.environ.get("ALUDEL", "aludel")), "sandbox", "stdio"]
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=MAX_LINE))

    async def ask(self, request, **content):
        number = next(self.numbers)
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        self.process.stdin.write(json.dumps({"id": number, request: content}).encode() + b"\n")
        await self.process.stdin.drain()
        return await answer

    async def stop(self):
        self.process.stdin.close()
        await self.process.wait()
        await self.reader

    async def _read(self):
        while line := await self.process.stdout.readline():
            answer = json.loads(line)
            waiting = self.waiting.pop(answer["id"], None)
            if waiting is None or waiting.cancelled():
                continue
            if "ok" in answer:
                waiting.set_result(answer["ok"])
            else:
                waiting.set_exception(Refused(**answer["error"]))
        for waiting in self.waiting.values():
            waiting.set_exception(ConnectionError("aludel ended"))


class Refused(Exception):
    """A request that aludel did not carry out, with the reason."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


@sandboxenv(name="aludel")
class AludelSandbox(SandboxEnvironment):
    """One sandbox."""

    engine = None

    def __init__(self, number):
        super().__init__()
        self.number = number

    @classmethod
    async def task_init(cls, task_name, config):
        cls.engine = await Aludel.start()

    @classmethod
    async def task_cleanup(cls, task_name, config, cleanup):
        await cls.engine.stop()

    @classmethod
    async def sample_init(cls, task_name, config, metadata):
        created = await cls.engine.ask("create")
        return {"default": cls(created["sandbox"])}

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted):
        for environment in environments.values():
            await cls.engine.ask("close", sandbox=environment.number)

    async def exec(
        self, cmd, input=None, cwd=None, env=None, user=None, timeout=None, timeout_retry=True, concurrency=True
    ):
        if user is not None:
            raise SandboxUserUnsupportedError("programs in an aludel sandbox run as its one unprivileged user")
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            answer = await self._run(cmd, input or b"", os.path.join(DIRECTORY, cwd or ""), env or {}, timeout, most)
        except Refused as refused:
            if refused.kind != "start":
                raise
            if "Permission denied" in str(refused):
                raise PermissionError(str(refused)) from None
            return ExecResult(False, 127, "", str(refused))
        if answer.get("timed_out"):
            raise TimeoutError
        status = answer["status"] if "status" in answer else 128 + answer["signal"]
        stdout, stderr = (base64.b64decode(answer[name]).decode(errors="replace") for name in ("stdout", "stderr"))
        if answer["dropped"]:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout)
        return ExecResult(status == 0, status, stdout, stderr)

    async def write_file(self, file, contents):
        # The shell says what is wrong in the words of strerror.
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
        answer = await self._run(["sh", "-c", script, "sh", file], contents, DIRECTORY, {}, None, 1 << 20)
        if answer.get("status") != 0:
            raise error_of(file, answer)

    async def read_file(self, file, text=True):
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        answer = await self._run(["cat", "--", file], b"", DIRECTORY, {}, None, limit)
        if answer.get("status") != 0:
            raise error_of(file, answer)
        contents = base64.b64decode(answer["stdout"])
        if answer["dropped"]:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return contents.decode() if text else contents

    async def _run(self, arguments, input, directory, environment, timeout, most):
        data = input.encode() if isinstance(input, str) else input
        return await self.engine.ask(
            "run",
            sandbox=self.number,
            arguments=arguments,
            input=base64.b64encode(data).decode(),
            environment=environment,
            directory=directory,
            timeout_ms=int(timeout * 1000) if timeout else 3_600_000,
            most=most,
        )


def error_of(file, answer):
    message = base64.b64decode(answer["stderr"]).decode(errors="replace").strip()
    for words, error in (
        ("No such file or directory", FileNotFoundError),
        ("nonexistent directory", FileNotFoundError),
        ("Permission denied", PermissionError),
        ("Is a directory", IsADirectoryError),
        ("Not a directory", NotADirectoryError),
    ):
        if words in message:
            return error(f"{file}: {words.lower() if error is IsADirectoryError else words}")
    return OSError(f"{file}: {message}")
