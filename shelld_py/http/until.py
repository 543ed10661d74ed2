"""Requests that wait for conditions: what they ask for, and a wait that ends when its client goes away.

What the conditions mean is the engine's: shells/conditions.py.
"""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.requests import Request as HttpRequest

from shelld_py.computer import Computer
from shelld_py.models import Stream
from shelld_py.shells.conditions import Condition, Reader, Until
from shelld_py.shells.store import Entry

_T = TypeVar("_T")


async def reached_condition(
    request: HttpRequest, computer: Computer, entry: Entry, stream: Stream | None, cursor: int | None, timeout: float
) -> str | None:
    """Wait for the conditions `until` of the query string; return the one that came first, as it was given.

    A cursor belongs to one stream: where there is one, or a `stream`, only that is looked at for lines.
    """
    conditions = [Condition.parse(text) for text in request.query_params.getlist("until")]
    streams = list(Stream) if stream is None and cursor is None else [stream or Stream.STDOUT]
    logs = {name: computer.store.log(entry, name) for name in streams}
    readers = [Reader(name, log, cursor or 0) for name, log in logs.items() if log]
    wait = Until(conditions, entry.run, computer.peek(entry.session_id), readers)
    reached = await _while_connected(request, wait.wait(timeout))
    return reached.text if reached else None


async def _while_connected(request: HttpRequest, work: Coroutine[None, None, _T]) -> _T | None:
    """Return what `work` returns; None where the client went away before, which ends the work."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
