"""Output as it is written: server-sent events to typed events, and how to go on after a broken connection.

No I/O: a `Following` says which request is next, takes the bytes of its answer, and remembers how far each
stream has come. The daemon goes on exactly there: an event's cursor is the place behind its text, and a text
that is asked for from a cursor continues the line that was begun before it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Unpack

import msgspec

from shelld_py.client.failures import UnknownAnswer
from shelld_py.client.requests import (
    Answer,
    Call,
    Duration,
    ExecOptions,
    FormatName,
    RunOptions,
    new_key,
    parameters,
    run_call,
    seconds,
    segment,
)
from shelld_py.models import GapEvent, OutputEvent, RunResult, Stream

EVENTS_TYPE: Final = "text/event-stream"


class Output(OutputEvent, frozen=True, kw_only=True):
    r"""Output to append. `cursor` is the place behind it, in bytes of that stream's log.

    In text form, a `text` that begins with `\r` replaces the line that has no end yet.
    """


class Gap(GapEvent, frozen=True, kw_only=True):
    """`dropped` bytes from `cursor` on are not kept any more."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The last event: the run as it stands, without output. It may still be `running`: the wait is over."""

    run: RunResult


Event = Output | Gap | Result


@dataclass(frozen=True, slots=True)
class _Raw:
    name: str
    data: str


class _Parser:
    """The lines of an event stream (WHATWG HTML, 9.2.6), as far as the daemon uses them."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[_Raw]:
        """Take the next bytes, cut anywhere; yield the events that they complete."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").decode("utf-8", "replace").partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._name = value
            elif name == "data":
                self._data.append(value)
            elif not name and not value and not line.startswith(b":"):
                if self._data:
                    yield _Raw(self._name, "\n".join(self._data))
                self._name, self._data = "", []


class Following:
    """The events of one run, over as many connections as it takes."""

    def __init__(
        self,
        path: str,
        start: Call[Any] | None,
        *,
        cursors: dict[Stream, int],
        format: FormatName | None,  # noqa: A002
        timeout: Duration | None,
        on_input: str | None,
        echo: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`path` is where the output is read on, `start` the request that starts the run, None for one that is known.

        `cursors` says where to begin with each stream.
        """
        self.done = False
        self._path = path
        self._start = start
        self._cursors = cursors
        self._format = format
        self._on_input = on_input
        self._echo = echo
        self._clock = clock
        limit = seconds(timeout)
        self._deadline = None if limit is None else clock() + limit
        self._parser = _Parser()

    def call(self) -> Call[Any]:
        """Return the request for all that is missing."""
        self._parser = _Parser()
        if self._start is not None:
            return self._start
        left = None if self._deadline is None else max(0.0, self._deadline - self._clock())
        params = parameters(
            cursor=self._cursors[Stream.STDOUT],
            stderr_cursor=self._cursors[Stream.STDERR],
            format=self._format,
            timeout=left,
            on_input=self._on_input,
            echo=self._echo or None,
        )
        return Call(method="GET", path=self._path, parse=_no_result, params=params, wait=left)

    def opened(self) -> None:
        """The daemon has answered: the run is started, and a further connection only reads on."""
        self._start = None

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Take bytes of the answer; yield the events that they complete."""
        for raw in self._parser.feed(chunk):
            event = _typed(raw)
            if event is None:
                continue
            if isinstance(event, Result):
                self.done = True
            else:
                dropped = event.dropped if isinstance(event, Gap) else 0
                self._cursors[event.stream] = event.cursor + dropped
            yield event


def follow_run(base: str, command: str | None = None, **options: Unpack[RunOptions]) -> Following:
    """Run a command; yield its output as it is written, and last a `Result`.

    A broken connection is made again where the last event ended. Closing the iterator leaves the run running.
    """
    return _follow_new(f"{base}/run", command, options)


def follow_exec(base: str, command: str | None = None, **options: Unpack[ExecOptions]) -> Following:
    """Run a command in a shell of its own; yield its output as it is written, and last a `Result`."""
    return _follow_new(f"{base}/exec", command, options)


def follow_known(
    base: str,
    run_id: str,
    *,
    cursor: int = 0,
    stderr_cursor: int = 0,
    format: FormatName | None = None,  # noqa: A002
    timeout: Duration | None = None,
    echo: bool = False,
) -> Following:
    """Yield the events of both streams from their cursors on, and last a `Result`: when the run has ended.

    With a `timeout`, the result may show the run `running`. With `echo`, what is typed meanwhile appears in the output.
    """
    cursors = {Stream.STDOUT: cursor, Stream.STDERR: stderr_cursor}
    path = f"{base}/{segment(run_id)}/output"
    return Following(path, None, cursors=cursors, format=format, timeout=timeout, on_input=None, echo=echo)


def _follow_new(path: str, command: str | None, options: RunOptions | ExecOptions) -> Following:
    call = run_call(path, command, {**options, "run_id": options.get("run_id") or new_key()})
    run_id: str = msgspec.json.decode(call.content or b"")["run_id"]
    return Following(
        f"/runs/{segment(run_id)}/output",
        call,
        cursors={Stream.STDOUT: 0, Stream.STDERR: 0},
        format=options.get("format"),
        timeout=options.get("timeout"),
        on_input=options.get("on_input") or "return",
    )


def _typed(raw: _Raw) -> Event | None:
    """Return an event as its type; None for kinds that a newer daemon may have."""
    try:
        if raw.name == "output":
            return msgspec.json.decode(raw.data, type=Output)
        if raw.name == "gap":
            return msgspec.json.decode(raw.data, type=Gap)
        if raw.name == "result":
            return Result(run=msgspec.json.decode(raw.data, type=RunResult))
    except msgspec.DecodeError as error:
        raise UnknownAnswer(f"The event {raw.name} is not what a daemon sends: {error}.") from None
    return None


def _no_result(answer: Answer) -> None:
    """An event stream has no result but its events."""
