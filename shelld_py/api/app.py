"""The HTTP application: every endpoint in one table, and the way of a request to it.

    admission > repeats > route > endpoint

A request that one of them refuses goes no further. An error raised anywhere below is answered here, and the log gets
one line for each request.
"""

import asyncio
import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shelld_py.api import (
    about,
    console,
    events,
    files,
    observers,
    ports,
    runs,
    screen,
    shells,
    submission,
    terminal,
    tools,
)
from shelld_py.computer import Computer
from shelld_py.errors import BodyTooLarge, InvalidRequest, NotFound, Overloaded, ShelldError
from shelld_py.http.actions import action, is_action
from shelld_py.http.admission import Admission, Admitted, check_host
from shelld_py.http.answers import MadeResponse, header_pairs, http_date, problem_response
from shelld_py.http.endpoint import Endpoint, Services
from shelld_py.http.exchange import Exchange
from shelld_py.http.keylock import KeyLock
from shelld_py.http.listener import Capacity
from shelld_py.http.repeats import AnswerRepeats, Repeats
from shelld_py.http.requests import Form, header_fields, parent_of_trace, requested_form
from shelld_py.http.routes import RouteTable
from shelld_py.idle import IdleTimer
from shelld_py.imports import OF_STREAMS, execute
from shelld_py.mcp.endpoint import METHODS, McpEndpoint

if TYPE_CHECKING:
    from shelld_py.api.metrics import Metrics
    from shelld_py.api.socketio import SocketEvents
    from shelld_py.http.proxied import ProxiedPorts

SOCKET_PATH: Final = "/socket.io/"
MCP_PATH: Final = "/mcp"

_SANE_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_LONGEST_LOGGED: Final = 1024
"""Characters of a path in a line of the log, which anybody can make be written."""
_NEXT_CLIENT: Final = "The daemon is being made new for the next client."

ENDPOINTS: Final = (
    *submission.ENDPOINTS, *shells.ENDPOINTS, *runs.ENDPOINTS, *screen.ENDPOINTS, *files.ENDPOINTS, *tools.ENDPOINTS,
    *events.ENDPOINTS, *observers.ENDPOINTS, *ports.ENDPOINTS, *terminal.ENDPOINTS, *about.ENDPOINTS,
    *console.ENDPOINTS,
)  # fmt: skip
"""Every endpoint, the busiest first."""
TEXT_PATHS: Final = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.default is Form.TEXT)
"""The paths that answer, and fail, in plain text unless JSON is asked for."""
PROBES: Final = ("/health", "/ready")
"""The paths that are answered whatever host they are asked by: the probes of an orchestrator know an address."""
PUBLIC_PATHS: Final = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.public)
PUBLIC_FILES: Final = "/console/"
"""What the paths of the files begin with that need no key."""


def _logged(path: str) -> str:
    quoted = quote(path[: _LONGEST_LOGGED + 1])
    return quoted if len(quoted) <= _LONGEST_LOGGED else f"{quoted[: _LONGEST_LOGGED - 3]}..."


_UNLIMITED: Final = {
    (item.method, item.path): item.body.unlimited_with.encode()
    for item in ENDPOINTS
    if item.body and (item.body.unlimited or item.body.unlimited_with)
}
"""Methods and paths of bodies of any size; with the parameter that makes them so, where they are not always."""


def _is_public(scope: Scope) -> bool:
    """Return whether a request needs no key."""
    path = scope["path"]
    return (path in PUBLIC_PATHS or path.startswith(PUBLIC_FILES)) and scope["method"] in ("GET", "HEAD")


def starts_run(path: str) -> bool:
    """Return whether a POST to `path` starts a run."""
    return path in ("/run", "/exec") or (path.startswith("/sessions/") and path.endswith("/run"))


def _is_unlimited(scope: Scope) -> bool:
    """Return whether the body of a request may be of any size: it goes to the disk as it comes."""
    parameter = _UNLIMITED.get((scope.get("method", ""), scope["path"]))
    if not parameter:
        return parameter is not None
    return any(part.partition(b"=")[0] == parameter for part in scope["query_string"].split(b"&"))


class Application:
    """The ASGI application for one computer and one key."""

    def __init__(
        self,
        computer: Computer,
        key_lock: KeyLock,
        idle: IdleTimer,
        capacity: Capacity,
        *,
        logger: logging.Logger,
        shut_down: Callable[[], None],
    ) -> None:
        """`shut_down` ends the daemon."""
        self._computer = computer
        self._key_lock = key_lock
        self._logger = logger
        self.metrics: Metrics | None = None
        """Counts requests, if anything does."""
        self._audit = computer.audit
        if self._audit:
            self._audit.current_key = lambda: key_lock.fingerprint
        self._repeats = Repeats(time.monotonic)
        self.proxied = self._proxied_ports() if computer.settings.server.proxy else None
        """The ports that requests are passed on to, if any are."""
        self.admission = Admission(
            key_lock,
            idle,
            computer.settings.server,
            capacity,
            exists=self._exists,
            continues=self._continues,
            looks=self._looks,
            visitor=self.proxied.visitor if self.proxied else lambda _: None,
            unlimited=lambda scope: bool(_is_unlimited(scope) or scope.get("target")),
            passive=frozenset((item.method, item.path) for item in ENDPOINTS if item.passive),
        )
        if self.proxied:
            self.proxied.links.on_end = self.admission.withdraw
        services = Services(
            computer,
            self._repeats,
            idle,
            self._recycle,
            shut_down,
            self.admission.check_open,
            ENDPOINTS,
            key_lock.observers,
            self.proxied,
        )
        self._socket_events = self._served_events(services) if computer.settings.server.socketio else None
        self._mcp = McpEndpoint(computer, lambda: services.toolbox, logger) if computer.settings.server.mcp else None
        served = [
            (each.method, each.path, partial(each.__call__, services))
            for each in (*ENDPOINTS, *_optional_endpoints(computer))
        ]
        others: list[tuple[Sequence[str], str, ASGIApp]] = []
        if self._socket_events:
            others.append((("GET", "POST"), SOCKET_PATH, self._socket_events))
        if self._mcp:
            others.append((METHODS, MCP_PATH, self._mcp))
        self._table = RouteTable(served, others)
        self._streams = False
        """Whether an answer was sent piece by piece."""
        self._repeating = AnswerRepeats(self._table, repeats=self._repeats, starts_run=starts_run)

    @property
    def routes(self) -> list[tuple[str, str]]:
        """The methods and paths of all that is served; HEAD is left out."""
        return self._table.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or a WebSocket for as long as it is connected."""
        scope["app"] = self
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
            return
        started = scope["started"] = time.perf_counter()
        fields = header_fields(scope)
        trace = b"traceparent" in fields and parent_of_trace(scope)
        given = fields.get(b"x-request-id")
        request_id = given if given and _SANE_ID.fullmatch(given) else os.urandom(8).hex().encode()
        status = 0

        def own_lines() -> bytes:
            return b"date: %b\r\nx-request-id: %b\r\n" % (_http_date(int(time.time())), request_id)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *header_pairs(own_lines())]
            await send(message)

        admitted: Admitted | None = None
        error: ShelldError | None = None
        try:
            app: ASGIApp = self._repeating if b"idempotency-key" in fields else self._table
            check: Callable[[Scope], None] | None = None  # of what needs no key
            if self.proxied and self.proxied.takes(scope):
                app = self.proxied
                check = self.admission.check_site if scope["target"] is None else None
            elif _is_public(scope):
                check = check_host if scope["path"] in PROBES else self.admission.check_site
            if check:
                check(scope)
                await app(scope, receive, send_with_id)
            else:
                admitted = self.admission.admit(scope, receive)
                serve = self._table.find(scope) if app is self._table else None
                if serve is None:
                    await app(scope, admitted.receive, send_with_id)
                else:
                    response = await serve(HttpRequest(scope, admitted.receive))
                    exchange = getattr(send, "__self__", None)
                    if (
                        isinstance(response, MadeResponse)
                        and isinstance(exchange, Exchange)
                        and exchange.answer(response.status_code, response.lines + own_lines(), bytes(response.body))
                    ):
                        status = response.status_code
                    else:
                        if isinstance(response, StreamingResponse) and not self._streams:
                            with contextlib.suppress(Overloaded):  # then it holds everybody up, for 18 ms
                                await asyncio.to_thread(execute, OF_STREAMS)
                            self._streams = True
                        await response(scope, admitted.receive, send_with_id)
        except asyncio.CancelledError:
            if admitted is None or admitted.ended is None:
                raise
            admitted.task.uncancel()
            error = admitted.ended
        except ShelldError as refusal:
            error = refusal
        except ClientDisconnect:
            error = InvalidRequest("The connection ended before the body did.")
        except Exception:
            self._logger.exception("request %s: a fault of the daemon", request_id.decode())
            error = ShelldError(f"A fault of the daemon; its log names request {request_id.decode()}.")
        if "upgraded" in scope:
            status = HTTPStatus.SWITCHING_PROTOCOLS
        try:
            if error and not status:
                default = Form.TEXT if scope["path"] in TEXT_PATHS else Form.JSON
                as_text = requested_form(scope, default) is Form.TEXT
                await problem_response(error, as_text=as_text)(scope, receive, send_with_id)
        finally:
            if admitted:
                self.admission.release(admitted)
            if self._logger.isEnabledFor(logging.INFO):
                milliseconds = 1000 * (time.perf_counter() - started)
                what = (scope["method"], _logged(scope["path"]), status, milliseconds)
                extra = {"request_id": request_id.decode()}
                if trace:
                    extra["traceparent"] = trace
                self._logger.info("%s %s %d %.1f ms", *what, extra=extra)
            if self.metrics:
                self.metrics.request_ended(scope, status, time.perf_counter() - started)
            if self._audit and is_action(scope):
                owner = admitted is not None or error is None or isinstance(error, BodyTooLarge)
                note = self._audit.note if owner else self._audit.note_refused
                note(**action(scope, status, error), request_id=request_id.decode())

    async def aclose(self) -> None:
        """End what is still being asked for, after the last answers; nobody is let in any more."""
        if self._socket_events:
            self._socket_events.drop_clients()
        await self._end_requests()
        if self._socket_events:
            await self._socket_events.aclose()

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket, which is open for Socket.IO alone, if its handshake is let in.

        As long as it is connected it counts as a request. A refusal is an answer to the handshake.
        """
        try:
            if self.proxied and self.proxied.for_browsers(scope):
                raise NotFound(f"There is no path {scope['path']} for a WebSocket here.")
            admitted = self.admission.admit(scope, receive)
            if self._socket_events is None or scope["path"] != SOCKET_PATH:
                self.admission.release(admitted)
                raise NotFound(f"There is no path {scope['path']} for a WebSocket.")
        except ShelldError as error:
            self._logger.info("WEBSOCKET %s %d", _logged(scope["path"]), error.status)
            await problem_response(error, as_text=False)(scope, receive, send)
            return
        self._logger.info("WEBSOCKET %s connected", SOCKET_PATH)
        try:
            await self._socket_events(scope, receive, send)
        except asyncio.CancelledError:
            if admitted.ended is None:
                raise
            admitted.task.uncancel()
        finally:
            self.admission.release(admitted)
            self._logger.info("WEBSOCKET %s disconnected", SOCKET_PATH)

    async def _recycle(self) -> None:
        """Make all new for the next client. What was admitted before is over when the key is forgotten."""
        with self.admission.closed(_NEXT_CLIENT):
            await self.admission.refuse_bodies()
            if self._socket_events:
                self._socket_events.drop_clients()
            await self._computer.reset(self._end_requests)
            self._repeats.clear()
            if self.proxied:
                self.proxied.links.clear()
            self._key_lock.forget()

    async def _end_requests(self) -> None:
        """End all that was asked for with the present key."""
        self._computer.events.end_readers()
        await self.admission.end_requests()
        if self._socket_events:
            await self._socket_events.end_work()
        if self._mcp:
            await self._mcp.end_sessions()

    def _exists(self, scope: Scope) -> bool:
        if scope["type"] == "websocket":
            return self._socket_events is not None and scope["path"] == SOCKET_PATH
        return bool(scope.get("target")) or self._table.exists(scope)

    def _looks(self, scope: Scope) -> bool:
        """Return whether a request is to an endpoint that only looks."""
        serve = self._table.find(scope) if scope["type"] == "http" else None
        endpoint = serve.func.__self__ if isinstance(serve, partial) else None  # type: ignore[attr-defined]
        return isinstance(endpoint, Endpoint) and endpoint.looks

    def _continues(self, scope: Scope) -> bool:
        """Return whether a request belongs to a connection of Socket.IO that was opened with the key."""
        if self.proxied and scope.get("target"):
            self.proxied.refuse()
        events = self._socket_events
        return events is not None and scope["path"] == SOCKET_PATH and events.knows(scope)

    def _proxied_ports(self) -> "ProxiedPorts":
        from shelld_py.http.proxied import ProxiedPorts

        return ProxiedPorts(self._computer, self._key_lock)

    def _served_events(self, services: Services) -> "SocketEvents":
        from shelld_py.api.socketio import SocketEvents

        return SocketEvents(
            lambda: services.toolbox,
            logger=self._logger,
            begin=self.admission.begin,
            end=self.admission.end,
            max_message=self._computer.settings.server.max_body,
        )


def _optional_endpoints(computer: Computer) -> tuple[Endpoint, ...]:
    """Return those of another contract, which is served where a setting says so."""
    if not computer.settings.server.agent_sandbox:
        return ()
    from shelld_py.api import agent_sandbox

    return agent_sandbox.ENDPOINTS


@lru_cache(maxsize=1)
def _http_date(second: int) -> bytes:
    return http_date(second).encode()
