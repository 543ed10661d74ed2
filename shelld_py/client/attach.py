"""`shelld-py attach`: one's own terminal, or what is piped in, becomes that of a run.

A terminal is put into raw mode, so that each key goes to the program, Ctrl-C too; Ctrl-] detaches. Whatever
happens, the terminal gets its modes back. Anything else than a terminal is sent to its end, and end-of-file
after it.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, Final

from shelld_py.client.client import AsyncClient
from shelld_py.client.events import Event, Gap, Output, Result
from shelld_py.client.printing import complain, write
from shelld_py.errors import Conflict, NoRunningCommand, NotFound, RunNotFound
from shelld_py.models import OutputFormat, RunResult, RunStatus, Stream
from shelld_py.units import LONGEST_DURATION

DETACH: Final = b"\x1d"
LEAVE_FULL_SCREEN: Final = "\x1b[?1049l"
_READ_SIZE: Final = 65536
_SHOWN_OF_BEFORE: Final = 64 * 1024
_FULL_SCREEN: Final = re.compile(r"\x1b\[\?(?:1049|1047|47)([hl])")
_LONGEST_SEQUENCE: Final = 8


async def attach(client: AsyncClient, run_id: str | None, session: str | None) -> RunResult | None:
    """Follow a run (the current one of the shell by default) and type into it, until it ends.

    Returns the run, or None when it was left by the detach key. Raises `NoRunningCommand` where there is no run, and
    what the client raises.
    """
    if run_id is None:
        shell = client if session is None else client.sessions.use(session)
        current = (await shell.status()).run
        if current is None:
            raise NoRunningCommand("No command is running. To see an earlier one: shelld-py attach RUN_ID.")
        run_id = current.run_id
    run = await client.runs.get(run_id, max_output=1)
    start = max(0, run.cursor - _SHOWN_OF_BEFORE)
    running = run.status is RunStatus.RUNNING
    events = client.runs.follow(run_id, cursor=start, format=OutputFormat.RAW, echo=running and os.isatty(0))
    attachment = Attachment(client, run_id, events, skip=start > 0)
    return await attachment.perform(attachment.type() if running else None)


class Screen:
    """Output of a program's terminal, made ready for ours, which is in raw mode.

    The daemon's terminals leave LF as it is, and so does raw mode, so the carriage return is added here; but not
    for a program that has taken the whole screen: that moves the cursor down with LF and knows what it does.
    """

    def __init__(self) -> None:
        self.full = False
        """Whether a program has taken the whole screen (and not given it back)."""
        self._tail = ""

    def shown(self, text: str) -> str:
        """Return what to write for `text`; sequences may be cut anywhere."""
        whole, position = self._tail + text, len(self._tail)
        parts = []
        for match in _FULL_SCREEN.finditer(whole):
            if match.end() > position:
                parts.append(self._lines(whole[position : match.end()]))
                position = match.end()
                self.full = match[1] == "h"
        parts.append(self._lines(whole[position:]))
        self._tail = whole[-_LONGEST_SEQUENCE:]
        return "".join(parts)

    def _lines(self, text: str) -> str:
        return text if self.full else text.replace("\n", "\r\n")


class Attachment:
    """One attachment, from its begin to its end."""

    def __init__(
        self, client: AsyncClient, run_id: str, events: AsyncGenerator[Event, None], *, skip: bool = False
    ) -> None:
        """`events` are those of the run, raw; `skip` says that they begin within a line, which is not shown."""
        self._client = client
        self._run_id = run_id
        self._events = events
        self._skip = skip
        self._terminal = os.isatty(0)
        self._raw = False
        """Whether our terminal is in raw mode."""
        self._ended = contextlib.ExitStack()
        """What is to be undone at the end."""
        self._main: asyncio.Task[object] | None = None
        self._screen = Screen()
        self._typed: asyncio.Queue[bytes] = asyncio.Queue()
        self._resized = asyncio.Event()

    async def perform(self, typing: Coroutine[Any, Any, RunResult | None] | None) -> RunResult | None:
        """Return the run at its end, or None when it was left. `typing` is how input goes there, if it does."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        tasks = [loop.create_task(work) for work in (self._follow(), typing) if work]
        try:
            with self._ended:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                return done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            if self._screen.full:
                write(1, f"{LEAVE_FULL_SCREEN}\x1b[0m\x1b[?25h")

    async def type_when_asked(self) -> RunResult | None:
        """As `type`, but only once the run waits for input."""
        while True:
            try:
                waited = await self._client.runs.wait(self._run_id, until=("input", "exit"), timeout=LONGEST_DURATION)
            except RunNotFound:  # the request that starts it is on its way
                await asyncio.sleep(0.02)
                continue
            if waited.status is not RunStatus.RUNNING:
                return await _never()
            if waited.reached == "input":
                return await self.type()

    def _take_input(self) -> None:
        """Begin to hand on what comes from standard input; of a terminal every key, and its size."""
        loop = asyncio.get_running_loop()
        if self._terminal and self._main:
            for number in (signal.SIGTERM, signal.SIGHUP):  # no signal may keep the terminal from its modes
                loop.add_signal_handler(number, self._main.cancel)
            self._ended.enter_context(_raw_terminal())
            self._raw = True
            loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
            self._resized.set()
            self._ended.callback(loop.create_task(self._resize()).cancel)
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()

    async def _follow(self) -> RunResult | None:
        """Show the output to the end of the run; return it."""
        run = None
        async with contextlib.aclosing(self._events):
            async for event in self._events:
                if isinstance(event, Result):
                    run = event.run
                if isinstance(event, Gap):
                    complain(f"{event.dropped} bytes are not kept any more")
                if not isinstance(event, Output):
                    continue
                text = event.text
                if self._skip and event.stream is Stream.STDOUT:
                    text, self._skip = text[text.find("\n") + 1 :], False
                shown = self._screen.shown(text)
                write(2 if event.stream is Stream.STDERR else 1, shown if self._raw else text)
        return run

    async def type(self) -> RunResult | None:
        """Send what is typed, until the detach key. What is piped in is sent to its end, which ends nothing here."""
        send, run_id = self._client.runs.stdin, self._run_id
        self._take_input()
        try:
            ended = False
            while not ended:
                pieces = [await self._typed.get()]
                while not self._typed.empty():
                    pieces.append(self._typed.get_nowait())
                ended = not pieces[-1]
                data = b"".join(pieces)
                data, detach, _ = data.partition(DETACH) if self._terminal else (data, b"", b"")
                if data:
                    await send(run_id, data)
                if detach:
                    return None
            await send(run_id, eof=True)
        except NoRunningCommand:
            pass  # it has just ended: the other task says how
        return await _never()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand on what comes from standard input. In a thread: a file cannot be waited for in the loop."""
        data = b"?"
        with contextlib.suppress(OSError, RuntimeError):
            while data:
                data = os.read(0, _READ_SIZE)
                loop.call_soon_threadsafe(self._typed.put_nowait, data)

    async def _resize(self) -> None:
        """Give the program's terminal the size of ours, now and whenever that changes."""
        session_id = (await self._client.runs.get(self._run_id, max_output=1)).session_id
        shell = self._client.sessions.use(session_id)
        while True:
            await self._resized.wait()
            self._resized.clear()
            columns, rows = os.get_terminal_size(0)
            with contextlib.suppress(Conflict, NotFound):
                if rows and columns:
                    await shell.resize(rows, columns)


async def _never() -> RunResult | None:
    never: asyncio.Future[RunResult | None] = asyncio.get_running_loop().create_future()
    return await never


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Put our terminal into raw mode for a while (termios(3))."""
    modes = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # what has been typed ahead is kept
        print("(Ctrl-] detaches)", file=sys.stderr, end="\r\n", flush=True)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, modes)
