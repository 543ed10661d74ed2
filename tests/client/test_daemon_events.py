"""What happens in the daemon, for both clients: typed events, that go on over broken connections."""

from contextlib import closing
from typing import Any

import pytest

from shelld_py.client import DaemonEvent, Retries
from shelld_py.client.events import FollowingDaemon, follow_daemon
from shelld_py.errors import InvalidRequest
from shelld_py.event_data import EventType, FileEvent, LostEvent, ResourcesEvent, SnapshotEvent, StateEvent
from shelld_py.models import RunResult, ShellState
from tests.client.proxies import proxy
from tests.daemons import RunningDaemon

QUICK = Retries(most=3, first=0.01)


def _until(events: Any, kind: EventType) -> DaemonEvent:
    """Return the next event of a kind."""
    return next(event for event in events if event.type is kind)


def test_what_happens_is_told_as_data(client: Any) -> None:
    with closing(client.events()) as events:
        first = next(events)
        assert isinstance(first.data, SnapshotEvent)
        assert (first.type, first.data.state, first.data.shells[0].session_id) == ("snapshot", "ready", "main")
        run_id = client.run("sleep 0.05", description="a test").run_id
        seen = [next(events) for _ in range(4)]
        assert [event.type for event in seen] == ["state", "run_started", "state", "run_ended"]
        assert [event.event_id for event in seen] == [first.event_id + number for number in range(1, 5)]
        assert seen[0].data == StateEvent(session_id="main", state=ShellState.BUSY, previous=ShellState.READY)
        assert isinstance(seen[3].data, RunResult)
        assert (seen[3].data.run_id, seen[3].data.exit_code, seen[3].data.description) == (run_id, 0, "a test")


def test_only_what_is_chosen_comes(client: Any) -> None:
    with closing(client.events(types=[EventType.SNAPSHOT, "file_changed"])) as events:
        assert next(events).type is EventType.SNAPSHOT
        client.run("true")
        path = client.files.create("chosen ä\n.txt", "text").path
        client.files.delete(path)
        changes = [next(events).data for _ in range(2)]
    assert [(change.path, change.operation, change.by) for change in changes] == [
        (path, "create", "files"),
        (path, "delete", "files"),
    ]
    assert [event.type for event in client.events(types="snapshot", timeout=0)] == [EventType.SNAPSHOT]
    with pytest.raises(InvalidRequest):
        next(client.events(types=["run_end"]))


def test_what_is_looked_at(client: Any) -> None:
    with closing(client.events(types="resources", resources="100ms")) as events:
        first, second = next(events), next(events)
    assert isinstance(first.data, ResourcesEvent)
    assert (first.event_id, second.data.shells[0].session_id) == (None, "main")


def test_it_goes_on_over_broken_connections(connect: Any, daemon: RunningDaemon, client: Any) -> None:
    """Nothing is lost and nothing comes twice, however often the connection breaks, and in the middle of an event."""
    with proxy(daemon.url, 3000, 400, 500, 1000, 700) as broken:
        events = connect(broken.url, retries=QUICK).events(types=["snapshot", "run_ended"])
        assert next(events).type is EventType.SNAPSHOT
        runs = [client.run("true").run_id for _ in range(12)]
        assert [next(events).data.run_id for _ in runs] == runs
        events.close()
        assert broken.connections > 3


def test_who_comes_back_has_what_was_missed(client: Any) -> None:
    with closing(client.events()) as events:
        last = next(events).event_id
    run_id = client.run("true").run_id
    with closing(client.events(last_event_id=last)) as events:
        assert _until(events, EventType.RUN_ENDED).data.run_id == run_id
    with closing(client.events(last_event_id=1)) as events:
        gap = next(events)
        assert (gap.type, gap.event_id, gap.data) == (EventType.GAP, None, LostEvent(after=1))
        assert next(events).type is EventType.SNAPSHOT


def test_it_ends_with_the_time_and_with_the_daemon(connect: Any, start_daemon: Any) -> None:
    """And is not begun again: the key could become that of another client."""
    daemon = start_daemon(key=None)
    client = connect(daemon.url, retries=QUICK)
    assert [event.type for event in client.events(timeout=0.05)] == [EventType.SNAPSHOT]
    events = client.events()
    assert next(events).type is EventType.SNAPSHOT
    client.shutdown(recycle=True)
    assert not [event for event in events if event.type is EventType.SNAPSHOT]
    assert daemon.ask("GET", "/status", key="another").status == 200


def _fed(content: bytes) -> tuple[FollowingDaemon, list[DaemonEvent]]:
    following = follow_daemon("")
    return following, list(following.feed(content))


def test_the_id_of_the_last_event_is_where_to_go_on() -> None:
    """Comments, events without an id and kinds that a newer daemon may have are no reason to go back."""
    changed = b'{"path":"/a","operation":"create","size":1,"etag":null,"by":"files"}'
    following, events = _fed(
        b"event: file_changed\nid: 7\ndata: " + changed + b"\n\n:\n\nevent: news\nid: 9\ndata: {}\n\n"
        b'event: resources\ndata: {"shells":[]}\n\nevent: file_changed\nid: 8\ndata: {"pa'
    )
    assert [(event.event_id, type(event.data)) for event in events] == [(7, FileEvent), (None, ResourcesEvent)]
    assert following.call().headers == {"Last-Event-ID": "7"}
    assert not following.done
    following.closed()
    assert following.done
