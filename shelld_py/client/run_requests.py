"""Calls about commands: to run them, to type into them, to read what they write, to end them.

The builders are as in requests.py: `base` is the path of a shell, empty for the main one; of those with a `run_id` it
is the path of all runs. Knows the contract's words, nothing of the daemon's code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, BinaryIO, Final, Literal, TypedDict, Unpack
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

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
    seconds,
    segment,
)
from shelld_py.client.uploads import Upload
from shelld_py.models import (
    KillResult,
    OnInput,
    OutputFormat,
    OutputPart,
    RunResult,
    RunStatus,
    Screen,
    Stream,
    Streams,
)
from shelld_py.units import LONGEST_DURATION

StreamsName = Streams | Literal["merged", "separate", "pipes"]
StreamName = Stream | Literal["stdout", "stderr"]
FormatName = OutputFormat | Literal["text", "raw"]

_LONGEST_QUERY: Final = 32 * 1024
"""Bytes: half of what the daemon takes as the head of a request."""
_AFTER_DEADLINE: Final = 60.0
"""Seconds from a deadline in which the command is asked to end, then killed, and the answer made."""
_BYTES: Final = {"Content-Type": "application/octet-stream"}
LONG_POLL: Final = 30.0
"""Seconds after which a follower by cursor asks again."""


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


def run(base: str, command: str | None = None, **options: Unpack[RunOptions]) -> Call[RunResult]:
    """Run a command and wait for it; its status is `running` where the wait ended first.

    `timeout` is how long to wait, which never ends the command; `deadline` is when it is killed, and without a
    `timeout` its end is waited for. In place of a `command` there may be an `argv`: then nothing is to be quoted.
    Raises `ShellBusy` and other `Conflict`s.
    """
    return _to_the_end(options, partial(run_call, f"{base}/run", command))


def execute(base: str, command: str | None = None, **options: Unpack[ExecOptions]) -> Call[RunResult]:
    """Run a command in a shell of its own, with separate streams unless asked otherwise.

    A `stdin` that is bytes, or a file open for reading, is sent as it is and may have any size.
    """
    return _to_the_end(options, partial(run_call, f"{base}/exec", command, alone=True))


def _to_the_end(
    options: RunOptions | ExecOptions, call: Callable[[RunOptions | ExecOptions], Call[RunResult]]
) -> Call[RunResult]:
    """Return the call that runs a command. One with a deadline, but no timeout, is waited for, however long that is."""
    limit = seconds(options.get("deadline"))
    if limit is None or options.get("timeout") is not None:
        return call(options)
    wait = min(limit + _AFTER_DEADLINE, LONGEST_DURATION)
    for_input = options.get("on_input") != OnInput.WAIT

    def following(result: RunResult) -> Call[RunResult] | None:
        if result.status is not RunStatus.RUNNING or (for_input and result.awaiting_input):
            return None
        again = wait_for_run(
            "/runs", result.run_id, timeout=wait, until=["exit", "input"] if for_input else "exit",
            format=options.get("format"), max_output=options.get("max_output"),
        )  # fmt: skip
        ended = decoded(RunResult)
        return Call(method="GET", path=again.path, params=again.params, wait=wait, parse=ended, following=following)

    return replace(call({**options, "timeout": wait}), following=following)


def run_call(
    path: str, command: str | None, options: RunOptions | ExecOptions, *, alone: bool = False
) -> Call[RunResult]:
    """Return the call that runs `command`; `alone`: in a shell of its own, which takes input as the body.

    Its key makes a repeat join the run. The key does not survive the daemon, so the run gets an id as well.
    """
    fields: dict[str, Any] = {**options, "command": command, "run_id": options.get("run_id") or new_key()}
    stdin = fields.pop("stdin", None)
    params = _beside_input(fields) if alone and stdin is not None and not isinstance(stdin, str) else ()
    headers: Mapping[str, str] = _BYTES if params else JSON_CONTENT
    content: bytes | Upload
    if params:
        content = stdin if isinstance(stdin, bytes) else Upload(stdin)
    else:
        if stdin is not None and not isinstance(stdin, str):
            data = stdin if isinstance(stdin, bytes) else stdin.read()
            stdin = data.decode("utf-8", "surrogateescape")
        content = json_content({**fields, "stdin": stdin})
    return Call(
        method="POST",
        path=path,
        parse=decoded(RunResult),
        params=params,
        headers=headers,
        content=content,
        wait=seconds(fields.get("timeout")),
        key=new_key(),
    )


def _beside_input(fields: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the request for a run as parameters, its body being the input; nothing where they cannot be that.

    An `argv` is a command there: the quoted words, and for pipes, without a terminal, bash becomes the program.
    """
    command, argv, variables = fields["command"], fields.get("argv"), fields.get("environment") or {}
    if command is None and argv:
        quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in argv)
        command = f"exec -- {quoted}" if fields.get("streams") == Streams.PIPES else quoted
    params = parameters(**{**fields, "command": command, "argv": None, "environment": None})
    params += [("environment", f"{name}={value}") for name, value in variables.items()]
    try:
        return params if len(urlencode(params)) <= _LONGEST_QUERY else ()
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return ()


def kill(base: str, signal: str | int | None = None) -> Call[KillResult]:
    """End the running command: SIGINT, then SIGKILL. With `signal`, send that one to it and return at once."""
    return kill_call(base, signal=signal)


def kill_call(base: str, *, signal: str | int | None, **fields: object) -> Call[KillResult]:
    """Return the call that ends or signals a command."""
    wait = None if signal is None else 0.0
    return post(f"{base}/kill", decoded(KillResult), params=parameters(signal=signal, **fields), wait=wait)


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
    return Call(
        method="GET",
        path=f"{base}/output",
        parse=decoded(OutputPart),
        params=parameters(wait=wait, cursor=cursor, stream=stream, limit=limit, format=format),
        wait=0.0 if wait is None else seconds(wait),
    )


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
    return output(_run(base, run_id), cursor=cursor, stream=stream, limit=limit, format=format, wait=wait)


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


def screen_of_run(base: str, run_id: str, *, wait: Duration | None = None, at: int | None = None) -> Call[Screen]:
    """Return what the terminal of a run shows, or showed at its end."""
    return screen(_run(base, run_id), wait=wait, at=at)


def recording_of_run(base: str, run_id: str) -> Call[bytes]:
    """Return the recording of a run, for an asciinema player: an asciicast of version 2. Raises `RunNotFound`."""
    return Call(method="GET", path=f"{_run(base, run_id)}/recording", parse=attrgetter("content"))


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
