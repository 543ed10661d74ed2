"""The screens of runs that somebody asks for, made from their logs and kept up while somebody goes on asking.

What a screen takes is bounded, however much a run has written: of a long log only the end is read, and before that
the modes are looked for, which a program sets at its start. All of it is done in a thread, which gives way to the event
loop after each piece. The emulation is imported when the first screen is asked for.
"""

import asyncio
import re
import time
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from shelld_py.models import Screen as ShownScreen
from shelld_py.models import ScreenCursor, Stream
from shelld_py.output.log import OutputLog
from shelld_py.shells.keys import KeyModes
from shelld_py.shells.record import DEFAULT_SIZE, Sizes
from shelld_py.shells.run import Run

if TYPE_CHECKING:
    from shelld_py.output.screen import Screen

_MOST: Final = 8
"""Screens that are kept."""
_KEPT_FOR: Final = 60.0
"""Seconds that a screen is kept for whoever asks again."""
_QUIET: Final = 0.1
"""Seconds without output after which a screen is drawn: programs redraw theirs in several writes."""
_WINDOW: Final = 128 * 1024
"""Bytes of the end of a log that are shown: a full screen with a colour for each cell takes some 40 KiB."""
_LAST_WINDOW: Final = 16 * 1024
"""What is still read where that has taken `_TIME_LIMIT` seconds: some bytes cost a thousand times more than others."""
_TIME_LIMIT: Final = 2.0
_SEARCHED: Final = 4 * 1024 * 1024
"""Bytes before the window in which modes are looked for."""
_PIECE: Final = 2048
"""Bytes after which the thread gives way: 2 ms of work, mostly."""
_BEGIN: Final = re.compile(rb"[\x1b\n]")
_MODES: Final = re.compile(rb"\x1b\[\?[0-9;]{1,40}[hl]|\x1b[=>c]|\x1b\[!p|\x1b\[[0-9;]{0,12}r")


class _Emulation(Struct, eq=False):
    """A screen, and how much of its log it shows."""

    log: OutputLog
    sizes: Sizes
    screen: "Screen"
    shown: int = 0
    used: asyncio.TimerHandle | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def catch_up(self) -> None:
        """Show all that the log holds. To be called in a thread."""
        end, limit = self.log.size, time.monotonic() + _TIME_LIMIT
        if end - self.shown > _WINDOW:
            self._skip_to(end - _WINDOW)
        while self.shown < end:
            if time.monotonic() > limit and end - self.shown > _LAST_WINDOW:
                self._skip_to(end - _LAST_WINDOW)
                limit += _TIME_LIMIT
            self._resize()
            following = next((at for at, _, _ in self.sizes if at > self.shown), end)
            chunk = self.log.read(self.shown, min(_PIECE, following - self.shown))
            self.screen.feed(chunk.data)
            self.shown = max(chunk.end, self.shown + 1)
            time.sleep(0)
        self._resize()

    def _resize(self) -> None:
        """Have the size that the terminal had when the next byte was written."""
        for at, rows, cols in self.sizes:
            if at <= self.shown:
                size = rows, cols
        self.screen.resize(*size)

    def _skip_to(self, start: int) -> None:
        """Go on at `start`, where a line or a sequence begins there; of what is left out, take the modes alone."""
        position = max(self.shown, start - _SEARCHED)
        found: dict[bytes, None] = {}
        while position < start:
            chunk = self.log.read(position, min(_SEARCHED // 16, start - position))
            for match in _MODES.finditer(chunk.data):
                found.pop(match[0], None)
                found[match[0]] = None
            position = max(chunk.end, position + 1)
            time.sleep(0)
        for sequence in list(found)[-1000:]:
            self.screen.feed(sequence)
        begin = _BEGIN.search(self.log.read(start, _PIECE).data)
        self.shown = start + (begin.start() if begin else 0)


class Screens:
    """The screens that are kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], _Emulation] = OrderedDict()

    async def shown(self, run: Run) -> ShownScreen:
        """Return what the terminal of `run` shows."""
        emulation = await self._of(run)
        async with emulation.lock:
            return await asyncio.to_thread(_shown, emulation, run)

    async def picture(self, run: Run) -> tuple[ShownScreen, str]:
        """Return the same, with a picture of it as SVG."""
        emulation = await self._of(run)
        async with emulation.lock:
            return await asyncio.to_thread(_drawn, emulation, run)

    async def modes(self, run: Run) -> KeyModes:
        """Return how the program in the terminal of `run` wants keys to be sent."""
        emulation = await self._of(run)
        async with emulation.lock:
            return await asyncio.to_thread(_modes, emulation)

    def clear(self) -> None:
        """Forget all."""
        for emulation in self._kept.values():
            if emulation.used:
                emulation.used.cancel()
        self._kept.clear()

    async def _of(self, run: Run) -> _Emulation:
        key = run.run_id, run.result().started_at
        log, sizes = run.logs.get(Stream.STDOUT) or OutputLog.of(b""), run.sizes or ((0, *DEFAULT_SIZE),)
        emulation = self._kept.get(key)
        if emulation is None:
            emulation = _Emulation(log, sizes, await asyncio.to_thread(_new, sizes))
            emulation = self._kept.setdefault(key, emulation)
        emulation.log, emulation.sizes = log, sizes
        self._kept.move_to_end(key)
        if emulation.used:
            emulation.used.cancel()
        emulation.used = asyncio.get_running_loop().call_later(_KEPT_FOR, self._kept.pop, key, None)
        while len(self._kept) > _MOST:
            _, oldest = self._kept.popitem(last=False)
            if oldest.used:
                oldest.used.cancel()
        return emulation


def _new(sizes: Sizes) -> "Screen":
    from shelld_py.output.screen import Screen

    return Screen(*sizes[0][1:])


def _shown(emulation: _Emulation, run: Run) -> ShownScreen:
    emulation.catch_up()
    screen = emulation.screen
    return ShownScreen(
        run_id=run.run_id,
        rows=screen.lines,
        cols=screen.columns,
        lines=tuple(screen.texts),
        cursor=ScreenCursor(
            row=screen.cursor.y, col=min(screen.cursor.x, screen.columns - 1), visible=not screen.cursor.hidden
        ),
        title=screen.title,
        alternate=screen.alternate,
        at=emulation.shown,
        status=run.status,
        awaiting_input=run.awaiting_input,
    )


def _modes(emulation: _Emulation) -> KeyModes:
    from shelld_py.output.screen import APPLICATION_CURSOR, BRACKETED_PASTE

    emulation.catch_up()
    mode = emulation.screen.mode
    return KeyModes(application_cursor=APPLICATION_CURSOR in mode, bracketed_paste=BRACKETED_PASTE in mode)


def _drawn(emulation: _Emulation, run: Run) -> tuple[ShownScreen, str]:
    from shelld_py.output.picture import picture

    return _shown(emulation, run), picture(emulation.screen)


async def settled(run: Run, at: int | None, wait: float) -> None:
    """Wait until there is output after `at`, and then until there is none for a moment; `wait` seconds at the most."""
    log, loop = run.log(Stream.STDOUT), asyncio.get_running_loop()
    deadline = loop.time() + wait
    if log is None:
        return
    if at is not None:
        await run.until(partial(_written, run, log, at), wait)
    while run.running and (left := deadline - loop.time()) > 0:
        if not await run.until(partial(_written, run, log, log.size), min(left, _QUIET)):
            return


def _written(run: Run, log: OutputLog, size: int) -> bool:
    return not run.running or log.size > size
