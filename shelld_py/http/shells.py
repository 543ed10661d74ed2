"""Endpoints that drive a shell: the main one at the root, sessions below /sessions/ID."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from shelld_py.bash.command import input_bytes
from shelld_py.computer import Computer
from shelld_py.errors import InvalidRequest, RunIdConflict, RunNotFound
from shelld_py.http.answers import json_response, result_of_events, run_response
from shelld_py.http.input import accepted_response, signal_number, stdin_request
from shelld_py.http.negotiation import (
    Form,
    boolean_field,
    convert_fields,
    decode_json,
    duration_field,
    header,
    integer_field,
    is_json,
    json_body,
    query_fields,
    requested_form,
)
from shelld_py.http.parameters import RunQuery, ShutdownQuery, SignalQuery
from shelld_py.http.repeats import Repeats, idempotency_key
from shelld_py.http.runs import output_response
from shelld_py.http.sse import EVENT_HEADERS, MEDIA_TYPE, Ended, follow
from shelld_py.idle import IdleTimer
from shelld_py.models import (
    Command,
    Health,
    OnInput,
    ResizeRequest,
    RunRequest,
    RunResult,
    ShutdownAnswer,
    StartupRequest,
    StateAnswer,
    Status,
    Stream,
    Streams,
)
from shelld_py.output.showing import OutputChoice
from shelld_py.shells.run import Run
from shelld_py.shells.shell import Shell
from shelld_py.shells.store import Entry, fingerprint

TEXT_PATHS: Final = frozenset(
    {"/startup", "/run", "/kill", "/recycle", "/shutdown", "/status", "/output", "/stdin", "/resize", "/health"}
)
"""The paths of the main shell: they answer, and fail, in plain text unless JSON is asked for."""

Submit = Callable[[Command, str | None], Awaitable[Run]]


class ShellEndpoints:
    """Handlers for the shell that the path names; the main shell where it names none."""

    def __init__(
        self,
        computer: Computer,
        repeats: Repeats,
        idle: IdleTimer,
        *,
        reset: Callable[[], None],
        shut_down: Callable[[], None],
    ) -> None:
        """`reset` is called when all is to be new for the next client, `shut_down` to end the daemon."""
        self._computer = computer
        self._repeats = repeats
        self._idle = idle
        self._reset = reset
        self._shut_down = shut_down

    async def startup(self, request: HttpRequest) -> Response:
        """POST /startup."""
        await self._computer.startup(await json_body(request, StartupRequest))
        return self._state_response(request, self._computer.main)

    async def run(self, request: HttpRequest) -> Response:
        """POST /run: run a command and answer when it is over, or when the wait is."""
        shell = self._shell(request)
        wanted = await run_request(request)

        async def submit(command: Command, run_id: str | None) -> Run:
            return shell.submit(command, run_id)

        return await self._answer_run(request, wanted, shell.session_id, submit, Streams.MERGED)

    async def execute(self, request: HttpRequest) -> Response:
        """POST /exec: run a command in a shell of its own."""
        wanted = await run_request(request)
        return await self._answer_run(request, wanted, None, self._computer.one_shot, Streams.SEPARATE)

    async def _answer_run(
        self, request: HttpRequest, wanted: RunRequest, session_id: str | None, submit: Submit, streams: Streams
    ) -> Response:
        """Start the run that is `wanted`, or join it where it was started before, and answer."""
        computer = self._computer
        timeouts = computer.settings.timeout
        timeout = timeouts.command if wanted.timeout is None else duration_field("timeout", wanted.timeout)
        timeout = min(timeout, timeouts.command_maximum)
        choice = OutputChoice.of(wanted.format, wanted.max_output, computer.settings.output)
        form = requested_form(request.scope, _default_form(request))
        key = idempotency_key(request.scope)
        async with self._repeats.starting(key) if key else contextlib.nullcontext():
            entry = await self._start_or_join(wanted, session_id or "exec", submit, streams, key)
        run = entry.run

        def result() -> RunResult:
            return computer.store.result(entry, computer.state_of(entry.session_id))

        async def last_result() -> RunResult:
            part = OutputChoice.of(wanted.format, wanted.max_output or None, computer.settings.output)
            return await result_of_events(result(), computer.store.log_reader(entry), part)

        for_input = wanted.on_input is OnInput.RETURN
        if form is Form.EVENTS:
            if run:
                computer.store.publish(run, computer.state_of(run.session_id))
            logs = [(stream, log, 0) for stream in Stream if (log := computer.store.log(entry, stream))]
            headers = {**EVENT_HEADERS, "X-Run-Id": entry.run_id}
            events = follow(run or Ended(), logs, wanted.format, timeout, last_result, for_input=for_input)
            return StreamingResponse(events, headers=headers, media_type=MEDIA_TYPE)
        if run is None:
            return await run_response(result(), computer.store.log_reader(entry), choice, as_text=form is Form.TEXT)
        await run.wait(timeout, for_input=for_input)
        if run.running:
            run.timed_out = run.timed_out or not (for_input and run.awaiting_input)
            computer.store.publish(run, computer.state_of(run.session_id))
        final = run.result(computer.state_of(run.session_id))
        directory = run.working_directory
        return await run_response(
            final, run.log, choice, as_text=form is Form.TEXT, directory=directory, for_input=for_input
        )

    async def kill(self, request: HttpRequest) -> Response:
        """POST /kill."""
        fields = query_fields(request, SignalQuery.__struct_fields__)
        number = signal_number(fields["signal"]) if "signal" in fields else None
        shell = self._shell(request)
        result = await shell.kill(number)
        if requested_form(request.scope, _default_form(request)) is Form.JSON:
            return json_response(result)
        return PlainTextResponse(result.state.value)

    async def recycle(self, request: HttpRequest) -> Response:
        """POST /recycle."""
        shell = self._shell(request)
        await self._computer.recycle(shell)
        return self._state_response(request, shell)

    async def shutdown(self, request: HttpRequest) -> Response:
        """POST /shutdown: end the daemon, or make it new for the next client."""
        fields = query_fields(request, ShutdownQuery.__struct_fields__)
        if "recycle" in fields and boolean_field("recycle", fields["recycle"]):
            await self._computer.reset()
            self._reset()
            return self._state_response(request, self._computer.main)
        self._shut_down()
        if requested_form(request.scope, _default_form(request)) is Form.JSON:
            return json_response(ShutdownAnswer(state="shutting down"))
        return PlainTextResponse("shutting down")

    async def status(self, request: HttpRequest) -> Response:
        """GET /status."""
        shell = self._shell(request)
        if requested_form(request.scope, _default_form(request)) is Form.JSON:
            status = msgspec.structs.asdict(self._computer.status(shell))
            return json_response(Status(**status, idle=round(self._idle.idle, 3), idle_timeout=self._idle.timeout))
        return PlainTextResponse(shell.state.value)

    async def output(self, request: HttpRequest) -> Response:
        """GET /output: that of the current or last run."""
        shell = self._shell(request)
        if shell.last_run is None:
            raise RunNotFound("No command has been run in this shell.")
        entry = self._computer.store.entry(shell.last_run.run_id)
        return await output_response(request, self._computer, entry, _default_form(request))

    async def stdin(self, request: HttpRequest) -> Response:
        """POST /stdin: the raw body, or a JSON object."""
        shell = self._shell(request)
        wanted = await stdin_request(request)
        accepted = await shell.write_stdin(input_bytes(wanted.text), eof=wanted.eof, offset=wanted.offset)
        return accepted_response(request, accepted, _default_form(request))

    async def resize(self, request: HttpRequest) -> Response:
        """POST /resize."""
        shell = self._shell(request)
        size = await json_body(request, ResizeRequest)
        shell.resize(size.rows, size.cols)
        return self._state_response(request, shell)

    async def health(self, request: HttpRequest) -> Response:
        """GET /health: without a key, and without touching anything."""
        if requested_form(request.scope, _default_form(request)) is Form.JSON:
            return json_response(Health())
        return PlainTextResponse("ok")

    def _shell(self, request: HttpRequest) -> Shell:
        return self._computer.shell(request.path_params.get("session_id"))

    def _state_response(self, request: HttpRequest, shell: Shell) -> Response:
        if requested_form(request.scope, _default_form(request)) is Form.JSON:
            return json_response(StateAnswer(state=shell.state))
        return PlainTextResponse(shell.state.value)

    async def _start_or_join(
        self, wanted: RunRequest, session_id: str, submit: Submit, streams: Streams, key: str | None
    ) -> Entry:
        """Start a run, or find the one that the same request has started before."""
        store = self._computer.store
        command = Command(
            text=wanted.command,
            directory=wanted.directory,
            description=wanted.description,
            stdin=wanted.stdin,
            environment=wanted.environment,
            streams=wanted.streams or streams,
        )
        identity = fingerprint(session_id, command)
        done_before = self._repeats.run_id(key, identity)
        run_id = done_before or wanted.run_id
        entry = store.find(run_id) if run_id else None
        if entry is None and done_before:
            raise RunNotFound(f"The run {run_id} was started with this Idempotency-Key, but is no longer kept.")
        if entry is None:
            try:
                entry = store.entry((await submit(command, wanted.run_id)).run_id)
                entry.fingerprint = identity
            except RunIdConflict:
                entry = store.entry(run_id or "")
        if entry.fingerprint != identity:
            raise RunIdConflict(f"The run id {run_id} was used for another request.", run_id=run_id)
        self._repeats.remember_run(key, identity, entry.run_id)
        return entry


def _default_form(request: HttpRequest) -> Form:
    """The main shell's paths answer in text, all others in JSON."""
    return Form.TEXT if request.scope["path"] in TEXT_PATHS else Form.JSON


async def run_request(request: HttpRequest) -> RunRequest:
    """Return the request for a run: a JSON object, or the raw command with parameters in the query string.

    Raises `InvalidRequest`.
    """
    fields: dict[str, object] = dict(query_fields(request, RunQuery.__struct_fields__))
    if "environment" in fields:
        fields["environment"] = _environment_parameters(request.query_params.getlist("environment"))
    if timeout := header(request.scope, b"x-command-timeout"):
        fields.setdefault("timeout", timeout.decode("latin-1"))
    body = await request.body()
    if is_json(request):
        if "max_output" in fields:
            fields["max_output"] = integer_field("max_output", str(fields["max_output"]), 0)
        wanted = decode_json(body, RunRequest, fields)
    else:
        fields["command"] = body.decode("utf-8", "surrogateescape")
        wanted = convert_fields(fields, RunRequest)
    if not wanted.command.strip():
        raise InvalidRequest('The command is empty. Send it as the body, or as "command" in a JSON object.')
    return wanted


def _environment_parameters(values: list[str]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if not all(separator for _, separator, _ in pairs):
        raise InvalidRequest("environment must be NAME=VALUE in a query string, once for each variable.")
    return {name: value for name, _, value in pairs}
