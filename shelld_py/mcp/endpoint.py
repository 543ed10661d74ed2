"""The endpoint /mcp: the tools over MCP's streamable HTTP, and the owner of the protocol's sessions.

The protocol itself is the SDK's (the extra `mcp`). It takes longer to import than the daemon takes to start, and as
much memory again: so it is loaded at the first request, in a thread. Knows nothing of tools and of messages.

There is no GET: nothing is ever sent but in answer to a request, and a stream that is open for nothing would keep the
daemon from being idle (streamable HTTP lets a server refuse it with 405).
"""

import asyncio
import json
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
ARGUMENTS: Final = "arguments"
"""Where the scope of a request has the arguments of a tool that the SDK was not given: they were large."""
_LARGE: Final = 4 * 1024
"""Bytes of a body from which on it is parsed here, in a thread."""
_LARGEST_MESSAGE: Final = 16 * 1024
"""Bytes of JSON that the SDK is given: it parses and checks them in the event loop, the dearest of this size for 2 ms.
A message without the arguments of a tool has some hundred."""
_NO_JSON: Final = b"?"
"""What the SDK is given in place of a large body that is no JSON, to refuse it in its way."""


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
            body = await large_json.joined(HttpRequest(scope, receive).stream())
            if len(body) > _LARGE:
                body, scope[ARGUMENTS] = await asyncio.to_thread(parted, body)
            receive = _giving(body, receive)
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


def parted(body: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """Return what the SDK is to read of a large body, and the arguments of a tool that were taken out of it.

    Raises `InvalidRequest` where too much is left, or where there are too many small values.
    """
    try:
        message = large_json.decoded(body)
    except large_json.TooManyValues as error:
        raise InvalidRequest(str(error)) from None
    except (ValueError, RecursionError):
        return _NO_JSON, None
    arguments = None
    params = message.get("params") if isinstance(message, dict) else None
    if isinstance(params, dict) and isinstance(params.get("arguments"), dict):
        arguments, params["arguments"] = params["arguments"], {}
    # Looked at before it is written: the encoder would keep the interpreter for as long as a long string takes.
    if _characters(message) <= _LARGEST_MESSAGE:
        try:
            rest = json.dumps(message).encode()
        except RecursionError:
            return _NO_JSON, None
        if len(rest) <= _LARGEST_MESSAGE:
            return rest, arguments
    raise InvalidRequest(f"The message has more than {_LARGEST_MESSAGE} bytes besides the arguments of a tool.")


def _characters(value: object) -> int:
    """Return how many characters all strings of a JSON value have."""
    count = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            count += len(item)
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item
    return count


def _giving(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that has been read already."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return given.pop() if given else await receive()

    return receive_again


def _failed(task: "asyncio.Task[_Sessions]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
