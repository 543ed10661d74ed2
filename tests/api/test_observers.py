"""Keys that only look: what they may, that they are no activity, and when they end."""

from collections.abc import Callable
from typing import Any

import pytest

from shelld_py.api.app import ENDPOINTS
from tests.api.test_daemon_events import reading
from tests.daemons import RunningDaemon, wait_for

LOOKS = {
    "read_output",
    "read_session_output",
    "get_status",
    "get_session_status",
    "list_sessions",
    "get_session",
    "list_runs",
    "get_run",
    "read_run_output",
    "wait_for_run",
    "read_screen",
    "read_session_screen",
    "read_run_screen",
    "read_run_recording",
    "view_directory",
    "list_file_changes",
    "read_file",
    "search_files",
    "find_files",
    "read_raw_file",
    "read_archive",
    "list_tools",
    "read_events",
    "get_metadata",
    "list_ports",
    "open_terminal",
    "open_session_terminal",
}
"""What may be asked for with such a key, by the names of the operations."""


@pytest.fixture
def observer(daemon: RunningDaemon) -> Any:
    """A new key for looking, with its id; it is withdrawn at the end of the test."""
    made = daemon.client.post("/observers", json={"expires": "1h", "description": "a test"})
    assert made.status_code == 201
    yield made.json()
    daemon.client.delete(f"/observers/{made.json()['observer_id']}")


def test_every_operation_that_does_not_only_look_is_refused(daemon: RunningDaemon, observer: dict[str, Any]) -> None:
    """Over all operations that need a key: nothing else than those that are listed here is let in."""
    daemon.run("true", run_id="looked-at")
    wrong = []
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("{run_id}", "looked-at").replace("{session_id}", "main")
        query = "?timeout=0" if path == "/events" else ""
        answer = daemon.ask(endpoint.method, path + query, key=observer["key"], headers={"Accept": "application/json"})
        refused = answer.status == 403 and b'"observer_key"' in answer.body
        looks = endpoint.public or endpoint.name in LOOKS
        if refused is looks or answer.status == 401:
            wrong.append((endpoint.name, answer.status))
    assert wrong == []
    for path in ("/socket.io/", "/mcp", "/nowhere"):
        assert daemon.ask("GET", path, key=observer["key"]).status == 403
    events = {"Accept": "text/event-stream"}
    assert daemon.ask("GET", "/runs/looked-at/output?echo=true", key=observer["key"], headers=events).status == 403


def test_such_keys_are_listed_without_the_key(daemon: RunningDaemon, observer: dict[str, Any]) -> None:
    listed = [each for each in daemon.json("GET", "/observers") if each["observer_id"] == observer["observer_id"]]
    assert [(each["description"], each["expires_at"]) for each in listed] == [("a test", observer["expires_at"])]
    assert observer["key"] not in daemon.client.get("/observers").text
    assert observer["key"] not in daemon.log.read_text()
    assert daemon.ask("GET", "/observers", key=observer["key"]).status == 403


def test_what_goes_on_ends_when_the_key_is_withdrawn(daemon: RunningDaemon, observer: dict[str, Any]) -> None:
    """Its streams are cut off at once, and it is no key any more; the owner's go on."""
    with reading(daemon) as own, reading(daemon, key=observer["key"]) as stream:
        stream.until("snapshot")
        assert daemon.client.delete(f"/observers/{observer['observer_id']}").status_code == 200
        with pytest.raises(Exception, match=r"peer closed|incomplete"):
            list(stream.events)
        daemon.run("true")
        own.until("run_ended")
    assert daemon.ask("GET", "/status", key=observer["key"]).status == 401
    assert daemon.client.delete(f"/observers/{observer['observer_id']}").status_code == 404


def test_it_ends_by_itself(daemon: RunningDaemon) -> None:
    key = daemon.json("POST", "/observers", json={"expires": "300ms"})["key"]
    with reading(daemon, key=key) as stream, pytest.raises(Exception, match=r"peer closed|incomplete"):
        list(stream.events)
    assert wait_for(lambda: daemon.ask("GET", "/status", key=key).status == 401)


@pytest.mark.parametrize("body", [{"expires": 0}, {"expires": "soon"}, {"expires": "9999h"}, {"expire": "1h"}])
def test_what_it_cannot_be_is_refused(daemon: RunningDaemon, body: dict[str, Any]) -> None:
    assert daemon.client.post("/observers", json=body).status_code == 400


def test_it_is_no_activity_and_ends_with_the_lock(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Looking does not touch the idle time of the daemon or of a session; a recycle takes the key with it."""
    daemon = start_daemon(key=None, timeout__session_idle="1s")
    key = daemon.json("POST", "/observers")["key"]
    session_id = daemon.json("POST", "/sessions")["session_id"]
    assert daemon.ask("GET", f"/sessions/{session_id}", key=key).status == 200
    wait_for(lambda: daemon.ask("GET", f"/sessions/{session_id}", key=key).status == 404)
    assert daemon.client.post("/shutdown?recycle=true").status_code == 200
    assert daemon.ask("GET", "/status", key=key).status == 401, "it locks nothing, when it has ended neither"
    assert daemon.ask("GET", "/status", key="another").status == 200
    assert daemon.ask("GET", "/status", key=key).status == 401
