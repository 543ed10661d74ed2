"""Waiting for a condition of a run other than its end: a line of output, a port, silence, a question.

Conditions are parsed here and waited for here; nothing of HTTP. Each kind is watched by a task of its own, for as
long as somebody waits: lines as they come, in a process of their own (matching.py); silence by a timer; waiting for
input by the changes of the run. Only ports are looked for again and again, since the kernel tells nobody of them.

When there is nothing left to wait for
    A condition can still come true after the end of the command: a server that was put in the background opens its
    port. So a wait goes on until the command and all the processes that it left behind have ended; or, where `exit`
    is asked for, until the command has ended. Then each condition is looked at once more, with all the output
    there will ever be: what was true at the end has come before it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from shelld_py.errors import InvalidRequest
from shelld_py.linux.ports import listening_ports
from shelld_py.models import Stream
from shelld_py.output.excerpt import READ_SIZE
from shelld_py.output.line_search import LineMatcher
from shelld_py.output.log import OutputLog
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Run
from shelld_py.shells.shell import Shell
from shelld_py.units import parse_duration

_FIRST_LOOK: Final = 2.0
"""Seconds that each condition has to be looked at for the first time, before the first one found wins."""
_PORT_PAUSE: Final = 0.1
_LONGEST_PORT_PAUSE: Final = 0.5
_PORT_PAUSE_GROWTH: Final = 1.2
_HIGHEST_PORT: Final = 65535

_FORMS: Final = (
    "output:REGEX (a line of the output matches), port:NUMBER (the shell listens there), "
    "quiet:DURATION (no output for so long), input (the command waits for input), exit (it has ended)"
)


class Kind(StrEnum):
    """What can be waited for."""

    OUTPUT = "output"
    PORT = "port"
    QUIET = "quiet"
    INPUT = "input"
    EXIT = "exit"


class Condition(Struct, frozen=True):
    """One condition: `text` as it was given, and what it means for its kind."""

    text: str
    kind: Kind
    pattern: str = ""
    port: int = 0
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Return the condition that `text` describes. Raises `InvalidRequest` that says what would be right.

        Whether a pattern is a regular expression is found out by the wait: compiling can take long.
        """
        name, colon, value = text.partition(":")
        if name == Kind.OUTPUT and colon:
            if not value:
                raise InvalidRequest("until: output: needs a regular expression, such as output:Listening on.")
            return cls(text, Kind.OUTPUT, pattern=value)
        if name == Kind.PORT and colon:
            if not (value.isascii() and value.isdecimal() and len(value) <= 5 and 1 <= int(value) <= _HIGHEST_PORT):
                raise InvalidRequest(f"until: port: needs a number from 1 to {_HIGHEST_PORT}, not {value!r}.")
            return cls(text, Kind.PORT, port=int(value))
        if name == Kind.QUIET and colon:
            try:
                return cls(text, Kind.QUIET, seconds=parse_duration(value))
            except ValueError as error:
                raise InvalidRequest(f"until: quiet: {error}.") from None
        if text in (Kind.INPUT, Kind.EXIT):
            return cls(text, Kind(text))
        raise InvalidRequest(f"until: there is no condition {text!r}. There are: {_FORMS}.")


class LogReader(Struct):
    """A stream to look for lines in, and how far that has come."""

    stream: Stream
    log: OutputLog
    cursor: int


class Until:
    """One wait for the first of several conditions."""

    def __init__(
        self, conditions: Sequence[Condition], run: Run, shell: Shell | None, readers: Sequence[LogReader]
    ) -> None:
        """`shell` is None when it is gone; lines are looked for in `readers`."""
        self._conditions = conditions
        self._run = run
        self._shell = shell
        self._readers = readers
        self._exit = next((condition for condition in conditions if condition.kind is Kind.EXIT), None)
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._unseen: set[object] = set()
        self._seen = asyncio.Event()

    async def wait(self, timeout: float) -> Condition | None:
        """Return the condition that came first; None after `timeout` seconds, or when none can come any more.

        Where several hold from the beginning, it is the first of them in the order given. Each is looked at once
        even if `timeout` is 0. Raises `InvalidRequest` for a bad pattern, `PatternTooSlow`.
        """
        deadline = time.monotonic() + timeout
        waits = self._waits()
        self._unseen.update(waits)
        tasks = [asyncio.create_task(self._wait_and_mark(wait)) for wait in waits]
        background = [asyncio.create_task(self._follow_changes()), asyncio.create_task(self._await_end())]
        try:
            if waits:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._seen.wait(), _FIRST_LOOK)
            return await self._first([*tasks, background[1]], deadline)
        finally:
            for task in (*tasks, *background):
                task.cancel()
            await asyncio.gather(*tasks, *background, return_exceptions=True)

    async def _first(self, tasks: Sequence[asyncio.Task[Condition | None]], deadline: float) -> Condition | None:
        pending = set(tasks)
        while pending:
            left = max(0.0, deadline - time.monotonic())
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            found = [condition for task in done if (condition := task.result())]
            if found:
                return min(found, key=self._conditions.index)
            if not done:
                return None
        return self._exit

    # --- the changes of the run, and its end ----------------------------------------------------------

    async def _follow_changes(self) -> None:
        """Tell those who wait for a change of the run of each."""
        while await self._run.changed():
            self._notify()

    async def _await_end(self) -> None:
        """Wait until there is nothing left to wait for, and say so."""
        await self._run.wait()
        if self._shell and not self._exit:
            await self._shell.wait_for_processes(self._run)
        self._over.set()
        self._notify()

    def _notify(self) -> None:
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    # --- one wait for each kind --------------------------------------------------------------------

    def _waits(self) -> list[Callable[[], Awaitable[Condition | None]]]:
        kinds = {condition.kind for condition in self._conditions}
        waits: list[Callable[[], Awaitable[Condition | None]]] = []
        if Kind.OUTPUT in kinds:
            waits.append(self._wait_for_output)
        if Kind.PORT in kinds:
            waits.append(self._wait_for_ports)
        if Kind.QUIET in kinds:
            waits.append(self._wait_for_silence)
        if Kind.INPUT in kinds:
            waits.append(self._wait_for_input)
        return waits

    async def _wait_and_mark(self, wait: Callable[[], Awaitable[Condition | None]]) -> Condition | None:
        try:
            return await wait()
        finally:
            self._mark_seen(wait)

    def _mark_seen(self, wait: Callable[[], Awaitable[Condition | None]]) -> None:
        """Note that `wait` has had its first look."""
        self._unseen.discard(wait)
        if not self._unseen:
            self._seen.set()

    def _of(self, kind: Kind) -> list[Condition]:
        return [condition for condition in self._conditions if condition.kind is kind]

    async def _wait_for_output(self) -> Condition | None:
        wanted = self._of(Kind.OUTPUT)
        matcher = await LineMatcher.start([condition.pattern for condition in wanted])
        try:
            while True:
                change, over = self._changed, self._over.is_set()
                for reader in self._readers:
                    index = await _match(matcher, reader, ended=over)
                    if index is not None:
                        return wanted[index]
                self._mark_seen(self._wait_for_output)
                if over:
                    return None
                await asyncio.wait({change})
        finally:
            await matcher.aclose()

    async def _wait_for_ports(self) -> Condition | None:
        wanted = {condition.port: condition for condition in reversed(self._of(Kind.PORT))}
        pause = _PORT_PAUSE
        while True:
            over = self._over.is_set()
            pid = self._shell.pid if self._shell else None
            listened = await asyncio.to_thread(listening_ports, pid, wanted.keys()) if pid else []
            if listened:
                return min((wanted[found.port] for found in listened), key=self._conditions.index)
            self._mark_seen(self._wait_for_ports)
            if over:
                return None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pause)
            pause = min(pause * _PORT_PAUSE_GROWTH, _LONGEST_PORT_PAUSE)

    async def _wait_for_silence(self) -> Condition | None:
        wanted = min(self._of(Kind.QUIET), key=lambda condition: condition.seconds)
        while isinstance(self._run, LiveRun) and not self._over.is_set():
            left = self._run.active_at + wanted.seconds - time.monotonic()
            if left <= 0:
                return wanted
            self._mark_seen(self._wait_for_silence)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), left)
        return None

    async def _wait_for_input(self) -> Condition | None:
        while True:
            change = self._changed
            if self._run.awaiting_input:
                return self._of(Kind.INPUT)[0]
            self._mark_seen(self._wait_for_input)
            if self._over.is_set():
                return None
            await asyncio.wait({change})


async def _match(matcher: LineMatcher, reader: LogReader, *, ended: bool) -> int | None:
    """Look through what there is past the reader's cursor; return the index of the pattern that was found first."""
    while True:
        chunk = reader.log.read(reader.cursor, READ_SIZE)
        if not chunk.data and not ended:
            return None
        at_end = not chunk.data or chunk.end >= reader.log.size
        reader.cursor = max(reader.cursor, chunk.end)
        gap = chunk.dropped > 0
        index = await matcher.look(reader.stream, chunk.data, gap=gap, at_end=at_end, ended=ended and at_end)
        if index is not None or (ended and at_end):
            return index
