"""One request on a connection, and its answer: uvicorn's, with stricter rules for bodies.

- The head of an answer of known length goes out together with its body, as one write.
- A body that has begun may not stand still for longer than `server.body_timeout`.
- A refused request whose body has not come is answered without reading it.

Knows nothing of what else is on the connection: connection.py.
"""

import asyncio
from typing import Final

from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent, HTTPScope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from shelld_py.errors import BodyTimeout, InvalidRequest

_REFUSED: Final = 400
"""The least status of a refusal."""
_SMALL_BODY: Final = 65536
"""Bytes of a body that nobody has read and that are passed over to keep the connection: what http.client and httpx
send in a packet after the head is mostly smaller."""
_FORBIDDEN: Final = bytes(code for code in (*range(32), 127) if code != ord("\t"))
"""What no header can have. To see by `bytes.translate` whether it does takes a tenth of what a pattern takes."""
_BODILESS: Final = frozenset({204, 304})


class Exchange(RequestResponseCycle):
    """One request and its answer."""

    head: bytes = b""
    """That of the answer, as long as it has not been written."""
    body_timeout: float = 0.0
    """Seconds for which a body that has begun may stand still."""
    overdue = False
    malformed = ""
    """What is wrong with the rest of the body, which will not come."""
    refused = False
    # What the base class sets for each request.
    access_log = False
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding = False
    remaining: int | None = None
    """Bytes of the answer's body that are still to come; None where nothing has told how many."""

    def __init__(self, connection: HttpToolsProtocol, scope: HTTPScope, *, keep_alive: bool, timeout: float) -> None:
        """`keep_alive` is whether the connection can be kept behind the answer, `timeout` that of a body."""
        self.scope = scope
        self.transport = connection.transport
        self.flow = connection.flow
        self.message_event = asyncio.Event()
        self.waiting_for_100_continue = connection.expect_100_continue and scope["http_version"] != "1.0"
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.body_timeout = timeout

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Have the application serve the request. It answers all errors itself: what it leaves open is cut off."""
        try:
            await app(self.scope, self.receive, self.send)
        finally:
            self.on_response = lambda: None
            if not self.response_complete:
                ends_with_connection = self.response_started and self.remaining is None and not self.chunked_encoding
                # An end in good order would make a whole of it.
                (self.transport.abort if ends_with_connection else self.transport.close)()

    async def send(self, message: ASGISendEvent) -> None:
        """Take the next part of the answer."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.response_complete:
            return
        if message["type"] == "http.response.start":
            self.response_started = True
            self.waiting_for_100_continue = False
            self.head = self._head(message["status"], list(message.get("headers", ())))
            if self.scope["method"] == "HEAD":  # whatever the body would have been, and however long in coming
                self._write(b"", more=False)
            elif self.remaining is None:  # the first part of a stream may be long in coming
                self.transport.write(self.head)
                self.head = b""
        elif message["type"] == "http.response.body":
            self._write(message.get("body", b""), more=message.get("more_body", False))

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next part of the body. Raises `BodyTimeout` where none comes, `InvalidRequest` for no chunk."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            if self.more_body or not self.message_event.is_set():
                await self._something_came()
            if self.malformed:
                raise InvalidRequest(self.malformed)
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = self.body, bytearray()
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    async def _something_came(self) -> None:
        event = self.message_event
        if self.more_body and not event.is_set():
            timer = asyncio.get_running_loop().call_later(self.body_timeout, self._body_is_overdue)
            try:
                await event.wait()
            finally:
                timer.cancel()
            if self.overdue:
                raise BodyTimeout(f"Nothing of the body came for {self.body_timeout:g}s (server.body_timeout).")
        else:
            await event.wait()

    def _body_is_overdue(self) -> None:
        self.overdue = True
        self.message_event.set()

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the head of the answer, and note what it says of the body."""
        lines = [name + b": " + value for name, value in headers]
        head = b"".join(lines)
        if len(head.translate(None, _FORBIDDEN)) != len(head):
            raise RuntimeError("a header of the answer has characters that no header can have")
        self.remaining = 0 if status in _BODILESS or self.scope["method"] == "HEAD" else None
        for name, value in headers:
            if name == b"content-length":
                self.remaining = int(value)
        self._judge(status)
        if not self.keep_alive:
            lines.append(b"connection: close")
        # Who speaks HTTP/1.0 knows no chunks (RFC 9112, 7.1): there the end of the connection ends the body.
        if self.remaining is None and self.scope["http_version"] == "1.1":
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked")
        return STATUS_LINE[status] + b"\r\n".join(lines) + b"\r\n\r\n"

    def _judge(self, status: int) -> None:
        """Note whether the request is refused, and whether the connection can be kept."""
        self.refused = status >= _REFUSED
        if self.more_body and (self.refused or not self._small()):
            self.keep_alive = False

    def answer(self, status: int, lines: bytes, body: bytes) -> bool:
        """Write a whole answer at once: its status, its headers as lines, its body. False where that cannot be now."""
        if self.flow.write_paused or self.response_started or self.scope["method"] == "HEAD":
            return False
        if not self.disconnected:
            self.response_started = True
            self._judge(status)
            end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
            self.transport.write(b"".join((STATUS_LINE[status], lines, end, body)))
            self._finish()
        return True

    def _finish(self) -> None:
        """The answer is complete."""
        self.response_complete = True
        self.message_event.set()
        self.on_response()

    def _write(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            body = b""
        elif self.chunked_encoding:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        elif self.remaining is not None:
            self.remaining -= len(body)
            if self.remaining < 0 or (self.remaining and not more):
                raise RuntimeError("the body of the answer is not as long as its Content-Length says")
        head, self.head = self.head, b""
        if head or body:
            self.transport.write(head + body)
        if not more:
            self._finish()

    def _small(self) -> bool:
        """Whether the rest of the body is so small that it can be passed over."""
        declared = next((value for name, value in self.scope["headers"] if name == b"content-length"), b"")
        return declared.isdigit() and length_of(declared) <= _SMALL_BODY


def length_of(declared: bytes) -> int:
    """Return the number that a Content-Length of digits alone is.

    The parser bounds the number, but not the zeros before it, and `int` takes no more than 4300 digits.
    """
    return int(declared.lstrip(b"0") or b"0")
