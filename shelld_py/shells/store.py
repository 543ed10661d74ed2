"""Runs on disk: where their files lie, what is kept, and what an earlier daemon has left.

    DATA/lock                       held (flock(2)) by the daemon that uses the directory
    DATA/runs/RUN_ID/snapshot.json  the result without output, replaced atomically at every change of status
    DATA/runs/RUN_ID/output.log     what the command wrote, byte for byte (see output.py)
    DATA/runs/RUN_ID/stderr.log     standard error, where it went apart

An ended run is its files: memory holds its id, its session, its status and a fingerprint. So a thousand
runs cost next to nothing, and a restarted daemon knows as much as the one before.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import secrets
import stat
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
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
    Usage,
    utc_timestamp,
)
from shelld_py.output.excerpt import pieces
from shelld_py.output.log import Extents, OutputLog
from shelld_py.shells.data_directory import calling, is_file, put_aside
from shelld_py.shells.directories import OUTPUT_LOG, SNAPSHOT, STDERR_LOG, RunDirectories
from shelld_py.shells.run import Run

_LOG_NAMES: Final = {Stream.STDOUT: OUTPUT_LOG, Stream.STDERR: STDERR_LOG}
_RESTARTED: Final = "The daemon ended while the command was running."
_RUN_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,64}")
_SIGNS_OF_A_RUN: Final = frozenset({SNAPSHOT, OUTPUT_LOG})
_MOST_NAMED: Final = 5
_COUNTED_AT_START: Final = 256 * 1024 * 1024
"""Bytes of output whose characters are counted at the start, in all: some seconds. Of more, the bytes are told."""


class Snapshot(RunResult, frozen=True, kw_only=True):
    """A run result as it is kept on disk, with what is needed to read its logs and to recognise a repeat."""

    fingerprint: str
    stdout_extents: Extents | None = None
    stderr_extents: Extents | None = None

    def result(self) -> RunResult:
        """Return the result alone."""
        return RunResult(**{name: getattr(self, name) for name in RunResult.__struct_fields__})


@dataclass(slots=True)
class Entry:
    """What memory holds of a run: `run` as long as it is going on (and output may still come), then its id alone."""

    run_id: str
    session_id: str
    status: RunStatus
    run: Run | None = None
    fingerprint: str = ""
    """Of the request that started the run, so that a repeat of it is recognised; empty where no request did."""
    unsaved: bytes | None = None
    """The last snapshot, where the disk refused it, or what stands for one that cannot be read."""
    unreadable: bool = False
    """Whether what lies on the disk was not understood: it is not removed to make room for other runs."""


def fingerprint(session_id: str, command: Command) -> str:
    """Return what two requests have in common when they ask for the same run."""
    fields = repr((session_id, msgspec.structs.astuple(command)))
    return hashlib.blake2b(fields.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _encoded(result: RunResult, identity: str, extents: dict[Stream, Extents]) -> bytes:
    """Return a snapshot as JSON: the members of the result, then its own."""
    own = {"fingerprint": identity, **{f"{stream}_extents": kept for stream, kept in extents.items()}}
    return msgspec.json.encode(result)[:-1] + b"," + msgspec.json.encode(own)[1:]


class RunStore:
    """All runs that there are, newest last. One for each daemon; `open` it, `close` it."""

    def __init__(self, directory: Path, settings: OutputSettings, logger: logging.Logger) -> None:
        self._directories = RunDirectories(directory / "runs", directory / "unpublished")
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
            for _, entry in sorted(self._found(), key=itemgetter(0)):
                self._entries[entry.run_id] = entry
                if not entry.unreadable:
                    self._ended.append(entry.run_id)
        except BaseException:
            self.close()
            raise
        for run_id in self._expired():
            self._directories.remove(run_id)

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
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def create(self, session_id: str, command: Command, run_id: str | None = None) -> Run:
        """Make a run with its directory; its snapshot is for `save`. Raises `RunIdConflict` when the id is taken."""
        run_id = run_id or secrets.token_hex(16)
        if run_id in self._entries:
            raise RunIdConflict(f"The run id {run_id} is taken by another run.", run_id=run_id)
        try:
            self._directories.take(run_id)
        except OSError as error:
            self._logger.error("run %s: its directory cannot be made: %s", run_id, error)
        path = self._directories.path(run_id)
        logs = {Stream.STDOUT: OutputLog(f"{path}/{OUTPUT_LOG}", self._settings.log_max)}
        if command.streams is Streams.SEPARATE:
            logs[Stream.STDERR] = OutputLog(f"{path}/{STDERR_LOG}", self._settings.log_max).create()
        run = Run(run_id, session_id, command, logs)
        self._entries[run_id] = Entry(run_id, session_id, RunStatus.RUNNING, run)
        return run

    def save(self, run: Run, state: ShellState) -> None:
        """Write the snapshot of `run` as it stands now."""
        entry = self._entries.get(run.run_id)
        if entry is None:
            return
        entry.status = run.status
        extents = {stream: log.extents for stream in Stream if (log := run.log(stream)) and not log.whole}
        self._write(entry, _encoded(run.result(state), entry.fingerprint, extents))

    def publish(self, run: Run, state: ShellState) -> None:
        """Write the first snapshot of `run`, if none has been written: somebody gets to know of it now."""
        if not self._directories.published(run.run_id):
            self.save(run, state)

    async def seal(self, run: Run, state: ShellState) -> None:
        """Write the last snapshot of an ended run. Logs that were split are made whole in a thread before."""
        await run.measure()
        split = [log for log in run.logs if log.segmented]
        joined = [log for log in split if await asyncio.to_thread(self._join, run.run_id, log)]
        self.save(run, state)
        for log in joined:
            log.discard_segments()

    def release(self, run: Run) -> None:
        """Let go of an ended run: no more output will come."""
        for log in run.logs:
            log.close()
        if entry := self._entries.get(run.run_id):
            entry.run = None
            self._ended.append(run.run_id)
        if not self._tidying:
            self._tidying = True
            asyncio.get_running_loop().call_soon(self._tidy)

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

    def snapshot(self, entry: Entry) -> Snapshot:
        """Return the result of an ended run from disk. Raises `RunNotFound`."""
        try:
            content = entry.unsaved or self._directories.read_snapshot(entry.run_id)
            return msgspec.json.decode(content, type=Snapshot)
        except (OSError, msgspec.MsgspecError) as error:
            raise RunNotFound(f"The files of run {entry.run_id} cannot be read: {error}") from None

    async def measure(self, entry: Entry) -> None:
        """Have the next result of a run tell the true sizes of its output, however much of it is to be rendered."""
        if entry.run:
            await entry.run.measure()

    def result(self, entry: Entry, state: ShellState) -> RunResult:
        """Return the result of a run as it stands, without output; `state` is that of its shell."""
        return entry.run.result(state) if entry.run else self.snapshot(entry).result()

    def log(self, entry: Entry, stream: Stream) -> OutputLog | None:
        """Return the log of a run's `stream`, if it has one of its own."""
        if entry.run:
            return entry.run.log(stream)
        snapshot = self.snapshot(entry)
        extents = snapshot.stdout_extents if stream is Stream.STDOUT else snapshot.stderr_extents
        path = f"{self._directories.path(entry.run_id)}/{_LOG_NAMES[stream]}"
        try:
            if stat.S_ISREG(os.lstat(path).st_mode):  # opening a FIFO would never return
                return OutputLog.load(path, self._settings.log_max, extents)
        except OSError:
            return None
        return None

    def log_reader(self, entry: Entry) -> Callable[[Stream], OutputLog | None]:
        """Return the function that gives the logs of a run by stream."""
        return partial(self.log, entry)

    def delete(self, run_id: str) -> None:
        """Forget an ended run and remove its files."""
        if self._entries.pop(run_id, None):
            with contextlib.suppress(ValueError):
                self._ended.remove(run_id)
        self._directories.remove(run_id)

    def clear(self) -> None:
        """Forget all ended runs."""
        for entry in self.entries():
            if entry.status is not RunStatus.RUNNING:
                self.delete(entry.run_id)

    def _tidy(self) -> None:
        """Forget the oldest runs, and make ready for the next one; when the last has been answered."""
        self._tidying = False
        expired = self._expired()
        for run_id in expired[1:]:
            self._directories.remove(run_id)
        try:
            self._directories.prepare(expired[0] if expired else None)
        except OSError as error:
            self._logger.error("no directory can be made for the next run: %s", error)

    def _expired(self) -> list[str]:
        """Forget the ended runs that are too many; return them, the oldest first."""
        expired = []
        while len(self._ended) > self._settings.retain_runs:
            run_id = self._ended.popleft()
            if self._entries.pop(run_id, None):
                expired.append(run_id)
        return expired

    def _join(self, run_id: str, log: OutputLog) -> bool:
        """Make a log whole; return whether the disk took it. A log that is split can be read as well."""
        try:
            log.join()
        except OSError as error:
            self._logger.error("run %s: its output stays in several files: %s", run_id, error)
            return False
        return True

    def _found(self) -> Iterator[tuple[str, Entry]]:
        """Yield what earlier daemons left, each run with when it was started.

        What cannot be read stays where it is: it may be of a newer version, or of a moment in which the disk failed.
        """
        unread: list[str] = []
        for run_id in self._directories.found():
            try:
                snapshot = msgspec.json.decode(self._directories.read_snapshot(run_id), type=Snapshot)
                if snapshot.run_id != run_id:
                    raise ValueError(f"it is the snapshot of {snapshot.run_id!r}")
            except (OSError, ValueError, RecursionError, MemoryError) as error:
                unread.append(f"{run_id!r} ({error})")
                if lost := self._unreadable(run_id, error):
                    yield lost
                continue
            entry = Entry(run_id, snapshot.session_id, snapshot.status, fingerprint=snapshot.fingerprint)
            if snapshot.status is RunStatus.RUNNING:
                try:
                    self._recover(entry, snapshot)
                except Exception as error:  # noqa: BLE001 - whatever lies there, the daemon starts
                    unread.append(f"{run_id!r} ({error})")
                    self._remember_lost(entry, snapshot.result(), _RESTARTED)
            yield snapshot.started_at, entry
        if unread:
            some = ", ".join(unread[:_MOST_NAMED]) + (", ..." if len(unread) > _MOST_NAMED else "")
            self._logger.warning("not read, and left as it is under %s: %s", self._directories.root, some)

    def _unreadable(self, run_id: str, reason: Exception) -> tuple[str, Entry] | None:
        """Return (when, entry) for the files of a run that cannot be read: all that is known is its id."""
        if not _RUN_ID.fullmatch(run_id) or _SIGNS_OF_A_RUN.isdisjoint(self._directories.files(run_id)):
            return None
        result = RunResult(
            run_id=run_id, session_id="", command="", description=None, status=RunStatus.LOST, cause=Cause.UNKNOWN,
            exit_code=None, signal=None, error=None, stdout=None, stderr=None, streams=Streams.MERGED, truncated=False,
            original_stdout_size=0, original_stderr_size=0, cursor=0, directory=None, working_directory=None,
            background_pids=(), awaiting_input=False, timed_out=False, restored=False, state=ShellState.AVAILABLE,
            started_at=utc_timestamp(self._directories.changed_at(run_id)), duration=0.0,
            usage=Usage(cpu_seconds=0.0, peak_memory_mb=0.0, processes_left=0),
        )  # fmt: skip
        entry = Entry(run_id, "", RunStatus.LOST, unreadable=True)
        self._remember_lost(entry, result, f"The record of the run cannot be read: {reason}.")
        return result.started_at, entry

    def _remember_lost(self, entry: Entry, result: RunResult, error: str) -> None:
        """Hold the result of a lost run in memory: its files are left as they are."""
        lost = msgspec.structs.replace(
            result,
            status=RunStatus.LOST,
            cause=result.cause or Cause.DAEMON_RESTARTED,
            error=error,
            state=ShellState.AVAILABLE,
            awaiting_input=False,
        )
        entry.status = RunStatus.LOST
        entry.unsaved = _encoded(lost, entry.fingerprint, {})

    def _recover(self, entry: Entry, snapshot: Snapshot) -> None:
        """Close a run that was going on when its daemon ended: its output is complete up to that moment.

        Its duration is told by when it last wrote something; what it did after that nobody knows.
        """
        begun, last_written = datetime.fromisoformat(snapshot.started_at).timestamp(), 0.0
        changes: dict[str, object] = {
            "status": RunStatus.LOST,
            "cause": Cause.DAEMON_RESTARTED,
            "error": _RESTARTED,
            "state": ShellState.AVAILABLE,
            "awaiting_input": False,
        }
        extents: dict[Stream, Extents] = {}
        joined = []
        for stream, name in _LOG_NAMES.items():
            path = f"{self._directories.path(snapshot.run_id)}/{name}"
            try:
                status = os.lstat(path)
                if not stat.S_ISREG(status.st_mode):
                    continue
                last_written = max(last_written, status.st_mtime)
                log = OutputLog.load(path, self._settings.log_max)
            except OSError:
                continue
            changes[f"original_{stream}_size"] = self._counted(log)
            if stream is Stream.STDOUT:
                changes["cursor"] = log.size
            if log.kept <= 2 * self._settings.log_max and self._join(entry.run_id, log):
                joined.append(log)
            if not log.whole:
                extents[stream] = log.extents
        changes["duration"] = round(max(snapshot.duration, last_written - begun), 6)
        entry.status = RunStatus.LOST
        result = msgspec.structs.replace(snapshot.result(), **changes)
        self._write(entry, _encoded(result, entry.fingerprint, extents))
        for log in joined:
            log.discard_segments()

    def _counted(self, log: OutputLog) -> int:
        """Return the characters of a log, or where those found at the start are too large together, its bytes."""
        self._uncounted -= log.kept
        if self._uncounted < 0:
            return log.size
        return sum(len(piece) for piece in pieces(log, OutputFormat.TEXT))

    def _write(self, entry: Entry, snapshot: bytes) -> None:
        try:
            published = self._directories.replace_snapshot(entry.run_id, snapshot)
            entry.unsaved = None
        except OSError as error:
            entry.unsaved = snapshot
            self._logger.error("run %s: its snapshot cannot be written: %s", entry.run_id, error)
            return
        if published and entry.run:
            for log in entry.run.logs:
                log.move(self._directories.path(entry.run_id))
