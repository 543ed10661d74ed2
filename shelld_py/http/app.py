"""The HTTP application: every endpoint in one table, and what each request passes on its way there.

    RequestLog > Activity > KeyLock > BodyLimit > AnswerRepeats > router > endpoint

A request that one of them refuses goes no further. An error raised anywhere is answered by RequestLog.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from shelld_py.computer import Computer
from shelld_py.errors import NotFound, ShelldError, ShuttingDown
from shelld_py.http import daemon, files, runs, shells, tools
from shelld_py.http.answers import problem_response
from shelld_py.http.endpoint import Services
from shelld_py.http.keylock import KeyHolder, KeyLock, checked_key
from shelld_py.http.middleware import Activity, BodyLimit, RequestLog
from shelld_py.http.repeats import AnswerRepeats, Repeats
from shelld_py.http.requests import Form
from shelld_py.idle import IdleTimer
from shelld_py.mcp.endpoint import METHODS, McpEndpoint

if TYPE_CHECKING:
    from shelld_py.http.socketio import SocketEvents

SOCKET_PATH: Final = "/socket.io/"
MCP_PATH: Final = "/mcp"


ENDPOINTS: Final = (
    *shells.ENDPOINTS, *runs.ENDPOINTS, *files.ENDPOINTS, *tools.ENDPOINTS, *daemon.ENDPOINTS,
)  # fmt: skip
"""Every endpoint, the busiest first."""
TEXT_PATHS: Final = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.default is Form.TEXT)
"""The paths that answer, and fail, in plain text unless JSON is asked for."""
PUBLIC_PATHS: Final = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.public)


def starts_run(path: str) -> bool:
    """Return whether a POST to `path` starts a run."""
    return path in ("/run", "/exec") or (path.startswith("/sessions/") and path.endswith("/run"))


class Application:
    """The ASGI application for one computer and one key."""

    def __init__(
        self,
        computer: Computer,
        keys: KeyHolder,
        idle: IdleTimer,
        *,
        logger: logging.Logger,
        admit: Callable[[], None],
        shut_down: Callable[[], None],
    ) -> None:
        """`admit` is called for each request with the right key and may refuse it; `shut_down` ends the daemon."""
        self._computer = computer
        self._idle = idle
        self._keys = keys
        self._logger = logger
        self._admit = admit
        repeats = Repeats(time.monotonic)

        def reset() -> None:
            keys.forget()
            repeats.clear()
            if self._socket_events:
                self._socket_events.drop_clients()
            if self._mcp:
                self._mcp.end_sessions()

        services = Services(computer, repeats, idle, reset, shut_down, ENDPOINTS)
        self._socket_events = self._served_events(services) if computer.settings.server.socketio else None
        self._mcp = McpEndpoint(computer, lambda: services.toolbox, logger) if computer.settings.server.mcp else None
        self.routes = [
            Route(endpoint.path, partial(endpoint.__call__, services), methods=[endpoint.method])
            for endpoint in ENDPOINTS
        ]
        if self._socket_events:
            self.routes.append(Route(SOCKET_PATH, self._socket_events, methods=["GET", "POST"]))
        if self._mcp:
            self.routes.append(Route(MCP_PATH, self._mcp, methods=METHODS))
        app: ASGIApp = Router(self.routes, redirect_slashes=False)
        app = AnswerRepeats(app, repeats=repeats, starts_run=starts_run)
        app = BodyLimit(app, limit=computer.settings.server.max_body)
        app = KeyLock(app, holder=keys, routes=self.routes, public=PUBLIC_PATHS, continues=self._continues)
        app = Activity(app, begin=self._begin, end=idle.end)
        self._app = RequestLog(app, logger=logger, text_paths=TEXT_PATHS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope. `app` in the scope makes the router raise rather than answer."""
        scope["app"] = self
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def aclose(self) -> None:
        """Part with the clients that are connected for longer than a request."""
        if self._socket_events:
            await self._socket_events.aclose()
        if self._mcp:
            await self._mcp.aclose()

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket, which is open for Socket.IO alone, if its handshake has the key.

        As long as it is connected it counts as a request. A refusal is an answer to the handshake.
        """
        try:
            known = self._continues(scope)
            key = b"" if known else checked_key(scope, self._keys)
            if self._socket_events is None or scope["path"] != SOCKET_PATH:
                raise NotFound(f"There is no path {scope['path']} for a WebSocket.")
            if not known:
                self._keys.lock(key)
            self._begin()
        except ShelldError as error:
            self._logger.info("WEBSOCKET %s %d", quote(scope["path"]), error.status)
            await problem_response(error, as_text=False)(scope, receive, send)
            return
        self._logger.info("WEBSOCKET %s connected", SOCKET_PATH)
        try:
            with contextlib.suppress(ShuttingDown):
                await self._socket_events(scope, receive, send)
        finally:
            self._idle.end()
            self._logger.info("WEBSOCKET %s disconnected", SOCKET_PATH)

    def _continues(self, scope: Scope) -> bool:
        """Return whether a request belongs to a connection of Socket.IO that was opened with the key."""
        events = self._socket_events
        return events is not None and scope["path"] == SOCKET_PATH and events.knows(scope)

    def _served_events(self, services: Services) -> "SocketEvents":
        from shelld_py.http.socketio import SocketEvents

        return SocketEvents(
            lambda: services.toolbox,
            logger=self._logger,
            begin=self._begin,
            end=self._idle.end,
            max_message=self._computer.settings.server.max_body,
        )

    def _begin(self) -> None:
        if self._computer.resetting:
            raise ShuttingDown("The daemon is being made new for the next client.")
        self._admit()
        self._idle.begin()
