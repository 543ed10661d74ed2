"""The parameters of query strings: which there are for an endpoint, and what each of them is.

The endpoints take the names from here, and the description of the API the types and the meaning. Nothing is
parsed here.
"""

import signal
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from shelld_py.models import (
    DurationText,
    MaxOutput,
    OnInput,
    OutputFormat,
    RunRequest,
    RunStatus,
    StdinOffset,
    Stream,
)

_SIGNAL_NAMES: Final = "|".join(name.removeprefix("SIG") for name in signal.Signals.__members__)
_SIGNAL_NUMBERS: Final = "|".join(str(int(number)) for number in sorted(signal.valid_signals()))
_Signal = Annotated[
    str,
    Meta(
        pattern=f"^(?:(?:SIG)?(?:{_SIGNAL_NAMES})|{_SIGNAL_NUMBERS})$",
        description="Send this one signal (`TERM`, `SIGTERM`, `15`) and return.",
    ),
]
_LARGEST: Final = 10**18 - 1
_Cursor = Annotated[int, Meta(ge=0, le=_LARGEST, description="Byte offset in the log.")]
_MaxOutput = Annotated[MaxOutput, Meta(le=_LARGEST)]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all: a field is a parameter, one with a default may be left out."""


class SignalQuery(Query, frozen=True, kw_only=True):
    """Of a kill."""

    signal: _Signal | None = None


class RunKillQuery(SignalQuery, frozen=True, kw_only=True):
    """Of the kill of a run."""

    all: Annotated[bool, Meta(description="Kill what the run has left in the background, too.")] = False


class ShutdownQuery(Query, frozen=True, kw_only=True):
    """Of the end of the daemon."""

    recycle: Annotated[bool, Meta(description="Make all new for the next client, and stay.")] = False


class StdinQuery(Query, frozen=True, kw_only=True):
    """Of input whose text is the raw body."""

    eof: Annotated[bool, Meta(description="Type end-of-file after the text.")] = False
    offset: StdinOffset | None = None


class OutputQuery(Query, frozen=True, kw_only=True):
    """Of a read of output."""

    cursor: _Cursor | None = None
    stream: Stream = Stream.STDOUT
    limit: Annotated[int, Meta(ge=1, le=_LARGEST, description="About how many bytes of the log to read.")] | None = None
    format: OutputFormat = OutputFormat.TEXT
    wait: Annotated[DurationText, Meta(description="If nothing new is there, wait so long for it or the end.")] = "0"
    stderr_cursor: Annotated[_Cursor, Meta(description="Events of standard error as well, from here on.")] | None = None
    timeout: Annotated[DurationText, Meta(description="How long events are sent, if not to the end.")] | None = None
    on_input: Annotated[OnInput, Meta(description="Whether events end when the command waits for input.")] = (
        OnInput.WAIT
    )


class RunsQuery(Query, frozen=True, kw_only=True):
    """Of the list of runs."""

    session_id: Annotated[str, Meta(description="Those of this shell alone.")] | None = None
    status: RunStatus | None = None
    limit: Annotated[int, Meta(ge=1, le=_LARGEST, description="The newest so many.")] | None = None


class ResultQuery(Query, frozen=True, kw_only=True):
    """Of a run result."""

    format: OutputFormat = OutputFormat.TEXT
    max_output: _MaxOutput | None = None


_Condition = Annotated[
    str,
    Meta(
        pattern=r"^(?:output:[\s\S]+|port:\d{1,5}|quiet:[\s\S]+|input|exit)$",
        description="What to wait for: `output:REGEX`, `port:NUMBER`, `quiet:DURATION`, `input` or `exit`.",
    ),
]


class WaitQuery(Query, frozen=True, kw_only=True):
    """Of a wait for a run."""

    timeout: Annotated[DurationText, Meta(description="How long to wait.")] | None = None
    cursor: Annotated[_Cursor, Meta(description="Also stop when there is output past this offset.")] | None = None
    stream: Stream = Stream.STDOUT
    format: OutputFormat = OutputFormat.TEXT
    max_output: _MaxOutput | None = None
    until: tuple[_Condition, ...] = ()


class RawFileQuery(Query, frozen=True, kw_only=True):
    """Of the bytes of a file."""

    path: Annotated[
        str, Meta(min_length=1, pattern=r"^[^\x00]+$", description="Relative to `files.base_directory`, or absolute.")
    ]


class ToolsQuery(Query, frozen=True, kw_only=True):
    """Of the list of tools."""

    format: Annotated[Literal["full", "openai", "anthropic", "mcp"], Meta(description="Whose form the list has.")] = (
        "full"
    )


class CallQuery(Query, frozen=True, kw_only=True):
    """Of a call of a tool."""

    timeout: Annotated[DurationText, Meta(description="The longest that the call waits for a command.")] | None = None
    full: Annotated[bool, Meta(description="Answer with the result and the text, and how the command stands.")] = False


_Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*=", description="NAME=VALUE, once for each variable.")]
_AS_TEXT: Final = {"timeout": Annotated[DurationText, Meta(description="How long to wait.")] | None}

RunQuery: Final = msgspec.defstruct(
    "RunQuery",
    [
        *(
            (field.name, _AS_TEXT.get(field.name, field.type), field.default)
            for field in msgspec.structs.fields(RunRequest)
            if field.name not in ("command", "environment")
        ),
        ("environment", tuple[_Variable, ...], ()),
    ],
    bases=(Query,),
    frozen=True,
    kw_only=True,
)
"""Of a command that is the raw body: what the JSON form takes, with the environment one by one."""
