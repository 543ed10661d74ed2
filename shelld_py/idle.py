"""The idle timer: ends the daemon when nothing has happened for long enough, and says so beforehand.

It wakes the process a few times in a period at the most, however many requests there are. It is handed its clock, and
`look` does all that it does; only `start` needs an event loop.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

NOTICE: Final = 300.0
"""Seconds before the end at which it is announced: enough for a person to see it and to send a request."""
_BUSY_PAUSE: Final = 60.0
"""Seconds between two looks while runs keep it from the end: by so much at most it counts too little after the last."""


class IdleTimer:
    """Counts requests in progress, and the time since the last one ended."""

    def __init__(
        self,
        timeout: float,
        on_idle: Callable[[], None],
        *,
        on_notice: Callable[[float], None] = lambda _: None,
        busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout` is in seconds; 0 means never. `on_notice` gets the seconds that are left.

        While `busy` says so, something happens though there is no request.
        """
        self.timeout = timeout
        self._on_idle = on_idle
        self._on_notice = on_notice
        self._busy = busy
        self._clock = clock
        self._in_progress = 0
        self._since = clock()
        self._was_busy = False
        self._noticed: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> float:
        """Seconds since the last request ended; 0 while one is in progress."""
        return 0.0 if self._in_progress else self._clock() - self._since

    def start(self) -> None:
        """Begin to count."""
        self._since = self._clock()
        self._set()

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
        self._since = self._clock()

    def look(self) -> float:
        """Call back if it is time to; return the seconds after which to look again, 0 for never."""
        if not self.timeout:
            return 0.0
        busy = self._busy()
        if busy or self._was_busy:
            self._since = self._clock()
        self._was_busy = busy
        if busy:
            return min(self.timeout, _BUSY_PAUSE)
        left = self.timeout - self.idle
        if left <= 0:
            self._on_idle()
            return 0.0
        if self.timeout <= NOTICE or self._noticed == self._since:
            return left
        if left > NOTICE:
            return left - NOTICE
        self._noticed = self._since
        self._on_notice(left)
        return left

    def _set(self) -> None:
        if delay := self.look():
            self._handle = asyncio.get_running_loop().call_later(delay, self._set)
