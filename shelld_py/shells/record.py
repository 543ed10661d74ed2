"""What is kept of a run that has ended: its result without output, in few bytes, and what is needed to read its logs.

In a directory of its own a run has it as `snapshot.json`, for people and other programs: the members of the result,
and up to five more. In the journal it is an array, a quarter of that. Knows nothing of files.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Self

import msgspec
from msgspec import Struct

from shelld_py.models import Cause, FileChanges, RunResult, RunStatus, ShellState, Stream, Streams, Usage, timestamp_of
from shelld_py.output.log import Extents
from shelld_py.request_data import Command
from shelld_py.shells.journal import FrameLocation

_MILLI: Final = 1000
_MICRO: Final = 1_000_000
LONGEST_TOLD: Final = 64 * 1024
"""Characters of a command, and of its description, that are kept and told: runs are written by the event loop, and
listed by the hundred."""
_PIECE: Final = 64 * 1024
"""Characters that are encoded at a time: that holds the interpreter."""

DEFAULT_SIZE: Final = (24, 80)
"""Rows and columns of a terminal where nothing is said of them."""

Sizes = tuple[tuple[int, int, int], ...]
"""The (offset of a log, rows, columns) of a terminal, in order."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A run as it is kept. The order of the fields is that in the journal: new ones are added at the end."""

    run_id: str
    session_id: str
    started_at: int
    """Unix time in milliseconds."""
    status: RunStatus
    in_directory: bool
    """Whether its output lies in a directory of its own, not in the journal."""
    command: str
    duration: int
    """Microseconds."""
    cursor: int = 0
    stdout_size: int = 0
    """Characters of the text."""
    exit_code: int | None = None
    working_directory: str | None = None
    cause: Cause | None = Cause.EXIT
    state: ShellState = ShellState.READY
    streams: Streams = Streams.MERGED
    cpu_milliseconds: int = 0
    peak_memory: int = 0
    """Thousandths of a MiB."""
    fingerprint: bytes = b""
    """Of the request that started it; empty where that is to be made of the fields here."""
    signal: int | None = None
    error: str | None = None
    description: str | None = None
    directory: str | None = None
    restored: bool = False
    timed_out: bool = False
    background_pids: tuple[int, ...] = ()
    stderr_size: int = 0
    stdout_extents: Extents | None = None
    """Which bytes of the log its file holds; None where it holds all."""
    stderr_extents: Extents | None = None
    warnings: tuple[str, ...] = ()
    uncounted: bool = False
    """Whether the sizes of the texts are still to be counted: they are those of the bytes."""
    sizes: Sizes = ()
    """Of the terminal, from which offset of the log on; none where it had 24 rows and 80 columns throughout."""
    typed_by_person: bool = False
    changes: FileChanges | None = None
    """What it did to files, where that was asked for."""

    @classmethod
    def of(
        cls,
        result: RunResult,
        identity: str = "",
        extents: Mapping[Stream, Extents] | None = None,
        *,
        uncounted: bool = False,
        sizes: Sizes = (),
    ) -> Self:
        """Return what is to be kept of a run in a directory. Raises `ValueError` where the time of its start is none.

        `identity` is the fingerprint of its request, `extents` what is left of logs that are not whole.
        """
        extents = extents or {}
        return cls(
            run_id=result.run_id,
            session_id=result.session_id,
            status=result.status,
            in_directory=True,
            command=result.command,
            started_at=round(datetime.fromisoformat(result.started_at).timestamp() * _MILLI),
            duration=round(result.duration * _MICRO),
            cursor=result.cursor,
            stdout_size=result.original_stdout_size,
            exit_code=result.exit_code,
            working_directory=result.working_directory,
            cause=result.cause,
            state=result.state,
            streams=result.streams,
            cpu_milliseconds=round(result.usage.cpu_seconds * _MILLI),
            peak_memory=round(result.usage.peak_memory_mb * _MILLI),
            fingerprint=bytes.fromhex(identity),
            signal=result.signal,
            error=result.error,
            description=result.description,
            directory=result.directory,
            restored=result.restored,
            timed_out=result.timed_out,
            background_pids=result.background_pids,
            stderr_size=result.original_stderr_size,
            stdout_extents=extents.get(Stream.STDOUT),
            stderr_extents=extents.get(Stream.STDERR),
            warnings=result.warnings or (),
            uncounted=uncounted,
            sizes=sizes,
            typed_by_person=result.typed_by_person is True,
            changes=_changes_of(result),
        )

    def result(self, stdout: str | None = None, stderr: str | None = None) -> RunResult:
        """Return the result, without output."""
        return RunResult(
            run_id=self.run_id,
            session_id=self.session_id,
            command=self.command,
            description=self.description,
            status=self.status,
            cause=self.cause,
            exit_code=self.exit_code,
            signal=self.signal,
            error=self.error,
            warnings=self.warnings or msgspec.UNSET,
            stdout=stdout,
            stderr=stderr,
            streams=self.streams,
            truncated=False,
            original_stdout_size=self.stdout_size,
            original_stderr_size=self.stderr_size,
            cursor=self.cursor,
            directory=self.directory,
            working_directory=self.working_directory,
            background_pids=self.background_pids,
            awaiting_input=False,
            timed_out=self.timed_out,
            restored=self.restored,
            state=self.state,
            started_at=timestamp_of(self.started_at),
            duration=self.duration / _MICRO,
            usage=Usage(
                cpu_seconds=self.cpu_milliseconds / _MILLI,
                peak_memory_mb=self.peak_memory / _MILLI,
                processes_left=len(self.background_pids),
            ),
            typed_by_person=self.typed_by_person or msgspec.UNSET,
            **changes_members(self.changes),
        )

    @property
    def identity(self) -> str:
        """The fingerprint of the request that started it."""
        if self.fingerprint:
            return self.fingerprint.hex()
        command = Command(
            text=self.command, directory=self.directory, description=self.description, streams=self.streams
        )
        return fingerprint(self.session_id, command)

    def packed(self) -> bytes:
        """Return it as it lies in the journal."""
        return _encoder.encode(self)

    @classmethod
    def unpacked(cls, content: bytes) -> Self:
        """Return what lies in the journal. Raises `ValueError`."""
        return msgspec.msgpack.decode(content, type=cls)

    def snapshot(self) -> bytes:
        """Return it as it lies in a directory."""
        own: dict[str, object] = {"fingerprint": self.fingerprint.hex()}
        if self.stdout_extents is not None:
            own["stdout_extents"] = self.stdout_extents
        if self.stderr_extents is not None:
            own["stderr_extents"] = self.stderr_extents
        if self.uncounted:
            own["uncounted"] = True
        if self.sizes:
            own["sizes"] = self.sizes
        return msgspec.json.encode(self.result())[:-1] + b"," + msgspec.json.encode(own)[1:]

    @classmethod
    def of_snapshot(cls, content: bytes) -> Self:
        """Return what lies in a directory. Raises `ValueError`, `RecursionError`."""
        snapshot = msgspec.json.decode(content, type=_Snapshot)
        extents = {
            stream: kept
            for stream, kept in ((Stream.STDOUT, snapshot.stdout_extents), (Stream.STDERR, snapshot.stderr_extents))
            if kept is not None
        }
        return cls.of(snapshot, snapshot.fingerprint, extents, uncounted=snapshot.uncounted, sizes=snapshot.sizes)


class Key(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a `Record`, as it is needed to know what there is."""

    run_id: str
    session_id: str
    started_at: int
    status: RunStatus
    in_directory: bool


class Kept(Struct):
    """What memory holds of a run that has ended: ten thousand of them take some 4 MB."""

    run_id: str
    session_id: str
    status: RunStatus
    number: int
    """Puts the runs in order: Unix time of its start in milliseconds, or more where two would have the same."""
    in_directory: bool = False
    """Whether it has a directory of its own, which bears its name."""
    place: FrameLocation | None = None
    """Where its record lies in the journal, if it lies there."""
    record: Record | None = None
    """Where the disk has refused it, and what stands for one that cannot be read."""
    unreadable: bool = False
    """Whether what lies on the disk was not understood: it is not removed to make room for other runs."""


class _Snapshot(RunResult, frozen=True, kw_only=True):
    """The members of `snapshot.json`."""

    fingerprint: str
    stdout_extents: Extents | None = None
    stderr_extents: Extents | None = None
    uncounted: bool = False
    sizes: Sizes = ()


def changes_members(found: FileChanges | None) -> dict[str, Any]:
    """Return the members of a result that tell what was done to files; none where nothing is known of that."""
    if found is None:
        return {}
    if found.changes is None:
        return {"changes_error": found.error}
    return {"changes": found.changes, "changes_truncated": found.truncated}


def _changes_of(result: RunResult) -> FileChanges | None:
    if result.changes_error is not msgspec.UNSET:
        return FileChanges(changes=None, error=result.changes_error)
    if result.changes is msgspec.UNSET:
        return None
    return FileChanges(changes=result.changes, truncated=result.changes_truncated is True)


_encoder: Final = msgspec.msgpack.Encoder()


def fingerprint(session_id: str, command: Command) -> str:
    """Return what two requests have in common when they ask for the same run. Of a large one to be made in a thread."""
    members = msgspec.structs.astuple(command)
    fields = repr((session_id, tuple(map(_digested, members)) if is_large(command) else members))
    return hashlib.blake2b(fields.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_large(command: Command) -> bool:
    """Whether what a command consists of is so much that nothing linear in it may be done in the event loop."""
    if not (command.stdin or command.environment or command.argv or command.description):
        return len(command.text) > LONGEST_TOLD
    texts = (command.text, command.description or "", command.stdin or "", *(command.argv or ()))
    return sum(map(len, texts)) + sum(map(len, command.environment.values())) > LONGEST_TOLD


def _digested(value: object) -> object:
    """Return what stands for a member of a large command: of a long text its hash, which is made piece by piece."""
    if isinstance(value, dict):
        return {name: _digested(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_digested, value))
    if not isinstance(value, str) or len(value) <= _PIECE:
        return value
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(value), _PIECE):
        digest.update(value[start : start + _PIECE].encode("utf-8", "surrogatepass"))
    return digest.digest()
