"""What a tool is: its description, its handler, and what a call gives.

A call has two results: a structured one for programs, and a text for the model. Refusals are errors
(`ShelldError`), as everywhere. Knows the computer and the models; nothing of HTTP or of any protocol.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from shelld_py.computer import Computer
from shelld_py.request_data import Request


class Hints(Struct, frozen=True, kw_only=True):
    """What a client may assume of a tool, in the sense of MCP's annotations."""

    read_only: bool = False
    """It changes nothing."""
    destructive: bool = False
    """It may destroy what is there, rather than only add to it."""
    idempotent: bool = False
    """A second call with the same arguments changes nothing more."""
    open_world: bool = False
    """It may reach beyond the computer: a command can use the network."""


class Progress(Struct, frozen=True, kw_only=True):
    """What can be said of a command while a call waits for it; seconds, and bytes of standard output."""

    run_id: str
    seconds: float
    output_size: int
    last_line: str


class CallContext(Struct, frozen=True, kw_only=True):
    """How the caller of a tool wants it to behave while a command runs; durations in seconds.

    `longest_wait` is how long a call waits for a command at most, whatever its arguments say: then it answers with
    the output so far and the id by which to go on. None leaves it to the settings. With `interrupt_on_cancel`,
    cancelling the task of the call ends the command it waits for and keeps the shell; without it, the command
    goes on. `on_progress` is called while the command runs: at the latest every `progress_interval`, sooner where
    there is new output, but never within `progress_pace` of the start or of the call before. `protocol` names the way
    of a call that is no request of its own, for the audit log.
    """

    longest_wait: float | None = None
    interrupt_on_cancel: bool = False
    on_progress: Callable[[Progress], Awaitable[None]] | None = None
    progress_interval: float = 5.0
    progress_pace: float = 1.0
    protocol: str = ""


class MainShellView(Struct):
    """What the caller of `bash` has seen of the run that it was last told is still running."""

    run_id: str | None = None
    cursor: int = 0
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the shell is started or restarted."""


class ToolCall(Struct, frozen=True, kw_only=True):
    """What a handler has to work with."""

    computer: Computer
    view: MainShellView
    context: CallContext = field(default_factory=CallContext)


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a call gives. `run_id` names the run that it was about, `running` says that it has not ended.

    `is_error` is about the tool, not about the exit code: the command was killed or lost before it was done.
    """

    result: msgspec.Struct
    text: str
    run_id: str | None = None
    running: bool = False
    is_error: bool = False


class Tool(Struct, frozen=True, kw_only=True):
    """A tool. `arguments` and `result` are the models of what goes in and what comes out."""

    name: str
    title: str
    description: str
    arguments: type[Request]
    result: type[msgspec.Struct]
    hints: Hints
    handler: Callable[[Any, ToolCall], Awaitable[ToolResult]]
