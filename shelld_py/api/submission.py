"""Endpoints that take a command: `/run` of the main shell and of sessions, and `/exec`, in a shell of its own.

A run is started, or joined where the same request has started it before, and answered for when the wait for it is over.
Knows nothing of what can be asked of a run or a shell later: runs.py and shells.py.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

from shelld_py import errors
from shelld_py.api.runs import STILL_RUNNING
from shelld_py.bash.command import quoted
from shelld_py.errors import InvalidRequest, RunIdConflict, RunNotFound
from shelld_py.files import PLACE, Comparison
from shelld_py.http.answers import plain_response, result_of_events, run_response
from shelld_py.http.endpoint import BYTES, EVENTS, JSON, TEXT, Body, Call, Endpoint, Header, Success, Tag
from shelld_py.http.repeats import idempotency_key
from shelld_py.http.requests import Form, duration_field, parent_of_trace
from shelld_py.http.run_requests import ExecQuery, RunQuery, exec_request, run_request
from shelld_py.http.sse import EVENT_HEADERS, MEDIA_TYPE, follow, holding
from shelld_py.models import OnInput, RunResult, RunStatus, ShellState, Streams
from shelld_py.output.excerpt import OutputChoice
from shelld_py.request_data import Command, ExecRequest, RunRequest, StartupRequest
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.record import LONGEST_TOLD, fingerprint, is_large
from shelld_py.shells.run import Run
from shelld_py.shells.shell import Shell
from shelld_py.units import DURATION_PATTERN, LONGEST_TEXT

_Run = TypeVar("_Run", bound=RunRequest)
_ONE_SHOT: Final = "exec"
"""What stands for the session of a run with a shell of its own, where requests are compared."""


async def _run(call: Call[Any, RunRequest]) -> Response:
    """Run a command in a shell that is there."""
    shell = call.shell
    if call.computer.settings.shell.start_on_run and shell is call.computer.main:
        await call.computer.ensure_started()
    return await _answer_run(call, shell, Streams.MERGED)


async def _execute(call: Call[Any, ExecRequest]) -> Response:
    """Run a command in a shell of its own."""
    wanted = call.body
    if wanted.stdin_path is not None and (wanted.stdin is not None or wanted.stdin_open):
        raise InvalidRequest("There are both stdin_path and stdin or stdin_open: leave out one of them.")
    if call.query.command is None:
        return await _answer_run(call, None, Streams.SEPARATE)
    # The command begins when all has come: it never takes a part of its input for the whole.
    async with call.computer.spooled(call.request.stream()) as spooled:
        call.request.scope["stdin"] = spooled
        return await _answer_run(call, None, Streams.SEPARATE)


async def _answer_run(call: Call[Any, _Run], shell: Shell | None, streams: Streams) -> Response:
    """Start the run that is wanted, or join it where it was started before; answer when the wait for it is over.

    Without a shell it gets one of its own.
    """
    computer, wanted = call.computer, call.body
    timeouts = computer.settings.timeout
    timeout = timeouts.command if wanted.timeout is None else duration_field("timeout", wanted.timeout)
    timeout = min(timeout, timeouts.command_maximum)
    choice = OutputChoice.of(wanted.format, wanted.max_output, computer.settings.output)
    command = Command(
        text=await _quoted(wanted.argv) if wanted.argv else wanted.command or "",
        directory=wanted.directory,
        description=wanted.description,
        stdin=wanted.stdin,
        environment=wanted.environment,
        streams=wanted.streams or streams,
        deadline=_deadline(wanted.deadline),
        changes=wanted.changes,
        stdin_hash=call.request.scope["stdin"][1] if "stdin" in call.request.scope else None,
        argv=wanted.argv,
        stdin_open=isinstance(wanted, ExecRequest) and wanted.stdin_open,
        user=wanted.user if isinstance(wanted, ExecRequest) else None,
        stdin_path=wanted.stdin_path if isinstance(wanted, ExecRequest) else None,
    )
    if call.form is Form.EVENTS:
        return await _run_as_events(call, shell, command, timeout)
    run = call.request.scope["run"] = await _start_or_join(call, shell, command)
    submitted = time.perf_counter()
    for_input = wanted.on_input is OnInput.RETURN
    directory = None
    if isinstance(run, LiveRun):
        await run.wait(timeout, for_input=for_input)
        timing = (call.request.scope["started"], submitted, time.perf_counter())
        if answer := plain_response(run, choice, as_text=call.form is Form.TEXT, timing=timing):
            return answer
        if run.ending is None:
            run.timed_out = run.timed_out or not (for_input and run.awaiting_input)
            computer.store.publish(run)
        await run.measure()
        directory = run.working_directory
    timing = (call.request.scope["started"], submitted, time.perf_counter())
    as_text, result = call.form is Form.TEXT, run.result()
    return await run_response(
        run, result, choice, as_text=as_text, directory=directory, for_input=for_input, timing=timing
    )


async def _run_as_events(
    call: Call[Any, _Run], shell: Shell | None, command: Command, timeout: float
) -> StreamingResponse:
    computer, wanted = call.computer, call.body
    with contextlib.ExitStack() as started:
        if shell and wanted.echo:  # before the command begins, for programs look at once whether there is an echo
            started.enter_context(shell.echo())
        run = call.request.scope["run"] = await _start_or_join(call, shell, command)
        echo = started.pop_all()

    async def last_result() -> RunResult:
        await run.measure()
        part = OutputChoice.of(wanted.format, wanted.max_output or None, computer.settings.output)
        return await result_of_events(run, part)

    if isinstance(run, LiveRun):
        computer.store.publish(run)
    logs = [(stream, log, 0) for stream, log in run.logs.items()]
    headers = {**EVENT_HEADERS, "X-Run-Id": run.run_id}
    for_input = wanted.on_input is OnInput.RETURN
    events = follow(run, logs, wanted.format, timeout, last_result, for_input=for_input)
    return StreamingResponse(holding(echo, events), headers=headers, media_type=MEDIA_TYPE)


async def _start_or_join(call: Call[Any, _Run], shell: Shell | None, command: Command) -> Run:
    """Start a run, or find the one that the same request has started before."""
    place = _place(shell, call.body)
    identity = await asyncio.to_thread(fingerprint, place, command) if is_large(command) else None
    if call.body.run_id or b"idempotency-key" in call.request.scope["fields"]:
        key = idempotency_key(call.request.scope)
        identity = identity or fingerprint(place, command)
        async with call.services.repeats.starting(key) if key else contextlib.nullcontext():
            return await _named_run(call, shell, command, key, identity)
    return await _started(call, shell, command, None, identity)


async def _named_run(
    call: Call[Any, _Run], shell: Shell | None, command: Command, key: str | None, identity: str
) -> Run:
    """Start a run that its client can name again, by its id or by the `key` of its request, or find it."""
    store, repeats = call.computer.store, call.services.repeats
    done_before = repeats.run_id(key, identity)
    run_id = done_before or call.body.run_id
    run = await store.find(run_id) if run_id else None
    if run is None and done_before:
        raise RunNotFound(f"The run {run_id} was started with this Idempotency-Key, but is no longer kept.")
    if run is None:
        try:
            run = await _started(call, shell, command, run_id, identity)
        except RunIdConflict:
            run = await store.get(run_id or "")
    if run.identity != identity:
        raise RunIdConflict(f"The run id {run_id} was used for another request.", run_id=run_id)
    repeats.remember_run(key, identity, run.run_id)
    return run


def _place(shell: Shell | None, wanted: RunRequest) -> str:
    """Return what stands for the shell of a run where requests are compared: for one of its own, how it starts."""
    if shell:
        return shell.session_id
    startup_file = wanted.startup_file if isinstance(wanted, ExecRequest) else None
    return _ONE_SHOT if startup_file is None else f"{_ONE_SHOT} {startup_file}"


async def _quoted(argv: Sequence[str]) -> str:
    large = sum(map(len, argv)) > LONGEST_TOLD
    return await asyncio.to_thread(quoted, argv) if large else quoted(argv)


def _deadline(value: object) -> float | None:
    """Return the seconds of a deadline, if there is one. Raises `InvalidRequest`."""
    if value is None:
        return None
    seconds = duration_field("deadline", value)
    if not seconds:
        raise InvalidRequest("deadline must be longer than 0: at that moment the command is killed.")
    return seconds


async def _started(
    call: Call[Any, _Run], shell: Shell | None, command: Command, run_id: str | None, identity: str | None
) -> LiveRun:
    request = _place(shell, call.body), command
    if b"traceparent" in call.request.scope["fields"] and (trace := parent_of_trace(call.request.scope)):
        # Not a part of what makes two requests the same: each repeat is a span of its own.
        command = replace(command, environment={"TRACEPARENT": trace, **command.environment})
    if shell and not command.changes:
        run = shell.submit(command, run_id)
    else:
        async with call.computer.comparing(command, shell) as comparison:
            if shell:
                run = shell.submit(command, run_id, comparison=comparison)
            else:
                run = await _started_alone(call, command, run_id, comparison)
    run.request, run.fingerprint = request, identity
    return run


async def _started_alone(
    call: Call[Any, _Run], command: Command, run_id: str | None, comparison: Comparison | None
) -> LiveRun:
    startup_file = call.body.startup_file if isinstance(call.body, ExecRequest) else None
    request = StartupRequest(startup_file=startup_file, user=command.user)
    start = partial(call.computer.shells.one_shot, command, run_id, request, comparison=comparison)
    if command.stdin_hash is not None:
        return await start(stdin_file=call.request.scope["stdin"][0])
    if command.stdin_path is None:
        return await start()
    async with call.computer.files.descriptor(command.stdin_path) as stdin_file:
        return await start(stdin_file=stdin_file)


_Timeout = Annotated[str, Meta(pattern=f"{DURATION_PATTERN}|^$", max_length=LONGEST_TEXT)]
_Count = Annotated[int, Meta(ge=0)]
_RUN_HEADERS: Final = (
    Header(name="X-Run-Id", meaning="The run."),
    Header(name="X-Run-Status", meaning="What has become of it.", type=RunStatus),
    Header(name="X-Shell-State", meaning="The state of its shell.", type=ShellState),
    Header(name="X-Exit-Code", meaning="bash's `$?`, once it has ended.", type=int),
    Header(name="X-Signal", meaning="The signal that it died of.", type=int),
    Header(
        name="X-Run-Error", meaning="What there is to explain (`error`), percent-encoded: output that is lost, say."
    ),
    Header(name="X-Working-Directory", meaning="The shell's directory, percent-encoded."),
    Header(name="X-Original-Size", meaning="Characters of the whole output.", type=_Count),
    Header(name="X-Truncated", meaning="Whether the output was cut.", type=bool),
    Header(name="X-Awaiting-Input", meaning="Whether it is seen waiting for terminal input.", type=bool),
    Header(name="Server-Timing", meaning="Milliseconds until bash had it, that it was waited for, and of rendering."),
)
SHELL_ENDED: Final = (errors.ShellNotStarted, errors.ShellUnrecoverable)
START_REFUSED: Final = (errors.ShellStartFailed, errors.TooFewDescriptors)
_RUN_REFUSED: Final = (errors.JsonWithoutContentType, errors.RunNotFound, errors.RunIdConflict, *START_REFUSED)
_RUN: Final[dict[str, Any]] = {
    "query": RunQuery,
    "headers": (
        Header(name="X-Command-Timeout", meaning="Stands in for `timeout`.", type=_Timeout),
        Header(name="traceparent", meaning="W3C Trace Context: for the log, and the command's `TRACEPARENT`."),
    ),
    "body": Body(
        model=RunRequest,
        raw="The command, whatever the Content-Type.",
        required=True,
        example={"command": "echo hello", "timeout": "30s"},
        read=run_request,
    ),
    "answers": {
        HTTPStatus.OK: Success(
            meaning="The output of the run, or its result, or events; whatever its exit code.",
            content={TEXT: str, BYTES: bytes, JSON: RunResult, EVENTS: str},
            headers=_RUN_HEADERS,
        ),
        HTTPStatus.ACCEPTED: Success(
            meaning="The wait ended before the command did: it is still running, and nothing is lost.",
            content={TEXT: str, BYTES: bytes, JSON: RunResult},
            headers=(*_RUN_HEADERS, *STILL_RUNNING),
        ),
    },
}


def _run_endpoint(prefix: str, tag: Tag, *refusals: type[errors.ShelldError]) -> Endpoint:
    """Return the endpoint for commands to the shell below `prefix`; `refusals` are for there being none."""
    main = tag is Tag.MAIN
    return Endpoint(
        method="POST",
        path=f"{prefix}/run",
        name="run" if main else "run_in_session",
        handler=_run,
        summary=f"Run a command in {'the main shell' if main else 'the session'}",
        description=(
            "Waits for the end of the command, up to `timeout`; the command goes on after that. The raw body "
            "is the command, or a JSON object holds it with its options."
        ),
        errors=(*refusals, *SHELL_ENDED, errors.ShellBusy, *_RUN_REFUSED),
        **_RUN,
        tag=tag,
        default=Form.TEXT if main else Form.JSON,
    )


ENDPOINTS: Final = (
    _run_endpoint("", Tag.MAIN),
    Endpoint(
        method="POST",
        path="/exec",
        name="exec",
        tag=Tag.RUNS,
        handler=_execute,
        summary="Run a command in a shell of its own",
        description=(
            "The shell is closed when the command and what it left in the background have ended. Takes and answers "
            "what `POST /run` does."
        ),
        errors=(*_RUN_REFUSED, *PLACE, errors.UserNotAllowed, errors.NoSpace),
        **{
            **_RUN,
            "query": ExecQuery,
            "body": replace(
                _RUN["body"], model=ExecRequest, read=exec_request, required=False, unlimited_with="command"
            ),
        },
    ),
    _run_endpoint("/sessions/{session_id}", Tag.SESSIONS, errors.SessionNotFound),
)
