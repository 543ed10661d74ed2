"""Endpoints for runs: what has become of them, and their output by cursor."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from shelld_py.bash.command import input_bytes
from shelld_py.computer import Computer
from shelld_py.errors import InvalidRequest, NoRunningCommand, RunNotFound
from shelld_py.http.answers import json_response, output_pieces, result_of_events, run_response, text_type
from shelld_py.http.input import accepted_response, signal_number, stdin_request
from shelld_py.http.negotiation import (
    Form,
    boolean_field,
    choice_field,
    duration_field,
    header,
    integer_field,
    query_fields,
    requested_form,
)
from shelld_py.http.parameters import OutputQuery, ResultQuery, RunKillQuery, RunsQuery, WaitQuery
from shelld_py.http.sse import EVENT_HEADERS, MEDIA_TYPE, Ended, follow
from shelld_py.http.until import reached_condition
from shelld_py.models import (
    OnInput,
    OutputFormat,
    OutputPart,
    RunReference,
    RunResult,
    RunStatus,
    Stream,
    WaitResult,
)
from shelld_py.output.log import OutputLog
from shelld_py.output.reading import Reading, Unfinished, read_output
from shelld_py.output.showing import OutputChoice
from shelld_py.shells.news import DEFAULT_LIMIT, read_run, start_of_last_line
from shelld_py.shells.run import Run
from shelld_py.shells.store import Entry


class RunEndpoints:
    """Handlers for the runs of all shells."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer
        self._store = computer.store

    async def list_runs(self, request: HttpRequest) -> Response:
        """GET /runs: newest first, without output."""
        fields = query_fields(request, RunsQuery.__struct_fields__)
        status = choice_field("status", fields, RunStatus)
        entries = [
            entry
            for entry in self._store.entries()
            if fields.get("session_id") in (None, entry.session_id) and status in (None, entry.status)
        ]
        if "limit" in fields:
            entries = entries[: integer_field("limit", fields["limit"], 1)]
        live = {entry.run_id: self._result_if_readable(entry) for entry in entries if entry.run}
        results = await asyncio.to_thread(
            lambda: [live.get(entry.run_id) or self._result_if_readable(entry) for entry in entries]
        )
        return json_response([result for result in results if result])

    async def get_run(self, request: HttpRequest) -> Response:
        """GET /runs/ID: the result as it stands, with output."""
        fields = query_fields(request, ResultQuery.__struct_fields__)
        response = await self._result_response(self._entry(request), fields)
        response.status_code = HTTPStatus.OK
        return response

    async def output(self, request: HttpRequest) -> Response:
        """GET /runs/ID/output."""
        return await output_response(request, self._computer, self._entry(request), Form.JSON)

    async def wait(self, request: HttpRequest) -> Response:
        """GET /runs/ID/wait: until it has ended, or there is output beyond a cursor, or a condition holds."""
        fields = query_fields(request, WaitQuery.__struct_fields__)
        timeouts = self._computer.settings.timeout
        timeout = duration_field("timeout", fields["timeout"]) if "timeout" in fields else timeouts.command
        timeout = min(timeout, timeouts.command_maximum)
        stream = choice_field("stream", fields, Stream)
        cursor = integer_field("cursor", fields["cursor"], 0) if "cursor" in fields else None
        entry = self._entry(request)
        if "until" in fields:
            reached = await reached_condition(request, self._computer, entry, stream, cursor, timeout)
            return await self._result_response(entry, fields, partial(_wait_result, reached))
        if entry.run:
            await _wait_for_news(entry.run, stream or Stream.STDOUT, cursor, timeout)
        return await self._result_response(entry, fields)

    async def stdin(self, request: HttpRequest) -> Response:
        """POST /runs/ID/stdin."""
        entry = self._entry(request)
        wanted = await stdin_request(request)
        run = entry.run
        if run is None or not run.running:
            raise NoRunningCommand(f"The run {entry.run_id} has ended.", run_id=entry.run_id)
        shell = self._computer.shell(run.session_id)
        text = input_bytes(wanted.text)
        accepted = await shell.write_stdin(text, eof=wanted.eof, offset=wanted.offset, run=run)
        return accepted_response(request, accepted, Form.JSON)

    async def kill(self, request: HttpRequest) -> Response:
        """POST /runs/ID/kill. A run that has ended is left as it is."""
        fields = query_fields(request, RunKillQuery.__struct_fields__)
        number = signal_number(fields["signal"]) if "signal" in fields else None
        background = "all" in fields and boolean_field("all", fields["all"])
        if background and number is not None:
            raise InvalidRequest("signal sends one signal to the command alone: leave out either signal or all.")
        return json_response(await self._computer.kill_run(self._entry(request), number, background=background))

    async def delete(self, request: HttpRequest) -> Response:
        """DELETE /runs/ID: kill it where it is going on, and remove its files."""
        entry = self._entry(request)
        await self._computer.close_run(entry)
        return json_response(RunReference(run_id=entry.run_id))

    def _result_if_readable(self, entry: Entry) -> RunResult | None:
        """Return a result; None where somebody has taken the files away."""
        try:
            return self._store.result(entry, self._computer.state_of(entry.session_id))
        except RunNotFound:
            return None

    def _entry(self, request: HttpRequest) -> Entry:
        return self._store.entry(request.path_params["run_id"])

    async def _result_response(
        self, entry: Entry, fields: dict[str, str], shown: Callable[[RunResult], RunResult] = lambda result: result
    ) -> Response:
        maximum = integer_field("max_output", fields["max_output"], 0) if "max_output" in fields else None
        form = choice_field("format", fields, OutputFormat) or OutputFormat.TEXT
        choice = OutputChoice.of(form, maximum, self._computer.settings.output)
        result = shown(self._store.result(entry, self._computer.state_of(entry.session_id)))
        return await run_response(result, self._store.log_reader(entry), choice, as_text=False)


@dataclass(frozen=True, slots=True)
class _OutputQuery:
    """What a request for output asks for; `cursor` is None where it wants all, as it looks now."""

    cursor: int | None
    stream: Stream
    limit: int | None
    form: OutputFormat
    wait: float
    stderr_cursor: int | None
    timeout: float | None
    for_input: bool

    @classmethod
    def of(cls, request: HttpRequest) -> "_OutputQuery":
        fields = query_fields(request, OutputQuery.__struct_fields__)
        cursor = integer_field("cursor", fields["cursor"], 0) if "cursor" in fields else None
        last_id = header(request.scope, b"last-event-id")
        if last_id is not None:
            cursor = integer_field("Last-Event-ID", last_id.decode("latin-1"), 0)
        return cls(
            cursor=cursor,
            stream=choice_field("stream", fields, Stream) or Stream.STDOUT,
            limit=integer_field("limit", fields["limit"], 1) if "limit" in fields else None,
            form=choice_field("format", fields, OutputFormat) or OutputFormat.TEXT,
            wait=duration_field("wait", fields["wait"]) if "wait" in fields else 0.0,
            stderr_cursor=integer_field("stderr_cursor", fields["stderr_cursor"], 0)
            if "stderr_cursor" in fields
            else None,
            timeout=duration_field("timeout", fields["timeout"]) if "timeout" in fields else None,
            for_input=choice_field("on_input", fields, OnInput) is OnInput.RETURN,
        )


async def output_response(request: HttpRequest, computer: Computer, entry: Entry, default: Form) -> Response:
    """Answer a request for the output of a run, in the form that it asks for."""
    query = _OutputQuery.of(request)
    form = requested_form(request.scope, default)
    log = computer.store.log(entry, query.stream)
    if form is Form.EVENTS:
        wanted = {query.stream: query.cursor or 0}
        if query.stderr_cursor is not None:
            wanted = {Stream.STDOUT: query.cursor or 0, Stream.STDERR: query.stderr_cursor}
        logs = [
            (stream, log, cursor) for stream, cursor in wanted.items() if (log := computer.store.log(entry, stream))
        ]

        async def result() -> RunResult:
            part = OutputChoice.of(query.form, None, computer.settings.output)
            found = computer.store.result(entry, computer.state_of(entry.session_id))
            return await result_of_events(found, computer.store.log_reader(entry), part)

        events = follow(entry.run or Ended(), logs, query.form, query.timeout, result, for_input=query.for_input)
        return StreamingResponse(events, headers=EVENT_HEADERS, media_type=MEDIA_TYPE)
    if log is None:
        reading = Reading(query.cursor or 0, query.cursor or 0, "", 0)
    elif form is Form.TEXT and query.cursor is None and query.limit is None and not query.wait:
        return _whole(entry, log, query.form)
    else:
        wait = min(query.wait, computer.settings.timeout.command_maximum)
        limit = query.limit or DEFAULT_LIMIT
        reading = await read_run(entry.run, log, query.cursor, limit=limit, form=query.form, wait=wait)
    ended = entry.run is None or not entry.run.running
    eof = ended and (log is None or reading.next_cursor >= log.size)
    status = entry.status
    if form is Form.TEXT:
        data = reading.data if isinstance(reading.data, bytes) else reading.data.encode()
        headers = _cursor_headers(entry, reading.next_cursor, reading.dropped, eof=eof)
        return Response(data, headers=headers, media_type=text_type(query.form))
    text = reading.data if isinstance(reading.data, str) else reading.data.decode("utf-8", "surrogateescape")
    return json_response(
        OutputPart(
            run_id=entry.run_id,
            stream=query.stream,
            cursor=reading.cursor,
            next_cursor=reading.next_cursor,
            output=text,
            status=status,
            eof=eof,
            dropped=reading.dropped,
        )
    )


def _whole(entry: Entry, log: OutputLog, form: OutputFormat) -> Response:
    """Return all of the output as it looks now, however large."""
    next_cursor = end = log.size
    if entry.run and entry.run.running and form is OutputFormat.RAW:
        next_cursor = end = read_output(log, max(0, end - 4), 4, form, Unfinished.SHOW).next_cursor
    elif entry.run and entry.run.running:
        next_cursor = start_of_last_line(log)

    async def body() -> AsyncIterator[bytes]:
        async for piece in output_pieces(log, form, end):
            yield piece.encode("utf-8", "surrogateescape")

    headers = _cursor_headers(entry, next_cursor, log.size - log.kept, eof=entry.status is not RunStatus.RUNNING)
    return StreamingResponse(body(), headers=headers, media_type=text_type(form))


def _cursor_headers(entry: Entry, next_cursor: int, dropped: int, *, eof: bool) -> dict[str, str]:
    return {
        "X-Run-Id": entry.run_id,
        "X-Next-Cursor": str(next_cursor),
        "X-Run-Status": entry.status.value,
        "X-Eof": str(eof).lower(),
        "X-Dropped": str(dropped),
    }


async def _wait_for_news(run: Run, stream: Stream, cursor: int | None, timeout: float) -> None:
    """Wait until `run` has ended, or, where there is a cursor, until there is output past it."""
    try:
        async with asyncio.timeout(timeout):
            while run.running:
                log = run.log(stream)
                if cursor is not None and log is not None and log.size > cursor:
                    return
                await run.changed()
    except TimeoutError:
        return


def _wait_result(reached: str | None, result: RunResult) -> RunResult:
    return WaitResult(**msgspec.structs.asdict(result), reached=reached)
