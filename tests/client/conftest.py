"""Fixtures: both clients, called in the same way, for one daemon."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shelld_py import AsyncClient, Client
from tests.api.conftest import Gate, start_daemon
from tests.client.proxies import Blocking
from tests.daemons import KEY, RunningDaemon

Connect = Callable[..., Any]
__all__ = ["start_daemon"]


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """A function that makes a client for a URL: once the blocking one, once the one for asyncio."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())

        def make(url: str, key: str | None = KEY, **options: Any) -> Any:
            if request.param == "sync":
                return stack.enter_context(Client(url, key, **options))

            async def opened() -> AsyncClient:
                return AsyncClient(url, key, **options)

            return stack.enter_context(Blocking(runner.run(opened()), runner))

        yield make


@pytest.fixture
def client(connect: Connect, daemon: RunningDaemon) -> Any:
    """A client for the shared daemon, whose shell is fresh."""
    return connect(daemon.url)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A place for a command to wait at."""
    return Gate(tmp_path / "gate")
