"""A WebSocket (RFC 6455) over a connection that has been opened: messages out of frames, and into them; either side.

What comes is hostile: a message has a most, a frame that breaks a rule ends the connection with the code that says so,
and however small frames are, others get their turn. Whoever is silent is asked for a sign of life. Knows neither HTTP
nor what messages are about. Extensions are not spoken: compression would let a few bytes stand for very many.
"""

import asyncio
import base64
import contextlib
import hashlib
import os
import struct
from enum import IntEnum
from typing import Final

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_SILENCE: Final = 20.0
"""Seconds after which a silent peer gets a ping, and after as many again is given up. Proxies close after 30 or 60."""
_CLOSE_TIMEOUT: Final = 2.0
"""Seconds that the peer has to take what was sent last, and to close."""
_KEY_SIZE: Final = 16
_PIECE: Final = 65536
_AT_ONCE: Final = 64
"""Frames that are read before others get their turn: some 0.5 ms."""
_LONGEST_CONTROL: Final = 125
_SHORT, _LONG = 126, 127
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FINAL, _RESERVED, _MASKED = 0x80, 0x70, 0x80
_OWN_CODES: Final = range(3000, 5000)


class CloseCode(IntEnum):
    """Why a WebSocket is closed (RFC 6455, 7.4.1, and its registry)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    NONE = 1005
    LOST = 1006
    NOT_UTF_8 = 1007
    TOO_LARGE = 1009
    FAULT = 1011
    TRY_AGAIN_LATER = 1013


_NEVER_SENT: Final = frozenset({1004, CloseCode.NONE, CloseCode.LOST, 1015})


class Closed(Exception):
    """The WebSocket is closed; `code` and `reason` are the peer's, or ours where it has broken a rule."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"{code} {reason}".strip())
        self.code = code
        self.reason = reason


def accepted(key: bytes) -> bytes:
    """Return the `Sec-WebSocket-Accept` that answers the `Sec-WebSocket-Key` of a client. Raises `ValueError`."""
    if len(base64.b64decode(key, validate=True)) != _KEY_SIZE:
        raise ValueError("it is not the Base64 of 16 bytes")
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


class WebSocket:
    """One side of a WebSocket. One reads at a time; any number may send."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        client: bool,
        max_message: int,
        timeout: float = _SILENCE,
    ) -> None:
        """`client` masks what it sends, as clients must; `max_message` is in bytes, `timeout` with silence seconds."""
        self._timeout = timeout
        self._reader = reader
        self._writer = writer
        self._client = client
        self._max_message = max_message
        self._closing = False
        """Whether a close has been sent: nothing may be sent behind it."""
        self._frames = 0

    async def receive(self) -> bytes | str:
        """Return the next message: bytes of a binary one, a text of a text. Raises `Closed`."""
        try:
            return await self._message()
        except Closed as fault:
            self._send_close(fault.code, fault.reason)
            raise
        except (asyncio.IncompleteReadError, OSError, TimeoutError):
            self._writer.transport.abort()
            raise Closed(CloseCode.LOST) from None

    @property
    def waiting(self) -> int:
        """Bytes that wait for the peer to take them, beside what the kernel holds."""
        return self._writer.transport.get_write_buffer_size()

    @property
    def gone(self) -> bool:
        """Whether the peer is known to have left, and nothing of it is left to be received."""
        return self._writer.is_closing() or self._reader.at_eof()

    async def send(self, message: bytes | str) -> None:
        """Send a message; returns when little enough waits for the peer to take it. Raises `Closed`."""
        self.put(message)
        await self.drained()

    def put(self, message: bytes | str) -> None:
        """Have a message sent, however much waits already. Raises `Closed`."""
        if self._closing or self._writer.is_closing():
            raise Closed(CloseCode.LOST)
        if isinstance(message, str):
            self._write(_TEXT, message.encode())
        else:
            self._write(_BINARY, message)

    async def drained(self) -> None:
        """Return when little waits for the peer to take it. Raises `Closed`."""
        try:
            await self._writer.drain()
        except OSError:
            raise Closed(CloseCode.LOST) from None

    async def close(self, code: int = CloseCode.NORMAL, reason: str = "") -> None:
        """Close, in two seconds at most, whatever the peer does. What waits to be sent is sent before where it can."""
        self._send_close(code, reason)
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                while await self._reader.read(_PIECE):  # else the kernel resets, and the peer loses what was sent last
                    pass
        self._writer.transport.abort()

    def _send_close(self, code: int, reason: str) -> None:
        if not self._closing:
            payload = b"" if code in _NEVER_SENT else struct.pack("!H", code) + reason.encode()[: _LONGEST_CONTROL - 2]
            self._write(_CLOSE, payload)
            self._closing = True
            if not self._client and not self._writer.is_closing():  # it is the server that ends the connection
                self._writer.write_eof()

    def _write(self, kind: int, payload: bytes) -> None:
        if self._closing or self._writer.is_closing():  # uvloop raises where the connection is lost
            return
        length, mask_bit = len(payload), _MASKED if self._client else 0
        if length < _SHORT:
            head = struct.pack("!BB", _FINAL | kind, mask_bit | length)
        elif length < 1 << 16:
            head = struct.pack("!BBH", _FINAL | kind, mask_bit | _SHORT, length)
        else:
            head = struct.pack("!BBQ", _FINAL | kind, mask_bit | _LONG, length)
        if self._client:
            mask = os.urandom(4)
            head, payload = head + mask, _masked(payload, mask)
        self._writer.write(head + payload)

    # --- what comes -----------------------------------------------------------------------------------

    async def _message(self) -> bytes | str:
        parts, kind = bytearray(), _CONTINUATION
        while True:
            final, opcode, payload = await self._frame(self._max_message - len(parts))
            if opcode >= _CLOSE:
                await self._control(opcode, payload)
                continue
            if (opcode == _CONTINUATION) is (kind == _CONTINUATION):
                raise Closed(CloseCode.PROTOCOL_ERROR, "a frame is out of order")
            kind = kind or opcode
            parts += payload
            if final:
                break
        if kind == _BINARY:
            return bytes(parts)
        try:
            return parts.decode()
        except UnicodeDecodeError:
            raise Closed(CloseCode.NOT_UTF_8, "a text is not UTF-8") from None

    async def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == _CLOSE:
            raise _closed_by(payload)
        if opcode == _PING:
            self._write(_PONG, payload)
            await self.drained()  # who does not read the answers is not read, either

    async def _frame(self, room: int) -> tuple[bool, int, bytes]:
        """Return the next frame: whether it is the last of its message, its opcode, what it carries."""
        self._frames += 1
        if self._frames % _AT_ONCE == 0:
            await asyncio.sleep(0)
        first, second = await self._exactly(2)
        final, opcode, masked, length = bool(first & _FINAL), first & 0x0F, bool(second & _MASKED), second & 0x7F
        if first & _RESERVED or opcode not in (_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG):
            raise Closed(CloseCode.PROTOCOL_ERROR, "a frame of an unknown kind")
        if masked is self._client:
            raise Closed(CloseCode.PROTOCOL_ERROR, "clients mask their frames, and servers do not")
        if opcode >= _CLOSE and (length > _LONGEST_CONTROL or not final):
            raise Closed(CloseCode.PROTOCOL_ERROR, "a control frame is too long, or in parts")
        if length == _SHORT:
            (length,) = struct.unpack("!H", await self._exactly(2))
        elif length == _LONG:
            (length,) = struct.unpack("!Q", await self._exactly(8))
        if opcode < _CLOSE and length > room:
            raise Closed(CloseCode.TOO_LARGE, f"a message has at most {self._max_message} bytes")
        mask = await self._exactly(4) if masked else b""
        return final, opcode, await self._payload(length, mask)

    async def _payload(self, length: int, mask: bytes) -> bytes:
        """Return what a frame carries, in pieces of which each takes some 0.5 ms."""
        payload = await self._exactly(min(length, _PIECE))
        if mask:
            payload = _masked(payload, mask)
        if len(payload) == length:
            return payload
        whole = bytearray(payload)
        while len(whole) < length:
            await asyncio.sleep(0)
            piece = await self._exactly(min(length - len(whole), _PIECE))
            whole += _masked(piece, mask) if mask else piece  # _PIECE is a multiple of the mask's length
        return bytes(whole)

    async def _exactly(self, count: int) -> bytes:
        """Return so many bytes. Raises `IncompleteReadError`, and `TimeoutError` where none come for too long."""
        found = bytearray()
        while len(found) < count:
            try:
                async with asyncio.timeout(self._timeout):
                    data = await self._reader.read(min(count - len(found), _PIECE))
            except TimeoutError:
                self._write(_PING, b"")
                async with asyncio.timeout(self._timeout):
                    data = await self._reader.read(min(count - len(found), _PIECE))
            if not data:
                raise asyncio.IncompleteReadError(bytes(found), count)
            found += data
        return bytes(found)


def _masked(payload: bytes, mask: bytes) -> bytes:
    """Return `payload` with the mask put on, or taken off."""
    count = len(payload)
    key = int.from_bytes((mask * (count // 4 + 1))[:count], "big")
    return (int.from_bytes(payload, "big") ^ key).to_bytes(count, "big")


def _closed_by(payload: bytes) -> Closed:
    """Return what the close frame of the peer says, or what is wrong with it."""
    if not payload:
        return Closed(CloseCode.NONE)
    if len(payload) == 1:
        return Closed(CloseCode.PROTOCOL_ERROR, "a close frame is too short")
    (code,) = struct.unpack("!H", payload[:2])
    if code in _NEVER_SENT or not (CloseCode.NORMAL <= code <= 1015 or code in _OWN_CODES):
        return Closed(CloseCode.PROTOCOL_ERROR, "a close frame has no such code")
    try:
        return Closed(code, payload[2:].decode())
    except UnicodeDecodeError:
        return Closed(CloseCode.NOT_UTF_8, "a reason is not UTF-8")
