"""Endpoints for runs: what has become of them, waiting for them, input and signals for them."""

import asyncio
import signal
from collections.abc import Coroutine
from http import HTTPStatus
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from shelld_py import errors
from shelld_py.api.output import OUTPUT, Cursor, OutputQuery, output_response
from shelld_py.bash.command import input_bytes
from shelld_py.errors import InvalidRequest, NoRunningCommand
from shelld_py.http.answers import list_response, run_response
from shelld_py.http.endpoint import JSON, Body, Call, Endpoint, Header, Success, Tag, ok
from shelld_py.http.requests import LARGEST, Form, Query, duration_field, signal_number
from shelld_py.http.run_requests import StdinQuery, stdin_request
from shelld_py.models import AcceptedInput, KillResult, OutputFormat, RunResult, RunStatus, Stream, Streams, WaitResult
from shelld_py.output.excerpt import OutputChoice
from shelld_py.request_data import DurationText, MaxOutput, StdinRequest
from shelld_py.shells.conditions import Condition, LogReader, Until
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Run
from shelld_py.shells.shell import Shell

_T = TypeVar("_T")

_SIGNAL_NAMES: Final = "|".join(name.removeprefix("SIG") for name in signal.Signals.__members__)
_SIGNAL_NUMBERS: Final = "|".join(str(int(number)) for number in sorted(signal.valid_signals()))
_Signal = Annotated[
    str,
    Meta(
        description="Send this one signal (`TERM`, `SIGTERM`, `15`) and return.",
        extra_json_schema={"pattern": f"^(?:(?:SIG)?(?:{_SIGNAL_NAMES})|{_SIGNAL_NUMBERS})$"},
    ),
]
_MOST_LISTED: Final = 1000
_UNTOLD: Final[dict[str, Any]] = {"changes": msgspec.UNSET, "changes_truncated": msgspec.UNSET}
"""What listings leave out, as they do the output."""
_Before = Annotated[int, Meta(ge=0, le=LARGEST, description="Those before: `X-Next-Cursor` of the answer before.")]
_MaxOutput = Annotated[MaxOutput, Meta(le=LARGEST)]
_Condition = Annotated[
    str,
    Meta(
        description="What to wait for: `output:REGEX`, `port:NUMBER`, `quiet:DURATION`, `input` or `exit`.",
        extra_json_schema={"pattern": r"^(?:output:[\s\S]+|port:\d{1,5}|quiet:[\s\S]+|input|exit)$"},
    ),
]


class RunReference(msgspec.Struct, frozen=True, kw_only=True):
    """The run whose files were removed."""

    run_id: str


class SignalQuery(Query, frozen=True, kw_only=True):
    """Of a kill."""

    signal: _Signal | None = None


class RunKillQuery(SignalQuery, frozen=True, kw_only=True):
    """Of the kill of a run."""

    all: Annotated[bool, Meta(description="Kill what the run has left in the background, too.")] = False


class RunsQuery(Query, frozen=True, kw_only=True):
    """Of the list of runs."""

    session_id: Annotated[str, Meta(description="Those of this shell alone.")] | None = None
    status: RunStatus | None = None
    limit: Annotated[int, Meta(ge=1, le=_MOST_LISTED, description="The newest so many.")] = 100
    cursor: _Before | None = None


class ResultQuery(Query, frozen=True, kw_only=True):
    """Of a run result."""

    format: OutputFormat = OutputFormat.TEXT
    max_output: _MaxOutput | None = None


class WaitQuery(Query, frozen=True, kw_only=True):
    """Of a wait for a run."""

    timeout: Annotated[DurationText, Meta(description="How long to wait.")] | None = None
    cursor: Annotated[Cursor, Meta(description="Also stop when there is output past this offset.")] | None = None
    stream: Stream = Stream.STDOUT
    format: OutputFormat = OutputFormat.TEXT
    max_output: _MaxOutput | None = None
    until: tuple[_Condition, ...] = ()


def signal_of(query: SignalQuery) -> int | None:
    """Return the signal that is asked for, if any. Raises `InvalidRequest`."""
    return None if query.signal is None else signal_number(query.signal)


async def _list_runs(call: Call[RunsQuery, None]) -> Response:
    """List the runs, the newest first, without output and what they did to files."""
    query = call.query
    results, cursor = await call.computer.store.results(
        session_id=query.session_id, status=query.status, limit=query.limit, cursor=query.cursor
    )
    results = [msgspec.structs.replace(result, **_UNTOLD) if result.changes else result for result in results]
    return await list_response(results, {} if cursor is None else {"X-Next-Cursor": str(cursor)})


async def _get_run(call: Call[ResultQuery, None]) -> Response:
    response = await _result_response(call, await call.run(), call.query)
    response.status_code = HTTPStatus.OK
    return response


async def _output(call: Call[OutputQuery, None]) -> Response:
    return await output_response(call, await call.run())


async def _wait(call: Call[WaitQuery, None]) -> Response:
    """Wait until the run has ended, or there is output beyond a cursor, or a condition holds."""
    query, run, timeouts = call.query, await call.run(), call.computer.settings.timeout
    timeout = timeouts.command if query.timeout is None else duration_field("timeout", query.timeout)
    timeout = min(timeout, timeouts.command_maximum)
    if query.until:
        reached = await _reached_condition(call, run, timeout)
        return await _result_response(call, await call.run(), query, reached)
    log = None if query.cursor is None else run.log(query.stream)
    past = query.cursor or 0
    await run.until(lambda: not run.running or (log is not None and log.size > past), timeout)
    return await _result_response(call, await call.run(), query)  # which may have been deleted meanwhile


async def _stdin(call: Call[Any, StdinRequest]) -> AcceptedInput | Response:
    run = await call.run()
    if not isinstance(run, LiveRun) or not run.running:
        raise NoRunningCommand(f"The run {run.run_id} has ended.", run_id=run.run_id)
    return await type_into(call, call.computer.shell(run.session_id), run)


async def type_into(call: Call[Any, StdinRequest], shell: Shell, run: LiveRun | None) -> AcceptedInput | Response:
    """Type into the terminal of `run`; with `wait`, answer with what it writes until it ends or waits for input."""
    wanted = call.body
    wait = None if wanted.wait is None else duration_field("wait", wanted.wait)
    before = {stream: log.size for stream in Stream if run and (log := run.log(stream))}
    text = input_bytes(wanted.text)
    if run and (wanted.keys or wanted.paste):
        text = await call.computer.input_for(run, wanted.keys, wanted.paste)
    accepted = await shell.write_stdin(text, eof=wanted.eof, offset=wanted.offset, run=run)
    if wait is None or run is None:
        return AcceptedInput(accepted=accepted)
    wait = min(wait, call.computer.settings.timeout.command_maximum)
    if run.command.streams is Streams.PIPES:  # of a pipe nobody knows who waits for it
        logs = [(log, size) for stream, size in before.items() if (log := run.log(stream))]
        await run.until(lambda: not run.running or any(log.size > size for log, size in logs), wait)
    else:
        await run.wait(wait, for_input=True)
    readings = {stream: await run.read(stream, start) for stream, start in before.items()}
    output, stderr = (str(readings[stream].data) if stream in readings else "" for stream in Stream)
    next_cursor = readings[Stream.STDOUT].next_cursor
    if call.form is not Form.TEXT:
        return AcceptedInput(
            accepted=accepted,
            run_id=run.run_id,
            output=output,
            stderr=stderr,
            cursor=before[Stream.STDOUT],
            next_cursor=next_cursor,
            awaiting_input=run.awaiting_input,
            status=run.status,
        )
    headers = {
        "X-Run-Id": run.run_id,
        "X-Run-Status": run.status.value,
        "X-Next-Cursor": str(next_cursor),
        "X-Awaiting-Input": str(run.awaiting_input).lower(),
    }
    return PlainTextResponse(output + stderr, headers=headers)


async def _kill(call: Call[RunKillQuery, None]) -> KillResult:
    """Kill the run, or send it a signal. One that has ended is left as it is."""
    number = signal_of(call.query)
    if call.query.all and number is not None:
        raise InvalidRequest("signal sends one signal to the command alone: leave out either signal or all.")
    return await call.computer.kill_run(await call.run(), number, background=call.query.all)


async def _delete(call: Call[None, None]) -> RunReference:
    """Kill the run where it is going on, and remove its files."""
    run = await call.run()
    await call.computer.close_run(run)
    return RunReference(run_id=run.run_id)


async def _result_response(
    call: Call[Any, None],
    run: Run,
    query: ResultQuery | WaitQuery,
    reached: str | msgspec.UnsetType | None = msgspec.UNSET,
) -> Response:
    """Return the result as it stands; `reached` is what a wait for conditions has come to."""
    choice = OutputChoice.of(query.format, query.max_output, call.computer.settings.output)
    await run.measure()
    result = run.result()
    if reached is not msgspec.UNSET:
        result = WaitResult(**msgspec.structs.asdict(result), reached=reached)
    return await run_response(run, result, choice, as_text=False)


async def _reached_condition(call: Call[WaitQuery, None], run: Run, timeout: float) -> str | None:
    """Wait for the conditions of the query; return the one that came first, as it was given.

    A cursor belongs to one stream: where there is one, or a `stream`, only that is looked at for lines.
    """
    query = call.query
    conditions = [Condition.parse(text) for text in query.until]
    one = query.cursor is not None or "stream" in call.request.query_params
    logs = {name: run.log(name) for name in ([query.stream] if one else Stream)}
    readers = [LogReader(name, log, query.cursor or 0) for name, log in logs.items() if log]
    wait = Until(conditions, run, call.computer.shells.find(run.session_id), readers)
    reached = await _while_connected(call.request, wait.wait(timeout))
    return reached.text if reached else None


async def _while_connected(request: HttpRequest, work: Coroutine[None, None, _T]) -> _T | None:
    """Return what `work` returns; None where the client went away before, which ends the work."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


STILL_RUNNING: Final = (
    Header(name="Location", meaning="`/runs/RUN_ID`.", always=True),
    Header(name="Retry-After", meaning="Seconds.", type=Annotated[int, Meta(ge=0)], always=True),
)
STDIN: Final[dict[str, Any]] = {
    "query": StdinQuery,
    "body": Body(
        model=StdinRequest,
        raw="The text, whatever the Content-Type.",
        example={"text": "yes\n"},
        read=stdin_request,
    ),
    "answers": ok(
        "The bytes accepted in all; with `wait`, what the command has written since.",
        AcceptedInput,
        text=str,
        headers=(
            Header(name="X-Run-Id", meaning="With `wait`: the run."),
            Header(name="X-Run-Status", meaning="With `wait`: what has become of it.", type=RunStatus),
            Header(name="X-Next-Cursor", meaning="With `wait`: where to read on.", type=Annotated[int, Meta(ge=0)]),
            Header(name="X-Awaiting-Input", meaning="With `wait`: whether it waits for input again.", type=bool),
        ),
    ),
    "text": attrgetter("accepted"),
}
"""What the endpoints for input have in common."""
STDIN_REFUSED: Final = (
    errors.ShellNotStarted,
    errors.ShellUnrecoverable,
    errors.NoRunningCommand,
    errors.StdinGap,
    errors.StdinFull,
    errors.StdinClosed,
)

ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/runs",
        looks=True,
        name="list_runs",
        tag=Tag.RUNS,
        handler=_list_runs,
        summary="All runs that are kept, newest first",
        description=(
            "Of all shells, also of those that have ended; a daemon with a data directory knows those of the daemon "
            "before it."
        ),
        query=RunsQuery,
        answers=ok(
            "The results, without output.",
            tuple[RunResult, ...],
            headers=(Header(name="X-Next-Cursor", meaning="The `cursor` of those before, if there are any."),),
        ),
    ),
    Endpoint(
        method="GET",
        path="/runs/{run_id}",
        looks=True,
        name="get_run",
        tag=Tag.RUNS,
        handler=_get_run,
        summary="A run, with its output",
        description="Without waiting: a run that is going on has the status `running`.",
        query=ResultQuery,
        answers=ok("The result as it stands.", RunResult),
        errors=(errors.RunNotFound,),
    ),
    Endpoint(
        method="DELETE",
        path="/runs/{run_id}",
        name="delete_run",
        tag=Tag.RUNS,
        handler=_delete,
        summary="Kill a run where it is going on, and remove its files",
        description="Its id is free for another run then.",
        answers=ok("The run that was removed.", RunReference),
        errors=(errors.RunNotFound,),
    ),
    Endpoint(
        method="GET",
        path="/runs/{run_id}/output",
        looks=True,
        name="read_run_output",
        tag=Tag.RUNS,
        handler=_output,
        summary="The output of a run, from a cursor on",
        description=(
            "A cursor is a byte offset; the texts of successive reads, each from `next_cursor` of the one before, "
            "join to the whole."
        ),
        errors=(errors.RunNotFound,),
        **OUTPUT,
    ),
    Endpoint(
        method="GET",
        path="/runs/{run_id}/wait",
        looks=True,
        name="wait_for_run",
        tag=Tag.RUNS,
        handler=_wait,
        summary="Wait for the end of a run, for output, or for another condition",
        description="Each `until` is one condition; the first that comes true ends the wait and is told as `reached`.",
        query=WaitQuery,
        answers={
            **ok("The run has ended: its result.", WaitResult),
            HTTPStatus.ACCEPTED: Success(
                meaning="It is still running.", content={JSON: WaitResult}, headers=STILL_RUNNING
            ),
        },
        errors=(errors.RunNotFound, errors.PatternTooSlow),
    ),
    Endpoint(
        method="POST",
        path="/runs/{run_id}/stdin",
        name="write_run_stdin",
        tag=Tag.RUNS,
        handler=_stdin,
        summary="Type into the terminal of a run",
        description="As for the shell of the run, but refused where another run has taken its place.",
        errors=(errors.RunNotFound, errors.SessionNotFound, *STDIN_REFUSED),
        **STDIN,
    ),
    Endpoint(
        method="POST",
        path="/runs/{run_id}/kill",
        name="kill_run",
        tag=Tag.RUNS,
        handler=_kill,
        summary="End a run, or send it one signal",
        description=(
            "One that has ended is left as it is; with `all`, what it has left in the background is killed, too."
        ),
        query=RunKillQuery,
        answers=ok("What it has done.", KillResult),
        errors=(errors.RunNotFound, errors.SessionNotFound),
    ),
)
