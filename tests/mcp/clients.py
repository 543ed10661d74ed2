"""The SDK's own client for tests, in both generations of the protocol. Who imports this is skipped without the SDK."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.daemons import KEY, RunningDaemon

_REASON = "the extra shelld-py[mcp] is not installed"
mcp = pytest.importorskip("mcp", reason=_REASON)
_transport = pytest.importorskip("mcp.client.streamable_http", reason=_REASON)
_http = pytest.importorskip("httpx2", reason=_REASON)

VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
"""How the client is told to connect, and which version it then speaks: by handshake, or as it likes best."""

each_generation = pytest.mark.parametrize("mode", VERSIONS)


@contextlib.asynccontextmanager
async def connected(daemon: RunningDaemon, mode: str = "auto", key: str | None = KEY) -> AsyncIterator[Any]:
    """A client that is connected to a daemon."""
    headers = {"X-Shell-Key": key} if key is not None else {}
    async with _http.AsyncClient(headers=headers, timeout=120) as http:
        transport = _transport.streamable_http_client(f"{daemon.url}/mcp", http_client=http)
        async with mcp.Client(transport, mode=mode) as client:
            yield client


def with_client(daemon: RunningDaemon, mode: str, test: Callable[[Any], Awaitable[None]]) -> None:
    """Run `test` with a connected client."""

    async def body() -> None:
        async with asyncio.timeout(60), connected(daemon, mode) as client:
            assert client.protocol_version == VERSIONS[mode]
            await test(client)

    asyncio.run(body())


def text_of(result: Any) -> str:
    """Return the one text of a result."""
    (content,) = result.content
    assert content.type == "text"
    return content.text
