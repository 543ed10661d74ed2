"""What stands on a connection: how answers are framed, and what is too much at once."""

import asyncio
import json
import socket
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from shelld_py.config import ServerSettings
from shelld_py.http.connection import Connection, Waiting
from tests.api.test_admission import Raw
from tests.daemons import KEY, RunningDaemon

CHUNKS = 40_000


def spoken(daemon: RunningDaemon, text: str) -> tuple[bytes, bytes]:
    """Return the head and the body of all that comes for `text`."""
    with Raw(daemon) as raw:
        raw.send(text)
        head, _, body = raw.rest().partition(b"\r\n\r\n")
        return head.lower(), body


def test_head_is_answered_though_the_body_would_be_long_in_coming(daemon: RunningDaemon) -> None:
    """`HEAD` of the events of a command that writes nothing is answered at once, and so is what comes behind it."""
    run_id = daemon.start("read x")
    ask = f"HEAD /runs/{run_id}/output HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nX-Shell-Key: {KEY}"
    head, rest = spoken(daemon, f"{ask}\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert b"content-type: text/event-stream" in head
    assert rest.startswith(b"HTTP/1.1 200 OK")
    assert rest.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_none_but_http_1_1_is_sent_chunks(daemon: RunningDaemon, version: str) -> None:
    """Who speaks HTTP/1.0, say, gets an answer of unknown length as it is; the end of the connection is its end."""
    daemon.run("seq 100000")
    fields = f"Host: localhost\r\nAccept: text/event-stream\r\nX-Shell-Key: {KEY}\r\nConnection: keep-alive\r\n"
    ask = f"GET /output?format=raw HTTP/{version}\r\n{fields}\r\n"
    head, body = spoken(daemon, ask)
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    *events, last = body.decode().removesuffix("\n\n").split("\n\n")
    pieces = [json.loads(event.partition("data: ")[2])["text"] for event in events]
    assert "".join(pieces) == "".join(f"{number}\n" for number in range(1, 100001))
    assert last.startswith("event: result\n")


def test_http_1_0_is_asked_for_no_body(daemon: RunningDaemon) -> None:
    """Nobody who speaks HTTP/1.0 is told to continue (RFC 9110, 10.1.1)."""
    fields = f"X-Shell-Key: {KEY}\r\nExpect: 100-continue\r\nContent-Length: 7\r\n"
    head, body = spoken(daemon, f"POST /run HTTP/1.0\r\nHost: localhost\r\n{fields}\r\necho it")
    assert head.startswith(b"http/1.1 200 ok")
    assert body == b"it\n"


@pytest.mark.parametrize("fields", ["a:\r\n" * 60_000, "Cookie: " + "a" * 200_000 + "\r\n"], ids=["many", "long"])
def test_a_head_that_is_too_large_is_refused_though_it_comes_at_once(daemon: RunningDaemon, fields: str) -> None:
    """The bound of a head does not depend on how it is sent."""
    head, _ = spoken(daemon, f"GET /health HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")
    assert head.startswith(b"http/1.1 431 ")


def test_behind_a_request_for_a_tunnel_there_are_no_requests(daemon: RunningDaemon) -> None:
    """What follows a `CONNECT` was meant for the tunnel."""
    ask = f"CONNECT /status HTTP/1.1\r\nHost: localhost\r\nX-Shell-Key: {KEY}\r\n\r\n"
    head, body = spoken(daemon, f"{ask}GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert head.startswith(b"http/1.1 405 ")
    assert b"HTTP/1.1" not in body


def test_others_have_their_turn_while_many_small_chunks_are_parsed() -> None:
    """Of tens of thousands of chunks in one piece of data some are parsed at once, and all in the end."""

    async def length() -> tuple[int, int]:
        body = bytearray()
        whole = asyncio.Event()

        async def read(_scope: Any, receive: Any, send: Any) -> None:
            message = {"more_body": True}
            while message["more_body"]:
                message = await receive()
                body.extend(message["body"])  # type: ignore[arg-type]
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})
            whole.set()

        config = Config(read, log_config=None, lifespan="off")
        config.load()
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(
            lambda: Connection(ServerSettings(), Waiting(), config=config, server_state=ServerState(), app_state={}),
            ours,
        )
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.data_received(head + b"1\r\nx\r\n" * CHUNKS)
        at_once = len(connection.cycle.body)
        theirs.sendall(b"0\r\n\r\n")
        await asyncio.wait_for(whole.wait(), 60)
        theirs.close()
        return at_once, len(body)

    at_once, all_in_all = asyncio.run(length())
    assert at_once < CHUNKS == all_in_all
