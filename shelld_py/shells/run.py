"""A run: one command in one shell, its output, its result, and those who wait for it.

It starts nothing and kills nothing; its shell does that and tells it.

A run is light until it proves otherwise: what it writes is held in memory, and nothing is made for it. Most end like
that. Who asks for more of it than its end, or a run that lasts or writes much, makes it a full one (`promote`), with
logs on the disk; nobody can see what it was before.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from shelld_py.models import Cause, Command, RunResult, RunStatus, ShellState, Stream, Usage, utc_timestamp
from shelld_py.output.excerpt import SizeCounter
from shelld_py.output.log import OutputLog
from shelld_py.output.text import INLINE, is_plain

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


class Run:
    """A run from its start to its end. Its shell calls the methods; anyone may wait and read."""

    def __init__(self, run_id: str, session_id: str, command: Command) -> None:
        self.run_id = run_id
        self.session_id = session_id
        self.command = command
        self.ending: Ending | None = None
        self.awaiting_input = False
        self.timed_out = False
        self.stop_reason: tuple[RunStatus, Cause, str] | None = None
        """What the run will have ended by, once somebody has decided to end it: status, cause, error."""
        self.ends_shell = False
        """Whether its shell goes with it: it has broken a limit, or lasted too long."""
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
        held, self._held = self._held, bytearray()
        if held:
            active_at = self.active_at
            self._append(Stream.STDOUT, memoryview(held))
            self.active_at = active_at

    @property
    def held(self) -> bytes:
        """What a light run has written."""
        return bytes(self._held)

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

    async def changed(self) -> None:
        """Return when there is news: output, the end, waiting for input or no longer."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def wait(self, timeout: float, *, for_input: bool = False) -> None:
        """Return when the run has ended, or after `timeout` seconds; `for_input`: or when it waits for input."""
        if self.ending or timeout <= 0:
            return
        try:
            async with asyncio.timeout(timeout):
                while not (self.ending or (for_input and self.awaiting_input)):
                    await self.changed()
        except TimeoutError:
            return

    async def measure(self) -> None:
        """Render what has come so far for its size: the next result has the true sizes."""
        for channel in self._streams.values():
            await channel.counter.measure()

    def result(self, state: ShellState) -> RunResult:
        """Return the result as it stands, without output; `state` is that of the shell."""
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
        settled = ending and all(channel.counter.exact for channel in self._channels.values())
        self._last_result = result if settled else None
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
