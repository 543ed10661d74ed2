"""What happens in the daemon as server-sent events, for whoever looks after an agent: nobody has to poll.

Reading is no activity: it keeps neither the daemon nor a session from its end, and ends with them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from shelld_py.api.shells import session_status
from shelld_py.errors import InvalidRequest
from shelld_py.event_data import EVENT_DATA, EventType, SnapshotEvent
from shelld_py.events import Events, Happening, Reader, shortened
from shelld_py.http.endpoint import EVENTS, Call, Endpoint, Header, Success, Tag
from shelld_py.http.requests import LARGEST, Query, duration_field, header, number
from shelld_py.http.sse import EVENT_HEADERS, MEDIA_TYPE
from shelld_py.models import as_json
from shelld_py.request_data import DurationText
from shelld_py.validation import nearest

_SILENCE: Final = 15.0
"""Seconds after which a comment is sent: many proxies close what is silent for 30 or 60."""
_SHORTEST: Final = 0.1
"""Seconds between two looks at least: a look takes some milliseconds of a thread."""
_TYPES: Final = "|".join(EventType)


class EventsQuery(Query, frozen=True, kw_only=True):
    """Of the stream of events."""

    types: Annotated[
        tuple[Annotated[str, Meta(extra_json_schema={"pattern": f"^(?:{_TYPES})(?:,(?:{_TYPES}))*$"})], ...],
        Meta(description="Those to send, with commas between them or one each time; all by default."),
    ] = ()
    ports: Annotated[DurationText, Meta(description="Look so often which ports are open: 100 ms or more.")] | None = (
        None
    )
    resources: Annotated[DurationText, Meta(description="Send so often what shells use: 100 ms or more.")] | None = None
    timeout: Annotated[DurationText, Meta(description="How long events are sent, if not for ever.")] | None = None


class _EventStream(StreamingResponse):
    """Events, from when they are sent to when the client goes, or is not to have any more."""

    def __init__(self, open_reader: "partial[Reader]", call: Call[Any, Any], timeout: float | None) -> None:
        super().__init__((), headers=EVENT_HEADERS, media_type=MEDIA_TYPE)
        self._open_reader = open_reader
        self._call = call
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        reader = self._open_reader()
        try:
            async with aclosing(_written(reader, self._call, self._timeout)) as events:  # type: ignore[type-var]
                self.body_iterator = events
                await super().__call__(scope, receive, send)
        finally:
            reader.close()


async def _events(call: Call[EventsQuery, None]) -> Response:
    query = call.query
    last_id = header(call.request.scope, b"last-event-id")
    after = None if last_id is None else number("Last-Event-ID", last_id.decode("latin-1"))
    ports, resources = _interval("ports", query.ports), _interval("resources", query.resources)
    types = _types(query.types)
    timeout = None if query.timeout is None else duration_field("timeout", query.timeout)
    if call.request.method == "HEAD":
        return Response(headers=EVENT_HEADERS, media_type=MEDIA_TYPE)
    events: Events = call.computer.events
    return _EventStream(partial(events.open, types, after=after, ports=ports, resources=resources), call, timeout)


def _types(texts: tuple[str, ...]) -> frozenset[EventType]:
    """Return the types that are named. Raises `InvalidRequest`."""
    found = set()
    for name in (name for text in texts for name in text.split(",")):
        if name not in tuple(EventType):
            near = nearest(name, tuple(EventType))
            hint = f" Do you mean {near}?" if near else ""
            raise InvalidRequest(f"types: there is no event {name[:50]!r}.{hint} There are: {', '.join(EventType)}.")
        found.add(EventType(name))
    return frozenset(found)


def _interval(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = duration_field(name, text)
    if seconds < _SHORTEST:
        raise InvalidRequest(f"{name} must be at least 100ms: so often it is looked.")
    return seconds


async def _written(reader: Reader, call: Call[Any, Any], timeout: float | None) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout
    while True:
        left = _SILENCE if end is None else min(_SILENCE, end - loop.time())
        happenings = await reader.read(max(0.0, left))
        if happenings is None:
            return
        if happenings or left == _SILENCE:
            yield b"".join(_event(happening, call) for happening in happenings) or b":\n\n"
        if end is not None and loop.time() >= end:
            return


def _event(happening: Happening, call: Call[Any, Any]) -> bytes:
    """Return one event as it is sent."""
    identity = b"" if happening.event_id is None else b"id: %d\n" % happening.event_id
    data = as_json(_snapshot(call)) if happening.data is None else happening.data
    return b"event: %b\n%bdata: %b\n\n" % (happening.type.encode(), identity, data)


def _snapshot(call: Call[Any, Any]) -> SnapshotEvent:
    computer = call.computer
    runs = [shell.run.result() for shell in computer.shells.all if shell.run]
    return SnapshotEvent(
        state=computer.main.state,
        shells=tuple(session_status(call, shell) for shell in (computer.main, *computer.shells.sessions)),
        runs=tuple(map(shortened, runs)),
    )


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/events",
        name="read_events",
        tag=Tag.DAEMON,
        handler=_events,
        looks=True,
        summary="All that happens, as one stream",
        description=(
            "Server-sent events: first a snapshot, then each change of a state, each run that begins, waits for input "
            "or ends, sessions, and files that the API changes. Reading is no activity."
        ),
        query=EventsQuery,
        headers=(
            Header(
                name="Last-Event-ID",
                meaning="Go on behind this event; where that cannot be, a gap and a snapshot.",
                type=Annotated[int, Meta(ge=0, le=LARGEST)],
            ),
        ),
        answers={200: Success(meaning="The events, until the client goes.", content={EVENTS: EVENT_DATA})},
        passive=True,
    ),
)
