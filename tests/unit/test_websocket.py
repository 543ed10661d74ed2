"""A WebSocket over any stream: what one side sends the other gets, and silence has an end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from shelld_py.websocket import Closed, WebSocket, accepted


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[WebSocket, WebSocket]]:
    """Give the client's side and the server's."""
    ends = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
    sides = [
        WebSocket(*streams, client=client, max_message=300_000)
        for streams, client in zip(ends, (True, False), strict=True)
    ]
    try:
        yield sides[0], sides[1]
    finally:
        for _, writer in ends:
            writer.close()


def with_pair(test: Callable[[WebSocket, WebSocket], Awaitable[None]]) -> None:
    async def run() -> None:
        async with pair() as (client, server), asyncio.timeout(60):
            await test(client, server)

    asyncio.run(run())


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 300_000])
@pytest.mark.parametrize("text", [True, False])
def test_messages_arrive_as_they_were_sent(size: int, text: bool) -> None:
    """Either way, at all the lengths of a length."""
    message = "x" * size if text else bytes(range(256)) * (size // 256) + b"y" * (size % 256)

    async def test(client: WebSocket, server: WebSocket) -> None:
        for sender, receiver in ((client, server), (server, client)):
            _, got = await asyncio.gather(sender.send(message), receiver.receive())
            assert got == message

    with_pair(test)


def test_a_peer_that_gives_no_sign_of_life_is_given_up() -> None:
    """It gets a ping first."""

    async def test() -> None:
        near, far = socket.socketpair()
        with far:
            streams = await asyncio.open_connection(sock=near)
            websocket = WebSocket(*streams, client=False, max_message=1, timeout=0.05)
            with pytest.raises(Closed) as closed:
                await websocket.receive()
            assert closed.value.code == 1006
            assert far.recv(100) == b"\x89\x00"

    asyncio.run(test())


def test_a_close_is_answered() -> None:
    """With its code; nothing can be sent after it."""

    async def test(client: WebSocket, server: WebSocket) -> None:
        closing = asyncio.ensure_future(client.close(4000, "enough"))
        with pytest.raises(Closed) as closed:
            await server.receive()
        assert (closed.value.code, closed.value.reason) == (4000, "enough")
        with pytest.raises(Closed):
            await server.send(b"more")
        await closing

    with_pair(test)


def test_the_handshake_is_that_of_the_standard() -> None:
    assert accepted(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    for wrong in (b"", b"AAAA", b"?" * 24, b"dGhlIHNhbXBsZSBub25jZQ"):
        with pytest.raises(ValueError, match=r"16 bytes|ase64|padding|characters"):
            accepted(wrong)


def test_a_close_after_the_connection_was_lost() -> None:
    """Nothing is sent, and nothing fails: in the event loop of the daemon, which lets nobody write then."""

    async def test() -> None:
        async with pair() as (client, server), asyncio.timeout(60):
            client._writer.transport.abort()
            server._writer.transport.abort()
            await server._writer.wait_closed()
            await server.close()

    uvloop.run(test())
