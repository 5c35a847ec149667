"""Inspect's own conformance check of sandboxes, against aludel."""

import pytest_asyncio
import pytest
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from aludel_inspect import AludelSandbox

# Features that aludel does not offer on purpose.
REFUSED = {"test_exec_as_user": "there is one user in a sandbox, and it is never root"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared():
    await AludelSandbox.task_init("self_check", None)
    environments = await AludelSandbox.sample_init("self_check", None, {})
    yield environments["default"]
    await AludelSandbox.sample_cleanup("self_check", None, environments, False)
    await AludelSandbox.task_cleanup("self_check", None, True)


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox_env(shared, request):
    if reason := REFUSED.get(request.node.originalname):
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    yield shared
