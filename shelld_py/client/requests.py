"""Calls about the daemon, its shells, tools, observers and ports.

The builders here make calls: `base` is the path of what they are about, empty for the daemon and its main shell. Each
builder's docstring is that of the method that the clients make of it. Those for commands are in run_requests.py, those
for files in file_requests.py. Knows the contract's words, nothing of the daemon's code.
"""

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from shelld_py import models
from shelld_py.client.call import (
    JSON_CONTENT,
    Answer,
    Call,
    Duration,
    decode,
    decoded,
    json_content,
    member,
    new_key,
    nothing,
    parameters,
    post,
    segment,
)
from shelld_py.models import SessionStatus, ShellState, Status
from shelld_py.request_data import ShellDocument


class Metadata(models.Metadata[dict[str, Any], dict[str, Any]], frozen=True, kw_only=True):
    """What may be known of the machine and of the daemon's rules; `memory_mb` is in MiB."""


class StartupOptions(TypedDict, total=False):
    """How to start a shell; all have defaults in the daemon's settings."""

    working_directory: str | None
    environment: Mapping[str, str] | None
    rows: int | None
    cols: int | None
    startup_file: str | None
    state: ShellDocument | None
    copy_of: str | None
    user: str | None


def startup(base: str, **options: Unpack[StartupOptions]) -> Call[ShellState]:
    """Start the main shell. Raises `ShellAlreadyStarted`, `ShellUnrecoverable`, `ShellStartFailed`."""
    return post(f"{base}/startup", member("state", ShellState), json_content(options))


def recycle(base: str) -> Call[ShellState]:
    """Kill all that the shell has started, and start a fresh one."""
    return post(f"{base}/recycle", member("state", ShellState))


def shutdown(base: str, *, recycle: bool = False) -> Call[str]:
    """End the daemon; with `recycle`, make it new for the next client instead. Returns the state after it."""
    return post(f"{base}/shutdown", member("state", str), params=parameters(recycle=recycle or None))


def status(base: str) -> Call[Status]:
    """Return the state of the shell, and of the run that is going on in it."""
    return Call(method="GET", path=f"{base}/status", parse=decoded(Status))


def state(base: str) -> Call[ShellDocument]:
    """Return what it takes to make such a shell again: the `state` of `startup` and `sessions.open`.

    Raises `ShellBusy` and other `Conflict`s unless it is ready.
    """
    return Call(method="GET", path=f"{base}/state", parse=decoded(ShellDocument))


def resize(base: str, rows: int, cols: int) -> Call[ShellState]:
    """Set the size of the shell's terminal, in characters."""
    return post(f"{base}/resize", member("state", ShellState), json_content({"rows": rows, "cols": cols}), wait=0.0)


def health(base: str) -> Call[str]:
    """Return `ok` from a daemon that lives. Needs no key."""
    return Call(method="GET", path=f"{base}/health", parse=member("status", str))


def metadata(base: str) -> Call[Metadata]:
    """Return what there is to know of the machine and of the daemon's rules."""
    return Call(method="GET", path=f"{base}/metadata", parse=decoded(Metadata))


def add_observer(
    base: str, *, expires: Duration | None = None, description: str | None = None
) -> Call[models.NewObserver]:
    """Make a key that only looks, good for an hour unless `expires` says otherwise."""
    fields = {"expires": expires, "description": description}
    return post(base, decoded(models.NewObserver), json_content(fields), wait=0.0)


def list_observers(base: str) -> Call[list[models.ObserverStatus]]:
    """Return what is known of the keys that only look, oldest first."""
    return Call(method="GET", path=base, parse=decoded(list[models.ObserverStatus]))


def remove_observer(base: str, observer_id: str) -> Call[None]:
    """Withdraw a key that only looks. Raises `ObserverNotFound`."""
    return Call(method="DELETE", path=f"{base}/{segment(observer_id)}", parse=nothing)


def ports(base: str) -> Call[list[models.OpenPort]]:
    """Return the TCP ports that processes of the shells listen on."""
    return Call(method="GET", path=f"{base}/ports", parse=decoded(list[models.OpenPort]))


def link_port(
    base: str, port: int, *, expires: Duration | None = None, strip_prefix: bool | None = None
) -> Call[models.PortLink]:
    """Make a link that opens a port in a browser, good for an hour unless `expires` says otherwise.

    `strip_prefix` false is for a program whose paths begin with `/ports/PORT/` themselves.
    """
    fields = {"expires": expires, "strip_prefix": strip_prefix}
    return post(f"{base}/ports/{port}/link", decoded(models.PortLink), json_content(fields), wait=0.0)


def open_session(base: str, **options: Unpack[StartupOptions]) -> Call[str]:
    """Open a shell; return its session id. Raises `TooManySessions`."""
    return Call(
        method="POST",
        path=base,
        parse=member("session_id", str),
        headers=JSON_CONTENT,
        content=json_content(options),
        wait=None,
        key=new_key(),
    )


def list_sessions(base: str) -> Call[list[SessionStatus]]:
    """Return all shells, the main one first."""
    return Call(method="GET", path=base, parse=decoded(list[SessionStatus]))


def get_session(base: str, session_id: str) -> Call[SessionStatus]:
    """Return the status of one session. Raises `SessionNotFound`."""
    return Call(method="GET", path=f"{base}/{segment(session_id)}", parse=decoded(SessionStatus))


def close_session(base: str, session_id: str) -> Call[None]:
    """End a session and all that it has started. Raises `SessionNotFound`."""
    return close_shell(f"{base}/{segment(session_id)}")


def close_shell(base: str) -> Call[None]:
    """End the shell and all that it has started. Raises `SessionNotFound`."""
    return Call(method="DELETE", path=base, parse=nothing, wait=None)


def list_tools(base: str, format: str | None = None) -> Call[Any]:  # noqa: A002
    """Return the tools for a model, in the `format` that its vendor takes (`openai`, `anthropic`)."""
    return Call(method="GET", path=base, parse=_any_json, params=parameters(format=format))


def call_tool(base: str, name: str, arguments: Mapping[str, object] | None = None) -> Call[dict[str, Any]]:
    """Call a tool as a model asked for it; return the full answer: `result`, `text`, `is_error`, and more.

    Raises `ValueError` for arguments that cannot be a JSON object: a model wrote them.
    """
    if not isinstance(arguments, Mapping | None):
        raise ValueError(f"The arguments of a tool must be a mapping, not {type(arguments).__name__}.")
    path = f"{base}/{segment(name)}"
    content = json_content(arguments or {})
    return Call(
        method="POST",
        path=path,
        parse=decoded(dict[str, Any]),
        headers=JSON_CONTENT,
        content=content,
        params=(("full", "true"),),
        wait=None,
    )


def _any_json(answer: Answer) -> Any:
    return decode(answer, object)
