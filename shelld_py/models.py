"""The data that travels: what answers carry out, and the words that requests and answers have in common.

Durations are seconds, sizes of output are characters, cursors and offsets are bytes, times are RFC 3339
in UTC. Everything is frozen. The JSON form of each model is its fields in the order given here.
"""

import json
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

Limits = TypeVar("Limits")
Timeouts = TypeVar("Timeouts")


class ChangeKind(StrEnum):
    """What has happened to a file. `modified` are also another mode or owner, and another file of that name."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"


class ShellState(StrEnum):
    """The states of a shell: no bash yet, ready for a command, busy with one, bash has ended."""

    AVAILABLE = "available"
    READY = "ready"
    BUSY = "busy"
    UNRECOVERABLE = "unrecoverable"


class RunStatus(StrEnum):
    """What has become of a run."""

    RUNNING = "running"
    COMPLETED = "completed"
    KILLED = "killed"
    LOST = "lost"


class Cause(StrEnum):
    """Why a run ended, judged by what was done and seen, never by an exit code."""

    EXIT = "exit"
    SIGNAL = "signal"
    KILLED = "killed"
    DEADLINE = "deadline"
    LIFETIME = "lifetime"
    LIMIT = "limit"
    OOM = "oom"
    SHELL_EXITED = "shell_exited"
    SHELL_REPLACED = "shell_replaced"
    SHELL_CRASHED = "shell_crashed"
    RECYCLED = "recycled"
    DAEMON_RESTARTED = "daemon_restarted"
    UNKNOWN = "unknown"


class Streams(StrEnum):
    """Whether a run's standard error goes its own way. Each stream is a terminal, or with `pipes` a pipe."""

    MERGED = "merged"
    SEPARATE = "separate"
    PIPES = "pipes"


class Stream(StrEnum):
    """The name of one output stream of a run."""

    STDOUT = "stdout"
    STDERR = "stderr"


class OutputFormat(StrEnum):
    """`text` is what a person would read, `raw` the bytes as the program wrote them."""

    TEXT = "text"
    RAW = "raw"


class OnInput(StrEnum):
    """What a waiting request does when the command is seen waiting for terminal input."""

    RETURN = "return"
    WAIT = "wait"


Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""RFC 3339, in UTC with milliseconds."""


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened to a file; `size` in bytes is that after it, of a deleted one that before."""

    path: str
    kind: ChangeKind
    size: int


class FileChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to files while a command ran. Where there are no `changes`, `error` says why not."""

    changes: tuple[FileChange, ...] | None
    truncated: bool = False
    error: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has used: its processes together, as sampled, or as the kernel has counted for their cgroup."""

    cpu_seconds: float
    peak_memory_mb: float
    processes_left: int


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What a shell and all it started use at this moment."""

    cpu_percent: float
    memory_mb: float
    processes: int


class Foreground(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of the foreground process group."""

    pid: int
    command: str


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run. In listings and snapshots `stdout` and `stderr` are null."""

    run_id: str
    session_id: str
    command: str
    description: str | None
    status: RunStatus
    cause: Cause | None
    exit_code: int | None
    signal: int | None
    error: str | None
    stdout: str | None
    stderr: str | None
    streams: Streams
    truncated: bool
    original_stdout_size: int
    original_stderr_size: int
    cursor: int
    directory: str | None
    working_directory: str | None
    background_pids: tuple[int, ...]
    awaiting_input: bool
    timed_out: bool
    restored: bool
    state: ShellState
    started_at: Timestamp
    duration: float
    usage: Usage
    warnings: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Left out where there are none."""
    typed_by_person: (
        Annotated[
            bool,
            msgspec.Meta(
                description="True where a person has typed it, typed into it, or sent it a signal, in a WebSocket."
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    changes: tuple[FileChange, ...] | msgspec.UnsetType = msgspec.UNSET
    """This and what follows: left out unless asked for, in listings, and before the files were looked at again."""
    changes_truncated: bool | msgspec.UnsetType = msgspec.UNSET
    changes_error: str | msgspec.UnsetType = msgspec.UNSET
    """Why there are no `changes`."""


class WaitResult(RunResult, frozen=True, kw_only=True):
    """The answer of a wait: the run as it stands."""

    reached: Annotated[
        str | msgspec.UnsetType | None,
        msgspec.Meta(description="Of the conditions, if there were any, the one that came first, as it was given."),
    ] = msgspec.UNSET


class KillResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a kill has done. `survivors` are pids that outlived it."""

    state: ShellState
    run: str | None
    killed: bool
    survivors: tuple[int, ...]


class ActiveRun(RunResult, frozen=True, kw_only=True):
    """A run that is going on: who has the terminal, and what the shell and all it started use."""

    foreground: Foreground | None
    resources: Resources


class ShellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said of a shell now. `uptime` is the daemon's, `sessions` counts the extra shells."""

    state: ShellState
    version: str
    session_id: str
    working_directory: str | None
    shell_pid: int | None
    uptime: float
    sessions: int
    run: ActiveRun | None
    last_run_id: str | None


class Status(ShellStatus, frozen=True, kw_only=True):
    """The status of a shell, and how long no request had been in progress."""

    idle: float
    idle_timeout: float


class SessionStatus(Status, frozen=True, kw_only=True):
    """The status of a shell, when it was made, and when it ends if nothing is asked of it (null: never)."""

    created_at: Timestamp
    expires_at: Timestamp | None


class Metadata(msgspec.Struct, Generic[Limits, Timeouts], frozen=True, kw_only=True):
    """What a client may know of the machine and of the rules. `cpus` and `memory_mb` (MiB) are what may be used.

    Limits and time-outs are the daemon's settings: it knows what they are, a client has them as JSON objects.
    """

    operating_system: str
    shell: str
    workspace_directory: str
    version: str
    user: str
    cpus: float
    memory_mb: float
    limits: Limits
    timeouts: Timeouts
    allowed_directories: tuple[str, ...]


class AcceptedInput(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of input that a run has accepted in all: they will be typed.

    With `wait`, also what the command has written since it was typed to; the cursors are those of standard output.
    """

    accepted: int
    run_id: str | msgspec.UnsetType = msgspec.UNSET
    output: str | msgspec.UnsetType = msgspec.UNSET
    stderr: str | msgspec.UnsetType = msgspec.UNSET
    cursor: int | msgspec.UnsetType = msgspec.UNSET
    next_cursor: int | msgspec.UnsetType = msgspec.UNSET
    awaiting_input: bool | msgspec.UnsetType = msgspec.UNSET
    status: RunStatus | msgspec.UnsetType = msgspec.UNSET


class OpenPort(msgspec.Struct, frozen=True, kw_only=True):
    """A TCP port that a process of a shell listens on; `run_id` is the run that has started it, where that is known."""

    port: int
    address: str
    pid: int
    command: str
    session_id: str
    run_id: str | None


class PortLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that opens a port in a browser, once; what it admits to ends at `expires_at`."""

    url: str
    expires_at: Timestamp


class NewObserver(msgspec.Struct, frozen=True, kw_only=True):
    """A key that only looks, which is shown this once."""

    observer_id: str
    key: str
    expires_at: Timestamp


class ObserverStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key that only looks."""

    observer_id: str
    description: str | None
    created_at: Timestamp
    expires_at: Timestamp


class ScreenCursor(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cursor is, counted from 0."""

    row: int
    col: int
    visible: bool


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """What the terminal of a run shows. `lines` are all rows, without trailing blanks.

    `alternate` says that the alternate screen is on, `at` how many bytes of the log it shows.
    """

    run_id: str
    rows: int
    cols: int
    lines: tuple[str, ...]
    cursor: ScreenCursor
    title: str
    alternate: bool
    at: int
    status: RunStatus
    awaiting_input: bool


class OutputPart(msgspec.Struct, frozen=True, kw_only=True):
    """Output from a cursor on. `dropped` counts the bytes before it that were not kept.

    `eof` says that the run has ended and that all of its output has been given. In raw form, bytes that are not
    UTF-8 are lone surrogates. `error` is that of the result, once the run has ended, where it has one.
    """

    run_id: str
    stream: Stream
    cursor: int
    next_cursor: int
    output: str
    status: RunStatus
    eof: bool
    dropped: int
    error: str | msgspec.UnsetType = msgspec.UNSET


class OutputEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event `output`: text to append, or, where it begins with a carriage return, to redraw the line with."""

    stream: Stream
    cursor: int
    text: str


class GapEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event `gap`: bytes of the log that are not kept."""

    stream: Stream
    cursor: int
    dropped: int


def as_json(data: object) -> bytes:
    """Return `data` as JSON. Bytes that were not UTF-8 are escaped lone surrogates in it (PEP 383)."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(data)).encode()


_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The beginning of year 1, and the end of 9999: `datetime` and RFC 3339 know no others."""


def within_calendar(seconds: float) -> float:
    """Return Unix time `seconds`, or the nearest that has a date from year 1 to 9999.

    Of a file it may be any: whoever owns the file can set it.
    """
    return min(max(seconds, _FIRST_SECOND), _LAST_SECOND)


def utc_timestamp(seconds: float) -> str:
    """Return Unix time `seconds` as RFC 3339 in UTC with milliseconds: `2026-11-21T05:00:00.123Z`."""
    return timestamp_of(int(within_calendar(seconds) * 1000))


def timestamp_of(milliseconds: int) -> str:
    """Return Unix time in milliseconds likewise."""
    return f"{_utc_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=4)
def _utc_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()[:19]  # `strftime` does not fill up the year
