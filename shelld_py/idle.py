"""The idle timer: calls back when no request has been in progress for long enough.

It does not run while a request is, and it wakes the process once a period at the most.
"""

import asyncio
import time
from collections.abc import Callable


class IdleTimer:
    """Counts requests in progress, and the time since the last one ended."""

    def __init__(self, timeout: float, on_idle: Callable[[], None]) -> None:
        """`timeout` is in seconds; 0 means never."""
        self.timeout = timeout
        self._on_idle = on_idle
        self._in_progress = 0
        self._since = time.monotonic()
        self._handle: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> float:
        """Seconds since the last request ended; 0 while one is in progress."""
        return 0.0 if self._in_progress else time.monotonic() - self._since

    def start(self) -> None:
        """Begin to count."""
        self._since = time.monotonic()
        self._set(self.timeout)

    def stop(self) -> None:
        """Never call back again."""
        self.timeout = 0.0
        if self._handle:
            self._handle.cancel()

    def begin(self) -> None:
        """A request begins."""
        self._in_progress += 1

    def end(self) -> None:
        """A request has ended."""
        self._in_progress -= 1
        self._since = time.monotonic()

    def _set(self, delay: float) -> None:
        if self.timeout:
            self._handle = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        remaining = self.timeout - self.idle
        if remaining <= 0:
            self._on_idle()
        else:
            self._set(remaining)
