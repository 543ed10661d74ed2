"""What is done for every request, whatever its path: an id, a line in the log, a limit, an answer to errors."""

import logging
import re
import secrets
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shelld_py.errors import BodyTooLarge, InvalidRequest, MethodNotAllowed, NotFound, ShelldError
from shelld_py.http.answers import problem_response
from shelld_py.http.requests import Form, header, requested_form
from shelld_py.units import format_size

_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestLog:
    """Gives each request an id, answers for the errors below, and logs one line."""

    def __init__(self, app: ASGIApp, *, logger: logging.Logger, text_paths: frozenset[str]) -> None:
        """`text_paths` are those whose errors are text, unless the request asks for JSON."""
        self._app = app
        self._logger = logger
        self._text_paths = text_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request; other scopes are none of ours."""
        if scope["type"] != "http":
            return
        started = time.perf_counter()
        given = header(scope, b"x-request-id")
        request_id = given if given and _SANE_ID.fullmatch(given) else secrets.token_hex(8).encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"date", _http_date(int(time.time()))), (b"x-request-id", request_id)]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            known = _known_error(error, scope)
            if known is None:
                self._logger.exception("request %s: a fault of the daemon", request_id.decode())
                known = ShelldError(f"A fault of the daemon; its log names request {request_id.decode()}.")
            if not status:
                as_text = requested_form(scope, self._default_form(scope)) is Form.TEXT
                await problem_response(known, as_text=as_text)(scope, receive, send_with_id)
        finally:
            if self._logger.isEnabledFor(logging.INFO):
                milliseconds = 1000 * (time.perf_counter() - started)
                what = (scope["method"], quote(scope["path"]), status, milliseconds)
                self._logger.info("%s %s %d %.1f ms", *what, extra={"request_id": request_id.decode()})

    def _default_form(self, scope: Scope) -> Form:
        return Form.TEXT if scope["path"] in self._text_paths else Form.JSON


class BodyLimit:
    """Refuses bodies over the limit: by their declared length at once, else as soon as they exceed it."""

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        """`limit` is in bytes."""
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the body of one request."""
        declared = header(scope, b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self._limit:
            raise self._refusal()
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._limit:
                    raise self._refusal()
            return message

        await self._app(scope, receive_counted, send)

    def _refusal(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than server.max_body, which is {format_size(self._limit)}.")


class Activity:
    """Tells the daemon when a request has been admitted and when it is answered, for its idle timer."""

    def __init__(self, app: ASGIApp, *, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._app = app
        self._begin = begin
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count one request from its admission to its end. `begin` may refuse it."""
        admitted = False

        def admit() -> None:
            nonlocal admitted
            self._begin()
            admitted = True

        scope["state"]["admitted"] = admit
        try:
            await self._app(scope, receive, send)
        finally:
            if admitted:
                self._end()


@lru_cache(maxsize=1)
def _http_date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


def _methods(scope: Scope) -> set[str]:
    """Return the methods that the path takes: those of all routes that match it."""
    routes = [route for route in scope["app"].routes if route.matches(scope)[0] is not Match.NONE]
    return {method for route in routes for method in route.methods or ()}


def _known_error(error: Exception, scope: Scope) -> ShelldError | None:
    """Return `error` as one of ours; None when it is a fault."""
    if isinstance(error, ShelldError):
        return error
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(sorted(_methods(scope)))
        return MethodNotAllowed(f"{scope['path']} does not take {scope['method']}, but {allowed}.", allow=allowed)
    if isinstance(error, ClientDisconnect):
        return InvalidRequest("The connection ended before the body did.")
    if isinstance(error, HTTPException):
        return NotFound(f"There is no path {scope['path']}.")
    return None
