"""A WebSocket client for tests, on an implementation that is not ours (wsproto)."""

import contextlib
import json
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from tests.daemons import KEY, PATIENCE

TERMINAL = "shelld.terminal.v1"


class Refused(Exception):
    """The answer to the handshake was no WebSocket."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body.decode(errors='replace')}")
        self.status = status
        self.body = body

    @property
    def code(self) -> str:
        """That of the problem."""
        return json.loads(self.body)["code"]


class WebSocket:
    """One open WebSocket. What comes is kept: `shown` the bytes, `told` the JSON, `closed` the code and reason."""

    def __init__(
        self, url: str, path: str, subprotocols: list[str], headers: dict[str, str], receive_buffer: int
    ) -> None:
        address = urlsplit(url)
        assert address.hostname
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((address.hostname, address.port))
        self.connection = WSConnection(ConnectionType.CLIENT)
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.shown = bytearray()
        self.told: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        self.pongs = 0
        self.subprotocol: str | None = None
        self._text = ""
        self._refusal: tuple[int, bytes] | None = None
        self._accepted = False
        request = Request(host=address.netloc, target=path, subprotocols=subprotocols, extra_headers=fields)
        try:
            self.send(request)
            self.until(lambda: self._accepted)
        except BaseException:
            self.socket.close()
            raise

    def send(self, event: Event) -> None:
        """Send one event of wsproto's."""
        self.socket.sendall(self.connection.send(event))

    def tell(self, kind: str, **members: Any) -> None:
        """Send a message in JSON."""
        self.send(Message(data=json.dumps({"type": kind, **members})))

    def type(self, text: bytes) -> None:
        """Send bytes for the terminal."""
        self.send(Message(data=text))

    def until(self, condition: Callable[[], Any]) -> Any:
        """Take what comes until `condition` is true; return what it returns."""
        while not (found := condition()):
            assert self.closed is None, (self.closed, self.told, self.shown)
            self.take()
        return found

    def until_closed(self) -> tuple[int, str]:
        """Take what comes until the other side closes; return the code and the reason."""
        while self.closed is None:
            self.take()
        return self.closed

    def until_told(self, kind: str, **members: Any) -> dict[str, Any]:
        """Take what comes until there is such a message; return it, and forget all before it."""

        def found() -> dict[str, Any] | None:
            for place, message in enumerate(self.told):
                if message["type"] == kind and members.items() <= message.items():
                    del self.told[: place + 1]
                    return message
            return None

        return self.until(found)

    def take(self) -> None:
        """Take what comes next."""
        data = self.socket.recv(65536)
        if not data and self.closed is None:
            self.closed = (1006, "")
            return
        self.connection.receive_data(data)
        for event in self.connection.events():
            self._note(event)

    def _note(self, event: Event) -> None:
        match event:
            case AcceptConnection():
                self._accepted, self.subprotocol = True, event.subprotocol
            case RejectConnection():
                self._refusal = (event.status_code, b"")
            case RejectData():
                assert self._refusal
                self._refusal = (self._refusal[0], self._refusal[1] + event.data)
                if event.body_finished:
                    raise Refused(*self._refusal)
            case BytesMessage():
                self.shown += event.data
            case TextMessage():
                self._text += event.data
                if event.message_finished:
                    self.told.append(json.loads(self._text))
                    self._text = ""
            case Ping():
                self.send(event.response())
            case Pong():
                self.pongs += 1
            case CloseConnection():
                self.closed = (event.code, event.reason or "")


def frame(first: int, payload: bytes, *, masked: bool = True, length: int | None = None) -> bytes:
    """Return a frame as it stands on the wire, whatever it breaks; `length` is what it says in place of the truth."""
    size = len(payload) if length is None else length
    bit = 0x80 if masked else 0
    head = struct.pack("!BB", first, bit | size) if size < 126 else struct.pack("!BBQ", first, bit | 127, size)
    mask = b"\x01\x02\x03\x04" if masked else b""
    return (
        head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload)) if masked else head + payload
    )


@contextlib.contextmanager
def websocket(
    url: str,
    path: str = "/terminal",
    *,
    key: str | None = KEY,
    subprotocols: tuple[str, ...] = (TERMINAL,),
    headers: dict[str, str] | None = None,
    receive_buffer: int = 0,
) -> Iterator[WebSocket]:
    """Open a WebSocket; raises `Refused`. At the end it is left without a word."""
    fields = {**({"X-Shell-Key": key} if key is not None else {}), **(headers or {})}
    opened = WebSocket(url, path, list(subprotocols), fields, receive_buffer)
    with opened.socket:
        yield opened
