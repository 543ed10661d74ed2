"""Answers as they go out."""

import asyncio

from shelld_py.http.answers import list_response


def test_others_have_their_turn_while_a_long_list_is_made() -> None:
    """A megabyte of JSON is made in at least eight turns of the event loop, and is what one call makes of it."""
    turns = 0

    async def work() -> bytes:
        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        loop = asyncio.get_running_loop()
        loop.call_soon(turn)
        response = await list_response(["x" * 998] * 1000, {"X-Next-Cursor": "5"})
        assert response.headers["x-next-cursor"] == "5"
        return bytes(response.body)

    body = asyncio.run(work())
    assert body == b"[%b]" % b",".join([b'"%b"' % (b"x" * 998)] * 1000)
    assert turns >= len(body) // (128 * 1024)


def test_a_list_of_nothing() -> None:
    """It is an empty array."""
    assert asyncio.run(list_response([], {})).body == b"[]"
