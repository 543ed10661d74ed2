"""`shelld-py attach`: one's own terminal, or what is piped in, becomes that of a run.

A terminal is put into raw mode, so that each key goes to the program, Ctrl-C too; Ctrl-] detaches. Whatever
happens, the terminal gets its modes back. Anything else than a terminal is sent to its end, and end-of-file
after it.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import termios
import threading
import tty
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, Final

import msgspec

from shelld_py.client.call import T
from shelld_py.client.client import AsyncClient
from shelld_py.client.events import Output, Result
from shelld_py.client.failures import TransportError, UnknownAnswer
from shelld_py.client.printing import Printer, complain, write
from shelld_py.errors import NoRunningCommand, RunNotFound
from shelld_py.models import OutputFormat, RunResult, RunStatus, ShellState, Streams
from shelld_py.units import LONGEST_DURATION, MEBIBYTE
from shelld_py.websocket import CloseCode, Closed, WebSocket

DETACH: Final = b"\x1d"
LEAVE_FULL_SCREEN: Final = "\x1b[?1049l"
_READ_SIZE: Final = 65536
_READ_AHEAD: Final = 4
_SHOWN_OF_BEFORE: Final = 64 * 1024
_AGAIN: Final = frozenset({CloseCode.LOST, CloseCode.TRY_AGAIN_LATER})
_PAUSES: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each try to come back where the connection was lost."""
_FULL_SCREEN: Final = re.compile(rb"\x1b\[\?(?:1049|1047|47)([hl])")
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
    if run.status is RunStatus.RUNNING and os.isatty(0):
        attachment = Attachment(client, run.session_id, run_id)
        return await attachment.perform(attachment.show(), attachment.type())
    sending = asyncio.get_running_loop().create_task(_send_piped(client, run_id))
    try:
        return await _follow(client, run_id, start, skip=start > 0)
    finally:
        sending.cancel()


async def _follow(client: AsyncClient, run_id: str, start: int, *, skip: bool = False) -> RunResult | None:
    """Print what a run writes, to its end; return it. With `skip` it begins within a line, which is not shown."""
    printer, run = Printer(by_lines=False), None
    async with contextlib.aclosing(client.runs.follow(run_id, cursor=start, format=OutputFormat.RAW)) as events:
        async for event in events:
            if isinstance(event, Result):
                run = event.run
            if skip and isinstance(event, Output):
                skip = False
                printer.show(msgspec.structs.replace(event, text=event.text[event.text.find("\n") + 1 :]))
            else:
                printer.show(event)
    return run


async def _send_piped(client: AsyncClient, run_id: str) -> None:
    """Send what is piped in, and end-of-file after it."""
    typed = read_input()
    with contextlib.suppress(NoRunningCommand):  # it has ended: whoever follows it says how
        while data := await typed.get():
            await client.runs.stdin(run_id, data)
        await client.runs.stdin(run_id, eof=True)


def read_input() -> "asyncio.Queue[bytes]":
    """Return where standard input comes, at its end nothing. A thread reads it: a file cannot be waited for.

    It reads a few pieces ahead, whatever the size of the file.
    """
    typed: asyncio.Queue[bytes] = asyncio.Queue(_READ_AHEAD)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = b"?"
        with contextlib.suppress(OSError, RuntimeError, CancelledError):  # the loop may have ended
            while data:
                data = os.read(0, _READ_SIZE)
                with contextlib.closing(typed.put(data)) as put:  # a loop that has ended does not take it
                    asyncio.run_coroutine_threadsafe(put, loop).result()

    threading.Thread(target=read, daemon=True).start()
    return typed


class TerminalOutput:
    """Output of a program's terminal, made ready for ours, which is in raw mode.

    The daemon's terminals leave LF as it is, and so does raw mode, so the carriage return is added here; but not
    for a program that has taken the whole screen: that moves the cursor down with LF and knows what it does.
    """

    def __init__(self) -> None:
        self.full = False
        """Whether a program has taken the whole screen (and not given it back)."""
        self._tail = b""

    def shown(self, data: bytes) -> bytes:
        """Return what to write for `data`; sequences may be cut anywhere."""
        whole, position = self._tail + data, len(self._tail)
        parts = []
        for match in _FULL_SCREEN.finditer(whole):
            if match.end() > position:
                parts.append(self._lines(whole[position : match.end()]))
                position = match.end()
                self.full = match[1] == b"h"
        parts.append(self._lines(whole[position:]))
        self._tail = whole[-_LONGEST_SEQUENCE:]
        return b"".join(parts)

    def _lines(self, data: bytes) -> bytes:
        return data if self.full else data.replace(b"\n", b"\r\n")


class _Told(msgspec.Struct, frozen=True):
    """A message of the daemon in JSON: the members that are needed of each."""

    type: str
    state: str = ""
    run_id: str = ""
    dropped: int = 0
    code: str = ""
    detail: str = ""


class Attachment:
    """Our terminal as that of a run, from its begin to its end."""

    def __init__(self, client: AsyncClient, session_id: str, run_id: str, *, known: bool = True) -> None:
        """`known` says that the run has begun; else `begin` is one of the works."""
        self._client = client
        self._session_id = session_id
        self._run_id = run_id
        self._known = known
        self._raw = False
        """Whether our terminal is in raw mode."""
        self._ended = contextlib.ExitStack()
        """What is to be undone at the end."""
        self._main: asyncio.Task[object] | None = None
        self._screen = TerminalOutput()
        self._websocket: WebSocket | None = None
        """Where what is typed goes, as long as there is a connection."""
        self._connected = asyncio.Event()
        self._resized = asyncio.Event()
        self._replay = _SHOWN_OF_BEFORE
        self._cursor: int | None = None
        """How far in the log what was shown reaches; None before anything was."""
        self._apart = False
        """Whether the output comes of two logs, so that no place in one says how far it reaches."""
        self._within_line = False
        """Whether what comes next begins within a line, which is not shown."""

    async def perform(self, *works: Coroutine[Any, Any, RunResult | None]) -> RunResult | None:
        """Return what the first of `works` returns: the run at its end, or None when it was left."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        tasks = [loop.create_task(work) for work in works]
        try:
            with self._ended:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                return done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._screen.full:
                write(1, f"{LEAVE_FULL_SCREEN}\x1b[0m\x1b[?25h")

    async def begin(self, start: Callable[[], Awaitable[object]]) -> RunResult | None:
        """Begin the run when its terminal is shown."""
        await self._connected.wait()
        await start()
        self._known = True
        return await _never()

    # --- what is shown --------------------------------------------------------------------------------

    async def show(self) -> RunResult | None:
        """Show the output to the end of the run; return it. A connection that is lost is made again."""
        websocket = await self._client.terminal(self._session_id, replay=self._replay)
        while True:
            self._websocket = websocket
            self._connected.set()
            self._resized.set()
            try:
                return await self._show(websocket)
            except Closed as closed:
                if closed.code not in _AGAIN:
                    raise self._lost(closed.reason or f"The daemon has closed the terminal ({closed.code}).") from None
            finally:
                self._websocket = None
                self._connected.clear()
                await websocket.close()
            websocket = await self._come_back()

    async def _come_back(self) -> WebSocket:
        """Open the terminal again, from where it was seen last on."""
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            with contextlib.suppress(TransportError, RunNotFound):
                now = await self._client.runs.get(self._run_id, max_output=1)
                # More than is missing now, for it may be more in a moment: what is known is passed over.
                self._replay = 0 if self._apart else now.cursor - (self._cursor or 0) + MEBIBYTE
                return await self._client.terminal(self._session_id, replay=self._replay)
        raise self._lost("The connection is lost.")

    def _lost(self, detail: str) -> TransportError:
        return TransportError(detail, method="GET", url=self._client.url, maybe_done=True)

    async def _show(self, websocket: WebSocket) -> RunResult | None:
        """Show what one connection brings, until the run has ended."""
        seen, passed_over = False, 0
        while True:
            message = await websocket.receive()
            if isinstance(message, bytes):
                if seen:
                    self._cursor = (self._cursor or 0) + max(0, len(message) - passed_over)
                    self._write(message[passed_over:])
                    passed_over = max(0, passed_over - len(message))
                continue
            told = _decoded(message, _Told)
            match told.type:
                case "state" if self._known and not seen and told.state != ShellState.BUSY:
                    return await self._rest()
                case "run" if told.run_id != self._run_id:
                    if self._known:
                        return await self._rest()
                case "run" if seen:
                    return _decoded(message, RunResult)
                case "run":
                    seen = True
                    passed_over = self._pass_over(_decoded(message, RunResult))
                case "gap":
                    self._cursor = (self._cursor or 0) + told.dropped
                    complain(f"{told.dropped} bytes are not kept any more")
                case "error" if told.code != NoRunningCommand.code:  # at that the end of the run comes, too
                    complain(told.detail)

    def _pass_over(self, run: RunResult) -> int:
        """Return how many of the bytes that come were shown before."""
        start = max(0, run.cursor - self._replay)
        self._apart = run.streams is Streams.SEPARATE
        if self._cursor is None:
            self._cursor, self._within_line = start, start > 0
        elif start > self._cursor or self._apart:
            complain("some output is not shown: the connection was lost")
            self._cursor = start
        return self._cursor - start

    def _write(self, data: bytes) -> None:
        if self._within_line:  # it begins somewhere in a line
            data, self._within_line = data[data.find(b"\n") + 1 :], False
        shown = self._screen.shown(data)
        write(1, shown if self._raw else data)

    async def _rest(self) -> RunResult | None:
        """Show what is left of the run, which has ended meanwhile; return it."""
        cursor = self._cursor or 0
        follow = self._client.runs.follow(self._run_id, cursor=cursor, format=OutputFormat.RAW)
        async with contextlib.aclosing(follow) as events:
            async for event in events:
                if isinstance(event, Output):
                    self._write(event.text.encode("utf-8", "replace"))
                elif isinstance(event, Result):
                    return event.run
        return None

    # --- what is typed --------------------------------------------------------------------------------

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

    async def type(self) -> RunResult | None:
        """Send every key to the program, and the size of our terminal, until the detach key."""
        loop = asyncio.get_running_loop()
        if self._main:
            for number in (signal.SIGTERM, signal.SIGHUP):  # no signal may keep the terminal from its modes
                loop.add_signal_handler(number, self._main.cancel)
        self._ended.enter_context(_raw_terminal())
        self._raw = True
        loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
        self._ended.callback(loop.create_task(self._resize()).cancel)
        typed = read_input()
        while data := await typed.get():
            data, detach, _ = data.partition(DETACH)
            if data:
                await self._send(data)
            if detach:
                return None
        return await _never()

    async def _resize(self) -> None:
        """Give the program's terminal the size of ours, now and whenever that changes."""
        while True:
            await self._resized.wait()
            self._resized.clear()
            columns, rows = os.get_terminal_size(0)
            if rows and columns:
                await self._send(json.dumps({"type": "resize", "rows": rows, "cols": columns}))

    async def _send(self, message: bytes | str) -> None:
        """Send a message, on the next connection where this one is lost."""
        while True:
            await self._connected.wait()
            if self._websocket:
                with contextlib.suppress(Closed):
                    await self._websocket.send(message)
                    return
            await asyncio.sleep(0.02)  # who reads finds it lost, too


def _decoded(message: str, kind: type[T]) -> T:
    """Return a message of the daemon in JSON as what it tells. Raises `UnknownAnswer`."""
    try:
        return msgspec.json.decode(message, type=kind)
    except msgspec.DecodeError as error:
        raise UnknownAnswer(f"A message is not what a daemon sends: {error}.") from None


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
