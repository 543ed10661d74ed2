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
from collections.abc import Iterator
from typing import Final

from shelld_py.client.asynchronous import AsyncClient
from shelld_py.client.events import Gap, Output, Result
from shelld_py.client.printing import complain, write
from shelld_py.errors import Conflict, NoRunningCommand, NotFound
from shelld_py.models import OutputFormat, RunResult, RunStatus, Stream

DETACH: Final = b"\x1d"
_READ_SIZE: Final = 65536
_SHOWN_OF_BEFORE: Final = 64 * 1024
_FULL_SCREEN: Final = re.compile(r"\x1b\[\?(?:1049|1047|47)([hl])")
_LONGEST_SEQUENCE: Final = 8


async def attach(client: AsyncClient, run_id: str | None, session: str | None, *, echo: bool) -> RunResult | None:
    """Follow a run (the current one of the shell by default) and type into it, until it ends.

    Returns the run, or None when it was left by the detach key. `echo` shows what is typed. Raises
    `NoRunningCommand` where there is no run, and what the client raises.
    """
    if run_id is None:
        shell = client if session is None else client.sessions.use(session)
        current = (await shell.status()).run
        if current is None:
            raise NoRunningCommand("No command is running. To see an earlier one: shelld-py attach RUN_ID.")
        run_id = current.run_id
    run = await client.runs.get(run_id, max_output=1)
    terminal = os.isatty(0) and run.status is RunStatus.RUNNING
    main = asyncio.current_task()
    if terminal and main:  # from here on no signal may end us without giving the terminal its modes back
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    with _raw_terminal() if terminal else contextlib.nullcontext():
        return await _Attachment(client, run, terminal=terminal, echo=echo).perform()


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


class _Attachment:
    """One attachment, from its begin to its end."""

    def __init__(self, client: AsyncClient, run: RunResult, *, terminal: bool, echo: bool) -> None:
        self._client = client
        self._run = run
        self._terminal = terminal
        self._echo = echo
        self._screen = Screen()
        self._typed: asyncio.Queue[bytes] = asyncio.Queue()
        self._resized = asyncio.Event()

    async def perform(self) -> RunResult | None:
        """Return the run at its end, or None when it was left."""
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[RunResult | None]] = [loop.create_task(self._follow())]
        if self._run.status is RunStatus.RUNNING:
            tasks.append(loop.create_task(self._type()))
            threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        helper = None
        if self._terminal:
            loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
            self._resized.set()
            helper = loop.create_task(self._resize())
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in (*tasks, helper):
                if task is not None:
                    task.cancel()
            if self._screen.full:
                write(1, "\x1b[?1049l\x1b[0m\x1b[?25h")

    async def _follow(self) -> RunResult | None:
        """Show the output to the end of the run; return it."""
        client, run = self._client, self._run
        cursor = max(0, run.cursor - _SHOWN_OF_BEFORE)
        skip = cursor > 0
        events = client.runs.follow(run.run_id, cursor=cursor, format=OutputFormat.RAW)
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, Result):
                    return event.run
                if isinstance(event, Gap):
                    complain(f"{event.dropped} bytes are not kept any more")
                if not isinstance(event, Output):
                    continue
                text = event.text
                if skip and event.stream is Stream.STDOUT:
                    text, skip = text[text.find("\n") + 1 :], False
                write(2 if event.stream is Stream.STDERR else 1, self._screen.shown(text) if self._terminal else text)
        raise AssertionError("events end with a result")

    async def _type(self) -> RunResult | None:
        """Send what is typed, until the detach key. What is piped in is sent to its end, which ends nothing here."""
        send, run_id = self._client.runs.stdin, self._run.run_id
        try:
            ended = False
            while not ended:
                pieces = [await self._typed.get()]
                while not self._typed.empty():
                    pieces.append(self._typed.get_nowait())
                ended = not pieces[-1]
                data = b"".join(pieces)
                data, detach, _ = data.partition(DETACH) if self._terminal else (data, b"", b"")
                if self._echo and data:
                    write(1, self._screen.shown(data.decode("utf-8", "replace").replace("\r", "\n")))
                if data:
                    await send(run_id, data)
                if detach:
                    return None
            await send(run_id, eof=True)
        except NoRunningCommand:
            pass  # it has just ended: the other task says how
        never: asyncio.Future[RunResult | None] = asyncio.get_running_loop().create_future()
        return await never

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand on what comes from standard input. In a thread: a file cannot be waited for in the loop."""
        data = b"?"
        with contextlib.suppress(OSError, RuntimeError):
            while data:
                data = os.read(0, _READ_SIZE)
                loop.call_soon_threadsafe(self._typed.put_nowait, data)

    async def _resize(self) -> None:
        """Give the program's terminal the size of ours, now and whenever that changes."""
        shell = self._client.sessions.use(self._run.session_id)
        while True:
            await self._resized.wait()
            self._resized.clear()
            columns, rows = os.get_terminal_size(0)
            with contextlib.suppress(Conflict, NotFound):
                if rows and columns:
                    await shell.resize(rows, columns)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Put our terminal into raw mode for a while (termios(3))."""
    modes = termios.tcgetattr(0)
    print("(Ctrl-] detaches)", file=sys.stderr, end="\r\n", flush=True)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, modes)
