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
import secrets
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
from shelld_py.models import Cause, Command, OutputFormat, RunResult, RunStatus, ShellState, Stream, Streams
from shelld_py.output.excerpt import pieces
from shelld_py.output.log import Extents, OutputLog
from shelld_py.shells.directories import OUTPUT_LOG, STDERR_LOG, RunDirectories
from shelld_py.shells.run import Run

_LOG_NAMES: Final = {Stream.STDOUT: OUTPUT_LOG, Stream.STDERR: STDERR_LOG}
_RESTARTED: Final = "The daemon ended while the command was running."


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
    """The last snapshot, where the disk refused it."""


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

    def open(self) -> None:
        """Take the directory and find the runs in it; those that were going on are lost now.

        Raises `ConfigError` when another daemon uses the directory, or when it cannot be used.
        """
        try:
            self._lock_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock_path.parent.chmod(0o700)
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ConfigError(
                f"server.data_directory: {self._lock_path.parent} is in use by another daemon: "
                "give each daemon a directory of its own"
            ) from None
        try:
            self._directories.open()
        except OSError as error:
            self.close()
            raise self._unusable(error) from None
        for _, entry in sorted(self._found(), key=itemgetter(0)):
            self._entries[entry.run_id] = entry
            self._ended.append(entry.run_id)
        for run_id in self._expired():
            self._directories.remove(run_id)

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(f"server.data_directory: {self._lock_path.parent} cannot be used: {error.strerror}")

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

    def result(self, entry: Entry, state: ShellState) -> RunResult:
        """Return the result of a run as it stands, without output; `state` is that of its shell."""
        return entry.run.result(state) if entry.run else self.snapshot(entry).result()

    def log(self, entry: Entry, stream: Stream) -> OutputLog | None:
        """Return the log of a run's `stream`, if it has one of its own."""
        if entry.run:
            return entry.run.log(stream)
        snapshot = self.snapshot(entry)
        extents = snapshot.stdout_extents if stream is Stream.STDOUT else snapshot.stderr_extents
        try:
            path = f"{self._directories.path(entry.run_id)}/{_LOG_NAMES[stream]}"
            return OutputLog.load(path, self._settings.log_max, extents)
        except OSError:
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

        Files that make no run are removed: nobody could ever read them.
        """
        for run_id in self._directories.found():
            try:
                snapshot = msgspec.json.decode(self._directories.read_snapshot(run_id), type=Snapshot)
                if snapshot.run_id != run_id:
                    raise ValueError(f"it is the snapshot of {snapshot.run_id}")
            except (OSError, ValueError) as error:
                self._logger.warning("removing the files of %s, which make no run: %s", run_id, error)
                self._directories.remove(run_id)
                continue
            entry = Entry(run_id, snapshot.session_id, snapshot.status, fingerprint=snapshot.fingerprint)
            if snapshot.status is RunStatus.RUNNING:
                self._recover(entry, snapshot)
            yield snapshot.started_at, entry

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
                last_written = max(last_written, os.stat(path).st_mtime)
                log = OutputLog.load(path, self._settings.log_max)
            except OSError:
                continue
            changes[f"original_{stream}_size"] = sum(len(piece) for piece in pieces(log, OutputFormat.TEXT))
            if stream is Stream.STDOUT:
                changes["cursor"] = log.size
            if self._join(entry.run_id, log):
                joined.append(log)
            if not log.whole:
                extents[stream] = log.extents
        changes["duration"] = round(max(snapshot.duration, last_written - begun), 6)
        entry.status = RunStatus.LOST
        result = msgspec.structs.replace(snapshot.result(), **changes)
        self._write(entry, _encoded(result, entry.fingerprint, extents))
        for log in joined:
            log.discard_segments()

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
