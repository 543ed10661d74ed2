"""A connection of a client: uvicorn's, with stricter rules for what stands between requests.

- A server may ignore an offer of another protocol (`Upgrade: h2c`: Java's own client, `curl --http2`; RFC 9110, 7.8),
  but the parser stops behind the header of such a request, and its body would be lost, or be read as the next
  request. So the parser is begun anew, with the same request without the offer.
- An offer of a WebSocket is left to whoever serves the request: `upgrade` takes the connection over for any protocol.
- Trailer fields are no headers (RFC 9110, 6.5.1): they are dropped, and have the bound of a head.
- A refused request whose body has not come ends the connection: what comes of the body is not looked at.

Knows nothing of keys and endpoints. What is said in one request and its answer is in exchange.py.
"""

import asyncio
import time
import urllib.parse
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import httptools
from starlette.requests import ClientDisconnect
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from shelld_py.config import ServerSettings
from shelld_py.http.exchange import Exchange

_FAREWELL: Final = 2.0
"""Seconds for which a connection that is over still reads. Closing it at once would make the kernel answer what the
client goes on sending with a reset, and that can take from it the answer that it has not read yet (RFC 9112, 9.6)."""
_KEEP_ALIVE: Final = 75.0
"""Seconds for which a connection is kept for the next request: longer than the 60 s of common proxies, so that it is
they who close it."""
_LARGEST_HEAD: Final = 65536
"""Bytes of a head that comes in several pieces: what h11 and most proxies take at most."""
_AT_ONCE: Final = 4096
"""Bytes that are parsed at once: a thousand headers, or chunks of one byte, of which each takes some 1.5 µs."""
_TURN: Final = 0.001
"""Seconds of parsing after which others have their turn: what is read at once can hold 60,000 of these."""
_TLS_HANDSHAKE: Final = b"\x16\x03"
"""How a TLS connection begins: a handshake record of version 3 (RFC 8446, 5.1)."""
_TLS: Final = "This port speaks HTTP without TLS: use http://, not https://."
_AHEAD: Final = 65536
"""Bytes that are read ahead of who has taken a connection over; up to twice as many wait before reading is paused."""
_MOST_WAITING: Final = 128
"""Requests that wait behind one on the same connection. What is read at once can hold ten thousand, some 3 KB each."""
_MOST_WAITING_IN_ALL: Final = 2048
"""Requests that wait behind others on all connections: a thousand connections of strangers would hold 400 MB else."""
_SOCKET_IO: Final = b"/socket.io/"
_OF_BODIES: Final = frozenset({b"content-length", b"transfer-encoding"})


class Waiting:
    """How many requests wait behind others, on all connections of a server."""

    def __init__(self) -> None:
        self.count = 0


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    cycle: Exchange
    pipeline: deque[tuple[Exchange, ASGI3Application]]  # type: ignore[assignment]

    def __init__(self, settings: ServerSettings, waiting: Waiting, **options: Any) -> None:
        """`waiting` counts for all connections of a server; `options` are those of uvicorn."""
        super().__init__(**options)
        self._settings = settings
        self._waiting = waiting
        self.waiting_since = 0.0
        """When it began to wait for a request, or for the client to leave; 0 while it serves one."""
        self.trusted = False
        """Whether it has had a request that was not refused."""
        self._deadline: float | None = None
        """When the connection ends unless something happens before. None while a request is being served."""
        self._timer: asyncio.TimerHandle | None = None
        """Looks at the deadline. It is not moved with it, which would cost each request two timers."""
        self._head_size = 0
        """Bytes of a head that is not complete, or that have come since the last piece of a body: trailer fields."""
        self._in_head = False
        self._over = False
        """Whether nothing of what comes is looked at any more."""
        self._websocket = False
        """Whether the request offers to go on as a WebSocket."""
        self._offered = False
        """Whether the client has offered another protocol, and sends nothing before that is decided."""
        self._served: Exchange | None = None
        """The request that is being answered, or was the last; `cycle` is the last one that came."""
        self._early = b""
        """What it has sent all the same."""
        self._pieces: list[memoryview] = []
        """What has come and is to be parsed, the very next last."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self._end_in(self._settings.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was awaited, and tell the request that is being served, and those that wait behind it."""
        for exchange in (self._served, *(waiting for waiting, _ in self.pipeline)):
            if exchange and not exchange.response_complete:
                exchange.disconnected = True
                exchange.message_event.set()
        self._forget_waiting()
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()
        self._over = True

    def data_received(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._offered:
            self._early += data
            if len(self._early) > _AHEAD:
                self.transport.abort()
        elif self._pieces:
            self._pieces.insert(0, memoryview(data))
            self.transport.pause_reading()
        else:
            self._pieces.append(memoryview(data))
            self._parse()

    def _parse(self) -> None:
        """Parse what has come, up to its end, or until others must have their turn."""
        pieces = self._pieces
        end = 0.0
        while pieces and not self._over:
            piece = pieces.pop()
            if len(piece) > _AT_ONCE:
                pieces.append(piece[_AT_ONCE:])
                piece = piece[:_AT_ONCE]
                end = end or time.perf_counter() + _TURN
            if self._in_head or (self._serving() and self.cycle.more_body):
                self._head_size += len(piece)
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as offer:
                pieces.append(piece[offer.args[0] :])
                if self.parser.should_upgrade() and self._declines():
                    pieces.append(memoryview(self._without_offer()))
                elif self._websocket and self._should_upgrade():
                    pieces.clear()
                    self._forget_timer()
                    self.handle_websocket_upgrade()
                elif self._websocket:
                    self._offered, self._early = True, b"".join(reversed(pieces))
                    pieces.clear()
                    self.flow.pause_reading()
            except httptools.HttpParserError as error:
                said = _TLS if bytes(piece[:2]) == _TLS_HANDSHAKE else "Invalid HTTP request received."
                if isinstance(error.__context__, OverflowError):
                    said = "Too many requests were sent ahead."
                self.logger.warning(said)
                self._give_up(HTTPStatus.BAD_REQUEST, said)
            if self._head_size > _LARGEST_HEAD and not self._over:
                self._give_up(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    "The head of the request, or what follows its body, is too large.",
                )
            elif self._in_head and not self._over and not self._head_size and not self._serving():
                self._end_in(self._settings.header_timeout)
            if end and pieces and time.perf_counter() > end:
                self.transport.pause_reading()
                self.loop.call_soon(self._go_on)
                return
        pieces.clear()

    def _go_on(self) -> None:
        """Parse what has been left."""
        self._parse()
        if not (self._pieces or self.flow.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def on_message_begin(self) -> None:
        """Begin with a request."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Serve the request, unless it makes an offer: it comes once more.

        `OverflowError` ends the parsing: the requests before are answered, then the connection ends.
        """
        self._in_head = False
        self._head_size = 0
        self._deadline = None
        self.waiting_since = 0.0
        parser, scope = self.parser, self.scope
        upgrade = parser.should_upgrade()
        self._websocket = upgrade and self._begins_websocket()
        if upgrade and self._declines():
            return
        version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        if self._websocket and self._should_upgrade():
            if self._serving():  # uvicorn takes the connection at once, and what waits would be neither served nor told
                raise OverflowError
            return
        self.headers = []  # trailers go there, and nobody looks at them
        target = self.url
        if target.startswith(b"/") and b"#" not in target:
            raw_path, _, scope["query_string"] = target.partition(b"?")
        else:
            url = httptools.parse_url(target)
            raw_path, scope["query_string"] = url.path, url.query or b""
        path = raw_path.decode("ascii")
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        waiting = self.cycle is not None and not self.cycle.response_complete
        if waiting and (len(self.pipeline) >= _MOST_WAITING or self._waiting.count >= _MOST_WAITING_IN_ALL):
            raise OverflowError
        keep_alive = version == "1.1" and parser.should_keep_alive()
        timeout = self._settings.body_timeout
        self.cycle = exchange = Exchange(self, scope, keep_alive=keep_alive, timeout=timeout)
        exchange.on_response = partial(self._answered, exchange)
        if upgrade:  # what comes next is no request, whatever becomes of the WebSocket, or of the tunnel (CONNECT)
            exchange.keep_alive = False
        if self._websocket:
            scope["upgrade"] = partial(self._upgrade, exchange, scope)  # type: ignore[arg-type, typeddict-unknown-key]
        if waiting:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))
            self._waiting.count += 1
        else:
            self._served = exchange
            self._start_asgi_task(exchange, self.app)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._head_size = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._head_size = 0
        if self.parser.should_upgrade() and self._declines():
            return
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self.waiting_since = self.loop.time()
            self._end_in(_KEEP_ALIVE)

    def _answered(self, exchange: Exchange) -> None:
        """Go on with the next request, or end the connection."""
        self.server_state.total_requests += 1
        self.trusted = self.trusted or not exchange.refused
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if not exchange.keep_alive:
            self._end(exchange)
        elif self.pipeline:
            self._served, app = self.pipeline.pop()
            self._waiting.count -= 1
            self._start_asgi_task(self._served, app)
        elif exchange.more_body:
            self._end_in(self._settings.body_timeout)
        else:
            self.waiting_since = self.loop.time()
            self._end_in(self._settings.header_timeout if self._in_head else _KEEP_ALIVE)

    def _upgrade(
        self, exchange: Exchange, scope: Scope, head: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Take the connection over from HTTP: answer with `head`, the whole of it, and return what comes, and goes.

        Raises `ClientDisconnect`.
        """
        if exchange.disconnected or self.transport.is_closing():
            raise ClientDisconnect
        scope["upgraded"] = True
        exchange.response_complete = True  # of HTTP there is nothing more to be answered
        self._forget_timer()
        reader = asyncio.StreamReader(_AHEAD, self.loop)
        protocol = _Upgraded(reader, partial(self.connection_lost, None))
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        if self._early:
            reader.feed_data(self._early)
        self.flow.resume_reading()
        writer = asyncio.StreamWriter(self.transport, protocol, reader, self.loop)
        writer.write(head)
        return reader, writer

    def give_way(self) -> None:
        """End at once, for another connection."""
        self.waiting_since = 0.0
        self._over = True
        self.transport.abort()

    def _end(self, exchange: Exchange | None = None) -> None:
        """End the connection behind what has been written."""
        self._over = True
        self._forget_waiting()
        if exchange and not exchange.more_body:
            self.transport.close()
        else:
            self.waiting_since = self.loop.time()
            self.transport.write_eof()
            self._end_in(_FAREWELL)

    def _give_up(self, status: HTTPStatus, reason: str) -> None:
        """Answer what is no request, unless an answer to one is under way, and end the connection."""
        if self._serving():
            self._over = True
            self.cycle.keep_alive = False
            if self.cycle.more_body:
                self.cycle.malformed = reason
                self.cycle.message_event.set()
            return
        if self.transport.is_closing():
            return
        body = reason.encode()
        head = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d" % len(body)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n\r\n" + body)
        self._end()

    def _forget_waiting(self) -> None:
        self._waiting.count -= len(self.pipeline)
        self.pipeline.clear()

    def _serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end_in(self, seconds: float) -> None:
        """End the connection in so many seconds, unless it is needed again before."""
        self._deadline = when = self.loop.time() + seconds
        if self._timer is None or self._timer.when() > when:
            self._forget_timer()
            self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        remaining = self._deadline - self.loop.time()
        if remaining > 0:
            self._timer = self.loop.call_later(remaining, self._look)
        elif self._in_head and not self._over:
            self._give_up(HTTPStatus.REQUEST_TIMEOUT, "The head of the request was not complete in time.")
        else:
            self.transport.abort()

    def _forget_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _declines(self) -> bool:
        """Whether the offer that a request makes is not taken up."""
        return self.parser.get_method() != b"CONNECT" and not self._websocket

    def _begins_websocket(self) -> bool:
        """Whether a request can begin a WebSocket (RFC 6455, 4.1): what stands behind its head is no body then."""
        parser = self.parser
        if parser.get_method() != b"GET" or parser.get_http_version() != "1.1":
            return False
        return self._get_upgrade() == b"websocket" and _OF_BODIES.isdisjoint(name for name, _ in self.headers)

    def _should_upgrade(self) -> bool:
        """Whether uvicorn takes up the offer: that is for Socket.IO, which speaks to it."""
        return super()._should_upgrade() and self.url.partition(b"?")[0] == _SOCKET_IO

    def _without_offer(self) -> bytes:
        """Begin the parser anew; return the request without its offer. Its body and what follows is to be fed next."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"\r\n".join(lines) + b"\r\n\r\n"


class _Upgraded(asyncio.StreamReaderProtocol):
    """A connection that speaks HTTP no more."""

    def __init__(self, reader: asyncio.StreamReader, on_end: Callable[[], None]) -> None:
        super().__init__(reader)
        self._on_end = on_end

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who reads, and who waits to write."""
        super().connection_lost(exc)
        self._on_end()
