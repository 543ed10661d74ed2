"""Inspect AI's own checks of a sandbox (scripts/test-integrations runs them)."""

import os

import pytest
import pytest_asyncio
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - they are its tests

from shelld_py.errors import InvalidRequest
from shelld_py.integrations.inspect import ShelldSandbox


@pytest_asyncio.fixture
async def sandbox_env():
    environments = await ShelldSandbox.sample_init("task", None, {})
    yield environments["default"]
    await ShelldSandbox.sample_cleanup("task", None, environments, interrupted=False)


async def test_only_an_unknown_user_is_a_program_that_cannot_be_run(sandbox_env):
    """Any other fault of the request is the caller's to hear of, with a user or without."""
    if os.geteuid():
        pytest.skip("only root can run programs as somebody else")
    assert (await sandbox_env.exec(["true"], user="nosuch")).returncode == 126
    with pytest.raises(InvalidRequest, match="directory"):
        await sandbox_env.exec(["true"], user="nobody", cwd="/nowhere")
