"""What requests carry in: the fields of their bodies, the bodies, and the command that comes of them.

Durations are seconds, offsets are bytes. Everything is frozen; an unknown field of a body is an error. Knows the words
of models.py, and no endpoint.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from shelld_py.models import OnInput, OutputFormat, Streams
from shelld_py.units import DURATION_PATTERN, LONGEST_DURATION, LONGEST_TEXT

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


_LONGEST_PATH: Final = 4096
"""Characters: PATH_MAX of Linux. To take a longer one apart, and to say what is wrong with it, is work for nothing."""
StartupFile = Annotated[
    str,
    Meta(
        max_length=_LONGEST_PATH,
        description="What bash reads at its start in place of `shell.startup_file`; empty: nothing.",
    ),
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

    working_directory: (
        Annotated[str, Meta(max_length=_LONGEST_PATH, description="Where bash starts; it must exist.")] | None
    ) = None
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
    directory: (
        Annotated[str, Meta(max_length=_LONGEST_PATH, description="Run there, and come back to where the shell was.")]
        | None
    ) = None
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
                max_length=_LONGEST_PATH,
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
