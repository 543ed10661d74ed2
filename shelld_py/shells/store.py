"""Runs on disk: where they lie, what is kept, and who may use the directory.

    DATA/lock                       held (flock(2)) by the daemon that uses the directory
    DATA/journal/                   a record of each ended run; of a short one the output, too
    DATA/runs/RUN_ID/snapshot.json  of a run that has lasted: the result, replaced atomically at every change of status
    DATA/runs/RUN_ID/output.log     what the command wrote, byte for byte (see output/log.py)
    DATA/runs/RUN_ID/stderr.log     standard error, where it went apart
    DATA/runs/RUN_ID/timing         when the output came (see output/timing.py)

A run that nobody was told of while it went on, and that wrote little, is one append to the journal and nothing else.
Memory holds of an ended run its id, its session, its status and where its record lies. So ten thousand runs cost
next to nothing, and a restarted daemon knows as much as the one before (recovery.py). Knows nothing of shells.
"""

import asyncio
import contextlib
import errno
import logging
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from shelld_py.config import OutputSettings
from shelld_py.errors import Overloaded, RunIdConflict, RunNotFound
from shelld_py.models import RunResult, RunStatus, ShellState, Stream, Streams
from shelld_py.output.log import OutputLog
from shelld_py.output.timing import Timing
from shelld_py.request_data import Command
from shelld_py.shells.data_directory import HeldDirectory
from shelld_py.shells.directories import RunDirectories
from shelld_py.shells.journal import LARGEST_FRAME, Frame, Journal
from shelld_py.shells.live_run import SHORT, LiveRun
from shelld_py.shells.record import Kept, Record
from shelld_py.shells.recovery import Recovery
from shelld_py.shells.run import Run, StoredRun

_T = TypeVar("_T")

_LARGE: Final = 64 * 1024
"""Bytes of a record that is read in a thread: less is read and decoded within half a millisecond."""

_MOST_TOLD: Final = 4 * 1024 * 1024
"""Characters of commands and descriptions that a list has: each run has up to twice LONGEST_TOLD."""
_AT_ONCE: Final = 25
"""Records that a listing reads before it lets others have their turn: a millisecond, or two on a slow disk."""


class RunStore:
    """All runs that there are, newest last. One for each daemon; `open` it, `close` it."""

    def __init__(self, directory: Path, settings: OutputSettings, logger: logging.Logger) -> None:
        self._directories = RunDirectories(directory / "runs", directory / "unpublished")
        self._journal = Journal(directory / "journal", logger)
        self._held = HeldDirectory(directory, ("runs", "unpublished", "journal"), self._make, logger)
        self._settings = settings
        self._logger = logger
        self._runs: dict[str, LiveRun | Kept] = {}
        self._ended: deque[str] = deque()
        """The runs that are kept, of which the first is the next to go."""
        self._last_number = 0
        self._tidying: asyncio.Handle | None = None

    def open(self) -> None:
        """Take the directory and find the runs in it; those that were going on are lost now.

        Whatever lies there, the runs that can be read are found. Raises `ConfigError` when another daemon uses the
        directory, or when the system refuses.
        """
        try:
            self._held.take()
            self._directories.open(self._logger)
            recovery = Recovery(self._journal, self._directories, self._settings.log_max, self._logger)
            for entry in sorted(recovery.entries(), key=attrgetter("number")):
                entry.number = self._next_number(entry.number)
                self._runs[entry.run_id] = entry
                if not entry.unreadable:
                    self._ended.append(entry.run_id)
        except BaseException:
            self.close()
            raise
        self._directories.remove_all(self._expired())

    def _make(self) -> None:
        """Make what is missing below the directory. Raises `ConfigError`."""
        self._directories.make(self._logger)
        self._journal.make()

    def close(self) -> None:
        """Give the directory free. What comes after it, such as the end of a run that was killed, writes nothing more.

        It would make anew a directory that its owner has removed.
        """
        self._runs.clear()
        self._ended.clear()
        if self._tidying:
            self._tidying.cancel()
        self._journal.close()
        self._held.close()

    # --- the course of a run --------------------------------------------------------------------------

    def create(
        self, session_id: str, command: Command, run_id: str | None, shell_state: Callable[[], ShellState]
    ) -> LiveRun:
        """Make a light run, for which nothing lies on the disk. Raises `RunIdConflict` when the id is taken."""
        run_id = run_id or os.urandom(16).hex()
        if run_id in self._runs:
            raise RunIdConflict(f"The run id {run_id} is taken by another run.", run_id=run_id)
        run = LiveRun(run_id, session_id, command, shell_state, self._next_number(int(time.time() * 1000)))
        run.on_promotion = partial(self.promote, run)
        self._runs[run_id] = run
        return run

    def promote(self, run: LiveRun) -> None:
        """Give a light run its directory, which gets its name with the first snapshot, and its logs there."""
        try:
            self._held.use(partial(self._directories.take, run.run_id))
        except OSError as error:
            self._logger.error("run %s: its directory cannot be made: %s", run.run_id, error)
        path_of, log_max = partial(self._directories.log_path, run.run_id), self._settings.log_max
        logs = {Stream.STDOUT: OutputLog(path_of(Stream.STDOUT), log_max)}
        if run.command.streams is not Streams.MERGED:
            logs[Stream.STDERR] = OutputLog(path_of(Stream.STDERR), log_max).create()
        timing = Timing(self._directories.path(run.run_id), len(logs)) if self._settings.timing else None
        run.take_logs(logs, timing)

    def keep(self, run: LiveRun) -> None:
        """Keep an ended light run by one append, and let go of it.

        Where the disk refuses, memory holds what is said of it without its output.
        """
        if self._runs.get(run.run_id) is not run:
            return
        entry = Kept(run.run_id, run.session_id, run.status, run.number)
        output = run.held
        try:
            entry.place = self._held.use(partial(self._journal.append, run.record().packed(), output))
        except OSError as error:
            self._logger.error("run %s: it cannot be written to the journal: %s", run.run_id, error)
            run.note_loss(len(output))
            entry.record = run.record()
        self._add_ended(entry)

    def save(self, run: LiveRun) -> None:
        """Write the snapshot of `run` as it stands now."""
        if self._runs.get(run.run_id) is not run:
            return
        run.saved = False
        try:
            published = self._directories.replace_snapshot(run.run_id, _record_of(run).snapshot())
        except OSError as error:
            self._logger.error("run %s: its snapshot cannot be written: %s", run.run_id, error)
            return
        run.saved = True
        if published:
            run.moved(self._directories.path(run.run_id))

    def publish(self, run: LiveRun) -> None:
        """Write the first snapshot of `run`, if none has been written: somebody gets to know of it now."""
        run.promote()
        if not self._directories.published(run.run_id):
            self.save(run)

    async def seal(self, run: LiveRun) -> None:
        """Keep the result of an ended run. Its size is counted before, and logs that were split are made whole.

        Both is done in a thread, and may take long: where somebody waits for the run to be let go of, it is left out.
        """
        try:
            await run.measure()
        except (OSError, Overloaded) as error:
            self._logger.error("run %s: its output cannot be counted: %s", run.run_id, error)
        if self._runs.get(run.run_id) is not run:
            return  # it was deleted meanwhile: nothing of it is to come back
        if not run.background_pids and self._keep_in_journal(run):
            return
        split = [] if run.hurried else [log for log in run.logs.values() if log.segmented]
        joined = [log for log in split if await self._joined(run.run_id, log)]
        self.save(run)
        for log in joined:
            log.discard_segments()

    def release(self, run: LiveRun) -> None:
        """Let go of an ended run: no more output will come."""
        for log in run.logs.values():
            log.close()
        if self._runs.get(run.run_id) is run:
            entry = run.kept or Kept(run.run_id, run.session_id, run.status, run.number)
            if entry.place is None:
                self._keep_record(entry, run)
            self._add_ended(entry)

    def _next_number(self, milliseconds: int) -> int:
        """Return the number of a run that was started at this Unix time: larger than all before it."""
        self._last_number = max(self._last_number + 1, milliseconds)
        return self._last_number

    def _keep_in_journal(self, run: LiveRun) -> bool:
        """Append an ended run with its output to the journal, where it is short; return whether that was done."""
        logs = run.logs.values()
        size = sum(log.size for log in logs)
        if self._directories.published(run.run_id) or size > SHORT:
            return False
        try:
            contents = [log.read(0, log.size).data for log in logs]
        except OSError as error:  # no descriptor is left, say: it lies in the directory
            self._logger.error("run %s: its output cannot be read: %s", run.run_id, error)
            return False
        output = b"".join(contents)
        packed = msgspec.structs.replace(_record_of(run), in_directory=False).packed()
        if len(output) < size or len(packed) > LARGEST_FRAME:
            return False
        entry = Kept(run.run_id, run.session_id, run.status, run.number)
        try:
            entry.place = self._held.use(partial(self._journal.append, packed, output))
        except OSError as error:
            self._logger.error("run %s: it cannot be written to the journal: %s", run.run_id, error)
            return False
        # Not to be read where it lies in the journal: it can be erased there at any moment.
        for log, content in zip(logs, contents, strict=True):
            log.move_to_memory(content)
        self._directories.give_back(run.run_id)
        run.kept = entry
        return True

    def _keep_record(self, entry: Kept, run: LiveRun) -> None:
        """Keep the record of an ended run that has files of its own: in the journal, for the next start to find it."""
        record = _record_of(run)
        packed = record.packed()
        entry.in_directory = True
        if run.saved and len(packed) <= LARGEST_FRAME:
            with contextlib.suppress(OSError):  # it lies in the directory, too
                entry.place = self._journal.append(packed)
        if not run.saved:
            entry.record = record

    async def _joined(self, run_id: str, log: OutputLog) -> bool:
        """Make a log whole; return whether the disk took it. A log that is split can be read as well."""
        try:
            await asyncio.to_thread(log.join)
        except (OSError, Overloaded) as error:
            self._logger.error("run %s: its output stays in several files: %s", run_id, error)
            return False
        return True

    # --- what there is --------------------------------------------------------------------------------

    async def get(self, run_id: str) -> Run:
        """Return a run. Raises `RunNotFound`."""
        known = self._runs.get(run_id)
        if known is None:
            raise RunNotFound(f"There is no run {run_id}.")
        return known if isinstance(known, LiveRun) else await self._stored(known)

    async def find(self, run_id: str) -> Run | None:
        """Return a run, if there is one that can be read."""
        try:
            return await self.get(run_id)
        except RunNotFound:
            return None

    def live(self) -> list[LiveRun]:
        """Return the runs that are going on, or whose processes do, oldest first."""
        return [run for run in self._runs.values() if isinstance(run, LiveRun)]

    async def results(
        self,
        *,
        session_id: str | None = None,
        status: RunStatus | None = None,
        limit: int | None = None,
        cursor: int | None = None,
    ) -> tuple[list[RunResult], int | None]:
        """Return the results of runs, the newest first, and the cursor with which those before them are had.

        The cursor is None where there are no more. `limit` is how many runs are looked at; fewer are where their
        commands are long.
        """
        chosen: list[LiveRun | Kept] = []
        more = None
        for run in reversed(self._runs.values()):
            if cursor is not None and run.number >= cursor:
                continue
            if session_id in (None, run.session_id) and status in (None, run.status):
                if len(chosen) == limit:
                    more = chosen[-1].number
                    break
                chosen.append(run)
        results: list[RunResult] = []
        told = 0
        for count, run in enumerate(chosen, 1):
            if isinstance(run, LiveRun):
                results.append(run.result())
            else:
                with contextlib.suppress(RunNotFound):  # somebody has taken its files away
                    results.append((await self._stored(run)).result())
            if results:
                told += len(results[-1].command) + len(results[-1].description or "")
            if told > _MOST_TOLD and count < len(chosen):
                return results, run.number
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return results, more

    async def _stored(self, entry: Kept) -> StoredRun:
        """Read the record of a run. Raises `RunNotFound`."""
        try:
            if entry.record is None and (entry.place is None or entry.place.length > _LARGE):
                record, frame = await asyncio.to_thread(self._read, entry)
            else:
                record, frame = self._read(entry)
        except (OSError, ValueError, OverflowError, RecursionError) as error:
            _check_own(error)
            raise RunNotFound(f"The files of run {entry.run_id} cannot be read: {error}") from None
        timing = None
        if record.in_directory:
            timing = Timing(self._directories.path(record.run_id), 1 if record.streams is Streams.MERGED else 2)
        return StoredRun(record, partial(self._log, record, frame), timing)

    def _read(self, entry: Kept) -> tuple[Record, Frame | None]:
        """Return the record of a run, and where that lies in the journal, all that lies there."""
        if entry.record:
            return entry.record, None
        if entry.place:
            frame = self._journal.read(entry.place)
            return Record.unpacked(frame.record), frame
        return Record.of_snapshot(self._directories.read_snapshot(entry.run_id)), None

    def _log(self, record: Record, frame: Frame | None, stream: Stream) -> OutputLog | None:
        """Return a log of a run that has ended, if it has one."""
        if record.in_directory:
            path = self._directories.log_path(record.run_id, stream)
            extents = record.stdout_extents if stream is Stream.STDOUT else record.stderr_extents
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):  # opening a FIFO would never return
                    return OutputLog.load(path, self._settings.log_max, extents)
            except OSError as error:
                _check_own(error)
            return None
        if frame is None or (stream is Stream.STDERR and record.streams is Streams.MERGED):
            return None
        at, length = (0, record.cursor) if stream is Stream.STDOUT else (record.cursor, frame.length - record.cursor)
        return OutputLog.of(frame.output[at : at + length], length)

    # --- what is forgotten ----------------------------------------------------------------------------

    def delete(self, run_id: str) -> None:
        """Forget an ended run and remove its files; what lies in the journal is overwritten."""
        known = self._runs.pop(run_id, None)
        if known is None:
            return
        with contextlib.suppress(ValueError):
            self._ended.remove(run_id)
        if isinstance(known, LiveRun):
            known.hurry()
        entry = known.kept if isinstance(known, LiveRun) else known
        if entry is None or entry.in_directory:
            self._directories.remove_all([run_id])
        if entry and entry.place:
            try:
                self._journal.erase(entry.place)
            except OSError as error:
                self._logger.error("run %s: it stays in the journal: %s", run_id, error)

    def clear(self) -> None:
        """Forget all ended runs."""
        ended = [run for run in self._runs.values() if run.status is not RunStatus.RUNNING]
        for run in ended:
            del self._runs[run.run_id]
        self._ended.clear()
        self._journal.clear()
        self._directories.remove_all(run.run_id for run in ended if isinstance(run, LiveRun) or run.in_directory)

    def _add_ended(self, entry: Kept) -> None:
        self._runs[entry.run_id] = entry
        self._ended.append(entry.run_id)
        if not self._tidying:
            self._tidying = asyncio.get_running_loop().call_soon(self._tidy)

    def _tidy(self) -> None:
        """Forget the oldest runs, and make ready for the next one; when the last has been answered."""
        self._tidying = None
        expired = self._expired()
        if self._directories.ready and not expired:
            return
        self._directories.remove_all(expired[1:])
        try:
            self._held.use(partial(self._directories.prepare, expired[0] if expired else None))
        except OSError as error:
            self._logger.error("no directory can be made for the next run: %s", error)

    def _expired(self) -> list[str]:
        """Forget the ended runs that are too many; return those that have a directory, the oldest first."""
        expired = []
        while len(self._ended) > self._settings.retain_runs:
            run_id = self._ended.popleft()
            entry = self._runs.get(run_id)
            if not isinstance(entry, Kept):
                continue
            del self._runs[run_id]
            if entry.place:
                self._journal.forget(entry.place)
            if entry.in_directory:
                expired.append(run_id)
        return expired


def _check_own(error: Exception) -> None:
    """Raise `Overloaded` where it is the daemon that has run out of something: that says nothing of a run."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise Overloaded(f"No file can be read just now: {error.strerror}; try again later.") from None


def _record_of(run: LiveRun) -> Record:
    extents = {stream: log.extents for stream, log in run.logs.items() if not log.whole}
    return Record.of(
        run.result(), run.identity, extents, uncounted=run.ending is not None and not run.counted, sizes=run.sizes
    )
