"""Opens a WebSocket to a daemon: the one request that httpx cannot send."""

import asyncio
import base64
import os
import ssl
from typing import Final
from urllib.parse import quote

import httpx

from shelld_py.client.connection import Connection
from shelld_py.client.failures import TransportError, UnknownAnswer, refusal
from shelld_py.units import MEBIBYTE
from shelld_py.websocket import WebSocket, accepted

_PROTOCOL: Final = "shelld.terminal.v1"
_SWITCHING: Final = 101
_LARGEST_REFUSAL: Final = 65536


async def open_terminal(connection: Connection, session_id: str, *, replay: int, watch: bool) -> WebSocket:
    """Return the terminal of a shell. Raises `TransportError`, `UnknownAnswer`, and what refuses it."""
    path = f"/sessions/{quote(session_id, safe='')}/terminal?replay={replay}&watch={str(watch).lower()}"
    url = httpx.URL(connection.url + path)
    try:
        async with asyncio.timeout(connection.timeout):
            return await _opened(url, connection)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        detail = f"GET {url}: not sent: {getattr(error, 'strerror', None) or error or 'it takes too long'}."
        raise TransportError(detail, method="GET", url=str(url), maybe_done=False) from error


async def _opened(url: httpx.URL, connection: Connection) -> WebSocket:
    encrypted = ssl.create_default_context() if connection.encrypted else None
    port = url.port or (443 if encrypted else 80)
    reader, writer = await asyncio.open_connection(url.host, port, ssl=encrypted)
    key = base64.b64encode(os.urandom(16))
    fields = {
        "Host": url.netloc.decode(),
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key.decode(),
        "Sec-WebSocket-Protocol": _PROTOCOL,
        **connection.headers(),
    }
    try:
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(b"GET %b HTTP/1.1\r\n%b\r\n" % (url.raw_path, lines.encode()))
        status, headers = _head(await reader.readuntil(b"\r\n\r\n"))
        if status != _SWITCHING:
            length = min(int(headers.get("content-length", "0")), _LARGEST_REFUSAL)
            raise refusal(status, await reader.readexactly(length))
        if headers.get("sec-websocket-accept", "").encode() != accepted(key):
            raise UnknownAnswer("What answers there is no WebSocket.")
    except BaseException:
        writer.close()
        raise
    return WebSocket(reader, writer, client=True, max_message=MEBIBYTE)


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of an answer. Raises `UnknownAnswer`."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise UnknownAnswer("What answers there does not speak HTTP.")
    pairs = (line.partition(":") for line in lines if ":" in line)
    return int(rest[:3]), {name.lower(): value.strip() for name, _, value in pairs}
