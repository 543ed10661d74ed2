"""The answer to a request for the output of a run: a part from a cursor on, all of it, or events."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from shelld_py.errors import ObserverKey
from shelld_py.http.answers import in_header, json_response, output_pieces, result_of_events, text_type
from shelld_py.http.endpoint import BYTES, EVENTS, JSON, TEXT, Call, Header, Success
from shelld_py.http.requests import LARGEST, Form, Query, duration_field, header, number
from shelld_py.http.sse import EVENT_HEADERS, MEDIA_TYPE, follow, holding
from shelld_py.models import OnInput, OutputFormat, OutputPart, RunResult, RunStatus, Stream
from shelld_py.output.excerpt import OutputChoice
from shelld_py.output.log import OutputLog
from shelld_py.output.reading import Unfinished, read_output, start_of_last_line
from shelld_py.request_data import DurationText
from shelld_py.shells.run import DEFAULT_LIMIT, Run

Cursor = Annotated[int, Meta(ge=0, le=LARGEST, description="Byte offset in the log.")]
_Count = Annotated[int, Meta(ge=0)]


class OutputQuery(Query, frozen=True, kw_only=True):
    """Of a read of output; without a cursor, all is wanted, as it looks now."""

    cursor: Cursor | None = None
    stream: Stream = Stream.STDOUT
    limit: Annotated[int, Meta(ge=1, le=LARGEST, description="About how many bytes of the log to read.")] | None = None
    format: OutputFormat = OutputFormat.TEXT
    wait: Annotated[
        DurationText,
        Meta(
            description=(
                "If nothing is there past the cursor, wait so long for it or the end; without a cursor, for something "
                "new, the end, or that the command waits for input."
            )
        ),
    ] = "0"
    stderr_cursor: Annotated[Cursor, Meta(description="Events of standard error as well, from here on.")] | None = None
    timeout: Annotated[DurationText, Meta(description="How long events are sent, if not to the end.")] | None = None
    echo: Annotated[bool, Meta(description="Show in the output what is typed, while these events are sent.")] = False
    on_input: Annotated[OnInput, Meta(description="Whether events end when the command waits for input.")] = (
        OnInput.WAIT
    )


OUTPUT: Final[dict[str, Any]] = {
    "query": OutputQuery,
    "headers": (Header(name="Last-Event-ID", meaning="Stands in for `cursor`.", type=_Count),),
    "answers": {
        200: Success(
            meaning="The output, or events until the run has ended.",
            content={TEXT: str, BYTES: bytes, JSON: OutputPart, EVENTS: str},
            headers=(
                Header(name="X-Run-Id", meaning="The run."),
                Header(name="X-Next-Cursor", meaning="Where to read on.", type=_Count),
                Header(name="X-Run-Status", meaning="What has become of the run.", type=RunStatus),
                Header(name="X-Eof", meaning="Whether the run has ended and all has been given.", type=bool),
                Header(name="X-Dropped", meaning="Bytes before the output that were not kept.", type=_Count),
                Header(name="X-Run-Error", meaning="The result's `error`, percent-encoded, once the run has ended."),
            ),
        )
    },
}
"""What the endpoints for output have in common."""


async def output_response(call: Call[OutputQuery, None], run: Run) -> Response:
    """Answer a request for the output of a run, in the form that it asks for."""
    query = call.query
    last_id = header(call.request.scope, b"last-event-id")
    cursor = query.cursor if last_id is None else number("Last-Event-ID", last_id.decode("latin-1"))
    wait = min(duration_field("wait", query.wait), call.computer.settings.timeout.command_maximum)
    if call.form is Form.EVENTS:
        return _events(call, run, cursor or 0)
    log = run.log(query.stream)
    if log and call.form is Form.TEXT and cursor is None and query.limit is None and not wait:
        return _whole(run, log, query.format)
    if log and cursor is None:
        await _something_new(run, log, wait)
        wait = 0
    limit = query.limit or DEFAULT_LIMIT
    reading = await run.read(query.stream, cursor, limit=limit, form=query.format, wait=wait)
    eof = not run.running and (log is None or reading.next_cursor >= log.size)
    if call.form is Form.TEXT:
        data = reading.data if isinstance(reading.data, bytes) else reading.data.encode()
        headers = _cursor_headers(run, reading.next_cursor, reading.dropped, eof=eof)
        return Response(data, headers=headers, media_type=text_type(query.format))
    text = reading.data if isinstance(reading.data, str) else reading.data.decode("utf-8", "surrogateescape")
    return json_response(
        OutputPart(
            run_id=run.run_id,
            stream=query.stream,
            cursor=reading.cursor,
            next_cursor=reading.next_cursor,
            output=text,
            status=run.status,
            eof=eof,
            dropped=reading.dropped,
            error=_error(run) or msgspec.UNSET,
        )
    )


async def _something_new(run: Run, log: OutputLog, wait: float) -> None:
    """Wait until something is written that was not there yet, or the run ends or waits for input."""
    size = log.size
    await run.until(lambda: not run.running or run.awaiting_input or log.size != size, wait)


def _events(call: Call[OutputQuery, None], run: Run, cursor: int) -> Response:
    """Follow the output as events: of one stream, or where there is a cursor for standard error, of both."""
    query = call.query
    timeout = None if query.timeout is None else duration_field("timeout", query.timeout)
    wanted = {query.stream: cursor}
    if query.stderr_cursor is not None:
        wanted = {Stream.STDOUT: cursor, Stream.STDERR: query.stderr_cursor}
    logs = [(stream, log, start) for stream, start in wanted.items() if (log := run.log(stream))]

    async def result() -> RunResult:
        await run.measure()
        return await result_of_events(run, OutputChoice.of(query.format, None, call.computer.settings.output))

    for_input = query.on_input is OnInput.RETURN
    events = follow(run, logs, query.format, timeout, result, for_input=for_input)
    shell = call.computer.shells.find(run.session_id)
    if query.echo and "observer" in call.request.scope:
        raise ObserverKey("echo changes what the terminal shows: that needs the key of the owner.")
    if query.echo and shell and run.running:
        events = holding(shell.echo(), events)
    return StreamingResponse(events, headers=EVENT_HEADERS, media_type=MEDIA_TYPE)


def _whole(run: Run, log: OutputLog, form: OutputFormat) -> Response:
    """Return all of the output as it looks now, however large."""
    next_cursor = end = log.size
    if run.running and form is OutputFormat.RAW:
        next_cursor = end = read_output(log, max(0, end - 4), 4, form, Unfinished.SHOW).next_cursor
    elif run.running:
        next_cursor = start_of_last_line(log)

    async def body() -> AsyncIterator[bytes]:
        async for piece in output_pieces(log, form, end):
            yield piece.encode("utf-8", "surrogateescape")

    headers = _cursor_headers(run, next_cursor, log.size - log.kept, eof=not run.running)
    return StreamingResponse(body(), headers=headers, media_type=text_type(form))


def _cursor_headers(run: Run, next_cursor: int, dropped: int, *, eof: bool) -> dict[str, str]:
    headers = {
        "X-Run-Id": run.run_id,
        "X-Next-Cursor": str(next_cursor),
        "X-Run-Status": run.status.value,
        "X-Eof": str(eof).lower(),
        "X-Dropped": str(dropped),
    }
    if error := _error(run):
        headers["X-Run-Error"] = in_header(error)
    return headers


def _error(run: Run) -> str | None:
    """Return what there is to explain of a run that has ended: output that the disk has refused, say."""
    return None if run.running else run.result().error
