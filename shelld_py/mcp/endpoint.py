"""The endpoint /mcp: the tools over MCP's streamable HTTP, and the owner of the protocol's sessions.

The protocol itself is the SDK's (the extra `mcp`). It takes longer to import than the daemon takes to start, and as
much memory again: so it is loaded at the first request, in a thread. Knows nothing of tools and of messages.

There is no GET: nothing is ever sent but in answer to a request, and a stream that is open for nothing would keep the
daemon from being idle (streamable HTTP lets a server refuse it with 405).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Receive, Scope, Send

from shelld_py.computer import Computer

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from shelld_py.tools.catalogue import Toolbox

METHODS: Final = ("POST", "DELETE")

_LAST_ANSWERS: Final = 2.0
"""Seconds for calls that are still being answered when all is over."""


class McpEndpoint:
    """The ASGI application at /mcp."""

    def __init__(self, computer: Computer, toolbox: "Callable[[], Toolbox]", logger: logging.Logger) -> None:
        self._computer = computer
        self._toolbox = toolbox
        self._logger = logger
        self._opening: asyncio.Task[_Sessions] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._requests: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = asyncio.current_task()
        assert request is not None
        self._requests.add(request)
        try:
            sessions = await self._opened()
            await sessions.manager.handle_request(scope, receive, send)
        finally:
            self._requests.discard(request)

    def end_sessions(self) -> None:
        """End all sessions: who comes next begins anew."""
        opening, self._opening = self._opening, None
        if opening is not None:
            ending = asyncio.get_running_loop().create_task(_end(opening))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def aclose(self) -> None:
        """End all sessions, after the last answers; no new request comes."""
        if self._requests:
            await asyncio.wait(self._requests, timeout=_LAST_ANSWERS)
        self.end_sessions()
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def _opened(self) -> "_Sessions":
        """Return the sessions, begun if need be."""
        if self._opening is None or _failed(self._opening):
            self._opening = asyncio.get_running_loop().create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> "_Sessions":
        protocol = await asyncio.to_thread(import_module, "shelld_py.mcp.server")
        sessions = _Sessions(protocol.session_manager(self._computer, self._toolbox(), self._logger))
        await sessions.begin()
        return sessions


class _Sessions:
    """The sessions of one client of the daemon.

    They live in a task of their own, since the SDK's task group has to be left by the task that has entered it.
    """

    def __init__(self, manager: "StreamableHTTPSessionManager") -> None:
        self.manager = manager
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Make requests possible. Raises what hinders it."""
        loop = asyncio.get_running_loop()
        self._life = loop.create_task(self._live())
        begun = loop.create_task(self._begun.wait())
        await asyncio.wait({self._life, begun}, return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            begun.cancel()
            await self._life

    async def end(self) -> None:
        """End every session, and what it still does."""
        self._over.set()
        if self._life is not None:
            await self._life

    async def _live(self) -> None:
        async with self.manager.run():
            self._begun.set()
            await self._over.wait()


async def _end(opening: "asyncio.Task[_Sessions]") -> None:
    with contextlib.suppress(Exception):
        await (await opening).end()


def _failed(task: "asyncio.Task[_Sessions]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
