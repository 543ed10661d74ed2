"""A run as anybody may look at it: one command in one shell, its output, its result, and the wait for more of it.

Whoever looks at a run sees a `Run`, be it kept (`StoredRun`) or going on (live_run.py). It knows neither how a run
comes to its end nor any shell: what is kept of it is given to it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from shelld_py.models import Cause, FileChanges, OutputFormat, RunResult, RunStatus, Stream
from shelld_py.output.excerpt import quick_to_read, text_size
from shelld_py.output.log import OutputLog
from shelld_py.output.reading import Reading, Unfinished, read_output
from shelld_py.output.timing import Timing
from shelld_py.shells.record import Record, Sizes

DEFAULT_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of a log that a read by cursor gives unless it asks for less or more."""


class Ending(Struct, frozen=True):
    """How a run ended."""

    status: RunStatus
    cause: Cause
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    restored: bool = False


class Comparison(Protocol):
    """What has looked at the files before a run, and will after it."""

    def end(self) -> None:
        """Look again, from now on: the run has ended."""

    def hurry(self) -> None:
        """Somebody waits for the run to be let go of."""

    async def changes(self) -> FileChanges:
        """Return what has changed in between, when that is known."""


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

    @property
    @abstractmethod
    def logs(self) -> Mapping[Stream, OutputLog]:
        """The logs of its output; standard error has one only where it goes apart."""

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """The sizes that its terminal had; none where it had 24 rows and 80 columns throughout."""

    @property
    @abstractmethod
    def timing(self) -> Timing | None:
        """When its output came, where that was noted: up to this moment, for all of its logs, in their order."""

    def log(self, stream: Stream) -> OutputLog | None:
        """Return the log of `stream`, if it has one of its own."""
        return self.logs.get(stream)

    @abstractmethod
    async def changed(self, deadline: float | None = None) -> bool:
        """Return when something has changed: output, the end, waiting for input or no longer; or at `deadline`, False.

        A deadline is a time of the event loop; None waits for ever, as nothing changes any more of a run that is kept.
        """

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.status is RunStatus.RUNNING

    async def until(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Return whether `predicate` has come true within `timeout` seconds. It is asked now, and after each change."""
        if predicate():
            return True
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while await self.changed(deadline):
            if predicate():
                return True
        return False

    async def wait(self, timeout: float | None = None, *, for_input: bool = False) -> None:
        """Return when the run has ended, or after `timeout` seconds; `for_input`: or when it waits for input."""
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while self.running and not (for_input and self.awaiting_input) and await self.changed(deadline):
            pass

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
            # Where there is more than `limit`, a line that is longer is read to its end.
            size = min(limit, seen - start) if form is OutputFormat.RAW else seen - start
            if quick_to_read(log, start, size, form):
                reading = read_output(log, start, limit, form, unfinished)
            else:
                reading = await asyncio.to_thread(read_output, log, start, limit, form, unfinished)
            if reading.data or reading.next_cursor > start or not running:
                return reading
            if (log.size, self.running, self.awaiting_input) != (seen, running, awaiting):
                continue  # what came while the thread was reading has woken nobody
            if (for_input and awaiting) or not await self.changed(deadline):
                return reading


class StoredRun(Run):
    """A run that has ended, of which only its record and its logs are left. Its record is read once."""

    awaiting_input = timed_out = False

    def __init__(
        self, record: Record, log_of: Callable[[Stream], OutputLog | None], timing: Timing | None = None
    ) -> None:
        self.run_id = record.run_id
        self.session_id = record.session_id
        self._record = record
        self._log_of = log_of
        self._timing = timing

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
        sizes = {stream: text_size(log) for stream, log in self.logs.items()}
        return msgspec.structs.replace(
            self._result,
            original_stdout_size=sizes.get(Stream.STDOUT, 0),
            original_stderr_size=sizes.get(Stream.STDERR, 0),
        )

    @cached_property
    def logs(self) -> Mapping[Stream, OutputLog]:
        """Those of its logs that are still there."""
        return {stream: log for stream in Stream if (log := self._log_of(stream))}

    @property
    def sizes(self) -> Sizes:
        """The sizes that its terminal had."""
        return self._record.sizes

    @property
    def timing(self) -> Timing | None:
        """When its output came."""
        return self._timing

    async def changed(self, deadline: float | None = None) -> bool:
        """Return at `deadline`."""
        if deadline is None:
            await asyncio.get_running_loop().create_future()
            return False
        await asyncio.sleep(max(0.0, deadline - asyncio.get_running_loop().time()))
        return False
