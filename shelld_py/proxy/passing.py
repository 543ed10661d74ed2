"""Passes one request on to a port of this machine, and the answer back, piece by piece.

Each request has a connection of its own, so nothing that a program leaves in one can be taken for the answer to another
request. h11 frames both ways; what holds up one side holds up the other, so a few 64 KiB are held at a time, whatever
is passed. Bodies go both ways at once: a program may answer before it has read all.

From the answer 101 on, a WebSocket is raw bytes, both ways: nobody here looks into them.

Imported when the first request is passed on.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import h11
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from shelld_py.errors import BadGateway, InvalidRequest, PortNotOpen, PortTimeout
from shelld_py.linux.ports import loopback_sockets
from shelld_py.proxy.fields import Field, Target, answer_fields, request_fields

_CONNECT_SECONDS: Final = 5.0
"""Within this machine a connection is there at once, unless the program has stopped to accept any."""
_PIECE: Final = 65536
"""Bytes that are read at once."""
_LARGEST_HEAD: Final = 65536
"""Bytes of the head of an answer; Node.js and most proxies take a quarter of that."""
_MOST_LINES: Final = 512
"""Lines of it. h11 parses all at once, and needs some 5 µs for each."""
_MOST_INTERIM: Final = 100
"""Answers before the answer (100, 102, 103)."""
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")
_MOST_CHUNKS: Final = 128
"""Chunks of a body that are parsed before others have their turn: h11 needs some 20 µs for each."""
_LAST_BYTES: Final = 5.0
"""Seconds in which a program may take what was still to be written to it when the exchange is over."""


class Connected:
    """A connection to a program that is one of the shells'."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target) -> None:
        self.reader = reader
        self.writer = writer
        self.target = target


async def connect(target: Target, roots: Callable[[], Iterable[int]]) -> Connected:
    """Connect to what listens on a port, if it is a process below `roots`. Raises `PortNotOpen`, `PortTimeout`.

    The sockets that listen are looked up before and after: another process may have taken the port in between. They are
    known by their inodes, which none has had before. So when all that listen before do so afterwards, and no other, the
    connection is to one of them. (The accepted socket could not be asked: it has no inode as long as it waits to be
    accepted.)
    """
    found = await asyncio.to_thread(loopback_sockets, target.port, roots())
    for address, sockets in found.items():
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(address, target.port, limit=_PIECE)
        except TimeoutError:
            raise PortTimeout(f"What listens on port {target.port} accepts no connection.") from None
        except OSError:
            continue
        if (await asyncio.to_thread(loopback_sockets, target.port, roots())).get(address) == sockets:
            return Connected(reader, writer, target)
        writer.transport.abort()
    raise PortNotOpen(
        f"No process of the shells listens on 127.0.0.1:{target.port} or [::1]:{target.port}. GET /ports tells where "
        "there is one."
    )


class ProxiedExchange:
    """One request that is passed on. `run` it once."""

    def __init__(self, connected: Connected, scope: Scope, receive: Receive, send: Send, seconds: float) -> None:
        """`seconds` is how long the program may take to begin with its answer once it has the request."""
        self._connected = connected
        self._scope = scope
        self._receive = receive
        self._send = send
        self._seconds = seconds
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
        self._upgrade = "upgrade" in scope
        self._lines = 0
        self._tail = b""
        self._deadline: asyncio.Timeout | None = None

    async def run(self, is_key: Callable[[bytes], bool], added: Iterable[Field]) -> None:
        """Pass the request on, and the answer back, with the fields `added`.

        Raises `BadGateway`, `PortTimeout`, `InvalidRequest`, `ClientDisconnect`, and what the body is refused with.
        """
        loop = asyncio.get_running_loop()
        answering = loop.create_task(self._answer(list(added)))
        sending = loop.create_task(self._send_request(is_key))
        tasks = {answering, sending}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                sending.result()
            await answering
        finally:
            _close(self._connected.writer)
            await _cancel(tasks)

    # --- the request --------------------------------------------------------------------------------------

    async def _send_request(self, is_key: Callable[[bytes], bool]) -> None:
        """Send the request. Returns when the program takes no more of it; raises when the client is gone."""
        scope, target = self._scope, self._connected.target
        client = (scope.get("client") or ("unknown",))[0].encode()
        fields = request_fields(scope["headers"], target, client, is_key, upgrade=self._upgrade)
        try:
            request = h11.Request(method=scope["method"], target=target.seen, headers=fields)
            head = self._http.send(request) or b""
        except h11.LocalProtocolError as error:
            raise InvalidRequest(f"The request cannot be passed on: {error}.") from None
        try:
            await self._write(head)
            if self._upgrade:
                self._http.send(h11.EndOfMessage())  # a WebSocket's request has no body
                self._clock(running=True)
            else:
                await self._send_body()
        except ConnectionError:
            return  # what it has answered before is still to be read

    async def _send_body(self) -> None:
        """Send what comes from the client, as it comes."""
        more = True
        while True:
            self._clock(running=not more)
            message = await self._receive()
            self._clock(running=True)
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if data := message.get("body", b""):
                await self._write(self._http.send(h11.Data(data=data)) or b"")
            if more and not message.get("more_body"):
                more = False
                await self._write(self._http.send(h11.EndOfMessage()) or b"")

    async def _write(self, data: bytes) -> None:
        writer = self._connected.writer
        writer.write(data)
        await writer.drain()

    def _clock(self, *, running: bool) -> None:
        """Let the program's time run from now on, or not at all while the client is waited for."""
        if self._deadline and not self._deadline.expired():
            now = asyncio.get_running_loop().time()
            self._deadline.reschedule(now + self._seconds if running else None)

    # --- the answer ---------------------------------------------------------------------------------------

    async def _answer(self, added: list[Field]) -> None:
        """Pass the answer back."""
        port = self._connected.target.port
        try:
            async with asyncio.timeout(self._seconds) as self._deadline:
                head = await self._head()
        except TimeoutError:
            raise PortTimeout(
                f"What listens on port {port} did not begin to answer for {self._seconds:g}s (server.proxy_timeout)."
            ) from None
        finally:
            self._deadline = None
        switched = isinstance(head, h11.InformationalResponse)
        fields = self._fields(head) + added
        if switched:
            await self._pass_raw([*fields, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")])
        else:
            await self._send({"type": "http.response.start", "status": head.status_code, "headers": fields})
            await self._pass_body()

    async def _head(self) -> h11.Response | h11.InformationalResponse:
        """Return what the program answers; what it says before that is for this hop."""
        port = self._connected.target.port
        for _ in range(_MOST_INTERIM + 1):
            event = await self._next(in_head=True)
            if isinstance(event, h11.Response):
                if event.status_code >= 600:
                    raise BadGateway(f"What listens on port {port} answered {event.status_code}.")
                return event
            if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
                return event
            self._lines, self._tail = 0, b""
            self._count_lines(self._http.trailing_data[0])
            await asyncio.sleep(0)
        raise BadGateway(f"What listens on port {port} does not come to its answer.")

    def _fields(self, head: h11.Response | h11.InformationalResponse) -> list[Field]:
        host = next((value for name, value in self._scope["headers"] if name == b"host"), b"")
        return answer_fields(head.headers, head.status_code, self._connected.target, host)

    async def _pass_body(self) -> None:
        """Pass the body back: what is read at once is sent at once."""
        while True:
            pieces: list[bytes] = []
            event: object = await self._next()
            while isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                if len(pieces) == _MOST_CHUNKS:
                    await asyncio.sleep(0)
                    break
                with self._refusing():
                    event = self._http.next_event()
            if isinstance(event, h11.EndOfMessage):
                await self._send({"type": "http.response.body", "body": b"".join(pieces), "more_body": False})
                return
            if pieces:
                await self._send({"type": "http.response.body", "body": b"".join(pieces), "more_body": True})

    async def _pass_raw(self, fields: list[Field]) -> None:
        """Pass on what comes, both ways, until either side ends."""
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        early, _ = self._http.trailing_data
        reader, writer = self._scope["upgrade"](b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n%b" % (lines, early))
        loop, port = asyncio.get_running_loop(), self._connected
        ways = {loop.create_task(_pass_all(reader, port.writer)), loop.create_task(_pass_all(port.reader, writer))}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            _close(writer)
            await _cancel(ways)

    async def _next(self, *, in_head: bool = False) -> object:
        """Return what the program says next. Raises `BadGateway` where it is not HTTP, or ends too early."""
        while True:
            with self._refusing():
                event = self._http.next_event()
            if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                raise BadGateway(f"What listens on port {self._connected.target.port} broke off its answer.")
            if event is not h11.NEED_DATA:
                return event
            try:
                data = await self._connected.reader.read(_PIECE)
            except ConnectionError:
                raise BadGateway(f"What listens on port {self._connected.target.port} broke the connection.") from None
            if in_head:
                self._count_lines(data)
            with self._refusing():
                self._http.receive_data(data)

    def _count_lines(self, data: bytes) -> None:
        """Count the lines of the head. Raises `BadGateway` where there are too many."""
        seen = self._tail + data
        end = _END_OF_HEAD.search(seen)
        self._lines += seen.count(b"\n", len(self._tail), end.end() if end else len(seen))
        self._tail = seen[-2:]
        if self._lines > _MOST_LINES:
            raise BadGateway(f"What listens on port {self._connected.target.port} answered with too many headers.")

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except h11.RemoteProtocolError as error:
            raise BadGateway(
                f"What listens on port {self._connected.target.port} did not answer with good HTTP: {error}."
            ) from None


async def _pass_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on all that comes, no faster than it is taken."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()


def _close(writer: asyncio.StreamWriter) -> None:
    """End a connection behind what has been written, if that is taken."""
    writer.close()
    if writer.transport.get_write_buffer_size():
        asyncio.get_running_loop().call_later(_LAST_BYTES, writer.transport.abort)


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
