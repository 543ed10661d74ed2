"""Runs on disk: where they lie, what is kept, and what an earlier daemon has left.

    DATA/lock                       held (flock(2)) by the daemon that uses the directory
    DATA/journal/                   a record of each ended run; of a short one the output, too
    DATA/runs/RUN_ID/snapshot.json  of a run that has lasted: the result, replaced atomically at every change of status
    DATA/runs/RUN_ID/output.log     what the command wrote, byte for byte (see output/log.py)
    DATA/runs/RUN_ID/stderr.log     standard error, where it went apart

A run that nobody was told of while it went on, and that wrote little, is one append to the journal and nothing else.
Memory holds of an ended run its id, its session, its status and where its record lies. So ten thousand runs cost
next to nothing, and a restarted daemon knows as much as the one before.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final

import msgspec

from shelld_py.config import OutputSettings
from shelld_py.errors import ConfigError, RunIdConflict, RunNotFound
from shelld_py.models import (
    Cause,
    Command,
    OutputFormat,
    RunResult,
    RunStatus,
    ShellState,
    Stream,
    Streams,
)
from shelld_py.output.excerpt import pieces
from shelld_py.output.log import OutputLog
from shelld_py.shells.data_directory import calling, is_file, put_aside
from shelld_py.shells.directories import OUTPUT_LOG, SNAPSHOT, STDERR_LOG, RunDirectories
from shelld_py.shells.journal import LARGEST_FRAME, Journal, Place
from shelld_py.shells.record import Key, Record
from shelld_py.shells.run import SHORT, Run

_LOG_NAMES: Final = {Stream.STDOUT: OUTPUT_LOG, Stream.STDERR: STDERR_LOG}
_RESTARTED: Final = "The daemon ended while the command was running."
_RUN_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,64}")
_SIGNS_OF_A_RUN: Final = frozenset({SNAPSHOT, OUTPUT_LOG})
_MOST_NAMED: Final = 5
_COUNTED_AT_START: Final = 256 * 1024 * 1024
"""Bytes of output whose characters are counted at the start, in all: some seconds. Of more, the bytes are told."""


@dataclass(slots=True)
class Entry:
    """What memory holds of a run: `run` as long as it is going on (and output may still come), then its id alone."""

    run_id: str
    session_id: str
    status: RunStatus
    run: Run | None = None
    fingerprint: str = ""
    """Of the request that started the run, as long as it is going on: see `RunStore.fingerprint`."""
    in_directory: bool = False
    """Whether it has a directory of its own, which bears its name."""
    place: Place | None = None
    """Where its record lies in the journal; None as long as it is going on, or where it has none there."""
    unsaved: Record | None = None
    """The record, where the disk refused it, or what stands for one that cannot be read."""
    unreadable: bool = False
    """Whether what lies on the disk was not understood: it is not removed to make room for other runs."""


class RunStore:
    """All runs that there are, newest last. One for each daemon; `open` it, `close` it."""

    def __init__(self, directory: Path, settings: OutputSettings, logger: logging.Logger) -> None:
        self._directories = RunDirectories(directory / "runs", directory / "unpublished")
        self._journal = Journal(directory / "journal", logger)
        self._lock_path = directory / "lock"
        self._settings = settings
        self._logger = logger
        self._entries: dict[str, Entry] = {}
        self._ended: deque[str] = deque()
        self._lock = -1
        self._tidying = False
        self._uncounted = _COUNTED_AT_START

    def open(self) -> None:
        """Take the directory and find the runs in it; those that were going on are lost now.

        Whatever lies there, the runs that can be read are found. Raises `ConfigError` when another daemon uses the
        directory, or when the system refuses.
        """
        directory = self._lock_path.parent
        with calling("mkdir", directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._take_lock()
            self._directories.open(self._logger)
            found = self._found_in_journal()
            found += self._found_in_directories({entry.run_id for _, entry in found})
            for _, entry in sorted(found, key=itemgetter(0)):
                self._entries[entry.run_id] = entry
                if not entry.unreadable:
                    self._ended.append(entry.run_id)
        except BaseException:
            self.close()
            raise
        self._directories.remove_all(self._forgotten(self._expired()))

    def _take_lock(self) -> None:
        """Lock the directory. Raises `ConfigError`."""
        path = self._lock_path
        if not is_file(path):
            put_aside(path, self._logger)
        with calling("open", path):
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with calling("flock", path):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"server.data_directory: {path.parent} is in use by another daemon: "
                    "give each daemon a directory of its own"
                ) from None

    def close(self) -> None:
        """Give the directory free."""
        self._journal.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def create(self, session_id: str, command: Command, run_id: str | None = None) -> Run:
        """Make a light run, for which nothing lies on the disk. Raises `RunIdConflict` when the id is taken."""
        run_id = run_id or secrets.token_hex(16)
        if run_id in self._entries:
            raise RunIdConflict(f"The run id {run_id} is taken by another run.", run_id=run_id)
        run = Run(run_id, session_id, command)
        run.on_promotion = partial(self.promote, run)
        self._entries[run_id] = Entry(run_id, session_id, RunStatus.RUNNING, run)
        return run

    def promote(self, run: Run) -> None:
        """Give a light run its directory, which gets its name with the first snapshot, and its logs there."""
        try:
            self._directories.take(run.run_id)
        except OSError as error:
            self._logger.error("run %s: its directory cannot be made: %s", run.run_id, error)
        path = self._directories.path(run.run_id)
        logs = {Stream.STDOUT: OutputLog(f"{path}/{OUTPUT_LOG}", self._settings.log_max)}
        if run.command.streams is Streams.SEPARATE:
            logs[Stream.STDERR] = OutputLog(f"{path}/{STDERR_LOG}", self._settings.log_max).create()
        run.take_logs(logs)

    def save(self, run: Run, state: ShellState) -> None:
        """Write the snapshot of `run` as it stands now."""
        if entry := self._entries.get(run.run_id):
            self._write(entry, self._record(run, state, entry.fingerprint))

    def publish(self, run: Run, state: ShellState) -> None:
        """Write the first snapshot of `run`, if none has been written: somebody gets to know of it now."""
        run.promote()
        if not self._directories.published(run.run_id):
            self.save(run, state)

    async def seal(self, run: Run, state: ShellState) -> None:
        """Keep the result of an ended run. Logs that were split are made whole in a thread before."""
        await run.measure()
        entry = self._entries.get(run.run_id)
        if entry and not run.background_pids and self._keep_in_journal(entry, run, state):
            return
        split = [log for log in run.logs if log.segmented]
        joined = [log for log in split if await asyncio.to_thread(self._join, run.run_id, log)]
        self.save(run, state)
        for log in joined:
            log.discard_segments()

    def keep(self, run: Run, state: ShellState) -> None:
        """Keep an ended light run by one append, and let go of it.

        Where the disk refuses, memory holds what is said of it without its output.
        """
        entry = self._entries.get(run.run_id)
        if entry is None:
            return
        entry.run = None
        entry.status = run.status
        output = run.held
        try:
            entry.place = self._journal.append(Record.of_light(run, state, entry.fingerprint).packed(), output)
        except OSError as error:
            self._logger.error("run %s: it cannot be written to the journal: %s", run.run_id, error)
            run.note_loss(len(output))
            entry.unsaved = Record.of_light(run, state, entry.fingerprint)
        self._ended.append(run.run_id)
        self._tidy_soon()

    def release(self, run: Run) -> None:
        """Let go of an ended run: no more output will come."""
        for log in run.logs:
            log.close()
        if entry := self._entries.get(run.run_id):
            entry.run = None
            self._ended.append(run.run_id)
            if entry.unsaved:
                self._keep_record(entry, entry.unsaved)
        self._tidy_soon()

    def entry(self, run_id: str) -> Entry:
        """Return what is known of a run. Raises `RunNotFound`."""
        entry = self._entries.get(run_id)
        if entry is None:
            raise RunNotFound(f"There is no run {run_id}.")
        return entry

    def find(self, run_id: str) -> Entry | None:
        """Return what is known of a run, if there is one."""
        return self._entries.get(run_id)

    def entries(self) -> list[Entry]:
        """Return all, newest first."""
        return list(reversed(self._entries.values()))

    def record(self, entry: Entry) -> Record:
        """Return what is kept of an ended run. Raises `RunNotFound`."""
        try:
            if entry.unsaved:
                return entry.unsaved
            if entry.place:
                return Record.unpacked(self._journal.read(entry.place).record)
            return Record.of_snapshot(self._directories.read_snapshot(entry.run_id))
        except (OSError, ValueError, RecursionError) as error:
            raise RunNotFound(f"The files of run {entry.run_id} cannot be read: {error}") from None

    async def measure(self, entry: Entry) -> None:
        """Have the next result of a run tell the true sizes of its output, however much of it is to be rendered."""
        if entry.run:
            await entry.run.measure()

    def fingerprint(self, entry: Entry) -> str:
        """Return the fingerprint of the request that started a run, so that a repeat of it is recognised."""
        return entry.fingerprint if entry.run or entry.fingerprint else self.record(entry).identity

    def result(self, entry: Entry, state: ShellState) -> RunResult:
        """Return the result of a run as it stands, without output; `state` is that of its shell."""
        return entry.run.result(state) if entry.run else self.record(entry).result()

    def log(self, entry: Entry, stream: Stream) -> OutputLog | None:
        """Return the log of a run's `stream`, if it has one of its own."""
        if entry.run:
            return entry.run.log(stream)
        record = self.record(entry)
        path = f"{self._directories.path(entry.run_id)}/{_LOG_NAMES[stream]}"
        try:
            if entry.place and not record.in_directory:
                return self._log_in_journal(entry.place, record, stream)
            if stat.S_ISREG(os.lstat(path).st_mode):  # opening a FIFO would never return
                extents = record.stdout_extents if stream is Stream.STDOUT else record.stderr_extents
                return OutputLog.load(path, self._settings.log_max, extents)
        except OSError:
            return None
        return None

    def log_reader(self, entry: Entry) -> Callable[[Stream], OutputLog | None]:
        """Return the function that gives the logs of a run by stream."""
        return partial(self.log, entry)

    def delete(self, run_id: str) -> None:
        """Forget an ended run and remove its files; what lies in the journal is overwritten."""
        entry = self._entries.pop(run_id, None)
        if entry is None:
            return
        with contextlib.suppress(ValueError):
            self._ended.remove(run_id)
        self._directories.remove(run_id)
        if entry.place:
            try:
                self._journal.erase(entry.place)
            except OSError as error:
                self._logger.error("run %s: it stays in the journal: %s", run_id, error)

    def clear(self) -> None:
        """Forget all ended runs."""
        ended = [entry for entry in self._entries.values() if entry.status is not RunStatus.RUNNING]
        for entry in ended:
            del self._entries[entry.run_id]
        self._ended.clear()
        self._journal.clear()
        self._directories.remove_all([entry.run_id for entry in ended if entry.in_directory])

    def _tidy_soon(self) -> None:
        if not self._tidying:
            self._tidying = True
            asyncio.get_running_loop().call_soon(self._tidy)

    def _tidy(self) -> None:
        """Forget the oldest runs, and make ready for the next one; when the last has been answered."""
        self._tidying = False
        expired = self._forgotten(self._expired())
        self._directories.remove_all(expired[1:])
        try:
            self._directories.prepare(expired[0] if expired else None)
        except OSError as error:
            self._logger.error("no directory can be made for the next run: %s", error)

    def _expired(self) -> list[Entry]:
        """Forget the ended runs that are too many; return them, the oldest first."""
        expired = []
        while len(self._ended) > self._settings.retain_runs:
            if entry := self._entries.pop(self._ended.popleft(), None):
                expired.append(entry)
        return expired

    def _join(self, run_id: str, log: OutputLog) -> bool:
        """Make a log whole; return whether the disk took it. A log that is split can be read as well."""
        try:
            log.join()
        except OSError as error:
            self._logger.error("run %s: its output stays in several files: %s", run_id, error)
            return False
        return True

    def _found_in_journal(self) -> list[tuple[int, Entry]]:
        """Return the runs that have a record in the journal, each with when it was started."""
        found: dict[str, tuple[int, Entry]] = {}
        directories = set(self._directories.found())
        decode = msgspec.msgpack.Decoder(Key).decode
        unread = 0
        for place, record in self._journal.open():
            try:
                key = decode(record)
            except (ValueError, RecursionError):
                unread += 1
                continue
            run_id = key.run_id
            if run_id in found and (earlier := found.pop(run_id)[1].place):
                self._journal.forget(earlier)
            if key.in_directory and run_id not in directories:  # somebody has taken its files away
                self._journal.forget(place)
                continue
            session_id = sys.intern(key.session_id)
            entry = Entry(run_id, session_id, key.status, in_directory=key.in_directory, place=place)
            found[run_id] = key.started_at, entry
        if unread:
            self._logger.warning("%d records of the journal are of another version, and left as they are", unread)
        return list(found.values())

    def _found_in_directories(self, known: Set[str]) -> Iterator[tuple[int, Entry]]:
        """Yield the other runs that have a directory, each with when it was started.

        Their records are added to the journal, so that the next start need not read their files. What cannot be read
        stays where it is: it may be of a newer version, or of a moment in which the disk failed.
        """
        unread: list[str] = []
        for run_id in self._directories.found():
            if run_id in known:
                continue
            try:
                record = Record.of_snapshot(self._directories.read_snapshot(run_id))
                if record.run_id != run_id:
                    raise ValueError(f"it is the snapshot of {record.run_id!r}")
            except (OSError, ValueError, OverflowError, RecursionError, MemoryError) as error:
                unread.append(f"{run_id!r} ({error})")
                if lost := self._unreadable(run_id, error):
                    yield lost
                continue
            entry = Entry(run_id, record.session_id, record.status, in_directory=True)
            if record.status is RunStatus.RUNNING:
                try:
                    record = self._recovered(entry, record)
                except Exception as error:  # noqa: BLE001 - whatever lies there, the daemon starts
                    unread.append(f"{run_id!r} ({error})")
                    record = _lost(record, Cause.DAEMON_RESTARTED, _RESTARTED)
            entry.status = record.status
            self._keep_record(entry, record)
            yield record.started_at, entry
        if unread:
            some = ", ".join(unread[:_MOST_NAMED]) + (", ..." if len(unread) > _MOST_NAMED else "")
            self._logger.warning("not read, and left as it is under %s: %s", self._directories.root, some)

    def _unreadable(self, run_id: str, reason: Exception) -> tuple[int, Entry] | None:
        """Return (when, entry) for the files of a run that cannot be read: all that is known is its id."""
        if not _RUN_ID.fullmatch(run_id) or _SIGNS_OF_A_RUN.isdisjoint(self._directories.files(run_id)):
            return None
        record = Record(
            run_id=run_id,
            session_id="",
            started_at=int(self._directories.changed_at(run_id) * 1000),
            status=RunStatus.LOST,
            in_directory=True,
            command="",
            duration=0,
            cause=Cause.UNKNOWN,
            error=f"The record of the run cannot be read: {reason}.",
            state=ShellState.AVAILABLE,
        )
        entry = Entry(run_id, "", RunStatus.LOST, in_directory=True, unsaved=record, unreadable=True)
        return record.started_at, entry

    def _recovered(self, entry: Entry, record: Record) -> Record:
        """Close a run that was going on when its daemon ended: its output is complete up to that moment.

        Its duration is told by when it last wrote something; what it did after that nobody knows.
        """
        begun, last_written = record.started_at / 1000, 0.0
        changes: dict[str, object] = {}
        joined = []
        for stream, name in _LOG_NAMES.items():
            path = f"{self._directories.path(record.run_id)}/{name}"
            try:
                status = os.lstat(path)
                if not stat.S_ISREG(status.st_mode):
                    continue
                last_written = max(last_written, status.st_mtime)
                log = OutputLog.load(path, self._settings.log_max)
            except OSError:
                continue
            changes[f"{stream}_size"] = self._counted(log)
            if stream is Stream.STDOUT:
                changes["cursor"] = log.size
            if log.kept <= 2 * self._settings.log_max and self._join(entry.run_id, log):
                joined.append(log)
            if not log.whole:
                changes[f"{stream}_extents"] = log.extents
        changes["duration"] = max(record.duration, round((last_written - begun) * 1_000_000))
        lost = _lost(record, Cause.DAEMON_RESTARTED, _RESTARTED, **changes)
        self._write(entry, lost)
        for log in joined:
            log.discard_segments()
        return lost

    def _counted(self, log: OutputLog) -> int:
        """Return the characters of a log, or where those found at the start are too large together, its bytes."""
        self._uncounted -= log.kept
        if self._uncounted < 0:
            return log.size
        return sum(len(piece) for piece in pieces(log, OutputFormat.TEXT))

    def _record(self, run: Run, state: ShellState, identity: str) -> Record:
        extents = {stream: log.extents for stream in Stream if (log := run.log(stream)) and not log.whole}
        return Record.of(run.result(state), identity, extents)

    def _keep_in_journal(self, entry: Entry, run: Run, state: ShellState) -> bool:
        """Append an ended run with its output to the journal, where it is short; return whether that was done."""
        logs = [log for stream in Stream if (log := run.log(stream))]
        if self._directories.published(run.run_id) or sum(log.size for log in logs) > SHORT:
            return False
        output = [log.read(0, log.size).data for log in logs]
        record = msgspec.structs.replace(self._record(run, state, entry.fingerprint), in_directory=False)
        packed = record.packed()
        if sum(map(len, output)) < sum(log.size for log in logs) or len(packed) > LARGEST_FRAME:
            return False
        try:
            entry.place = self._journal.append(packed, b"".join(output))
            frame = self._journal.read(entry.place)
        except OSError as error:
            self._logger.error("run %s: it cannot be written to the journal: %s", run.run_id, error)
            return False
        entry.status = run.status
        at = frame.at
        for log in logs:
            log.move_into(frame.path, at)
            at += log.size
        self._directories.give_back(run.run_id)
        return True

    def _keep_record(self, entry: Entry, record: Record) -> None:
        """Append the record of an ended run that has a directory to the journal, for the next start to find it."""
        packed = record.packed()
        if len(packed) <= LARGEST_FRAME and entry.in_directory:
            with contextlib.suppress(OSError):  # it lies in the directory, too
                entry.place = self._journal.append(packed)
                entry.unsaved = None

    def _log_in_journal(self, place: Place, record: Record, stream: Stream) -> OutputLog | None:
        """Return the log of a run whose output lies in the journal. Raises `OSError`."""
        if stream is Stream.STDERR and record.streams is Streams.MERGED:
            return None
        frame = self._journal.read(place)
        at, length = (0, record.cursor) if stream is Stream.STDOUT else (record.cursor, frame.length - record.cursor)
        return OutputLog.within(frame.path, frame.at + at, length if frame.whole else 0, length)

    def _forgotten(self, entries: list[Entry]) -> list[str]:
        """Let the journal forget runs; return the ids of those that have a directory."""
        for entry in entries:
            if entry.place:
                self._journal.forget(entry.place)
        return [entry.run_id for entry in entries if entry.in_directory]

    def _write(self, entry: Entry, record: Record) -> None:
        """Write the snapshot of a run into its directory; memory holds it where the disk refuses, or it has ended."""
        entry.status = record.status
        entry.unsaved = record
        try:
            published = self._directories.replace_snapshot(entry.run_id, record.snapshot())
        except OSError as error:
            self._logger.error("run %s: its snapshot cannot be written: %s", entry.run_id, error)
            return
        entry.in_directory = True
        if published and entry.run:
            for log in entry.run.logs:
                log.move(self._directories.path(entry.run_id))


def _lost(record: Record, cause: Cause, error: str, **changes: object) -> Record:
    """Return the record of a run that nobody saw the end of."""
    return msgspec.structs.replace(
        record, status=RunStatus.LOST, cause=cause, error=error, state=ShellState.AVAILABLE, **changes
    )
