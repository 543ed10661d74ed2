"""Inspect AI's own checks of a sandbox (scripts/test-integrations runs them)."""

import pytest_asyncio
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - they are its tests

from shelld_py.integrations.inspect import ShelldSandbox


@pytest_asyncio.fixture
async def sandbox_env():
    environments = await ShelldSandbox.sample_init("task", None, {})
    yield environments["default"]
    await ShelldSandbox.sample_cleanup("task", None, environments, interrupted=False)
