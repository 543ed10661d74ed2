"""Locks by name: work on the same file waits in line, work on different files does not.

Asynchronous, and of one event loop. Knows nothing of files but their paths.
"""

import contextlib
from collections.abc import AsyncIterator

import anyio


class KeyedLocks:
    """A lock for each key that is in use at the moment, first come, first served."""

    def __init__(self) -> None:
        """Start without any."""
        self._locks: dict[str, anyio.Lock] = {}
        self._users: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def hold(self, *keys: str) -> AsyncIterator[None]:
        """Hold the locks of all `keys`, taken in sorted order, so that two holders never wait for each other."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                await stack.enter_async_context(self._hold_one(key))
            yield

    @contextlib.asynccontextmanager
    async def _hold_one(self, key: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, anyio.Lock())
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._locks[key], self._users[key]
