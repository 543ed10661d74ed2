"""The data of tools: what a model may say, described for it, and the results. Behaviour is elsewhere.

Durations are seconds unless a name says otherwise, cursors are bytes of an output, sizes are characters. The tools
for files take and give the models of the file operations.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shelld_py.models import Cause, FileChange, RunStatus, Stream, Streams
from shelld_py.request_data import KEYS, Request

CommandLine = Annotated[
    str, Meta(min_length=1, description="The command line, as bash takes it; it may have many lines.")
]
Description = Annotated[
    str | None, Meta(description="What the command is for, in a few words; shown in listings and logs.")
]
Directory = Annotated[str | None, Meta(description="Where to run it: a directory that exists.")]
Environment = Annotated[dict[str, str], Meta(description="Variables for the command.")]
Seconds = Annotated[float, Meta(ge=0)]
Deadline = Annotated[
    Annotated[float, Meta(gt=0)] | None,
    Meta(description="Seconds that the command may take: then it is killed. Without one it goes on."),
]
Changes = Annotated[
    bool,
    Meta(description="Tell which files it creates, modifies and deletes. Not those that git ignores."),
]
ShellId = Annotated[str, Meta(description="The shell_id that shell_start, or a command still running, has given.")]
Offset = Annotated[int, Meta(ge=0)]

DEFAULT_PIECE: Final = 100_000
"""Bytes of output that one read gives, unless it asks for less or more."""


class NoArguments(Request, frozen=True, kw_only=True):
    """A tool that takes nothing."""


class RunShellCommand(Request, frozen=True, kw_only=True):
    """A command for a fresh shell."""

    command: CommandLine
    description: Description = None
    directory: Directory = None


class CloseSession(Request, frozen=True, kw_only=True):
    """Which session to close."""

    session_id: Annotated[str, Meta(description="The session_id that open_session has given.")]


class ExecuteCommand(Request, frozen=True, kw_only=True):
    """A command for a session, or for a shell of its own."""

    command: CommandLine
    session_id: Annotated[
        str | None, Meta(description="The session to run it in; without one, it runs in a fresh shell of its own.")
    ] = None


class ShellExec(Request, frozen=True, kw_only=True):
    """A command to be run to its end in a shell of its own."""

    command: CommandLine
    description: Description = None
    directory: Directory = None
    environment: Environment = msgspec.field(default_factory=dict)
    stdin: Annotated[
        str | None, Meta(description="Text for its standard input, then end-of-file; without it, a terminal.")
    ] = None
    streams: Annotated[
        Streams, Meta(description="separate: stderr apart from stdout; merged: both in stdout, in true order.")
    ] = Streams.SEPARATE
    timeout: Annotated[
        Seconds | None, Meta(description="Seconds to wait for the end; the command goes on after that.")
    ] = None
    deadline: Deadline = None
    max_output: Annotated[
        Offset | None, Meta(description="Characters of each stream to return, 0 for all; the middle is left out.")
    ] = None
    changes: Changes = False


class ShellStart(Request, frozen=True, kw_only=True):
    """A command to be started in a shell of its own."""

    command: CommandLine
    description: Description = None
    directory: Directory = None
    environment: Environment = msgspec.field(default_factory=dict)
    inline_wait: Annotated[
        Seconds, Meta(description="Seconds to wait for the command to end, or to ask for input, before answering.")
    ] = 0.0
    deadline: Deadline = None


class ShellById(Request, frozen=True, kw_only=True):
    """Which command is meant."""

    shell_id: ShellId


class ShellRead(Request, frozen=True, kw_only=True):
    """Which part of an output is wanted."""

    shell_id: ShellId
    from_cursor: Annotated[Offset, Meta(description="Where to read on: the cursor given last; 0 is the beginning.")]
    stream: Annotated[Stream, Meta(description="stderr is empty unless the command keeps it apart.")] = Stream.STDOUT
    limit: Annotated[Annotated[int, Meta(ge=1)], Meta(description="Bytes to read, about.")] = DEFAULT_PIECE


class ShellWrite(Request, frozen=True, kw_only=True):
    """What to type into a running command."""

    shell_id: ShellId
    text: Annotated[str, Meta(description="Typed as it is: end a line with \\n; \\u0003 is Ctrl-C.")]
    eof: Annotated[bool, Meta(description="Whether to type end-of-file after it.")] = False


class ShellWait(Request, frozen=True, kw_only=True):
    """What to wait for."""

    shell_id: ShellId
    from_cursor: Annotated[
        Offset | None, Meta(description="Return as soon as there is output past this cursor; without it, at the end.")
    ] = None
    timeout: Annotated[Seconds, Meta(description="Seconds to wait at most.")] = 30.0


class BashArguments(Request, frozen=True, kw_only=True):
    """A command for the main shell, or its restart."""

    command: Annotated[str | None, Meta(description="The command line; it may have many lines.")] = None
    restart: Annotated[bool, Meta(description="Start a fresh shell first: all that runs in the old one is killed.")] = (
        False
    )
    timeout_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Milliseconds to wait before answering with the output so far; the command goes on."),
    ] = None
    deadline_ms: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Milliseconds that the command may take: then it is killed, and the shell stays."),
    ] = None
    changes: Changes = False


class BashInput(Request, frozen=True, kw_only=True):
    """What to type into the command that runs in the main shell."""

    text: Annotated[
        str,
        Meta(description="Typed as it is: end a line with \\n; \\u0003 is Ctrl-C. Empty: only wait for output."),
    ] = ""
    keys: Annotated[tuple[str, ...], Meta(description=KEYS)] = ()
    timeout_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Milliseconds to wait for the end or the next question.")
    ] = None


class BashScreen(Request, frozen=True, kw_only=True):
    """A look at the screen of the main shell."""

    wait_ms: Annotated[int, Meta(ge=0, description="Milliseconds to wait at the most until it is quiet.")] = 500


class RunShellCommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a command. `exit_code` is null as long as it runs; `error` then says how to go on."""

    command: str
    directory: str
    stdout: str
    stderr: str
    error: str | None
    exit_code: int | None
    signal: int | None
    background_pids: tuple[int, ...]


class SessionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The session that was opened or closed."""

    session_id: str


class ExecuteCommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a command; the sizes are those before any cut. `exit_code` is null as long as it runs."""

    stdout: str
    stderr: str
    exit_code: int | None
    original_stdout_size: int
    original_stderr_size: int


class ShellMetadataResult(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and its shell."""

    operating_system: str
    shell: str
    workspace_directory: str


class ShellStartResult(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was started, its output so far, and the cursor from which to read on."""

    shell_id: str
    status: RunStatus
    output: str
    cursor: int


class ShellStatusResult(msgspec.Struct, frozen=True, kw_only=True):
    """A command as it stands. `cursor` is the size of its output in bytes."""

    shell_id: str
    command: str
    description: str | None
    status: RunStatus
    cause: Cause | None
    exit_code: int | None
    signal: int | None
    error: str | None
    awaiting_input: bool
    duration: float
    cursor: int
    working_directory: str | None
    background_pids: tuple[int, ...]


class ShellReadResult(msgspec.Struct, frozen=True, kw_only=True):
    """Part of an output. `eof`: the command has ended and all has been given; `dropped`: bytes not kept."""

    shell_id: str
    output: str
    next_cursor: int
    status: RunStatus
    eof: bool
    dropped: int


class ShellWaitResult(ShellReadResult, frozen=True, kw_only=True):
    """What came while waiting.

    Without a cursor, `output` is all of it, cut in the middle where it is long, and so is `stderr`.
    """

    stderr: str
    exit_code: int | None
    signal: int | None
    awaiting_input: bool
    error: str | None


class ShellWriteResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes of input the command has been given in all."""

    shell_id: str
    accepted: int


class ShellCloseResult(msgspec.Struct, frozen=True, kw_only=True):
    """A command whose output is gone now; `killed` says that it was still running."""

    shell_id: str
    killed: bool


class BashResult(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a command in the main shell. After a mere restart, `run_id` and `status` are null."""

    output: str
    exit_code: int | None
    signal: int | None
    status: RunStatus | None
    awaiting_input: bool
    error: str | None
    working_directory: str | None
    duration: float
    run_id: str | None
    restarted: bool
    changes: tuple[FileChange, ...] | msgspec.UnsetType = msgspec.UNSET
    changes_truncated: bool | msgspec.UnsetType = msgspec.UNSET
    changes_error: str | msgspec.UnsetType = msgspec.UNSET
