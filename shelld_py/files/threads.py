"""Blocking work in a thread, whose end is waited for in any case.

What a thread works on, descriptors and locks, must not be closed or released under it: the number of a closed
descriptor is soon that of another file. anyio waits for its threads when a cancel scope of its own is cancelled, but
not after `asyncio.Task.cancel`, which knows no shield. So here the thread is awaited by a task of its own, and a
cancellation from either side takes effect when the work is done. Knows nothing of what the work is.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio import to_thread

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises."""
    thread = asyncio.ensure_future(to_thread.run_sync(work))
    cancellation: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not thread.done():
            try:
                await asyncio.wait([thread])
            except asyncio.CancelledError as error:
                cancellation = error
    if cancellation is not None:
        thread.exception()
        raise cancellation
    return thread.result()
