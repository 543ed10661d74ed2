"""The data that travels: what requests carry in and what answers carry out.

Durations are seconds, sizes of output are characters, cursors and offsets are bytes, times are RFC 3339
in UTC. Everything is frozen. The JSON form of each model is its fields in the order given here.
"""

from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated

import msgspec


class ShellState(StrEnum):
    """The states of a shell; the transitions are in `engine/states.py`."""

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
    """Whether a run's standard error goes its own way. Both ways each stream is a terminal."""

    MERGED = "merged"
    SEPARATE = "separate"


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


RunId = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.\.?\Z)[A-Za-z0-9._-]{1,64}\Z")]
"""A run's own id is the name of its directory, which `.` and `..` cannot be."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all request bodies: an unknown field is an error that names it."""


class StartupRequest(Request, frozen=True, kw_only=True):
    """How to start a shell."""

    working_directory: str | None = None
    environment: dict[str, str] = {}
    rows: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    cols: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None


class RunRequest(Request, frozen=True, kw_only=True):
    """A command, how to run it, and how to answer for it."""

    command: str
    run_id: RunId | None = None
    timeout: int | float | str | None = None
    directory: str | None = None
    description: str | None = None
    stdin: str | None = None
    environment: dict[str, str] = {}
    streams: Streams | None = None
    format: OutputFormat = OutputFormat.TEXT
    max_output: Annotated[int, msgspec.Meta(ge=0)] | None = None
    on_input: OnInput = OnInput.RETURN


class StdinRequest(Request, frozen=True, kw_only=True):
    """Text for the terminal of a running command.

    `offset` counts the bytes of standard input that the run has accepted before this text.
    """

    text: str = ""
    eof: bool = False
    offset: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ResizeRequest(Request, frozen=True, kw_only=True):
    """A new size for a shell's terminal."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    cols: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What a shell executes: the part of a `RunRequest` that makes two requests the same run."""

    text: str
    directory: str | None = None
    description: str | None = None
    stdin: str | None = None
    environment: dict[str, str] = {}
    streams: Streams = Streams.MERGED


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has used: its processes together, as sampled while it ran and at its end."""

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
    started_at: str
    duration: float
    usage: Usage


class WaitResult(RunResult, frozen=True, kw_only=True):
    """The answer of a wait for conditions: the one that came first, as it was given, and the run as it stands."""

    reached: str | None


class KillResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a kill has done. `survivors` are pids that outlived it."""

    state: ShellState
    run: str | None
    killed: bool
    survivors: tuple[int, ...]


def utc_timestamp(seconds: float) -> str:
    """Return Unix time `seconds` as RFC 3339 in UTC with milliseconds: `2026-11-21T05:00:00.123Z`."""
    milliseconds = int(seconds * 1000)
    return f"{_utc_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=4)
def _utc_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
