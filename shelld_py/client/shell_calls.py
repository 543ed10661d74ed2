"""Calls that drive a shell: the main one where `base` is empty, a session where it is `/sessions/ID`.

Also those for the daemon as a whole, for sessions and for tools. Each builder's docstring is that of the
method which the drivers make of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, Unpack

from shelld_py.client.calls import (
    JSON_CONTENT,
    Answer,
    Call,
    Duration,
    T,
    decode,
    decoded,
    json_content,
    member,
    new_key,
    parameters,
    seconds,
    segment,
)
from shelld_py.client.results import Metadata
from shelld_py.models import (
    KillResult,
    OnInput,
    OutputFormat,
    OutputPart,
    RunResult,
    SessionStatus,
    ShellState,
    Status,
    Stream,
    Streams,
)

StreamsName = Streams | Literal["merged", "separate"]
StreamName = Stream | Literal["stdout", "stderr"]
FormatName = OutputFormat | Literal["text", "raw"]

_BYTES: Final = {"Content-Type": "application/octet-stream"}


class StartupOptions(TypedDict, total=False):
    """How to start a shell; all have defaults in the daemon's settings."""

    working_directory: str | None
    environment: Mapping[str, str] | None
    rows: int | None
    cols: int | None


class RunOptions(TypedDict, total=False):
    """How to run a command: the fields of the daemon's run request (docs/api.md)."""

    run_id: str | None
    timeout: Duration | None
    directory: str | None
    description: str | None
    stdin: str | None
    environment: Mapping[str, str] | None
    streams: StreamsName | None
    format: FormatName | None
    max_output: int | None
    on_input: OnInput | Literal["return", "wait"] | None
    echo: bool | None


def startup(base: str, **options: Unpack[StartupOptions]) -> Call[ShellState]:
    """Start the main shell. Raises `ShellAlreadyStarted`, `ShellUnrecoverable`, `ShellStartFailed`."""
    return _post(f"{base}/startup", member("state", ShellState), json_content(options))


def run(base: str, command: str, **options: Unpack[RunOptions]) -> Call[RunResult]:
    """Run a command and wait for it; its status is `running` where the wait ended first.

    `timeout` is how long to wait; it never ends the command. Raises `ShellBusy` and other `Conflict`s.
    """
    return run_call(f"{base}/run", command, options)


def execute(base: str, command: str, **options: Unpack[RunOptions]) -> Call[RunResult]:
    """Run a command in a shell of its own, with separate streams unless asked otherwise."""
    return run_call(f"{base}/exec", command, options)


def run_call(path: str, command: str, options: RunOptions) -> Call[RunResult]:
    """Return the call that runs `command`.

    Its key makes a repeat join the run. The key does not survive the daemon, so the run gets an id as well.
    """
    fields = {**options, "command": command, "run_id": options.get("run_id") or new_key()}
    return Call(
        method="POST",
        path=path,
        parse=decoded(RunResult),
        headers=JSON_CONTENT,
        content=json_content(fields),
        wait=seconds(options.get("timeout")),
        key=new_key(),
    )


def kill(base: str, signal: str | int | None = None) -> Call[KillResult]:
    """End the running command: SIGINT, then SIGKILL. With `signal`, send that one to it and return at once."""
    return kill_call(base, signal=signal)


def kill_call(base: str, *, signal: str | int | None, **fields: object) -> Call[KillResult]:
    """Return the call that ends or signals a command."""
    wait = None if signal is None else 0.0
    return _post(f"{base}/kill", decoded(KillResult), params=parameters(signal=signal, **fields), wait=wait)


def recycle(base: str) -> Call[ShellState]:
    """Kill all that the shell has started, and start a fresh one."""
    return _post(f"{base}/recycle", member("state", ShellState))


def shutdown(base: str, *, recycle: bool = False) -> Call[str]:
    """End the daemon; with `recycle`, make it new for the next client instead. Returns the state after it."""
    return _post(f"{base}/shutdown", member("state", str), params=parameters(recycle=recycle or None))


def status(base: str) -> Call[Status]:
    """Return the state of the shell, and of the run that is going on in it."""
    return Call(method="GET", path=f"{base}/status", parse=decoded(Status))


def output(
    base: str,
    *,
    cursor: int | None = None,
    stream: StreamName | None = None,
    limit: int | None = None,
    format: FormatName | None = None,  # noqa: A002
    wait: Duration | None = None,
) -> Call[OutputPart]:
    """Read output of the current or last run: from `cursor` on (bytes), or all of it as it looks now.

    Where nothing is there yet, it waits up to `wait` for output or the end. Raises `RunNotFound`.
    """
    return output_call(f"{base}/output", cursor=cursor, stream=stream, limit=limit, format=format, wait=wait)


def output_call(path: str, *, wait: Duration | None, **fields: object) -> Call[OutputPart]:
    """Return the call that reads output by cursor."""
    return Call(
        method="GET",
        path=path,
        parse=decoded(OutputPart),
        params=parameters(wait=wait, **fields),
        wait=0.0 if wait is None else seconds(wait),
    )


def stdin(base: str, text: str | bytes = "", *, eof: bool = False, offset: int | None = None) -> Call[int]:
    """Type `text` into the running command's terminal, and end-of-file after it; return the bytes accepted in all.

    `offset` is how many bytes were accepted before: a repeat is not typed twice. Raises `NoRunningCommand`,
    `StdinGap`.
    """
    return Call(
        method="POST",
        path=f"{base}/stdin",
        parse=member("accepted", int),
        params=parameters(eof=eof or None, offset=offset),
        headers=_BYTES,
        content=text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text,
    )


def resize(base: str, rows: int, cols: int) -> Call[ShellState]:
    """Set the size of the shell's terminal, in characters."""
    return _post(f"{base}/resize", member("state", ShellState), json_content({"rows": rows, "cols": cols}), wait=0.0)


def health(base: str) -> Call[str]:
    """Return `ok` from a daemon that lives. Needs no key."""
    return Call(method="GET", path=f"{base}/health", parse=member("status", str))


def metadata(base: str) -> Call[Metadata]:
    """Return what there is to know of the machine and of the daemon's rules."""
    return Call(method="GET", path=f"{base}/metadata", parse=decoded(Metadata))


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


def nothing(answer: Answer) -> None:
    """Read an answer that says no more than that it was done."""
    decode(answer, dict[str, Any])


def _any_json(answer: Answer) -> Any:
    return decode(answer, object)


def _post(
    path: str,
    parse: Callable[[Answer], T],
    content: bytes = b"",
    params: Sequence[tuple[str, str]] = (),
    wait: float | None = None,
) -> Call[T]:
    headers = JSON_CONTENT if content else {}
    return Call(method="POST", path=path, parse=parse, headers=headers, content=content, params=params, wait=wait)
