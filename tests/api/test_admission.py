"""Whom a request belongs to: the key that it was admitted with, until its end and no longer."""

import contextlib
import json
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shelld_py.linux.processes import process_stat
from tests.daemons import KEY, RunningDaemon, ask, running_daemon, wait_for

OLD, NEW = "the-client-before", "the-next-client"


class Raw:
    """A connection on which a test writes what it likes."""

    def __init__(self, daemon: RunningDaemon) -> None:
        address = urlsplit(daemon.url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=60)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, text: str | bytes) -> None:
        """Send bytes; a connection that the daemon has closed takes them as well."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(text.encode() if isinstance(text, str) else text)

    def pause(self, seconds: float) -> None:
        """Let so much time pass, in which the daemon says nothing."""
        assert select.select([self.socket], [], [], seconds)[0] == []

    def rest(self) -> bytes:
        """Return all that comes until the daemon closes the connection."""
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(65536):
                received += data
        return received


def head(method: str, path: str, length: int | None, key: str | None = OLD, **fields: str) -> str:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"X-Shell-Key: {key}"] if key else []
    lines += ["Transfer-Encoding: chunked"] if length is None else [f"Content-Length: {length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join(lines) + "\r\n\r\n"


def bodies(marker: Path) -> dict[tuple[str, str], str]:
    """Every request that takes a body and would leave `marker`, or another trace, behind."""
    touch = f"touch {marker}"
    command, path, text = json.dumps({"command": touch}), str(marker), json.dumps({"text": "x"})
    event = {"event_type": "bash", "data": {"command": touch}, "request_id": "r"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "bash", "arguments": {}}}
    create = json.dumps({"path": path, "content": "x"})
    return {
        ("POST", "/run"): command,
        ("POST", "/exec"): command,
        ("POST", "/startup"): "{}" + " " * 20,
        ("POST", "/sessions"): "{}" + " " * 20,
        ("POST", "/stdin"): text,
        ("POST", "/resize"): json.dumps({"rows": 10, "cols": 10}),
        ("POST", "/files/create"): create,
        ("POST", "/files/replace"): json.dumps({"path": path, "old_string": "a", "new_string": "b"}),
        ("PUT", f"/files/raw?path={marker}"): "content of the file",
        ("POST", "/tools/bash"): command,
        ("POST", "/tools/create"): create,
        ("POST", "/events"): json.dumps(event),
        ("POST", "/mcp"): json.dumps(call),
    }


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("extra", [{}, {"Idempotency_Key": "once"}], ids=["plain", "repeatable"])
def test_half_a_body_is_not_carried_over_to_the_next_client(
    start_daemon: Callable[..., RunningDaemon], tmp_path: Path, chunked: bool, extra: dict[str, str]
) -> None:
    """Requests whose bodies come half before a recycle and half after it are refused, and nothing of them is done."""
    daemon = start_daemon(key=None, server__mcp="true", files__allowed_directories="[]")
    work = daemon.data.parent / "work"
    with ExitStack() as stack:
        held: list[tuple[Raw, str, bool]] = []
        for number, ((method, path), body) in enumerate(bodies(work / "marker").items()):
            raw = stack.enter_context(Raw(daemon))
            fields = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **extra}
            if extra:
                fields["Idempotency_Key"] = str(number)
            raw.send(head(method, path, None if chunked else len(body), **fields))
            half = len(body) // 2
            raw.send(f"{half:x}\r\n{body[:half]}\r\n" if chunked else body[:half])
            held.append((raw, body[half:], chunked))
        wait_for(lambda: daemon.ask("GET", "/status", key=OLD).status == 200)
        assert daemon.ask("POST", "/shutdown?recycle=true", key=OLD).body == b"available"
        assert daemon.ask("POST", "/startup", key=NEW).body == b"ready"
        for raw, rest, in_chunks in held:
            raw.send(f"{len(rest):x}\r\n{rest}\r\n0\r\n\r\n" if in_chunks else rest)
            answer = raw.rest()
            assert b" 503 " in answer.split(b"\r\n")[0] + b" ", answer
    assert list(work.iterdir()) == []
    status = json.loads(daemon.ask("GET", "/status", key=NEW, headers={"Accept": "application/json"}).body)
    assert (status["state"], status["sessions"], status["last_run_id"]) == ("ready", 0, None)
    assert json.loads(daemon.ask("GET", "/runs", key=NEW).body) == []


def test_whatever_is_going_on_ends_with_its_key(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Waits, streams and clients that do not read are over when the next key can lock."""
    daemon = start_daemon(key=None)
    assert daemon.ask("POST", "/startup", key=OLD).body == b"ready"
    run = json.loads(daemon.ask("POST", "/run", body="sleep 600", key=OLD, headers={
        "X-Command-Timeout": "0", "Accept": "application/json"}).body)["run_id"]  # fmt: skip
    flood = json.loads(daemon.ask("POST", "/exec", body="yes", key=OLD, headers={"X-Command-Timeout": "0"}).body)
    paths = [
        f"/runs/{run}/wait?timeout=600",
        f"/runs/{run}/output?wait=600s&cursor=0",
        f"/runs/{run}/wait?until=output:never&timeout=600",
    ]
    with ExitStack() as stack:
        waiting = [stack.enter_context(Raw(daemon)) for _ in paths]
        for raw, path in zip(waiting, paths, strict=True):
            raw.send(head("GET", path, 0))
        wait_for(lambda: json.loads(daemon.ask("GET", f"/runs/{flood['run_id']}", key=OLD).body)["cursor"] > 16 << 20)
        deaf = stack.enter_context(Raw(daemon))
        deaf.send(head("GET", f"/runs/{flood['run_id']}/output", 0, Accept="text/event-stream"))
        assert deaf.socket.recv(1) == b"H"
        assert daemon.ask("POST", "/shutdown?recycle=true", key=OLD).body == b"available"
        assert daemon.ask("GET", "/status", key=NEW).body == b"available"
        for raw in waiting:
            raw.send(head("GET", "/status", 0))
            raw.send(head("GET", "/status", 0, key=None, Connection="close"))
            assert b"401 Unauthorized" in raw.rest()
        assert b"event: result" not in deaf.rest()


@pytest.mark.parametrize("name", ["X-Shell-Key", "Authorization"])
def test_trailer_fields_are_no_headers(start_daemon: Callable[..., RunningDaemon], name: str) -> None:
    """A key behind the body is none, even where it comes in the same packet."""
    daemon = start_daemon(key=OLD)
    value = OLD if name == "X-Shell-Key" else f"Bearer {OLD}"
    with Raw(daemon) as raw:
        raw.send(head("POST", "/startup", None, key=None, Trailer=name) + f"0\r\n{name}: {value}\r\n\r\n")
        assert raw.socket.recv(65536).startswith(b"HTTP/1.1 401 ")
    with Raw(daemon) as raw:
        raw.send(head("POST", "/startup", None, Connection="close") + "2\r\n{}\r\n0\r\nContent-Type: x\r\n\r\n")
        assert raw.rest().endswith(b"ready")


@pytest.mark.parametrize("sent", ["X: y\r\n", "x", "X: "], ids=["many fields", "a long name", "a long value"])
def test_trailer_fields_have_a_bound(daemon: RunningDaemon, sent: str) -> None:
    """They are not kept, and a client that goes on sending them is refused, whatever it sends."""
    with Raw(daemon) as raw:
        raw.send(head("POST", "/run", None, key=KEY) + "2\r\nls\r\n0\r\n" + sent)
        unit = (sent if sent.endswith("\n") else "x") * 4096
        with contextlib.suppress(OSError):  # it is closed before all of this has been sent
            for _ in range(1 + (1 << 20) // len(unit)):
                raw.send(unit)
        answer = raw.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"too large" in answer


def test_a_body_that_is_no_chunk_is_refused_at_once(daemon: RunningDaemon) -> None:
    """Nobody waits for the rest of it."""
    with Raw(daemon) as raw:
        raw.send(head("POST", "/run", None, key=KEY) + "2\r\nls\r\nno length\r\n")
        assert raw.rest().startswith(b"HTTP/1.1 400 ")


# --- hosts and origins --------------------------------------------------------------------------------------


def asked(daemon: RunningDaemon, path: str, **fields: str) -> tuple[int, str | None]:
    """Ask with a key and such headers; return the status, and the code of a refusal."""
    method = "GET" if path in ("/status", "/health", "/ready", "/openapi.json", "/nowhere") else "POST"
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    answer = daemon.ask(method, path, headers={"Accept": "application/json", **headers}, key="anything")
    return answer.status, json.loads(answer.body).get("code")


HOSTS = {
    "localhost": True,
    "LOCALHOST:1": True,
    "127.0.0.1": True,
    "127.0.0.1:8080": True,
    "[::1]": True,
    "[::1]:8080": True,
    "evil.example": False,
    "evil.example:8080": False,
    "localhost.evil.example": False,
    "evil.example:localhost": False,
    "[::1].evil.example": False,
    "::1": False,
    "127.0.0.2": False,
    "": False,
}


def test_only_names_of_its_own_machine_reach_a_daemon_on_loopback(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Another name is refused before it can lock, whatever the path, but for /health."""
    daemon = start_daemon(key=None, server__mcp="true", server__socketio="true")
    paths = ("/status", "/startup", "/run", "/nowhere", "/openapi.json", "/mcp", "/socket.io/", "/files/create")
    for path in paths:
        assert asked(daemon, path, Host="evil.example") == (403, "host_not_allowed")
        assert asked(daemon, path, Origin="http://evil.example") == (403, "origin_not_allowed")
    assert asked(daemon, "/health", Host="evil.example", Origin="http://evil.example")[0] == 200
    assert asked(daemon, "/ready", Host="10.0.0.7:8080")[0] == 200
    assert daemon.ask("GET", "/status", key="first").status == 200
    for host, answered in HOSTS.items():
        assert (asked(daemon, "/status", Host=host)[0] == 403) is not answered, host


@pytest.mark.parametrize(("origin", "host", "answered"), [
    ("http://localhost:8080", "localhost:8080", True),
    ("http://localhost", "localhost:80", True),
    ("https://localhost", "localhost:443", True),
    ("https://localhost", "localhost", True),
    ("http://localhost:8081", "localhost:8080", False),
    ("http://127.0.0.1:8080", "localhost:8080", False),
    ("http://evil.example", "localhost:8080", False),
    ("null", "localhost", False),
    ("", "localhost", False),
    ("file://", "localhost", False),
    ("https://page.example:8443", "localhost", True),
    ("http://page.example:8443", "localhost", False),
])  # fmt: skip
def test_only_pages_of_the_same_host_or_listed_ones_may_ask(
    paged_daemon: RunningDaemon, origin: str, host: str, answered: bool
) -> None:
    """An origin is compared with the host that is asked, and with server.origins."""
    assert (asked(paged_daemon, "/status", Origin=origin, Host=host)[0] == 403) is not answered


@pytest.fixture(scope="module")
def paged_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with an origin and a host of its own."""
    with running_daemon(
        tmp_path_factory.mktemp("paged"),
        config="[server]\norigins=['https://PAGE.example:8443']\nhosts=['Box.example']",
    ) as daemon:
        yield daemon


def test_listed_hosts_are_added_on_loopback(paged_daemon: RunningDaemon) -> None:
    for host, status in {"box.example:81": 401, "localhost": 401, "other.example": 403}.items():
        assert asked(paged_daemon, "/status", Host=host)[0] == status


@pytest.mark.parametrize("listed", [False, True])
def test_elsewhere_the_listed_hosts_are_the_only_ones(tmp_path: Path, listed: bool) -> None:
    """Where the daemon listens on all addresses, any name will do unless some are listed."""
    hosts = "hosts = ['box.example']" if listed else ""
    with running_daemon(tmp_path, config=f"[server]\nhost = '0.0.0.0'\n{hosts}") as daemon:
        url = urlsplit(daemon.url)
        assert ask(f"http://127.0.0.1:{url.port}", "GET", "/status").status == (403 if listed else 401)
        for host in ("box.example", "[2001:db8::1]:80", "any.example"):
            refused = listed and host != "box.example"
            answer = ask(f"http://127.0.0.1:{url.port}", "GET", "/status", headers={"Host": host})
            assert (answer.status == 403) is refused
        for host in ("a b", "a/b", "user@a", "a:b", "[::1", "::1", "[::1].a", "a:1:2", "[]", "a\\b"):
            answer = ask(f"http://127.0.0.1:{url.port}", "GET", "/status", headers={"Host": host})
            assert answer.status == (403 if listed else 400), host
        daemon.client.close()


def answered(daemon: RunningDaemon, request: str) -> bytes:
    """The status line that a request as it stands is answered with."""
    with Raw(daemon) as raw:
        raw.send(request)
        return raw.rest().partition(b"\r\n")[0]


def test_a_request_names_one_host(start_daemon: Callable[..., RunningDaemon]) -> None:
    """None, or two, are refused before anything else is looked at; an old client need not name any."""
    daemon = start_daemon(key=None, server__mcp="true", server__socketio="true")
    rest = f"X-Shell-Key: {OLD}\r\nConnection: close\r\n\r\n"
    bad = ["", "Host: localhost\r\nHost: localhost\r\n", "Host: localhost\r\nX-A: 1\r\nhost: other\r\n"]
    for path in ("/status", "/run", "/openapi.json", "/health", "/nowhere", "/mcp", "/socket.io/"):
        for hosts in bad:
            status = answered(daemon, f"GET {path} HTTP/1.1\r\n{hosts}{rest}")
            assert status == b"HTTP/1.1 400 Bad Request", (path, hosts)
    assert daemon.ask("GET", "/status", key="another").status == 200, "nothing was locked"
    assert answered(daemon, f"GET /health HTTP/1.0\r\n{rest}").endswith(b" 200 OK")


def test_few_requests_wait_behind_another(daemon: RunningDaemon) -> None:
    """More than that, sent at once, would take memory and time: those before are answered, and the connection ends."""
    with Raw(daemon) as raw:
        raw.send("GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000)
        assert 1 < raw.rest().count(b"HTTP/1.1 401 ") < 1_000
    with Raw(daemon) as raw:
        raw.send("GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n" * 99 + head("GET", "/status", 0, Connection="close"))
        assert raw.rest().count(b"HTTP/1.1 401 ") == 100


def test_few_requests_wait_in_all(ready_daemon: RunningDaemon) -> None:
    """However many connections send ahead: the first of each is answered, and when they have ended all is as before."""
    run_id = ready_daemon.start("sleep 60")
    ahead = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 127 + head("GET", "/health", 0, Connection="close")
    with ExitStack() as opened:
        raws = [opened.enter_context(Raw(ready_daemon)) for _ in range(17)]
        for number, raw in enumerate(raws):
            for _ in range(5 * (number == 16)):  # by then what the others have sent is parsed, which is done by turns
                ready_daemon.client.get("/health")
            raw.send(head("GET", f"/runs/{run_id}/wait?timeout=60", 0, KEY) + ahead)
        wait_for(lambda: "sent ahead" in ready_daemon.log.read_text())
        assert ready_daemon.client.post("/kill").status_code == 200
        assert sorted(raw.rest().count(b"HTTP/1.1 200 ") for raw in raws) == [1, *[129] * 16]
    with Raw(ready_daemon) as raw:
        raw.send(ahead)
        assert raw.rest().count(b"HTTP/1.1 200 ") == 128


def test_who_leaves_is_noticed_though_another_request_waits_behind(ready_daemon: RunningDaemon) -> None:
    """A request ends with its connection, also where the client has sent the next one already."""
    run_id = ready_daemon.start("sleep 60")
    before = ready_daemon.log.stat().st_size
    with Raw(ready_daemon) as raw:
        raw.send(head("GET", f"/runs/{run_id}/wait?until=quiet:50s", 0, KEY) + head("GET", "/status", 0, KEY))
        wait_for(lambda: ready_daemon.client.get("/health").status_code == 200)
        assert b"/wait" not in ready_daemon.log.read_bytes()[before:]
    wait_for(lambda: b"/wait" in ready_daemon.log.read_bytes()[before:])
    assert b"Traceback" not in ready_daemon.log.read_bytes()[before:]


def test_a_websocket_of_a_foreign_page_is_refused(start_daemon: Callable[..., RunningDaemon]) -> None:
    daemon = start_daemon(key=None, server__socketio="true")
    fields = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    for name, value in {"Origin": "http://evil.example", "Host": "evil.example"}.items():
        answer = daemon.ask(
            "GET",
            "/socket.io/?EIO=4&transport=websocket",
            headers={**fields, "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", name: value},
            key="evil",
        )
        assert answer.status == 403
    assert daemon.ask("GET", "/status", key="good").status == 200


# --- what is refused, and what does not come ----------------------------------------------------------------

REFUSED = {
    "no key": ("POST", "/run", {"key": None}, b"401"),
    "wrong key": ("PUT", "/files/raw?path=x", {"key": "wrong"}, b"401"),
    "foreign host": ("POST", "/mcp", {"Origin": "http://evil.example"}, b"403"),
    "no path": ("POST", "/nowhere", {}, b"404"),
    "no such method": ("PATCH", "/run", {}, b"405"),
    "too large": ("POST", "/run", {"length": 1 << 40}, b"413"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_refused_request_is_answered_without_its_body(case: str, chunked: bool, daemon: RunningDaemon) -> None:
    """The answer comes at once, and the connection ends; what is sent all the same does not take the answer away."""
    method, path, fields, status = REFUSED[case]
    fields = {"key": KEY, "length": 1 << 24, **fields}
    if chunked and case == "too large":
        pytest.skip("a length that is not told is not too large")
    with Raw(daemon) as raw:
        raw.send(head(method, path, **{**fields, "length": None if chunked else fields["length"]}))
        answer = raw.rest()
        assert answer.split(b" ", 2)[1] == status
        assert b"connection: close" in answer.lower()
    with Raw(daemon) as raw:
        raw.send(head(method, path, **{**fields, "length": None if chunked else fields["length"]}))
        for _ in range(16):
            raw.send(b"10000\r\n" + b"x" * 65536 + b"\r\n" if chunked else b"x" * 65536)
        assert raw.rest().split(b" ", 2)[1] == status


def test_a_refused_request_that_is_complete_keeps_its_connection(daemon: RunningDaemon) -> None:
    """So does one that was done without looking at its small body."""
    with Raw(daemon) as raw:
        raw.send(head("POST", "/run", 2, key=None) + "ls")
        raw.send(head("POST", "/kill", 2, key=KEY))
        wait_for(lambda: b"ready" in raw.socket.recv(65536, socket.MSG_PEEK))
        raw.send("{}")
        raw.send(head("GET", "/status", 0, key=KEY, Connection="close"))
        answers = raw.rest()
        assert [part.split(b" ")[0] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"401", b"200", b"200"]


def test_heads_and_bodies_that_stand_still_end(start_daemon: Callable[..., RunningDaemon], tmp_path: Path) -> None:
    """A connection without a whole head, and a body that does not move, are given up; one that moves is not."""
    daemon = start_daemon(server__header_timeout="1s", server__body_timeout="2s")
    with ExitStack() as stack:
        silent, partial, held = (stack.enter_context(Raw(daemon)) for _ in range(3))
        partial.send("GET /status HTTP/1.1\r\nHost: localhost\r\nX-Shell")
        held.send(head("POST", "/startup", 10, key=KEY) + "{")
        assert silent.rest() == b""
        assert partial.rest().startswith(b"HTTP/1.1 408 ")
        answer = held.rest()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"body_timeout" in answer
    assert daemon.state() == "available"
    with Raw(daemon) as raw:
        body = json.dumps({"rows": 30}) + " " * 20
        raw.send(head("POST", "/startup", len(body), key=KEY, Connection="close"))
        for character in body:
            raw.pause(0.08)
            raw.send(character)
        assert raw.rest().endswith(b"ready")


def test_a_head_without_end_is_refused(daemon: RunningDaemon) -> None:
    with Raw(daemon) as raw:
        raw.send("GET /status HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(200):
            raw.send(f"X-Field-{number}: {'x' * 1000}\r\n")
        assert raw.rest().startswith(b"HTTP/1.1 431 ")


def test_offers_of_another_protocol_in_one_packet_are_all_answered(daemon: RunningDaemon) -> None:
    """However many there are, they take neither the stack nor a line of the log each: no more wait than of others."""
    offer = "GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    before = daemon.log.stat().st_size
    with Raw(daemon) as raw:
        raw.send(offer * 100 + "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert raw.rest().count(b"HTTP/1.1 200 OK") == 101
    with Raw(daemon) as raw:
        raw.send(offer * 1000)
        assert 100 < raw.rest().count(b"HTTP/1.1 200 OK") < 1000
    assert b"Traceback" not in daemon.log.read_bytes()[before:]


# --- when there is too much ---------------------------------------------------------------------------------


def limit_descriptors(daemon: RunningDaemon, number: int) -> None:
    """Let the daemon have no more than so many open files from now on."""
    _, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (number, hard))


def cpu_seconds(daemon: RunningDaemon) -> float:
    stat = process_stat(daemon.process.pid)
    assert stat
    return stat.cpu_seconds


def test_strangers_cannot_use_up_the_connections(start_daemon: Callable[..., RunningDaemon]) -> None:
    """However many connections say nothing, the next one is served; those that have waited longest are closed."""
    daemon = start_daemon(server__header_timeout="10m")
    limit_descriptors(daemon, 300)
    assert daemon.ask("POST", "/startup", key=KEY).body == b"ready"
    with ExitStack() as stack:
        strangers = [stack.enter_context(Raw(daemon)) for _ in range(400)]
        for stranger in strangers[::2]:
            stranger.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-")
        assert daemon.ask("GET", "/health").body == b"ok"
        assert daemon.ask("POST", "/run", body="echo on", key=KEY).body == b"on\n"
        assert strangers[0].rest() == b""
        strangers[-2].send("Y: z\r\nConnection: close\r\n\r\n")
        assert strangers[-2].rest().endswith(b"ok")


def test_refused_requests_do_not_keep_their_connections(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Strangers who are refused and stay make room for the next one."""
    daemon = start_daemon(server__max_connections="8")
    daemon.client.close()
    with ExitStack() as stack:
        for _ in range(40):
            stranger = stack.enter_context(Raw(daemon))
            stranger.send(head("POST", "/run", 1 << 30, key=None))
            assert stranger.socket.recv(12) == b"HTTP/1.1 401"
        assert daemon.ask("GET", "/status", key=KEY).body == b"available"


def test_when_connections_all_have_a_request_the_next_ones_can_end_some(
    start_daemon: Callable[..., RunningDaemon],
) -> None:
    """Beyond the limit only what frees something is done."""
    daemon = start_daemon(server__max_connections="8")
    daemon.client.close()
    assert daemon.ask("POST", "/startup", key=KEY).body == b"ready"
    at_once = {"X-Command-Timeout": "0"}
    run_id = daemon.ask("POST", "/run", body="sleep 600", key=KEY, headers=at_once).headers["x-run-id"]
    with ExitStack() as stack:
        waiting = [stack.enter_context(Raw(daemon)) for _ in range(8)]
        for raw in waiting:
            raw.send(head("GET", f"/runs/{run_id}/output", 0, key=KEY, Accept="text/event-stream", Connection="close"))
            assert raw.socket.recv(1) == b"H"
        refused = daemon.ask("GET", "/status", key=KEY, headers={"Accept": "application/json"})
        assert (json.loads(refused.body)["code"], refused.headers["retry-after"]) == ("overloaded", "5")
        assert daemon.ask("GET", "/health").body == b"ok"
        assert daemon.ask("GET", "/status", key="wrong").status == 401
        assert daemon.ask("POST", "/kill", key=KEY).body == b"ready"
        for raw in waiting:
            assert b"event: result" in raw.rest()
        wait_for(lambda: daemon.ask("GET", "/status", key=KEY).body == b"ready")


def test_without_descriptors_what_frees_some_is_still_done(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Sessions are refused with the reason; with none left at all, the daemon rests, and can still be helped."""
    daemon = start_daemon(limits__max_sessions="0")
    daemon.client.close()
    assert daemon.ask("POST", "/startup", key=KEY).body == b"ready"
    limit_descriptors(daemon, 250)
    before = sum(1 for _ in Path(f"/proc/{daemon.process.pid}/fd").iterdir())
    sessions = []
    while (answer := daemon.ask("POST", "/sessions", key=KEY)).status == 201:
        sessions.append(json.loads(answer.body)["session_id"])
    assert (answer.status, json.loads(answer.body)["code"]) == (503, "too_few_descriptors")
    assert sum(1 for _ in Path(f"/proc/{daemon.process.pid}/fd").iterdir()) <= before + 13 * len(sessions)
    assert len(sessions) >= 10
    assert daemon.ask("POST", "/run", body="sleep 600", key=KEY, headers={"X-Command-Timeout": "0"}).status == 202
    open_now = len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))
    limit_descriptors(daemon, open_now)
    before = cpu_seconds(daemon)
    began = time.monotonic()
    assert daemon.ask("GET", "/health").body == b"ok"
    assert daemon.ask("GET", "/status", key=KEY).status == 503
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(Raw(daemon))
        wait_for(lambda: time.monotonic() > began + 2)
        assert cpu_seconds(daemon) - before < 1
    assert daemon.ask("POST", "/kill", key=KEY).body == b"ready"
    for session in sessions[:4]:
        assert daemon.ask("DELETE", f"/sessions/{session}", key=KEY).status == 200
    wait_for(lambda: daemon.ask("POST", "/run", body="echo on", key=KEY).body == b"on\n")
    assert daemon.ask("POST", "/shutdown", key=KEY).body == b"shutting down"
    assert daemon.process.wait(20) == 0


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/health", 200), ("POST", "/exec", 400)])
def test_a_length_with_zeros_before_it(shared_daemon: RunningDaemon, method: str, path: str, status: int) -> None:
    """Zeros before a Content-Length do not matter, however many there are (RFC 9110, 8.6)."""
    with Raw(shared_daemon) as client:
        client.send(head(method, path, 1, KEY, Connection="close").replace("Length: ", f"Length: {'0' * 5000}") + " ")
        assert client.rest().startswith(b"HTTP/1.1 %d " % status)
