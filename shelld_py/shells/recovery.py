"""What an earlier daemon has left: its runs, those that were going on among them, whatever else lies there.

The bytes on the disk may be anything: cut short by a crash, of another version, or a person's. What cannot be read
stays where it is and is told of once; nothing that lies there keeps the daemon from starting.
"""

import contextlib
import logging
import os
import re
import stat
import sys
from collections.abc import Iterator, Set
from typing import Final

import msgspec

from shelld_py.models import Cause, RunStatus, ShellState, Stream, within_calendar
from shelld_py.output.excerpt import text_size
from shelld_py.output.log import OutputLog
from shelld_py.shells.directories import LOG_NAMES, SNAPSHOT, RunDirectories
from shelld_py.shells.journal import LARGEST_FRAME, Journal
from shelld_py.shells.record import Kept, Key, Record

_RESTARTED: Final = "The daemon ended while the command was running."
_RUN_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,64}")
_SIGNS_OF_A_RUN: Final = frozenset({SNAPSHOT, *LOG_NAMES.values()})
_MOST_NAMED: Final = 5
_COUNTED: Final = 8 * 1024 * 1024
"""Bytes of output whose characters are counted at the start, in all: a fraction of a second. Of more, the bytes are
told: a daemon that starts late is ended by its orchestrator."""


class Recovery:
    """One look at what there is, when a store is opened."""

    def __init__(self, journal: Journal, directories: RunDirectories, log_max: int, logger: logging.Logger) -> None:
        self._journal = journal
        self._directories = directories
        self._log_max = log_max
        self._logger = logger
        self._uncounted = _COUNTED

    def entries(self) -> list[Kept]:
        """Return all runs that there are, in no order. Raises `ConfigError` where the system refuses."""
        found = self._in_journal()
        return [*found.values(), *self._in_directories(found.keys())]

    def _in_journal(self) -> dict[str, Kept]:
        """Return the runs that have a record in the journal."""
        found: dict[str, Kept] = {}
        directories = set(self._directories.found())
        decode = msgspec.msgpack.Decoder(Key).decode
        unread = 0
        for place, record in self._journal.open():
            try:
                key = decode(record)
                if within_calendar(seconds := key.started_at / 1000) != seconds:
                    raise ValueError(f"it was started {seconds} s after 1970")
            except (ValueError, RecursionError):
                unread += 1
                continue
            run_id = key.run_id
            if run_id in found and (earlier := found.pop(run_id).place):
                self._journal.forget(earlier)
            if key.in_directory and run_id not in directories:  # somebody has taken its files away
                self._journal.forget(place)
                continue
            session_id = sys.intern(key.session_id)
            found[run_id] = Kept(run_id, session_id, key.status, key.started_at, key.in_directory, place)
        if unread:
            self._logger.warning("%d records of the journal are of another version, and left as they are", unread)
        return found

    def _in_directories(self, known: Set[str]) -> Iterator[Kept]:
        """Yield the other runs that have a directory. The next start finds them in the journal."""
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
            entry = Kept(run_id, record.session_id, record.status, record.started_at, in_directory=True)
            if record.status is RunStatus.RUNNING:
                try:
                    record = self._recovered(entry, record)
                except Exception as error:  # noqa: BLE001 - whatever lies there, the daemon starts
                    unread.append(f"{run_id!r} ({error})")
                    record = entry.record = _lost(record)
            entry.status = record.status
            try:
                packed = record.packed()
            except OverflowError as error:  # a number that no daemon has written
                unread.append(f"{run_id!r} ({error})")
                if lost := self._unreadable(run_id, error):
                    yield lost
                continue
            if len(packed) <= LARGEST_FRAME:
                with contextlib.suppress(OSError):  # it lies in the directory, too
                    entry.place = self._journal.append(packed)
            yield entry
        if unread:
            some = ", ".join(unread[:_MOST_NAMED]) + (", ..." if len(unread) > _MOST_NAMED else "")
            self._logger.warning("not read, and left as it is under %s: %s", self._directories.root, some)

    def _unreadable(self, run_id: str, reason: Exception) -> Kept | None:
        """Return what stands for the files of a run that cannot be read: all that is known is its id."""
        if not _RUN_ID.fullmatch(run_id) or _SIGNS_OF_A_RUN.isdisjoint(self._directories.files(run_id)):
            return None
        record = Record(
            run_id=run_id,
            session_id="",
            started_at=int(within_calendar(self._directories.changed_at(run_id)) * 1000),
            status=RunStatus.LOST,
            in_directory=True,
            command="",
            duration=0,
            cause=Cause.UNKNOWN,
            error=f"The record of the run cannot be read: {reason}.",
            state=ShellState.AVAILABLE,
        )
        return Kept(run_id, "", record.status, record.started_at, in_directory=True, record=record, unreadable=True)

    def _recovered(self, entry: Kept, record: Record) -> Record:
        """Close a run that was going on when its daemon ended: its output is complete up to that moment.

        Its duration is told by when it last wrote something; what it did after that nobody knows.
        """
        begun, last_written = record.started_at / 1000, 0.0
        changes: dict[str, object] = {}
        joined = []
        for stream in Stream:
            path = self._directories.log_path(record.run_id, stream)
            try:
                status = os.lstat(path)
                if not stat.S_ISREG(status.st_mode):
                    continue
                last_written = max(last_written, within_calendar(status.st_mtime))
                log = OutputLog.load(path, self._log_max)
            except OSError:
                continue
            size = self._counted(log)
            changes[f"{stream}_size"] = log.size if size is None else size
            if size is None:
                changes["uncounted"] = True
            if stream is Stream.STDOUT:
                changes["cursor"] = log.size
            if log.segmented and log.kept <= 2 * self._log_max:  # more is none of ours
                try:
                    log.join()
                    joined.append(log)
                except OSError as error:
                    self._logger.error("run %s: its output stays in several files: %s", record.run_id, error)
            if not log.whole:
                changes[f"{stream}_extents"] = log.extents
        changes["duration"] = max(record.duration, round((last_written - begun) * 1_000_000))
        lost = _lost(record, **changes)
        try:
            self._directories.replace_snapshot(record.run_id, lost.snapshot())
        except OSError as error:
            self._logger.error("run %s: its snapshot cannot be written: %s", record.run_id, error)
            entry.record = lost
        for log in joined:
            log.discard_segments()
        return lost

    def _counted(self, log: OutputLog) -> int | None:
        """Return the characters of a log; None where those found at the start are too large together."""
        self._uncounted -= log.kept
        return text_size(log) if self._uncounted >= 0 else None


def _lost(record: Record, **changes: object) -> Record:
    """Return the record of a run whose end nobody saw."""
    return msgspec.structs.replace(
        record,
        status=RunStatus.LOST,
        cause=Cause.DAEMON_RESTARTED,
        error=_RESTARTED,
        state=ShellState.AVAILABLE,
        **changes,
    )
