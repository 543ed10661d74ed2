"""The parameters of query strings: which there are for an endpoint, and what each of them is.

The endpoints take the names from here, and the description of the API the types and the meaning. Nothing is
parsed here.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shelld_py.models import (
    Duration,
    MaxOutput,
    OutputFormat,
    RunRequest,
    RunStatus,
    StdinOffset,
    Stream,
)

_Cursor = Annotated[int, Meta(ge=0, description="Byte offset in the log.")]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all: a field is a parameter, one with a default may be left out."""


class SignalQuery(Query, frozen=True, kw_only=True):
    """Of a kill."""

    signal: Annotated[str, Meta(description="Send this one signal (`TERM`, `SIGTERM`, `15`) and return.")] | None = None


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
    limit: Annotated[int, Meta(ge=1, description="About how many bytes of the log to read.")] | None = None
    format: OutputFormat = OutputFormat.TEXT
    wait: Annotated[Duration, Meta(description="If nothing new is there, wait so long for it or the end.")] = 0


class RunsQuery(Query, frozen=True, kw_only=True):
    """Of the list of runs."""

    session_id: Annotated[str, Meta(description="Those of this shell alone.")] | None = None
    status: RunStatus | None = None
    limit: Annotated[int, Meta(ge=1, description="The newest so many.")] | None = None


class ResultQuery(Query, frozen=True, kw_only=True):
    """Of a run result."""

    format: OutputFormat = OutputFormat.TEXT
    max_output: MaxOutput | None = None


class WaitQuery(Query, frozen=True, kw_only=True):
    """Of a wait for a run."""

    timeout: Annotated[Duration, Meta(description="How long to wait.")] | None = None
    cursor: Annotated[int, Meta(ge=0, description="Also stop when there is output past this offset.")] | None = None
    stream: Stream = Stream.STDOUT
    format: OutputFormat = OutputFormat.TEXT
    max_output: MaxOutput | None = None


class RawFileQuery(Query, frozen=True, kw_only=True):
    """Of the bytes of a file."""

    path: Annotated[str, Meta(min_length=1, description="Relative to `files.base_directory`, or absolute.")]


_Variable = Annotated[str, Meta(pattern="=", description="NAME=VALUE, once for each variable.")]

RunQuery: Final = msgspec.defstruct(
    "RunQuery",
    [
        *(
            (field.name, field.type, field.default)
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
