"""What each event of `GET /events` tells: data that travels, as in models.py."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from shelld_py.models import Resources, RunResult, SessionStatus, ShellState


class EventType(StrEnum):
    """What can happen."""

    SNAPSHOT = "snapshot"
    STATE = "state"
    RUN_STARTED = "run_started"
    RUN_AWAITING_INPUT = "run_awaiting_input"
    RUN_WARNING = "run_warning"
    RUN_ENDED = "run_ended"
    SESSION_OPENED = "session_opened"
    SESSION_CLOSED = "session_closed"
    FILE_CHANGED = "file_changed"
    PORT_OPENED = "port_opened"
    PORT_CLOSED = "port_closed"
    RESOURCES = "resources"
    GAP = "gap"


class SnapshotEvent(msgspec.Struct, frozen=True, kw_only=True):
    """How things are: the state of the main shell, all shells, and the runs that are going on, without output."""

    state: ShellState
    shells: tuple[SessionStatus, ...]
    runs: tuple[RunResult, ...]


class StateEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a shell has changed."""

    session_id: str
    state: ShellState
    previous: ShellState


class SessionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A session was opened, or has ended."""

    session_id: str
    reason: str


class FileEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A file was changed through the API: by a request for files, or by a tool."""

    path: str
    operation: str
    size: int
    etag: str | None
    by: str


class PortEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a shell listens on a TCP port, or does so no longer."""

    port: int
    pid: int
    session_id: str


class ShellResources(Resources, frozen=True, kw_only=True):
    """What a shell and all it started use; the CPU's share since the look before."""

    session_id: str


class ResourcesEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What all shells use just now."""

    shells: tuple[ShellResources, ...]


class LostEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Events were lost to this reader, all behind the one of the id `after`; a snapshot follows."""

    after: int


EVENT_DATA: Final[Mapping[EventType, type[msgspec.Struct]]] = {
    EventType.SNAPSHOT: SnapshotEvent,
    EventType.STATE: StateEvent,
    EventType.RUN_STARTED: RunResult,
    EventType.RUN_AWAITING_INPUT: RunResult,
    EventType.RUN_WARNING: RunResult,
    EventType.RUN_ENDED: RunResult,
    EventType.SESSION_OPENED: SessionEvent,
    EventType.SESSION_CLOSED: SessionEvent,
    EventType.FILE_CHANGED: FileEvent,
    EventType.PORT_OPENED: PortEvent,
    EventType.PORT_CLOSED: PortEvent,
    EventType.RESOURCES: ResourcesEvent,
    EventType.GAP: LostEvent,
}
"""What each event tells."""
