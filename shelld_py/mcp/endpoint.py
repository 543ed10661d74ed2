"""The endpoint /mcp: the tools over MCP's streamable HTTP, and the owner of the protocol's sessions.

The protocol itself is the SDK's (the extra `mcp`). It takes longer to import than the daemon takes to start, and as
much memory again: so it is loaded at the first request, in a thread. Knows nothing of tools and of messages.

There is no GET: nothing is ever sent but in answer to a request, and a stream that is open for nothing would keep the
daemon from being idle (streamable HTTP lets a server refuse it with 405).
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request as HttpRequest
from starlette.types import Message, Receive, Scope, Send

from shelld_py import large_json
from shelld_py.computer import Computer
from shelld_py.errors import InvalidRequest

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from shelld_py.tools.catalogue import Toolbox

METHODS: Final = ("POST", "DELETE")
_LARGE: Final = 4 * 1024
"""Bytes of a body from which on it may have more values than the event loop has time for."""


class McpEndpoint:
    """The ASGI application at /mcp."""

    def __init__(self, computer: Computer, toolbox: "Callable[[], Toolbox]", logger: logging.Logger) -> None:
        self._computer = computer
        self._toolbox = toolbox
        self._logger = logger
        self._opening: asyncio.Task[_Sessions] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] == "POST":
            receive = await _checked(scope, receive)
        sessions = await self._opened()
        manager = await sessions.begin()
        await manager.handle_request(scope, receive, send)

    async def end_sessions(self) -> None:
        """End all sessions, and the calls that are still being done: who comes next begins anew."""
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.wait({opening})
            if not _failed(opening):
                await opening.result().end()

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

    def __init__(self, running: "AbstractAsyncContextManager[StreamableHTTPSessionManager]") -> None:
        loop = asyncio.get_running_loop()
        self._running = running
        self._begun: asyncio.Future[StreamableHTTPSessionManager] = loop.create_future()
        self._over = asyncio.Event()
        self._life = loop.create_task(self._live())

    async def begin(self) -> "StreamableHTTPSessionManager":
        """Return what serves requests. Raises what hinders it."""
        waits: set[asyncio.Future[Any]] = {self._life, self._begun}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            self._life.result()
        return self._begun.result()

    async def end(self) -> None:
        """End every session, and what it still does."""
        self._over.set()
        await self._life

    async def _live(self) -> None:
        async with self._running as manager:
            self._begun.set_result(manager)
            await self._over.wait()


async def _checked(scope: Scope, receive: Receive) -> Receive:
    """Read the body, and return what gives it again: the SDK parses it in the event loop. Raises `InvalidRequest`.

    What is no JSON is the SDK's to refuse.
    """
    body = await HttpRequest(scope, receive).body()
    if len(body) > _LARGE:
        try:
            await asyncio.to_thread(large_json.decoded, body)
        except large_json.TooManyValues as error:
            raise InvalidRequest(str(error)) from None
        except (ValueError, RecursionError):
            pass
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return given.pop() if given else await receive()

    return receive_again


def _failed(task: "asyncio.Task[_Sessions]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
