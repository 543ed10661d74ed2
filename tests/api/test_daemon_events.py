"""What happens in the daemon as one stream: what is told, to whom, and what a reader who was away gets."""

import contextlib
import itertools
import json
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.conftest import Gate
from tests.daemons import KEY, PATIENCE, RunningDaemon, wait_for

Happening = tuple[str, int | None, dict[str, Any]]


class Stream:
    """A stream of events that is being read."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.events = self._read()

    def _read(self) -> Iterator[Happening]:
        fields: dict[str, str] = {}
        for line in self.answer.iter_lines():
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
            elif "event" in fields:
                event_id = int(fields["id"]) if "id" in fields else None
                yield fields["event"], event_id, json.loads(fields["data"])
                fields = {}
            else:
                fields = {}

    def until(self, kind: str, **members: Any) -> list[Happening]:
        """Read on to an event of this kind with these members; return all up to it."""
        seen = []
        for event in self.events:
            seen.append(event)
            if event[0] == kind and members.items() <= event[2].items():
                return seen
        raise AssertionError(f"no {kind} {members} in {seen}")


@contextlib.contextmanager
def reading(daemon: RunningDaemon, query: str = "", after: int | None = None, key: str = KEY) -> Iterator[Stream]:
    """Read the events on a connection of their own."""
    headers = {"X-Shell-Key": key} | ({} if after is None else {"Last-Event-ID": str(after)})
    with (
        httpx.Client(base_url=daemon.url, headers=headers, timeout=PATIENCE, verify=False) as client,
        client.stream("GET", f"/events{query}") as answer,
    ):
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer)


def kinds(events: list[Happening]) -> list[str]:
    return [kind for kind, _, _ in events]


def test_a_run_is_told_from_its_beginning_to_its_end(daemon: RunningDaemon) -> None:
    """First how things are; then the state and the run, in the order in which they happened, without output."""
    with reading(daemon) as stream:
        (first,) = stream.until("snapshot")
        assert first[2]["state"] == "ready"
        assert [shell["session_id"] for shell in first[2]["shells"]] == ["main"]
        assert first[2]["runs"] == []
        ended = daemon.run("echo hello; (exit 3)")
        seen = stream.until("run_ended")
    assert kinds(seen) == ["state", "run_started", "state", "run_ended"]
    started, last = (next(data for kind, _, data in seen if kind == f"run_{what}") for what in ("started", "ended"))
    assert (started["run_id"], started["status"], started["state"]) == (ended["run_id"], "running", "busy")
    assert {**last, "stdout": ended["stdout"], "stderr": ended["stderr"]} == ended
    ids = [event_id for _, event_id, _ in seen]
    assert ids == list(range(ids[0], ids[0] + len(ids)))


def test_waiting_for_input_is_told(daemon: RunningDaemon, gate: Gate) -> None:
    """Each time that the command is seen to wait; what goes on already stands in the snapshot."""
    run_id = daemon.start("read -r one; read -r two")
    with reading(daemon, "?types=snapshot,run_awaiting_input,run_ended") as stream:
        assert [run["run_id"] for run in stream.until("snapshot")[0][2]["runs"]] == [run_id]
        for _ in range(2):
            assert stream.until("run_awaiting_input")[-1][2]["awaiting_input"] is True
            daemon.client.post("/stdin", content=b"line\n")
        assert kinds(stream.until("run_ended", run_id=run_id)) == ["run_ended"]


def test_sessions_are_told(daemon: RunningDaemon) -> None:
    with reading(daemon, "?types=session_opened&types=session_closed,state") as stream:
        session_id = daemon.json("POST", "/sessions")["session_id"]
        assert kinds(stream.until("session_opened", session_id=session_id)) == ["session_opened"]
        daemon.client.post(f"/sessions/{session_id}/run", content=b"true")
        daemon.client.delete(f"/sessions/{session_id}")
        seen = stream.until("session_closed", session_id=session_id)
    assert kinds(seen) == ["state", "state", "session_closed"]
    assert seen[-1][2]["reason"] == "The session was closed."


def test_changes_of_files_are_told_with_who_made_them(daemon: RunningDaemon) -> None:
    """Those of the API: of requests for files, raw ones and archives among them, and of tools."""
    with reading(daemon, "?types=file_changed") as stream:
        created = daemon.json("POST", "/files/create", json={"path": "told.txt", "content": "one\n"})
        daemon.client.post("/files/read", json={"path": "told.txt"})
        daemon.client.put("/files/raw?path=told.txt", content=b"two")
        daemon.client.post("/tools/delete", json={"path": "told.txt"})
        daemon.client.put("/files/archive?path=told.d&format=tar", content=bytes(1024))
        seen = [data for _, _, data in stream.until("file_changed", operation="unpack")]
    assert seen[0] == {
        "path": created["path"], "operation": "create", "size": 4, "etag": created["etag"], "by": "files",
    }  # fmt: skip
    assert [(each["operation"], each["by"]) for each in seen[1:]] == [
        ("write", "files"),
        ("delete", "tools"),
        ("unpack", "files"),
    ]


def test_a_reader_goes_on_where_it_was(daemon: RunningDaemon) -> None:
    """With the id of the last event it gets all that came behind that, and no snapshot."""
    with reading(daemon) as stream:
        daemon.run("true")
        last = stream.until("run_ended")[-1][1]
    results = [daemon.run("true")["run_id"] for _ in range(3)]
    with reading(daemon, after=last) as stream:
        seen = stream.until("run_ended", run_id=results[-1])
    assert seen[0][1] == (last or 0) + 1
    assert [data["run_id"] for kind, _, data in seen if kind == "run_ended"] == results
    assert not {"snapshot", "gap"} & set(kinds(seen))


@pytest.mark.parametrize("after", [0, 10**18 - 1])
def test_what_is_not_kept_is_a_gap(daemon: RunningDaemon, after: int) -> None:
    """Of an id that is too old, or of no event at all; a snapshot follows, whatever types are wanted."""
    with reading(daemon, "?types=state", after=after) as stream:
        seen = stream.until("snapshot")
    assert [(kind, data) for kind, _, data in seen[:-1]] == [("gap", {"after": after})]


def test_a_daemon_that_comes_after_is_a_gap(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Ids grow from one daemon to the next: none of the one before is taken for one of its own."""
    daemon = start_daemon()
    with reading(daemon) as stream:
        last = stream.until("snapshot")[-1][1]
    daemon.stop()
    with reading(start_daemon(), after=last) as stream:
        seen = stream.until("snapshot")
    assert kinds(seen) == ["gap", "snapshot"]
    assert (seen[-1][1] or 0) > (last or 0)


def test_a_hundred_readers_are_told_the_same(daemon: RunningDaemon) -> None:
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(reading(daemon, "?types=snapshot,run_ended")) for _ in range(100)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda stream: stream.until("snapshot"), streams))
            run_id = daemon.run("true")["run_id"]
            last = list(threads.map(lambda stream: stream.until("run_ended")[-1], streams))
    assert {(event_id, data["run_id"]) for _, event_id, data in last} == {(last[0][1], run_id)}


def test_a_reader_that_does_not_read_holds_nothing_up(daemon: RunningDaemon) -> None:
    """Runs go on, a thousand events are kept for all, and what it has missed is a gap when it reads again."""
    host, port = httpx.URL(daemon.url).host, httpx.URL(daemon.url).port
    with reading(daemon) as stream:
        first = stream.until("snapshot")[-1][1] or 0
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, port))
        slow.settimeout(PATIENCE)
        slow.sendall(f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\nX-Shell-Key: {KEY}\r\n\r\n".encode())
        slow.recv(1)
        long = (": " + "\U0001f600" * 5000).encode()  # 32 KB of events each time: the kernel holds some megabytes
        for _ in range(400):
            daemon.client.post("/run", content=long)
        with reading(daemon, after=first) as stream:
            assert kinds(stream.until("snapshot")) == ["gap", "snapshot"]
        with reading(daemon, after=first + 620) as stream:
            _, event_id, _ = next(stream.events)
            assert event_id == first + 621
        content = b""
        while b"event: gap" not in content:
            content = content[-100:] + slow.recv(65536)


def test_open_ports_are_told_to_who_asks(daemon: RunningDaemon) -> None:
    """Those that are open already, which are listed as well, and each change; nobody else hears of them."""
    server = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    run_id = daemon.start(f'python3 -c "{server}"')
    port = int(wait_for(lambda: daemon.client.get(f"/runs/{run_id}/output", headers={"Accept": "text/plain"}).text))
    with reading(daemon, "?ports=100ms&types=port_opened,port_closed") as stream:
        opened = stream.until("port_opened")[-1]
        (listed,) = daemon.json("GET", "/ports")
        assert (listed["port"], listed["address"], listed["session_id"]) == (port, "127.0.0.1", "main")
        assert (listed["pid"], listed["run_id"]) == (opened[2]["pid"], run_id)
        assert "socket.create_server" in listed["command"]
        assert (opened[1], opened[2]["port"], opened[2]["session_id"]) == (None, port, "main")
        daemon.client.post("/stdin", content=b"\n")
        assert stream.until("port_closed")[-1][2] == opened[2]


def test_a_reader_is_told_again_when_there_are_descriptors_again(daemon: RunningDaemon) -> None:
    """Where none is left, the shells cannot be looked at; that is no end of it."""
    pid, address = daemon.process.pid, urlsplit(daemon.url)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    ask = f"GET /events?resources=100ms&types=resources HTTP/1.0\r\nHost: localhost\r\nX-Shell-Key: {KEY}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as raw:
        raw.sendall(ask.encode())
        read_to(raw, b"event: resources")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            while select.select([raw], [], [], 0.3)[0]:
                assert raw.recv(65536)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        read_to(raw, b"event: resources")


def read_to(connection: socket.socket, mark: bytes) -> None:
    """Read until this has come."""
    seen = b""
    while mark not in seen:
        data = connection.recv(65536)
        assert data, seen
        seen += data


def test_resources_are_told_to_who_asks(daemon: RunningDaemon) -> None:
    with reading(daemon, "?resources=100ms&types=resources") as stream:
        looks = [data["shells"] for _, _, data in itertools.islice(stream.events, 3)]
    (main,) = looks[-1]
    assert main["session_id"] == "main"
    assert main["memory_mb"] > 0
    assert main["processes"] >= 1


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?types=state,run_end", "Do you mean run_ended?"),
        ("?ports=1ms", "at least 100ms"),
        ("?resources=soon", "resources"),
        ("?port=1s", "Do you mean ports?"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(daemon: RunningDaemon, query: str, said: str) -> None:
    answer = daemon.client.get(f"/events{query}")
    assert answer.status_code == 400
    assert said in answer.json()["detail"]


def test_they_end_after_a_timeout(daemon: RunningDaemon) -> None:
    with reading(daemon, "?timeout=200ms") as stream:
        assert kinds(list(stream.events)) == ["snapshot"]
    assert daemon.client.head("/events").status_code == 200


def test_readers_hold_up_neither_idle_timer_nor_shutdown(start_daemon: Callable[..., RunningDaemon]) -> None:
    """The daemon ends for want of requests while they read, and they are told what happens until then."""
    daemon = start_daemon(timeout__idle="1.5s")
    daemon.client.post("/startup")
    with reading(daemon) as stream:
        stream.until("snapshot")
        started = time.monotonic()
        assert kinds(list(stream.events)) == ["state"]
        assert time.monotonic() - started < 20
    assert daemon.process.wait(PATIENCE) == 0


def test_the_next_client_learns_nothing_of_the_one_before(start_daemon: Callable[..., RunningDaemon]) -> None:
    """A recycle ends the readers, and what was kept is forgotten."""
    daemon = start_daemon(key=None)
    with reading(daemon) as stream:
        last = stream.until("snapshot")[-1][1]
        daemon.client.post("/startup")
        daemon.run("echo secret")
        started = time.monotonic()
        assert daemon.client.post("/shutdown?recycle=true").status_code == 200
        assert kinds(list(stream.events))[-1] == "state"
        assert time.monotonic() - started < 20
    with reading(daemon, after=last) as stream:
        assert kinds(stream.until("snapshot")) == ["gap", "snapshot"]
