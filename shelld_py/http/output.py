"""The answer to a request for the output of a run: a part from a cursor on, all of it, or events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from shelld_py.http.answers import json_response, output_pieces, result_of_events, text_type
from shelld_py.http.endpoint import BYTES, EVENTS, JSON, TEXT, Call, Header, Success
from shelld_py.http.requests import LARGEST, Form, Query, duration_field, header, number
from shelld_py.http.sse import EVENT_HEADERS, MEDIA_TYPE, Ended, follow, holding
from shelld_py.models import DurationText, OnInput, OutputFormat, OutputPart, RunResult, RunStatus, Stream
from shelld_py.output.excerpt import OutputChoice
from shelld_py.output.log import OutputLog
from shelld_py.output.reading import Reading, Unfinished, read_output
from shelld_py.shells.news import DEFAULT_LIMIT, read_run, start_of_last_line
from shelld_py.shells.run import Run
from shelld_py.shells.store import Entry

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
            ),
        )
    },
}
"""What the endpoints for output have in common."""


async def output_response(call: Call[OutputQuery, None], entry: Entry) -> Response:
    """Answer a request for the output of a run, in the form that it asks for."""
    query, computer = call.query, call.computer
    last_id = header(call.request.scope, b"last-event-id")
    cursor = query.cursor if last_id is None else number("Last-Event-ID", last_id.decode("latin-1"))
    wait = min(duration_field("wait", query.wait), computer.settings.timeout.command_maximum)
    if call.form is Form.EVENTS:
        return _events(call, entry, cursor or 0)
    log = computer.store.log(entry, query.stream)
    if log is None:
        reading = Reading(cursor or 0, cursor or 0, "", 0)
    elif call.form is Form.TEXT and cursor is None and query.limit is None and not wait:
        return _whole(entry, log, query.format)
    else:
        if cursor is None and entry.run:
            await _something_new(entry.run, log, wait)
            wait = 0
        limit = query.limit or DEFAULT_LIMIT
        reading = await read_run(entry.run, log, cursor, limit=limit, form=query.format, wait=wait)
    ended = entry.run is None or not entry.run.running
    eof = ended and (log is None or reading.next_cursor >= log.size)
    status = entry.status
    if call.form is Form.TEXT:
        data = reading.data if isinstance(reading.data, bytes) else reading.data.encode()
        headers = _cursor_headers(entry, reading.next_cursor, reading.dropped, eof=eof)
        return Response(data, headers=headers, media_type=text_type(query.format))
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


async def _something_new(run: Run, log: OutputLog, wait: float) -> None:
    """Wait until something is written that was not there yet, or the run ends or waits for input."""
    size = log.size
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait):
            while run.running and not run.awaiting_input and log.size == size:
                await run.changed()


def _events(call: Call[OutputQuery, None], entry: Entry, cursor: int) -> Response:
    """Follow the output as events: of one stream, or where there is a cursor for standard error, of both."""
    query, computer = call.query, call.computer
    timeout = None if query.timeout is None else duration_field("timeout", query.timeout)
    wanted = {query.stream: cursor}
    if query.stderr_cursor is not None:
        wanted = {Stream.STDOUT: cursor, Stream.STDERR: query.stderr_cursor}
    logs = [(stream, log, start) for stream, start in wanted.items() if (log := computer.store.log(entry, stream))]

    async def result() -> RunResult:
        part = OutputChoice.of(query.format, None, computer.settings.output)
        await computer.store.measure(entry)
        found = computer.store.result(entry, computer.state_of(entry.session_id))
        return await result_of_events(found, computer.store.log_reader(entry), part)

    for_input = query.on_input is OnInput.RETURN
    events = follow(entry.run or Ended(), logs, query.format, timeout, result, for_input=for_input)
    shell = computer.shells.find(entry.session_id)
    if query.echo and shell and entry.run and entry.run.running:
        events = holding(shell.echo(), events)
    return StreamingResponse(events, headers=EVENT_HEADERS, media_type=MEDIA_TYPE)


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
