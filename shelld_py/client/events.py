"""Output as it is written, and what happens: server-sent events to typed events, over as many connections as it takes.

No I/O: a `Following` says which request is next, takes the bytes of its answer, and remembers how far it has come. Of
output the daemon goes on exactly there: an event's cursor is the place behind its text, and a text that is asked for
from a cursor continues the line that was begun before it. Of what happens, the id of the last event says where.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, Unpack

import msgspec

from shelld_py.client.call import Answer, Call, Duration, T, new_key, parameters, seconds, segment
from shelld_py.client.failures import UnknownAnswer
from shelld_py.client.run_requests import ExecOptions, FormatName, RunOptions, run_call
from shelld_py.event_data import (
    EVENT_DATA,
    EventType,
    FileEvent,
    LostEvent,
    PortEvent,
    ResourcesEvent,
    SessionEvent,
    SnapshotEvent,
    StateEvent,
)
from shelld_py.models import GapEvent, OutputEvent, RunResult, Stream

EVENTS_TYPE: Final = "text/event-stream"
_LONGEST_SILENCE: Final = 60.0
"""Seconds without a byte after which a connection for what happens is made again: the daemon says something each 15."""


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


class DaemonEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something has happened. `type` says what, and so which kind `data` is; `event_id` is where to go on.

    Ports and resources, which the daemon looks at and does not keep, have no id.
    """

    type: EventType
    event_id: int | None
    data: SnapshotEvent | StateEvent | RunResult | SessionEvent | FileEvent | PortEvent | ResourcesEvent | LostEvent


class _Parser:
    """The lines of an event stream (WHATWG HTML, 9.2.6), as far as the daemon uses them."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._id = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str, str]]:
        """Take the next bytes, cut anywhere; yield name, data and id of the events that they complete."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").decode("utf-8", "replace").partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._name = value
            elif name == "id":
                self._id = value
            elif name == "data":
                self._data.append(value)
            elif not name and not value and not line.startswith(b":"):
                if self._data:
                    yield self._name, "\n".join(self._data), self._id
                self._name, self._data, self._id = "", [], ""


class Following(ABC, Generic[T]):
    """Events of one kind, over as many connections as it takes, until `timeout` from now."""

    def __init__(self, path: str, timeout: Duration | None) -> None:
        """`path` is where they are told."""
        self.done = False
        """Whether there will be no more."""
        self._path = path
        self._timeout = timeout
        limit = seconds(timeout)
        self._deadline = None if limit is None else time.monotonic() + limit
        self._parser = _Parser()

    @property
    def _left(self) -> Duration | None:
        """What is left of the time; as it was given where it is the daemon that refuses it."""
        return self._timeout if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @abstractmethod
    def call(self) -> Call[Any]:
        """Return the request for all that is missing."""

    def opened(self) -> None:
        """Take note that the daemon has answered: what is fed next is the beginning of its answer."""
        self._parser = _Parser()

    def feed(self, chunk: bytes) -> Iterator[T]:
        """Take bytes of the answer; yield the events that they complete."""
        for name, data, event_id in self._parser.feed(chunk):
            if (event := self._read(name, data, event_id)) is not None:
                yield event

    @abstractmethod
    def _read(self, name: str, data: str, event_id: str, /) -> T | None:
        """Take note of an event, and return it; None for kinds that a newer daemon may have."""

    def closed(self) -> None:
        """Take note that the daemon has ended its answer."""


class FollowingRun(Following[Event]):
    """The events of one run."""

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
    ) -> None:
        """`path` is where the output is read on, `start` the request that starts the run, None for one that is known.

        `cursors` says where to begin with each stream.
        """
        super().__init__(path, timeout)
        self._start = start
        self._cursors = cursors
        self._format = format
        self._on_input = on_input
        self._echo = echo

    def call(self) -> Call[Any]:
        """Return the request that starts the run, once that is done those that read on."""
        if self._start is not None:
            return self._start
        params = parameters(
            cursor=self._cursors[Stream.STDOUT],
            stderr_cursor=self._cursors[Stream.STDERR],
            format=self._format,
            timeout=self._left,
            on_input=self._on_input,
            echo=self._echo or None,
        )
        return Call(method="GET", path=self._path, parse=_no_result, params=params, wait=seconds(self._left))

    def opened(self) -> None:
        """The daemon has answered: the run is started."""
        super().opened()
        self._start = None

    def _read(self, name: str, data: str, _: str, /) -> Event | None:
        if name == "result":
            self.done = True
            return Result(run=_decoded(name, data, RunResult))
        if name not in ("output", "gap"):
            return None
        event: Output | Gap = _decoded(name, data, Output) if name == "output" else _decoded(name, data, Gap)
        self._cursors[event.stream] = event.cursor + (event.dropped if isinstance(event, Gap) else 0)
        return event


class FollowingDaemon(Following[DaemonEvent]):
    """What happens in the daemon."""

    def __init__(self, path: str, *, last_event_id: int | None, timeout: Duration | None, **params: object) -> None:
        """`path` is where it is told, `params` go to the query string."""
        super().__init__(path, timeout)
        self._params = params
        self._last_event_id = last_event_id

    def call(self) -> Call[Any]:
        """Return the request for what comes after the last event."""
        headers = {} if self._last_event_id is None else {"Last-Event-ID": str(self._last_event_id)}
        params = parameters(timeout=self._left, **self._params)
        return Call(
            method="GET", path=self._path, parse=_no_result, params=params, headers=headers, wait=_LONGEST_SILENCE
        )

    def _read(self, name: str, data: str, event_id: str, /) -> DaemonEvent | None:
        if name not in tuple(EventType):
            return None
        kind = EventType(name)
        number = int(event_id) if event_id.isascii() and event_id.isdecimal() else None
        event = DaemonEvent(type=kind, event_id=number, data=_decoded(name, data, EVENT_DATA[kind]))
        self._last_event_id = self._last_event_id if number is None else number
        return event

    def closed(self) -> None:
        """The daemon has ended its answer: the time is over, or the daemon, or the key is good no longer."""
        self.done = True


def follow_daemon(
    base: str,
    *,
    types: EventType | str | Iterable[EventType | str] = (),
    ports: Duration | None = None,
    resources: Duration | None = None,
    timeout: Duration | None = None,
    last_event_id: int | None = None,
) -> FollowingDaemon:
    """Yield what happens in the daemon: of these `types`, all by default; first a snapshot.

    `ports` and `resources` are how often to look at those. A broken connection is made again behind the last event;
    with `last_event_id`, the first one begins there. Where events were lost, there is a `gap`, and then a snapshot. It
    ends after `timeout`, and where the daemon ends it: with itself, or with the lock.
    """
    return FollowingDaemon(
        f"{base}/events",
        last_event_id=last_event_id,
        timeout=timeout,
        types=(types if isinstance(types, str) else ",".join(types)) or None,
        ports=ports,
        resources=resources,
    )


def follow_run(base: str, command: str | None = None, **options: Unpack[RunOptions]) -> FollowingRun:
    """Run a command; yield its output as it is written, and last a `Result`.

    A broken connection is made again where the last event ended. Closing the iterator leaves the run running.
    """
    return _follow_new(f"{base}/run", command, options)


def follow_exec(base: str, command: str | None = None, **options: Unpack[ExecOptions]) -> FollowingRun:
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
) -> FollowingRun:
    """Yield the events of both streams from their cursors on, and last a `Result`: when the run has ended.

    With a `timeout`, the result may show the run `running`. With `echo`, what is typed meanwhile appears in the output.
    """
    cursors = {Stream.STDOUT: cursor, Stream.STDERR: stderr_cursor}
    path = f"{base}/{segment(run_id)}/output"
    return FollowingRun(path, None, cursors=cursors, format=format, timeout=timeout, on_input=None, echo=echo)


def _follow_new(path: str, command: str | None, options: RunOptions | ExecOptions) -> FollowingRun:
    run_id = options.get("run_id") or new_key()
    call = run_call(path, command, {**options, "run_id": run_id})
    return FollowingRun(
        f"/runs/{segment(run_id)}/output",
        call,
        cursors={Stream.STDOUT: 0, Stream.STDERR: 0},
        format=options.get("format"),
        timeout=options.get("timeout"),
        on_input=options.get("on_input") or "return",
    )


def _decoded(name: str, data: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise UnknownAnswer(f"The event {name} is not what a daemon sends: {error}.") from None


def _no_result(answer: Answer) -> None:
    """An event stream has no result but its events."""
