"""A run from its start to its end: what it writes, what is known of it meanwhile, and those who wait for it.

It starts nothing and kills nothing, and knows no shell: its shell does that and tells it.

A run is light until it proves otherwise: what it writes is held in memory, and nothing is made for it. Most end like
that. Who asks for more of it than its end, or a run that lasts or writes much, makes it a full one (`promote`), with
logs on the disk; nobody can see what it was before.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from shelld_py.models import Cause, FileChanges, RunResult, RunStatus, ShellState, Stream, Usage, utc_timestamp
from shelld_py.output.excerpt import SizeCounter
from shelld_py.output.log import OutputLog
from shelld_py.output.text import is_plain, is_quick, render
from shelld_py.output.timing import Timing
from shelld_py.request_data import Command
from shelld_py.shells.record import DEFAULT_SIZE, LONGEST_TOLD, Kept, Record, Sizes, changes_members, fingerprint
from shelld_py.shells.run import Comparison, Ending, Run
from shelld_py.units import MEBIBYTE

SHORT: Final = 16 * 1024
"""Bytes of output that are held in memory, and lie in the journal at the most; more has a directory."""
_NO_TIMER: Final = 0.05
"""Seconds: a wait that is longer is not missed by more than a light run takes to be promoted."""
_MOST_SIZES: Final = 1000
"""Sizes of a terminal that are remembered of a run."""


class LiveRun(Run):
    """A run from its start to its end, and until what it left behind has ended. Its shell calls the methods."""

    # What most runs never change are attributes of the class: to set forty for each takes longer than to judge its end.
    request: tuple[str, Command] | None = None
    """What a client has asked for, to be told from other requests: where, and which command; None if none has."""
    fingerprint: str | None = None
    """That of the request, where it has been made."""
    saved = False
    """Whether its snapshot lies on the disk as it was last written."""
    _sizes: Sizes = ()
    kept: Kept | None = None
    """What is left of it when it is let go of, where that is known before."""
    hurried = False
    """Whether somebody waits for it to be let go of: nothing that takes long is done for it any more."""
    comparison: Comparison | None = None
    """What tells what it did to files, where that is asked for."""
    _changes: FileChanges | None = None
    ending: Ending | None = None
    awaiting_input = False
    timed_out = False
    stop_reason: tuple[RunStatus, Cause, str] | None = None
    """What the run will have ended by, once somebody has decided to end it: status, cause, error."""
    ends_shell = False
    """Whether its shell goes with it: it has broken a limit, or lasted too long."""
    warnings: tuple[str, ...] = ()
    """How near it has come to a limit."""
    background_pids: tuple[int, ...] = ()
    working_directory: str | None = None
    stdin_accepted = 0
    """Bytes of standard input that were accepted for the terminal."""
    typed_by_person = False
    """Whether somebody at the terminal has typed it, typed into it, or sent it a signal."""
    peak_memory = 0
    """Bytes, of bash and all below it: as sampled, or as the kernel says."""
    cpu_seconds = 0.0
    _duration = 0.0
    _last_result: RunResult | None = None
    """The result, once all that it says of the run is known and stays."""
    _record: Record | None = None
    """What is kept of it, where it has ended light."""
    on_promotion: Callable[[], None] | None = None
    """What makes it a full run, by `take_logs`; None for one that is that, or has ended."""
    held = b""
    """What it has written, as long as it is light."""
    _logs: Mapping[Stream, OutputLog] = MappingProxyType({})
    """Empty as long as it is light."""
    _timing: Timing | None = None
    """Of a full run, where it is wanted."""
    _counters: Mapping[Stream, SizeCounter] = MappingProxyType({})
    """Of the logs of a full run."""
    _waiter: "asyncio.Future[None] | None" = None
    """Who waits for the end of a light run, or for its promotion."""

    def __init__(
        self, run_id: str, session_id: str, command: Command, shell_state: Callable[[], ShellState], number: int = 0
    ) -> None:
        """`shell_state` tells the state of its shell, `number` puts the runs of a store in order."""
        self.run_id = run_id
        self.session_id = session_id
        self.command = command
        self.number = number
        self._shell_state = shell_state
        self.signals_sent: set[int] = set()
        self.started_at = time.time()
        self._started = self.active_at = time.monotonic()
        """`active_at`: when it last wrote something, or was typed to, or was started (monotonic seconds)."""
        self.on_change: set[Callable[[], None]] = set()
        """Called with all that is new, as `changed` has it."""

    @property
    def status(self) -> RunStatus:
        """What has become of it so far."""
        return self.ending.status if self.ending else RunStatus.RUNNING

    @property
    def identity(self) -> str:
        """The fingerprint of the request that started it; empty where no request did."""
        if self.fingerprint is None and self.request:
            self.fingerprint = fingerprint(*self.request)
        return self.fingerprint or ""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.ending is None

    @property
    def duration(self) -> float:
        """Seconds from its start to its end, or to now."""
        return self._duration if self.ending else time.monotonic() - self._started

    @property
    def light(self) -> bool:
        """Whether it goes on, and nobody has asked for more of it than its end."""
        return self.on_promotion is not None

    def promote(self) -> None:
        """Make it a full run, if it is light."""
        if self.on_promotion:
            promotion, self.on_promotion = self.on_promotion, None
            promotion()
            self._let_wait()

    def take_logs(self, logs: Mapping[Stream, OutputLog], timing: Timing | None = None) -> None:
        """Keep the output in `logs` from now on, and what has come before as well: as a full run does.

        There is one for each stream of its own: `stdout`, and `stderr` where that goes apart. When the output comes
        is noted in `timing`.
        """
        self._logs = logs
        self._timing = timing
        self._counters = {stream: SizeCounter(log) for stream, log in logs.items()}
        if self.hurried:
            self.hurry()
        held, self.held = self.held, b""
        if held:
            active_at = self.active_at
            self._append(Stream.STDOUT, memoryview(held))
            self.active_at = active_at

    @property
    def written(self) -> int:
        """Bytes of output so far."""
        return sum(log.size for log in self._logs.values()) if self._logs else len(self.held)

    @property
    def logs(self) -> Mapping[Stream, OutputLog]:
        """Its logs. Of a run that goes on and is light they are made: somebody asks for them."""
        if self.on_promotion:
            self.promote()
        if not self._logs:
            self._logs = {Stream.STDOUT: OutputLog.of(self.held)}
        return self._logs

    @property
    def sizes(self) -> Sizes:
        """The sizes that its terminal had."""
        return self._sizes

    @property
    def timing(self) -> Timing | None:
        """When its output came, up to this moment."""
        if self._timing and self.running:
            self._timing.flush(self.duration)
        return self._timing

    def moved(self, directory: str) -> None:
        """Take note that its files lie in `directory` now."""
        for log in self._logs.values():
            log.move(directory)
        if self._timing:
            self._timing.move(directory)

    def resized(self, rows: int, cols: int) -> None:
        """Note that its terminal has this size for what is written from now on."""
        if not self._sizes and (rows, cols) == DEFAULT_SIZE:
            return
        at = self.logs[Stream.STDOUT].size if self._logs else len(self.held)
        earlier = self._sizes or (((0, *DEFAULT_SIZE),) if at else ())
        self._sizes = (*(size for size in earlier[-_MOST_SIZES:] if size[0] < at), (at, rows, cols))

    def append(self, data: memoryview) -> None:
        """Take what the command wrote to its terminal."""
        if self._logs:
            self._append(Stream.STDOUT, data)
            return
        self.held += data
        self.active_at = time.monotonic()
        size = len(self.held)
        # What takes long to render is not measured while somebody waits for the end.
        if size > SHORT or not (is_quick(self.held) or (self.held.isascii() and is_plain(self.held))):
            self.promote()

    def append_stderr(self, data: memoryview) -> None:
        """Take what the command wrote to its standard error, where that goes apart."""
        self._append(Stream.STDERR, data)

    def mark_awaiting_input(self, awaiting: bool) -> None:
        """Say whether the command is seen waiting for terminal input."""
        if awaiting != self.awaiting_input:
            self.awaiting_input = awaiting
            self._wake()

    def warn(self, warning: str) -> None:
        """Have the result tell of something that may end it."""
        self.warnings = (*self.warnings, warning)
        self._last_result = None

    def finish(self, ending: Ending) -> None:
        """End the run. All that it wrote has been appended."""
        self.on_promotion = None
        self._duration = time.monotonic() - self._started
        self.awaiting_input = False
        self.ending = ending
        for counter in self._counters.values():
            counter.finish()
        if self._timing:
            self._timing.finish(self._duration)
        if lost := sum(log.lost for log in self._logs.values()) if self._logs else 0:
            self.note_loss(lost)
        if self.comparison:
            self.comparison.end()
        self._let_wait()
        if self.on_change:
            self._wake()

    def note_loss(self, lost: int) -> None:
        """Say in the ending that so many bytes of output are lost, if any are."""
        if lost and self.ending:
            said = f"{self.ending.error} " if self.ending.error else ""
            error = f"{said}{lost} bytes of output could not be written to disk and are lost."
            self.ending = msgspec.structs.replace(self.ending, error=error)
            self._last_result = self._record = None

    async def wait(self, timeout: float | None = None, *, for_input: bool = False) -> None:
        """Return when the run has ended, or after `timeout` seconds; `for_input`: or when it waits for input.

        A light run ends soon, or is promoted: as long as it is light, a wait for it takes no timer.
        """
        if self.on_promotion and self._waiter is None and (timeout is None or timeout > _NO_TIMER):
            begun = time.monotonic()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            if timeout is not None:
                timeout -= time.monotonic() - begun
        if self.ending is None:
            await super().wait(timeout, for_input=for_input)

    def _let_wait(self) -> None:
        """Whoever waits for a light run waits no longer, or for a full one."""
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    async def changed(self, deadline: float | None = None) -> bool:
        """Return when something has changed, or at `deadline`; whether there was."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        wake = partial(_resolve, waiter, True)
        self.on_change.add(wake)
        timer = None if deadline is None else loop.call_at(deadline, _resolve, waiter, False)
        try:
            return await waiter
        finally:
            self.on_change.discard(wake)
            if timer:
                timer.cancel()

    async def measure(self) -> None:
        """Render what has come so far for its size: the next result has the true sizes, unless it is hurried.

        Of a run that has ended, and is asked what it did to files, that is waited for as well.
        """
        if self.on_promotion:
            self.promote()
        for counter in self._counters.values():
            await counter.measure()
        if self.comparison and self.ending and not self._changes:
            self._changes = await self.comparison.changes()

    def hurry(self) -> None:
        """Have it let go of as soon as it has ended: what is not counted by then counts by its bytes."""
        self.hurried = True
        if self.comparison:
            self.comparison.hurry()
        for counter in self._counters.values():
            counter.stop()

    @property
    def counted(self) -> bool:
        """Whether the sizes of the texts are the true ones."""
        return all(counter.exact for counter in self._counters.values())

    def record(self) -> Record:
        """Return what is to be kept of a run that has ended, and was light. Its result is made of it, too."""
        ending, command, size = self.ending, self.command, len(self.held)
        assert ending is not None
        told = (self.session_id, Command(text=command.text, description=command.description))
        record = self._record = Record(
            run_id=self.run_id,
            session_id=self.session_id,
            started_at=int(self.started_at * 1000),
            status=ending.status,
            in_directory=False,
            command=printable(command.text[:LONGEST_TOLD]),
            duration=round(self._duration * 1_000_000),
            cursor=size,
            stdout_size=len(render(self.held)) if size else 0,
            exit_code=ending.exit_code,
            working_directory=printable(self.working_directory) if self.working_directory else None,
            cause=ending.cause,
            state=self._shell_state(),
            cpu_milliseconds=round(self.cpu_seconds * 1000),
            peak_memory=round(self.peak_memory / MEBIBYTE * 1000),
            fingerprint=b"" if self.request == told and _is_told(command) else bytes.fromhex(self.identity),
            error=ending.error,
            description=_beginning(command.description),
            sizes=self._sizes,
            typed_by_person=self.typed_by_person,
        )
        return record

    @property
    def ended_light(self) -> tuple[Record, bytes] | None:
        """What is kept of it, and its output, where it has ended light and that is all that there is to say."""
        record = self._record
        return None if record is None or self._logs or record.error else (record, self.held)

    @property
    def shell_state(self) -> ShellState:
        """The state of its shell at this moment."""
        return self._shell_state()

    def result(self) -> RunResult:
        """Return the result as it stands, without output."""
        state, last = self._shell_state(), self._last_result
        if last is None and self.ending and not self._counters:
            last = (self._record or self.record()).result()
        if last:
            self._last_result = last = last if last.state is state else msgspec.structs.replace(last, state=state)
            return last
        log, counters = self.logs[Stream.STDOUT], self._counters
        stderr = counters[Stream.STDERR].size if Stream.STDERR in counters else 0
        result = self._stated(state, log.size, counters[Stream.STDOUT].size, stderr)
        known = self.ending and self.counted and (self._changes or not self.comparison)
        self._last_result = result if known else None
        return result

    def beginning(self) -> RunResult:
        """Return the result of a run that has just begun and written nothing. A light one stays that."""
        return self._stated(self._shell_state(), 0, 0, 0)

    def _stated(self, state: ShellState, cursor: int, stdout_size: int, stderr_size: int) -> RunResult:
        ending = self.ending
        return RunResult(
            run_id=self.run_id,
            session_id=self.session_id,
            command=printable(self.command.text[:LONGEST_TOLD]),
            description=_beginning(self.command.description),
            status=self.status,
            cause=ending.cause if ending else None,
            exit_code=ending.exit_code if ending else None,
            signal=ending.signal if ending else None,
            error=printable(ending.error) if ending and ending.error else None,
            warnings=self.warnings or msgspec.UNSET,
            stdout=None,
            stderr=None,
            streams=self.command.streams,
            truncated=False,
            original_stdout_size=stdout_size,
            original_stderr_size=stderr_size,
            cursor=cursor,
            directory=printable(self.command.directory) if self.command.directory else None,
            working_directory=printable(self.working_directory) if self.working_directory else None,
            background_pids=self.background_pids,
            awaiting_input=self.awaiting_input,
            timed_out=self.timed_out,
            restored=bool(ending and ending.restored),
            state=state,
            started_at=utc_timestamp(self.started_at),
            duration=round(self.duration, 6),
            usage=Usage(
                cpu_seconds=round(self.cpu_seconds, 3),
                peak_memory_mb=round(self.peak_memory / MEBIBYTE, 3),
                processes_left=len(self.background_pids),
            ),
            typed_by_person=self.typed_by_person or msgspec.UNSET,
            **changes_members(self._changes),
        )

    def _append(self, stream: Stream, data: memoryview) -> None:
        self._last_result = None
        self._logs[stream].append(data)
        self._counters[stream].note(data)
        self.active_at = time.monotonic()
        if self._timing:
            self._timing.note(stream is Stream.STDERR, len(data), self.active_at - self._started)
        self.awaiting_input = False
        if self.on_change:
            self._wake()

    def _wake(self) -> None:
        for tell in self.on_change:
            tell()


def _resolve(waiter: "asyncio.Future[bool]", changed: bool) -> None:
    if not waiter.done():
        waiter.set_result(changed)


def _is_told(command: Command) -> bool:
    """Whether the record of a run has its command as it was asked for."""
    told = len(command.text) <= LONGEST_TOLD and command.text.isascii()
    return told and _beginning(command.description) == command.description


def _beginning(description: str | None) -> str | None:
    return printable(description[:LONGEST_TOLD]) if description else description


def printable(text: str) -> str:
    """Return `text` as it can be sent: bytes that were not UTF-8 (surrogates) become U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
