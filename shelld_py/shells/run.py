"""A run: one command in one shell, its output, its result, and those who wait for it.

Whoever looks at a run sees a `Run`, be it going on (`LiveRun`) or kept (`StoredRun`). A run starts nothing and kills
nothing: its shell does that and tells it.

A run is light until it proves otherwise: what it writes is held in memory, and nothing is made for it. Most end like
that. Who asks for more of it than its end, or a run that lasts or writes much, makes it a full one (`promote`), with
logs on the disk; nobody can see what it was before.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import msgspec

from shelld_py.models import (
    Cause,
    Command,
    OutputFormat,
    RunResult,
    RunStatus,
    ShellState,
    Stream,
    Usage,
    utc_timestamp,
)
from shelld_py.output.excerpt import SizeCounter, text_size
from shelld_py.output.log import OutputLog
from shelld_py.output.reading import Reading, Unfinished, read_output
from shelld_py.output.text import INLINE, is_plain
from shelld_py.shells.record import Kept, Record

DEFAULT_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of a log that a read by cursor gives unless it asks for less or more."""

_MEBIBYTE: Final = 1024 * 1024
SHORT: Final = 16 * 1024
"""Bytes of output that are held in memory, and lie in the journal at the most; more has a directory."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    status: RunStatus
    cause: Cause
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    restored: bool = False


@dataclass(slots=True)
class _Channel:
    """One output stream: its log, and the size of its text."""

    log: OutputLog
    counter: SizeCounter


class Run(ABC):
    """A run, as anybody may look at it, read its output and wait for it."""

    run_id: str
    session_id: str
    awaiting_input: bool
    """Whether the command is seen waiting for terminal input."""
    timed_out: bool
    """Whether a wait for it was too short."""

    @property
    @abstractmethod
    def status(self) -> RunStatus:
        """What has become of it so far."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The fingerprint of the request that started it, so that a repeat of it is recognised; empty for none."""

    @abstractmethod
    def result(self) -> RunResult:
        """Return the result as it stands, without output."""

    @abstractmethod
    async def measure(self) -> None:
        """Render what has come so far for its size: the next result has the true sizes."""

    @abstractmethod
    def log(self, stream: Stream) -> OutputLog | None:
        """Return the log of `stream`; standard error has one only where it goes apart."""

    @abstractmethod
    async def changed(self, deadline: float | None = None) -> bool:
        """Return when there is news: output, the end, waiting for input or no longer; or at `deadline`, False.

        A deadline is a time of the event loop; None waits for ever, as there is never any news of a run that is kept.
        """

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.status is RunStatus.RUNNING

    async def until(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Return whether `predicate` has come true within `timeout` seconds. It is asked now, and after all news."""
        if predicate():
            return True
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while await self.changed(deadline):
            if predicate():
                return True
        return False

    async def wait(self, timeout: float | None = None, *, for_input: bool = False) -> None:
        """Return when the run has ended, or after `timeout` seconds; `for_input`: or when it waits for input."""
        await self.until(lambda: not self.running or (for_input and self.awaiting_input), timeout)

    async def read(
        self,
        stream: Stream,
        cursor: int | None,
        *,
        limit: int = DEFAULT_LIMIT,
        form: OutputFormat = OutputFormat.TEXT,
        wait: float = 0.0,
        for_input: bool = False,
    ) -> Reading:
        """Read about `limit` bytes of output; where nothing new is there, wait up to `wait` seconds for it or the end.

        Without a cursor the read gives the unfinished line as it looks now, too. With `for_input` there is no waiting
        for a command that waits for input.
        """
        log, start = self.log(stream), cursor or 0
        if log is None:
            return Reading(start, start, "", 0)
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            running = self.running
            if not running:
                unfinished = Unfinished.END
            elif cursor is None:
                unfinished = Unfinished.SHOW
            else:
                unfinished = Unfinished.TAKE if self.awaiting_input else Unfinished.HOLD
            seen, awaiting = log.size, self.awaiting_input
            if min(limit, seen - start) > INLINE:
                reading = await asyncio.to_thread(read_output, log, start, limit, form, unfinished)
            else:
                reading = read_output(log, start, limit, form, unfinished)
            if reading.data or reading.next_cursor > start or not running:
                return reading
            if (log.size, self.running, self.awaiting_input) != (seen, running, awaiting):
                continue  # what came while the thread was reading has woken nobody
            if (for_input and awaiting) or not await self.changed(deadline):
                return reading


class StoredRun(Run):
    """A run that has ended, of which only its record and its logs are left. Its record is read once."""

    awaiting_input = timed_out = False

    def __init__(self, record: Record, log_of: Callable[[Stream], OutputLog | None]) -> None:
        self.run_id = record.run_id
        self.session_id = record.session_id
        self._record = record
        self._log_of = log_of

    @property
    def status(self) -> RunStatus:
        """What has become of it."""
        return self._record.status

    @cached_property
    def identity(self) -> str:
        """The fingerprint of the request that started it."""
        return self._record.identity

    @cached_property
    def _result(self) -> RunResult:
        return self._record.result()

    def result(self) -> RunResult:
        """Return the result, without output."""
        return self._result

    async def measure(self) -> None:
        """Count what was left uncounted when the run was let go of; else the record has the true sizes."""
        if self._record.uncounted:
            self._result = await asyncio.to_thread(self._counted)

    def _counted(self) -> RunResult:
        sizes = {stream: text_size(log) for stream in Stream if (log := self.log(stream))}
        return msgspec.structs.replace(
            self._result,
            original_stdout_size=sizes.get(Stream.STDOUT, 0),
            original_stderr_size=sizes.get(Stream.STDERR, 0),
        )

    def log(self, stream: Stream) -> OutputLog | None:
        """Return the log of `stream`, if it has one of its own."""
        return self._log_of(stream)

    async def changed(self, deadline: float | None = None) -> bool:
        """Return at `deadline`."""
        if deadline is None:
            await asyncio.get_running_loop().create_future()
            return False
        await asyncio.sleep(max(0.0, deadline - asyncio.get_running_loop().time()))
        return False


class LiveRun(Run):
    """A run from its start to its end, and until what it left behind has ended. Its shell calls the methods."""

    def __init__(
        self, run_id: str, session_id: str, command: Command, shell_state: Callable[[], ShellState], number: int = 0
    ) -> None:
        """`shell_state` tells the state of its shell, `number` puts the runs of a store in order."""
        self.run_id = run_id
        self.session_id = session_id
        self.command = command
        self.number = number
        self.request_fingerprint = ""
        self.saved = False
        """Whether its snapshot lies on the disk as it was last written."""
        self.kept: Kept | None = None
        """What is left of it when it is let go of, where that is known before."""
        self.hurried = False
        """Whether somebody waits for it to be let go of: nothing that takes long is done for it any more."""
        self._shell_state = shell_state
        self.ending: Ending | None = None
        self.awaiting_input = False
        self.timed_out = False
        self.stop_reason: tuple[RunStatus, Cause, str] | None = None
        """What the run will have ended by, once somebody has decided to end it: status, cause, error."""
        self.ends_shell = False
        """Whether its shell goes with it: it has broken a limit, or lasted too long."""
        self.warnings: tuple[str, ...] = ()
        """How near it has come to a limit."""
        self.background_pids: tuple[int, ...] = ()
        self.working_directory: str | None = None
        self.stdin_accepted = 0
        """Bytes of standard input that were accepted for the terminal."""
        self.peak_memory = 0
        """Bytes, of bash and all below it: as sampled, or as the kernel says."""
        self.cpu_seconds = 0.0
        self.signals_sent: set[int] = set()
        self.started_at = time.time()
        self._started = time.monotonic()
        self.active_at = self._started
        """When it last wrote something, or was typed to, or was started (monotonic seconds)."""
        self._duration = 0.0
        self._last_result: RunResult | None = None
        self.on_promotion: Callable[[], None] | None = None
        """What makes it a full run, by `take_logs`; None for one that is that, or has ended."""
        self._held = bytearray()
        self._channels: dict[Stream, _Channel] = {}
        """Its output streams; none as long as it is light."""
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def status(self) -> RunStatus:
        """What has become of it so far."""
        return self.ending.status if self.ending else RunStatus.RUNNING

    @property
    def identity(self) -> str:
        """The fingerprint of the request that started it; empty where no request did."""
        return self.request_fingerprint

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

    def take_logs(self, logs: Mapping[Stream, OutputLog]) -> None:
        """Keep the output in `logs` from now on, and what has come before as well: as a full run does.

        There is one for each stream of its own: `stdout`, and `stderr` where that goes apart.
        """
        self._channels = {stream: _Channel(log, SizeCounter(log)) for stream, log in logs.items()}
        if self.hurried:
            self.hurry()
        held, self._held = self._held, bytearray()
        if held:
            active_at = self.active_at
            self._append(Stream.STDOUT, memoryview(held))
            self.active_at = active_at

    @property
    def held(self) -> bytes:
        """What a light run has written."""
        return bytes(self._held)

    @property
    def written(self) -> int:
        """Bytes of output so far."""
        return sum(channel.log.size for channel in self._channels.values()) if self._channels else len(self._held)

    def log(self, stream: Stream) -> OutputLog | None:
        """Return the log of `stream`; standard error has one only where it goes apart."""
        channel = self._streams.get(stream)
        return channel.log if channel else None

    @property
    def logs(self) -> Iterable[OutputLog]:
        """All its logs."""
        return [channel.log for channel in self._streams.values()]

    @property
    def _streams(self) -> dict[Stream, _Channel]:
        """Its output streams. Of a run that is light they are made: somebody asks for them."""
        self.promote()
        if not self._channels:
            log = OutputLog.of(self.held)
            channel = self._channels[Stream.STDOUT] = _Channel(log, SizeCounter(log))
            channel.counter.note(memoryview(self._held))
            channel.counter.finish()
        return self._channels

    def text_size(self, stream: Stream) -> int:
        """Return the characters of the text of `stream` so far; what is not rendered yet counts by its bytes."""
        channel = self._streams.get(stream)
        return channel.counter.size if channel else 0

    def append(self, data: memoryview) -> None:
        """Take what the command wrote to its terminal."""
        if self._channels:
            self._append(Stream.STDOUT, data)
            return
        self._held += data
        self.active_at = time.monotonic()
        size = len(self._held)
        # What takes long to render is not measured while somebody waits for the end.
        if size > SHORT or (size > INLINE and not (self._held.isascii() and is_plain(self.held))):
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
        for channel in self._channels.values():
            channel.counter.finish()
        self.ending = ending
        self.note_loss(sum(channel.log.lost for channel in self._channels.values()))
        self._wake()

    def note_loss(self, lost: int) -> None:
        """Say in the ending that so many bytes of output are lost, if any are."""
        if lost and self.ending:
            said = f"{self.ending.error} " if self.ending.error else ""
            error = f"{said}{lost} bytes of output could not be written to disk and are lost."
            self.ending = replace(self.ending, error=error)
            self._last_result = None

    async def changed(self, deadline: float | None = None) -> bool:
        """Return when there is news, or at `deadline`; whether there was."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def measure(self) -> None:
        """Render what has come so far for its size: the next result has the true sizes, unless it is hurried."""
        for channel in self._streams.values():
            await channel.counter.measure()

    def hurry(self) -> None:
        """Have it let go of as soon as it has ended: what is not counted by then counts by its bytes."""
        self.hurried = True
        for channel in self._channels.values():
            channel.counter.stop()

    @property
    def counted(self) -> bool:
        """Whether the sizes of the texts are the true ones."""
        return all(channel.counter.exact for channel in self._channels.values())

    def light_record(self) -> Record:
        """Return what is to be kept of a light run that has ended, without making its result first."""
        ending, size = self.ending, len(self._held)
        assert ending is not None
        return Record(
            run_id=self.run_id,
            session_id=self.session_id,
            started_at=int(self.started_at * 1000),
            status=ending.status,
            in_directory=False,
            command=printable(self.command.text),
            duration=round(self._duration * 1_000_000),
            cursor=size,
            stdout_size=self.text_size(Stream.STDOUT) if size else 0,
            exit_code=ending.exit_code,
            working_directory=printable(self.working_directory) if self.working_directory else None,
            cause=ending.cause,
            state=self._shell_state(),
            cpu_milliseconds=round(self.cpu_seconds * 1000),
            peak_memory=round(self.peak_memory / _MEBIBYTE * 1000),
            fingerprint=bytes.fromhex(self.request_fingerprint),
            error=ending.error,
            description=self.command.description,
        )

    def result(self) -> RunResult:
        """Return the result as it stands, without output."""
        state = self._shell_state()
        if self._last_result and self._last_result.state is state:
            return self._last_result
        ending = self.ending
        log = self._streams[Stream.STDOUT].log
        result = RunResult(
            run_id=self.run_id,
            session_id=self.session_id,
            command=printable(self.command.text),
            description=self.command.description,
            status=self.status,
            cause=ending.cause if ending else None,
            exit_code=ending.exit_code if ending else None,
            signal=ending.signal if ending else None,
            error=printable(ending.error) if ending and ending.error else None,
            warnings=self.warnings,
            stdout=None,
            stderr=None,
            streams=self.command.streams,
            truncated=False,
            original_stdout_size=self.text_size(Stream.STDOUT),
            original_stderr_size=self.text_size(Stream.STDERR),
            cursor=log.size,
            directory=self.command.directory,
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
                peak_memory_mb=round(self.peak_memory / _MEBIBYTE, 3),
                processes_left=len(self.background_pids),
            ),
        )
        self._last_result = result if ending and self.counted else None
        return result

    def _append(self, stream: Stream, data: memoryview) -> None:
        self._last_result = None
        channel = self._channels[stream]
        channel.log.append(data)
        channel.counter.note(data)
        self.active_at = time.monotonic()
        self.awaiting_input = False
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def printable(text: str) -> str:
    """Return `text` as it can be sent: bytes that were not UTF-8 (surrogates) become U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
