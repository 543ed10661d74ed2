"""What happens in the daemon, for whoever looks after an agent: the last events, and those who read them.

Nothing is kept before the first one reads, nor long after the last one has gone: until then what happens costs a look
at an empty list. An event is written as JSON once, whoever reads it, and lies in one ring. A reader is a place in that
ring, so a slow one holds nothing. What is looked at in intervals (ports, resources) is looked at once for all readers,
and not kept: each reader is told what is new to it. Knows no HTTP.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from shelld_py.errors import Overloaded
from shelld_py.event_data import (
    EventType,
    FileEvent,
    LostEvent,
    PortEvent,
    ResourcesEvent,
    SessionEvent,
    ShellResources,
    StateEvent,
)
from shelld_py.files import ArchiveResult, ChangeResult, FileService
from shelld_py.linux.ports import ListeningPort, listening_ports
from shelld_py.models import RunResult, ShellState, as_json
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.registry import Shells
from shelld_py.shells.startup import ShellContext
from shelld_py.shells.supervision import ResourceMeter

_MOST_KEPT: Final = 1000
_RESUMABLE: Final = 300.0
"""Seconds for which events are kept when nobody reads: a proxy or a laptop that comes back does so sooner."""
_LONGEST_TEXT: Final = 4096
"""Characters of a command and its description that an event has: the ring is to stay small, whatever is run."""
_BATCH: Final = 32 * 1024
"""Bytes that a reader takes at a time: twice as much at the most waits in the connection of one that is slow."""
_RETRY_AFTER: Final = 0.5
"""Seconds after which the shells are looked at again where that could not be done."""


class Happening(NamedTuple):
    """One event: `data` as JSON, None of a snapshot, which whoever sends it makes. Without an id it is not kept."""

    type: EventType
    event_id: int | None
    data: bytes | None


class _Sample(NamedTuple):
    """What was seen of the shells at one moment."""

    ports: tuple[PortEvent, ...]
    resources: tuple[ShellResources, ...]


class Events:
    """The last events of shells and files, and who reads them. Belongs to an event loop."""

    def __init__(self, context: ShellContext, shells: Shells, files: FileService) -> None:
        self._context = context
        self._shells = shells
        self._files = files
        self._ring: deque[Happening] = deque(maxlen=_MOST_KEPT)
        self._last = 0
        self._recording = False
        self._readers: set[Reader] = set()
        self._stop: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._look_again = asyncio.Event()
        self._meters: dict[str, ResourceMeter] = {}

    def open(
        self,
        types: Collection[EventType] = (),
        *,
        after: int | None = None,
        ports: float | None = None,
        resources: float | None = None,
    ) -> "Reader":
        """Begin to read events of these types, all where none are named; `Reader.close` ends it.

        `after` is the id of the last event that the reader knows. `ports` and `resources` are how often they are
        looked at, in seconds; None for never.
        """
        self._begin()
        reader = Reader(self, types, after, {EventType.PORT_OPENED: ports, EventType.RESOURCES: resources})
        self._readers.add(reader)
        if ports is not None or resources is not None:
            self._look_again.set()
            self._looking = self._looking or asyncio.get_running_loop().create_task(self._look_on())
        return reader

    def close(self, reader: "Reader") -> None:
        """A reader has gone."""
        self._readers.discard(reader)
        if not self._readers and self._recording and self._stop is None:
            self._stop = asyncio.get_running_loop().call_later(_RESUMABLE, self._end)

    def end_readers(self) -> None:
        """Have all readers end, once they have read what there is."""
        for reader in self._readers:
            reader.end()

    def forget(self) -> None:
        """Keep nothing of what has happened: it is of no concern to the next client."""
        self.end_readers()
        self._end()

    @property
    def last(self) -> int:
        """The id of the last event."""
        return self._last

    def has(self, event_id: int) -> bool:
        """Whether all is kept that has come after the event of this id."""
        return self._recording and self._last - len(self._ring) <= event_id <= self._last

    def since(self, event_id: int) -> Iterator[Happening]:
        """Yield what has come after the event of this id."""
        return itertools.islice(self._ring, len(self._ring) - (self._last - event_id), None)

    # --- what happens ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Record from now on. Ids are microseconds to begin with, so they grow from one daemon to the next, too."""
        if self._stop:
            self._stop.cancel()
            self._stop = None
        if not self._recording:
            self._recording = True
            self._last = max(self._last + 1, time.time_ns() // 1000)
            for listeners, listener in self._sources():
                listeners.append(listener)

    def _end(self) -> None:
        self._stop = None
        if self._recording:
            self._recording = False
            self._ring.clear()
            for listeners, listener in self._sources():
                listeners.remove(listener)

    def _sources(self) -> tuple[tuple[list[Any], Any], ...]:
        context, shells = self._context, self._shells
        return (
            (context.on_run_started, self._run_started),
            (context.on_run_awaiting_input, self._run_awaiting_input),
            (context.on_run_warning, self._run_warning),
            (context.on_run_ended, self._run_ended),
            (context.on_state, self._state_changed),
            (shells.on_opened, self._session_opened),
            (shells.on_closed, self._session_closed),
            (self._files.on_change, self._file_changed),
        )

    def _add(self, kind: EventType, data: msgspec.Struct) -> None:
        self._last += 1
        self._ring.append(Happening(kind, self._last, as_json(data)))
        for reader in self._readers:
            reader.wake()

    def _run_started(self, run: LiveRun) -> None:
        self._add(EventType.RUN_STARTED, shortened(run.beginning()))

    def _run_awaiting_input(self, run: LiveRun) -> None:
        self._add(EventType.RUN_AWAITING_INPUT, shortened(run.result()))

    def _run_warning(self, run: LiveRun) -> None:
        self._add(EventType.RUN_WARNING, shortened(run.result()))

    def _run_ended(self, run: LiveRun) -> None:
        self._add(EventType.RUN_ENDED, shortened(run.result()))

    def _state_changed(self, session_id: str, state: ShellState, previous: ShellState) -> None:
        """Tell of the shells that are listed; that a session begins and ends is told by events of their own."""
        shells = self._shells
        shell = shells.find(session_id)
        begins = previous is ShellState.AVAILABLE and shell is not shells.main
        if shell and not begins and not shells.is_one_shot(shell):
            self._add(EventType.STATE, StateEvent(session_id=session_id, state=state, previous=previous))

    def _session_opened(self, session_id: str, reason: str) -> None:
        self._add(EventType.SESSION_OPENED, SessionEvent(session_id=session_id, reason=reason))

    def _session_closed(self, session_id: str, reason: str) -> None:
        self._add(EventType.SESSION_CLOSED, SessionEvent(session_id=session_id, reason=reason))

    def _file_changed(self, change: ChangeResult | ArchiveResult, by: str) -> None:
        if isinstance(change, ChangeResult):
            event = FileEvent(path=change.path, operation=change.operation, size=change.size, etag=change.etag, by=by)
        else:
            event = FileEvent(path=change.path, operation="unpack", size=change.bytes, etag=None, by=by)
        self._add(EventType.FILE_CHANGED, event)

    # --- what is looked at ----------------------------------------------------------------------------

    async def _look_on(self) -> None:
        """Look at the shells as often as a reader wants it, as long as there is one that does. One look is for all."""
        loop = asyncio.get_running_loop()
        try:
            while due := [when for reader in self._readers for when in reader.due.values()]:
                self._look_again.clear()
                if (left := min(due) - loop.time()) > 0:
                    timer = loop.call_later(left, self._look_again.set)
                    await self._look_again.wait()
                    timer.cancel()
                    continue
                now = loop.time()
                wanted = {kind for reader in self._readers for kind, when in reader.due.items() if when <= now}
                pids = {shell.session_id: shell.pid for shell in self._shells.all if shell.pid}
                try:
                    look = await asyncio.to_thread(self._look, pids, wanted)
                except (OSError, Overloaded):  # no descriptor, or no thread, is left just now
                    await asyncio.sleep(_RETRY_AFTER)
                    continue
                for reader in self._readers:
                    reader.see(look, now)
        finally:
            self._looking = None

    def _look(self, pids: Mapping[str, int], wanted: Collection[EventType]) -> _Sample:
        ports = dict[int, PortEvent]()
        if EventType.PORT_OPENED in wanted:
            for session_id, pid in pids.items():
                for found in listening_ports(pid):
                    ports.setdefault(found.port, _port_event(session_id, found))
        resources = []
        if EventType.RESOURCES in wanted:
            resources = [self._resources(session_id, pid) for session_id, pid in pids.items()]
            self._meters = {session_id: self._meters[session_id] for session_id in pids}
        return _Sample(tuple(ports.values()), tuple(resources))

    def _resources(self, session_id: str, pid: int) -> ShellResources:
        used = self._meters.setdefault(session_id, ResourceMeter()).read(pid)
        return ShellResources(session_id=session_id, **msgspec.structs.asdict(used))


class Reader:
    """One who reads events: a place in the ring, and what was seen since for this one."""

    def __init__(
        self,
        events: Events,
        types: Collection[EventType],
        after: int | None,
        intervals: Mapping[EventType, float | None],
    ) -> None:
        self._events = events
        self._types = frozenset(types or EventType)
        self._after = after
        self._place: int | None = None
        """The id of the last event that was passed; None before the first read, or where some were lost."""
        self._woken = asyncio.Event()
        self._over = False
        now = asyncio.get_running_loop().time()
        self._intervals = {kind: seconds for kind, seconds in intervals.items() if seconds is not None}
        self.due = dict.fromkeys(self._intervals, now)
        """When to look for this one next, by what at."""
        self._ports: dict[int, PortEvent] = {}
        """Those that this one was told of."""
        self._seen: dict[EventType, _Sample] = {}
        """What was seen and is not told yet."""

    def wake(self) -> None:
        """There is something new."""
        self._woken.set()

    def end(self) -> None:
        """There will be nothing new any more."""
        self._over = True
        self.due = {}
        self._woken.set()

    def see(self, look: _Sample, now: float) -> None:
        """Take what was looked at, where it was due; what was seen before and is not told is out of date."""
        for kind, when in self.due.items():
            if when <= now:
                self.due[kind] = now + self._intervals[kind]
                self._seen[kind] = look
                self._woken.set()

    async def read(self, timeout: float) -> list[Happening] | None:
        """Return what is new: nothing after `timeout` seconds, None when nothing more will come."""
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            if found := [*self._from_ring(), *self._from_looks()]:
                return found
            if self._over:
                return None
            self._woken.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._woken.wait()
            except TimeoutError:
                return []

    def close(self) -> None:
        """Read no more."""
        self._events.close(self)
        self.due = {}

    def _from_ring(self) -> list[Happening]:
        events, place = self._events, self._after if self._place is None else self._place
        if place is None or not events.has(place):
            self._place = events.last
            snapshot = Happening(EventType.SNAPSHOT, events.last, None)
            if place is None:
                return [snapshot] if EventType.SNAPSHOT in self._types else []
            return [Happening(EventType.GAP, None, as_json(LostEvent(after=place))), snapshot]
        found, size = [], 0
        for happening in events.since(place):
            place = happening.event_id or place
            if happening.type in self._types:
                found.append(happening)
                size += len(happening.data or b"")
                if size > _BATCH:
                    self._woken.set()
                    break
        self._place = place
        return found

    def _from_looks(self) -> list[Happening]:
        found: list[tuple[EventType, msgspec.Struct]] = []
        if look := self._seen.pop(EventType.PORT_OPENED, None):
            ports = {event.port: event for event in look.ports}
            found += [(EventType.PORT_CLOSED, self._ports[port]) for port in self._ports.keys() - ports.keys()]
            found += [(EventType.PORT_OPENED, ports[port]) for port in ports.keys() - self._ports.keys()]
            self._ports = ports
        if look := self._seen.pop(EventType.RESOURCES, None):
            found.append((EventType.RESOURCES, ResourcesEvent(shells=look.resources)))
        return [Happening(kind, None, as_json(data)) for kind, data in found if kind in self._types]


def shortened(result: RunResult) -> RunResult:
    """Return a result as an event has it: of a long command, or description, the beginning."""
    command, description = result.command, result.description or ""
    if len(command) <= _LONGEST_TEXT and len(description) <= _LONGEST_TEXT:
        return result
    told = description[:_LONGEST_TEXT] or None
    return msgspec.structs.replace(result, command=command[:_LONGEST_TEXT], description=told)


def _port_event(session_id: str, found: ListeningPort) -> PortEvent:
    return PortEvent(port=found.port, pid=found.pid, session_id=session_id)
