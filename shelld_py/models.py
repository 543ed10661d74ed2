"""The data that travels: what requests carry in and what answers carry out.

Durations are seconds, sizes of output are characters, cursors and offsets are bytes, times are RFC 3339
in UTC. Everything is frozen. The JSON form of each model is its fields in the order given here.
"""

from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from shelld_py.units import DURATION_PATTERN, LONGEST_DURATION, LONGEST_TEXT

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


RunId = Annotated[
    str,
    Meta(
        pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}$(?!\n)",
        description="The caller's own id: the same id with the same request joins that run.",
        extra={"words": "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', and not . or .."},
    ),
]
"""A run's own id is the name of its directory, which `.` and `..` cannot be.

The pattern means the same to Python, whose `$` is also before a last line feed, and to ECMA-262, which schemas use.
"""

Duration = Annotated[
    int | float | str,
    Meta(
        extra_json_schema={
            "minimum": 0,
            "maximum": LONGEST_DURATION,
            "pattern": DURATION_PATTERN,
            "maxLength": LONGEST_TEXT,
        }
    ),
]
"""Seconds, or text such as `500ms`, `30s`, `1h30m`. Whoever reads it has it checked by `units.parse_duration`."""

DurationText = Annotated[str, Meta(extra_json_schema={"pattern": DURATION_PATTERN, "maxLength": LONGEST_TEXT})]
"""The same where everything is text: in a query string or a header."""

Variables = Annotated[
    dict[str, str], Meta(extra_json_schema={"propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}})
]
"""Variables of the environment by name. Whoever takes them checks them."""

Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""RFC 3339, in UTC with milliseconds."""

Size = Annotated[int, Meta(ge=1, le=65535, description="Rows or columns of the terminal.")]

MaxOutput = Annotated[int, Meta(ge=0, description="Characters to return of each stream, 0 for all.")]

StdinOffset = Annotated[int, Meta(ge=0, description="The bytes of input that the run has accepted before.")]

KEYS: Final = (
    "In place of `text`: names of keys (`Enter`, `Escape`, `Up`, `PageDown`, `F5`, `C-c`, `M-x`, `S-Tab`), and text."
)
WAIT_FOR_REPLY: Final = "Then wait so long for the end, or for a wait for input, and answer with what was written."


Argument = Annotated[str, Meta(extra_json_schema={"pattern": r"^[^\x00]*$"})]

Argv = Annotated[
    tuple[Argument, ...],
    Meta(
        min_length=1,
        description="In place of `command`: a program and its arguments, taken as they are; nothing is to be quoted.",
    ),
]

CommandText = Annotated[
    str,
    Meta(
        description="Any text without NUL, not only white space.",
        extra_json_schema={"pattern": r"^[^\x00]*\S[^\x00]*$"},
    ),
]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all request bodies: an unknown field is an error that names it."""


StartupFile = Annotated[
    str,
    Meta(description="What bash reads at its start in place of `shell.startup_file`; empty: nothing."),
]


class ShellDocument(Request, frozen=True, kw_only=True):
    """The state of a shell: what it takes to make such a shell again, on this machine or another.

    `environment` are the exported variables that are plain text, `script` makes all else: other variables with their
    attributes, functions, aliases, options, umask, traps, directory stack. `left_out` says what cannot travel.
    """

    bash: Annotated[str, Meta(description="The version that it was made with.")] = ""
    working_directory: Annotated[str, Meta(description="An absolute path.")] | None = None
    environment: Variables = {}
    script: Annotated[str, Meta(description="bash reads it, in the new shell.")] = ""
    left_out: tuple[str, ...] = ()


UserName = Annotated[
    str,
    Meta(
        description="Of a daemon that is root: whom it runs as, a name, `uid` or `uid:gid`.",
        extra_json_schema={"pattern": r"^[^\x00]+$"},
    ),
]


class StartupRequest(Request, frozen=True, kw_only=True):
    """How to start a shell."""

    working_directory: Annotated[str, Meta(description="Where bash starts; it must exist.")] | None = None
    environment: Annotated[Variables, Meta(description="Variables on top of the configured ones.")] = {}
    rows: Size | None = None
    cols: Size | None = None
    startup_file: StartupFile | None = None
    state: Annotated[ShellDocument, Meta(description="The state to begin with, of `GET /state`.")] | None = None
    copy_of: Annotated[str, Meta(description="Begin with the state of this shell, which is ready.")] | None = None
    user: UserName | None = None


class RunRequest(Request, frozen=True, kw_only=True):
    """A command, how to run it, and how to answer for it. There is either a `command` or an `argv`."""

    command: CommandText | None = None
    argv: Argv | None = None
    run_id: RunId | None = None
    timeout: Annotated[Duration, Meta(description="How long to wait; it never ends the command.")] | None = None
    deadline: Annotated[Duration, Meta(description="How long it may take: then it is killed.")] | None = None
    directory: Annotated[str, Meta(description="Run there, and come back to where the shell was.")] | None = None
    description: Annotated[str, Meta(description="Shown in results and listings.")] | None = None
    stdin: Annotated[str, Meta(description="What the command reads, and then end-of-file.")] | None = None
    environment: Annotated[Variables, Meta(description="Variables for this run alone.")] = {}
    streams: Streams | None = None
    format: OutputFormat = OutputFormat.TEXT
    max_output: MaxOutput | None = None
    on_input: OnInput = OnInput.RETURN
    echo: Annotated[bool, Meta(description="In events: show what is typed, as long as they are sent.")] = False
    changes: Annotated[
        bool | Literal["all"],
        Meta(description="Tell what it did to files; `all`: to what is in `.git` or ignored, too."),
    ] = False


class ExecRequest(RunRequest, frozen=True, kw_only=True):
    """A command for a shell of its own, and how to start that."""

    startup_file: StartupFile | None = None
    stdin_open: Annotated[bool, Meta(description="With pipes: leave standard input open for `/stdin`.")] = False
    user: UserName | None = None
    stdin_path: (
        Annotated[
            str,
            Meta(
                description="A file that is its standard input, as in any file operation.",
                extra_json_schema={"minLength": 1, "pattern": r"^[^\x00]+$"},
            ),
        ]
        | None
    ) = None


class StdinRequest(Request, frozen=True, kw_only=True):
    """Text, keys, or what is pasted, for the terminal of a running command.

    `offset` counts the bytes of standard input that the run has accepted before this text.
    """

    text: Annotated[str, Meta(description="What to type; a control character is a key.")] = ""
    keys: Annotated[tuple[str, ...], Meta(description=KEYS)] = ()
    paste: (
        Annotated[str, Meta(description="Text to paste, in brackets where the program has asked for them.")] | None
    ) = None
    eof: Annotated[bool, Meta(description="Type end-of-file after it.")] = False
    offset: StdinOffset | None = None
    wait: Annotated[Duration, Meta(description=WAIT_FOR_REPLY)] | None = None


class ResizeRequest(Request, frozen=True, kw_only=True):
    """A new size for a shell's terminal."""

    rows: Size
    cols: Size


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What a shell executes: the part of a `RunRequest` that makes two requests the same run."""

    text: str
    directory: str | None = None
    description: str | None = None
    stdin: str | None = None
    environment: dict[str, str] = {}
    streams: Streams = Streams.MERGED
    deadline: float | None = None
    """Seconds after which it is killed."""
    argv: tuple[str, ...] | None = None
    """What `text` stands for, where it does."""
    stdin_open: bool = False
    stdin_path: str | None = None
    user: str | None = None
    changes: bool | Literal["all"] = False
    """Whether the files are looked at before and after it, with `all` those in `.git` and ignored ones, too."""
    stdin_hash: str | None = None
    """The SHA-256 of its standard input, where that came as a body."""


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
            bool, msgspec.Meta(description="True where somebody has typed into it, at the terminal in a WebSocket.")
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


class StateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a shell after what was asked of it. Of a start with a `state`, also what could not be set."""

    state: ShellState
    not_restored: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class ShutdownAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon is ending, or has been made new."""

    state: Literal["shutting down", "available"]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon lives."""

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon takes requests."""

    status: Literal["ready"] = "ready"


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


class SessionReference(msgspec.Struct, frozen=True, kw_only=True):
    """The session that was opened or ended. Where it began with a `state`, also what of that could not be set."""

    session_id: str
    not_restored: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


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


class ObserverReference(msgspec.Struct, frozen=True, kw_only=True):
    """The key for looking that was withdrawn, by its id."""

    observer_id: str


class RunReference(msgspec.Struct, frozen=True, kw_only=True):
    """The run whose files were removed."""

    run_id: str


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


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused (RFC 9457): `code` is for programs, `detail` for people.

    Further members depend on the code.
    """

    type: Literal["about:blank"] = "about:blank"
    title: str
    status: int
    code: str
    detail: str


def utc_timestamp(seconds: float) -> str:
    """Return Unix time `seconds` as RFC 3339 in UTC with milliseconds: `2026-11-21T05:00:00.123Z`."""
    return timestamp_of(int(seconds * 1000))


def timestamp_of(milliseconds: int) -> str:
    """Return Unix time in milliseconds likewise."""
    return f"{_utc_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@lru_cache(maxsize=4)
def _utc_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
