"""Output as server-sent events (WHATWG HTML, 9.2): it is sent as it is written."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

import msgspec

from shelld_py.models import GapEvent, OutputEvent, OutputFormat, RunResult, Stream
from shelld_py.output.excerpt import decoder, quick_to_read
from shelld_py.output.log import OutputLog
from shelld_py.output.text import INLINE_DRAWN, LINE_LIMIT, render
from shelld_py.shells.run import Run

MEDIA_TYPE: Final = "text/event-stream"
EVENT_HEADERS: Final = {"Cache-Control": "no-store"}
_EVENT_SIZE: Final = 32 * 1024
"""Bytes of output that one event carries at the most: each client that reads slowly has one in memory."""


def event(name: str, data: object, event_id: str | None = None) -> bytes:
    """Return one event with `data` as JSON."""
    identity = f"id: {event_id}\n" if event_id is not None else ""
    return f"event: {name}\n{identity}data: ".encode() + msgspec.json.encode(data) + b"\n\n"


class LiveText:
    """Turns output that is still growing into text to append, or to redraw.

    A line is sent as it grows. Where it then changes what was sent of it, a carriage return and the line
    as it looks now follow: what a terminal would make of it.
    """

    def __init__(self, form: OutputFormat) -> None:
        self._decoder = decoder(form, errors="replace")
        self._raw = form is OutputFormat.RAW
        self._sent = ""

    @property
    def pending(self) -> int:
        """Bytes that are rendered again with the next ones: those of the unfinished line."""
        return self._decoder.pending

    def resume(self, data: bytes) -> None:
        """Take what was sent before, on another connection: all of it, also what would be held back now.

        Raw text needs no memory of it.
        """
        if not self._raw:
            complete = self._decoder.feed(data)
            self._sent = render(data)[len(complete) :]

    def feed(self, data: bytes) -> tuple[str, int]:
        """Return what to send for `data`, and how many bytes at its end are held back as incomplete."""
        complete = self._decoder.feed(data)
        line, meaningless = self._decoder.unfinished()
        return self._beyond_sent(complete + line, line), meaningless

    def finish(self, data: bytes) -> str:
        """Return what to send for `data`, the last there is."""
        return self._beyond_sent(self._decoder.feed(data) + self._decoder.finish(), "")

    def _beyond_sent(self, text: str, line: str) -> str:
        sent, self._sent = self._sent, line
        return text[len(sent) :] if text.startswith(sent) else f"\r{text}"


class _Follower:
    """One stream of a run, from a cursor on."""

    def __init__(self, log: OutputLog, stream: Stream, cursor: int, form: OutputFormat) -> None:
        self._log = log
        self._stream = stream
        self._cursor = cursor
        self._form = form
        self._text = LiveText(form)
        self._resumed = cursor == 0

    async def events(self, *, ended: bool) -> bytes:
        """Return the events for the next bytes, if there are any; `ended`: there will be no more after these."""
        pending, size = self._text.pending, min(_EVENT_SIZE, self._log.size - self._cursor)
        short = pending + size <= INLINE_DRAWN
        if self._resumed and (short or (not pending and quick_to_read(self._log, self._cursor, size, self._form))):
            return self._events(ended=ended)
        return await asyncio.to_thread(self._events, ended=ended)

    def _events(self, *, ended: bool) -> bytes:
        if not self._resumed:
            self._text.resume(_line_before(self._log, self._cursor))
            self._resumed = True
        events = b""
        chunk = self._log.read(self._cursor, _EVENT_SIZE)
        if chunk.dropped:
            gap = GapEvent(stream=self._stream, cursor=self._cursor, dropped=chunk.dropped)
            events += event("gap", gap, str(chunk.start))
        self._cursor = chunk.end
        last = ended and chunk.end >= self._log.size
        text, held = (self._text.finish(chunk.data), 0) if last else self._text.feed(chunk.data)
        if text:
            data = OutputEvent(stream=self._stream, cursor=self._cursor - held, text=text)
            events += event("output", data, str(self._cursor - held))
        return events

    @property
    def behind(self) -> bool:
        """Whether there is more to read."""
        return self._cursor < self._log.size


def _line_before(log: OutputLog, cursor: int) -> bytes:
    """Return what was sent before `cursor`, from the beginning of a line on: what comes then can redraw that."""
    start = max(0, cursor - 2 * LINE_LIMIT)
    data, position = b"", start
    while position < cursor:
        chunk = log.read(position, cursor - position)
        if not chunk.data or chunk.start >= cursor:
            return b""
        data = chunk.data if chunk.dropped else data + chunk.data
        position = chunk.end
    return data[data.find(b"\n") + 1 :] if start else data


async def holding(
    held: contextlib.AbstractContextManager[object], events: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Yield `events`, in whose time `held` is in force."""
    with held:
        async for event in events:
            yield event


async def follow(
    run: Run,
    logs: Iterable[tuple[Stream, OutputLog, int]],
    form: OutputFormat,
    timeout: float | None,
    result: Callable[[], Awaitable[RunResult]],
    *,
    for_input: bool = False,
) -> AsyncIterator[bytes]:
    """Yield the events of `run`: the output of `logs` from their cursors on, then the result.

    The result comes when the run has ended, or with the status `running` after `timeout` seconds or, with
    `for_input`, when the command waits for input.
    """
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    followers = [_Follower(log, stream, cursor, form) for stream, log, cursor in logs]
    while True:
        ended = not run.running
        for follower in followers:
            if events := await follower.events(ended=ended):
                yield events
        if any(follower.behind for follower in followers) or ended is run.running:
            await asyncio.sleep(0)  # what redraws a line gives no event: others get their turn nevertheless
            continue
        if ended or (for_input and run.awaiting_input):
            break
        if not await run.changed(deadline):
            run.timed_out = True
            break
    yield event("result", await result())
