"""Requests to the daemon as data, and what their answers mean: no I/O, nothing of sync or async.

A `Call` says what to send, how long the daemon may take for it, whether it may be sent again, and how to read the
answer. The builders below make calls: `base` is the path of what they are about, empty for the daemon and its main
shell. Each builder's docstring is that of the method that the clients make of it. Those for files are in
file_requests.py. Knows the contract's words, nothing of the daemon's code.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, BinaryIO, Final, Generic, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from shelld_py import models
from shelld_py.client.failures import UnknownAnswer
from shelld_py.models import (
    KillResult,
    OnInput,
    OutputFormat,
    OutputPart,
    RunResult,
    RunStatus,
    Screen,
    SessionStatus,
    ShellDocument,
    ShellState,
    Status,
    Stream,
    Streams,
)
from shelld_py.units import parse_duration

T = TypeVar("T")
Duration = float | str
"""Seconds, or text such as `500ms`, `30s`, `1h30m`."""

JSON_TYPE: Final = "application/json"
_PIECE: Final = 256 * 1024
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon has answered; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request, and what its answer means.

    `wait` is how many seconds the daemon may take on purpose, None where nobody can say: no time-out cuts that.
    `key` is the Idempotency-Key. Only what is safe, or has a key, may be sent again.
    """

    method: str
    path: str
    parse: Callable[[Answer], T]
    params: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: "bytes | Upload | None" = None
    wait: float | None = 0.0
    key: str | None = None

    @property
    def repeatable(self) -> bool:
        """Whether sending it again does nothing twice."""
        if isinstance(self.content, Upload) and not self.content.repeatable:
            return False
        return self.method in _SAFE_METHODS or self.key is not None


class Upload:
    """What is read from a file while it is sent, each time from where that was at first."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.repeatable = file.seekable()
        self._start = file.tell() if self.repeatable else 0

    def rewind(self) -> None:
        """Begin again."""
        if self.repeatable:
            self._file.seek(self._start)

    def read(self) -> bytes:
        """Return the next piece, empty at the end."""
        return self._file.read(_PIECE)


def decode(answer: Answer, kind: type[T]) -> T:
    """Return the JSON of `answer` as a `kind`. Raises `UnknownAnswer` for what the daemon does not answer.

    Output in raw form can hold lone surrogates (PEP 383), which only the lenient reader takes.
    """
    try:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.convert(json.loads(answer.content), kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnknownAnswer.with_status(answer.status, f"This is not what a daemon answers: {error}.") from None


def decoded(kind: type[T]) -> Callable[[Answer], T]:
    """Return a reader of answers that are the JSON of a `kind`."""
    return lambda answer: decode(answer, kind)


def member(name: str, kind: type[T]) -> Callable[[Answer], T]:
    """Return a reader of answers that are a JSON object, of which the member `name` matters."""

    def parse(answer: Answer) -> T:
        document = decode(answer, dict[str, Any])
        try:
            return msgspec.convert(document.get(name), kind)
        except msgspec.ValidationError as error:
            detail = f"The answer's {name} is not what a daemon answers: {error}."
            raise UnknownAnswer.with_status(answer.status, detail) from None

    return parse


def json_content(fields: Mapping[str, object]) -> bytes:
    """Return `fields` as a JSON object, without those that are None: the daemon has defaults for them.

    Bytes that were not UTF-8 are lone surrogates there, escaped (PEP 383).
    """
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.json.encode(given)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(given)).encode()


JSON_CONTENT: Final = {"Content-Type": JSON_TYPE}


def parameters(**fields: object) -> list[tuple[str, str]]:
    """Return `fields` for a query string, without those that are None."""
    return [(name, _written(value)) for name, value in fields.items() if value is not None]


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def segment(name: str) -> str:
    """Return `name` as one segment of a path."""
    return quote(name, safe="")


def seconds(duration: Duration | None) -> float | None:
    """Return how long the daemon may wait for `duration`; None where it is the daemon that decides or refuses."""
    if duration is None:
        return None
    try:
        return parse_duration(duration)
    except ValueError:
        return None


def new_key() -> str:
    """Return an id that nobody has used: for an Idempotency-Key, or a run."""
    return uuid.uuid4().hex


# --- results ----------------------------------------------------------------------------------------------------------


class RunList(list[RunResult]):
    """Runs, newest first. `next_cursor` is the cursor with which those before them are had; None for no more."""

    def __init__(self, runs: Iterable[RunResult], next_cursor: int | None) -> None:
        super().__init__(runs)
        self.next_cursor = next_cursor


class WaitResult(models.RunResult, frozen=True, kw_only=True):
    """A run as it stands after a wait. `reached` is the condition of `until` that came first, if any did."""

    reached: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a command has written since it was typed to, and how it stands then.

    `accepted` is the bytes of input accepted in all. `output` begins at `cursor` of standard output; `next_cursor`
    reads on.
    """

    accepted: int
    run_id: str
    output: str
    stderr: str
    cursor: int
    next_cursor: int
    awaiting_input: bool
    status: RunStatus


class Metadata(models.Metadata[dict[str, Any], dict[str, Any]], frozen=True, kw_only=True):
    """What may be known of the machine and of the daemon's rules; `memory_mb` is in MiB."""


class RawContent(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a file: `content` begins at offset `start` of a file of `size` bytes; large files have no `etag`."""

    content: bytes
    start: int
    size: int
    etag: str | None


# --- a shell, the daemon, sessions, tools -----------------------------------------------------------------------------


StreamsName = Streams | Literal["merged", "separate", "pipes"]
StreamName = Stream | Literal["stdout", "stderr"]
FormatName = OutputFormat | Literal["text", "raw"]

_BYTES: Final = {"Content-Type": "application/octet-stream"}


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


class RunOptions(TypedDict, total=False):
    """How to run a command: the fields of the daemon's run request (docs/api.md)."""

    argv: Sequence[str] | None
    run_id: str | None
    timeout: Duration | None
    deadline: Duration | None
    directory: str | None
    description: str | None
    stdin: str | bytes | BinaryIO | None
    environment: Mapping[str, str] | None
    streams: StreamsName | None
    format: FormatName | None
    max_output: int | None
    on_input: OnInput | Literal["return", "wait"] | None
    echo: bool | None
    changes: bool | Literal["all"] | None


class ExecOptions(RunOptions, total=False):
    """How to run a command in a shell of its own, and how to start that."""

    startup_file: str | None
    stdin_open: bool | None
    stdin_path: str | None
    user: str | None


def startup(base: str, **options: Unpack[StartupOptions]) -> Call[ShellState]:
    """Start the main shell. Raises `ShellAlreadyStarted`, `ShellUnrecoverable`, `ShellStartFailed`."""
    return _post(f"{base}/startup", member("state", ShellState), json_content(options))


def run(base: str, command: str | None = None, **options: Unpack[RunOptions]) -> Call[RunResult]:
    """Run a command and wait for it; its status is `running` where the wait ended first.

    `timeout` is how long to wait, which never ends the command; `deadline` is when it is killed. In place of a
    `command` there may be an `argv`: then nothing is to be quoted. Raises `ShellBusy` and other `Conflict`s.
    """
    return run_call(f"{base}/run", command, options)


def execute(base: str, command: str | None = None, **options: Unpack[ExecOptions]) -> Call[RunResult]:
    """Run a command in a shell of its own, with separate streams unless asked otherwise.

    The `stdin` of a `command` that is bytes, or a file open for reading, is sent as it is and may have any size.
    """
    return run_call(f"{base}/exec", command, options, alone=True)


def run_call(
    path: str, command: str | None, options: RunOptions | ExecOptions, *, alone: bool = False
) -> Call[RunResult]:
    """Return the call that runs `command`; `alone`: in a shell of its own, which takes input as the body.

    Its key makes a repeat join the run. The key does not survive the daemon, so the run gets an id as well.
    """
    fields: dict[str, Any] = {**options, "command": command, "run_id": options.get("run_id") or new_key()}
    stdin = fields.get("stdin")
    params: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = JSON_CONTENT
    content: bytes | Upload
    if alone and command is not None and stdin is not None and not isinstance(stdin, str):
        variables = fields.pop("environment", None) or {}
        params = parameters(**{**fields, "stdin": None})
        params += [("environment", f"{name}={value}") for name, value in variables.items()]
        headers, content = _BYTES, stdin if isinstance(stdin, bytes) else Upload(stdin)
    else:
        if stdin is not None and not isinstance(stdin, str):
            data = stdin if isinstance(stdin, bytes) else stdin.read()
            fields["stdin"] = data.decode("utf-8", "surrogateescape")
        content = json_content(fields)
    return Call(
        method="POST",
        path=path,
        parse=decoded(RunResult),
        params=params,
        headers=headers,
        content=content,
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


def state(base: str) -> Call[ShellDocument]:
    """Return what it takes to make such a shell again: the `state` of `startup` and `sessions.open`.

    Raises `ShellBusy` and other `Conflict`s unless it is ready.
    """
    return Call(method="GET", path=f"{base}/state", parse=decoded(ShellDocument))


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


def screen(base: str, *, wait: Duration | None = None, at: int | None = None) -> Call[Screen]:
    """Return what the terminal of the current or last run shows, as a person would see it.

    With `wait`, wait so long for output after `at` (of a screen before), and then for a moment without. Raises
    `RunNotFound`.
    """
    return Call(
        method="GET",
        path=f"{base}/screen",
        parse=decoded(Screen),
        params=parameters(wait=wait, at=at),
        wait=0.0 if wait is None else seconds(wait),
    )


def screen_of_run(base: str, run_id: str, *, wait: Duration | None = None, at: int | None = None) -> Call[Screen]:
    """Return what the terminal of a run shows, or showed at its end."""
    return screen(f"{base}/{segment(run_id)}", wait=wait, at=at)


def recording_of_run(base: str, run_id: str) -> Call[bytes]:
    """Return the recording of a run, for an asciinema player: an asciicast of version 2. Raises `RunNotFound`."""
    return Call(method="GET", path=f"{base}/{segment(run_id)}/recording", parse=attrgetter("content"))


def output_call(path: str, *, wait: Duration | None, **fields: object) -> Call[OutputPart]:
    """Return the call that reads output by cursor."""
    return Call(
        method="GET",
        path=path,
        parse=decoded(OutputPart),
        params=parameters(wait=wait, **fields),
        wait=0.0 if wait is None else seconds(wait),
    )


def stdin(
    base: str,
    text: str | bytes = "",
    *,
    keys: Sequence[str] = (),
    paste: str | None = None,
    eof: bool = False,
    offset: int | None = None,
    wait: Duration | None = None,
) -> Call[Any]:
    """Type `text` into the running command's terminal, and end-of-file after it; return the bytes accepted in all.

    In place of `text`, `keys` are names of keys and text (`["i", "hello", "Escape", ":wq", "Enter"]`), and `paste` is
    text as somebody would paste it.

    With `wait`, wait so long for the command to end or to wait for input again, and return a `Reply`: what it has
    written since. `offset` is how many bytes were accepted before: a repeat is not typed twice. Raises
    `NoRunningCommand`, `StdinGap`.
    """
    content = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if keys or paste is not None:
        if content:
            raise ValueError("There are both text and keys or paste: leave out one of them.")
        content = json_content({"keys": keys} if paste is None else {"keys": keys, "paste": paste})
    return Call(
        method="POST",
        path=f"{base}/stdin",
        parse=member("accepted", int) if wait is None else decoded(Reply),
        params=parameters(eof=eof or None, offset=offset, wait=wait),
        headers=JSON_CONTENT if keys or paste is not None else _BYTES,
        content=content,
        wait=0.0 if wait is None else seconds(wait),
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


def add_observer(
    base: str, *, expires: Duration | None = None, description: str | None = None
) -> Call[models.NewObserver]:
    """Make a key that only looks, good for an hour unless `expires` says otherwise."""
    fields = {"expires": expires, "description": description}
    return _post(base, decoded(models.NewObserver), json_content(fields), wait=0.0)


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
    return _post(f"{base}/ports/{port}/link", decoded(models.PortLink), json_content(fields), wait=0.0)


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


# --- runs -------------------------------------------------------------------------------------------------------------


PATIENCE: Final = 30.0
"""Seconds after which a follower by cursor asks again."""


def list_runs(
    base: str,
    *,
    session_id: str | None = None,
    status: RunStatus | str | None = None,
    limit: int | None = None,
    cursor: int | None = None,
) -> Call[RunList]:
    """Return the runs that are kept, newest first, without output; `next_cursor` of the list gets those before."""
    params = parameters(session_id=session_id, status=status, limit=limit, cursor=cursor)
    return Call(method="GET", path=base, parse=_run_list, params=params)


def _run_list(answer: Answer) -> RunList:
    cursor = answer.headers.get("x-next-cursor", "")
    results = decode(answer, list[RunResult])
    return RunList(results, int(cursor) if cursor.isascii() and cursor.isdecimal() else None)


def get_run(
    base: str,
    run_id: str,
    *,
    format: FormatName | None = None,  # noqa: A002
    max_output: int | None = None,
) -> Call[RunResult]:
    """Return a run as it stands, with its output. Raises `RunNotFound`."""
    params = parameters(format=format, max_output=max_output)
    return Call(method="GET", path=_run(base, run_id), parse=decoded(RunResult), params=params)


def read_run(
    base: str,
    run_id: str,
    *,
    cursor: int | None = None,
    stream: StreamName | None = None,
    limit: int | None = None,
    format: FormatName | None = None,  # noqa: A002
    wait: Duration | None = None,
) -> Call[OutputPart]:
    """Read output from `cursor` on (bytes), about `limit` bytes of it; without a cursor, as it looks now.

    Where nothing is there yet, it waits up to `wait` for output or the end. Raises `RunNotFound`.
    """
    path = f"{_run(base, run_id)}/output"
    return output_call(path, cursor=cursor, stream=stream, limit=limit, format=format, wait=wait)


def wait_for_run(
    base: str,
    run_id: str,
    *,
    timeout: Duration | None = None,
    cursor: int | None = None,
    stream: StreamName | None = None,
    until: str | Sequence[str] | None = None,
    format: FormatName | None = None,  # noqa: A002
    max_output: int | None = None,
) -> Call[WaitResult]:
    """Wait for the end of a run, for output past `cursor`, or for a condition; return the run as it stands then.

    `until` is one condition or several: `output:REGEX`, `port:8000`, `quiet:2s`, `input`, `exit`.
    """
    conditions = [until] if isinstance(until, str) else list(until or ())
    fields = parameters(timeout=timeout, cursor=cursor, stream=stream, format=format, max_output=max_output)
    return Call(
        method="GET",
        path=f"{_run(base, run_id)}/wait",
        parse=decoded(WaitResult),
        params=[*fields, *(("until", condition) for condition in conditions)],
        wait=seconds(timeout),
    )


def type_into_run(
    base: str,
    run_id: str,
    text: str | bytes = "",
    *,
    keys: Sequence[str] = (),
    paste: str | None = None,
    eof: bool = False,
    offset: int | None = None,
    wait: Duration | None = None,
) -> Call[Any]:
    """Type `text` into a run's terminal, and end-of-file after it; return the bytes accepted in all.

    With `wait`, wait so long for the run to end or to wait for input again, and return a `Reply`: what it has written
    since. `offset` is how many bytes were accepted before: a repeat is not typed twice. Raises `NoRunningCommand`.
    """
    return stdin(_run(base, run_id), text, keys=keys, paste=paste, eof=eof, offset=offset, wait=wait)


def kill_run(
    base: str,
    run_id: str,
    signal: str | int | None = None,
    *,
    all: bool = False,  # noqa: A002
) -> Call[KillResult]:
    """End a run: SIGINT, then SIGKILL. With `signal`, send that one and return at once.

    With `all`, kill what it has left in the background, too.
    """
    return kill_call(_run(base, run_id), signal=signal, all=all or None)


def delete_run(base: str, run_id: str) -> Call[None]:
    """Kill a run where it is going on, and remove its files."""
    return Call(method="DELETE", path=_run(base, run_id), parse=nothing, wait=None)


def _run(base: str, run_id: str) -> str:
    return f"{base}/{segment(run_id)}"
