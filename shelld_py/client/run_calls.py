"""Calls about runs, whatever shell they belong to; `base` is `/runs`.

Each builder's docstring is that of the method which the drivers make of it.
"""

from collections.abc import Sequence
from typing import Final

from shelld_py.client.calls import Call, Duration, decoded, parameters, seconds, segment
from shelld_py.client.results import WaitResult
from shelld_py.client.shell_calls import FormatName, StreamName, kill_call, nothing, output_call, stdin
from shelld_py.models import KillResult, OutputPart, RunResult, RunStatus

PATIENCE: Final = 30.0
"""Seconds after which a follower by cursor asks again."""


def list_runs(
    base: str, *, session_id: str | None = None, status: RunStatus | str | None = None, limit: int | None = None
) -> Call[list[RunResult]]:
    """Return the runs that are kept, newest first, without output."""
    params = parameters(session_id=session_id, status=status, limit=limit)
    return Call(method="GET", path=base, parse=decoded(list[RunResult]), params=params)


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
    base: str, run_id: str, text: str | bytes = "", *, eof: bool = False, offset: int | None = None
) -> Call[int]:
    """Type `text` into a run's terminal, and end-of-file after it; return the bytes accepted in all.

    `offset` is how many bytes were accepted before: a repeat is not typed twice. Raises `NoRunningCommand`.
    """
    return stdin(_run(base, run_id), text, eof=eof, offset=offset)


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
