"""Ports of the shells, passed on: what comes there, what comes back, and what is never reached."""

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, RejectConnection, Request

from shelld_py import AsyncClient, Client
from shelld_py.linux.processes import process_stat
from tests.daemons import KEY, Answer, RunningDaemon, ask, running_daemon, wait_for

_METRICS = re.compile(r"metrics on (\S+)")
SERVED = Path(__file__).with_name("served.py")


@pytest.fixture(scope="module")
def proxying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon that passes requests on."""
    directory = tmp_path_factory.mktemp("proxy")
    options = {"server__proxy": "true", "server__proxy_port": "0", "server__proxy_timeout": "1s"}
    options |= {"logging__audit": str(directory / "audit"), "metrics__enabled": "true", "metrics__port": "0"}
    with running_daemon(directory, **options) as daemon:
        daemon.fresh()
        yield daemon


@pytest.fixture(scope="module")
def port(proxying: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The port of `served.py`, which a command of the daemon runs."""
    return serve(proxying, tmp_path_factory.mktemp("served"))


def serve(daemon: RunningDaemon, directory: Path, *arguments: str) -> int:
    """Start `served.py` in a shell of its own; return its port."""
    told = directory / "port"
    command = shlex.join([sys.executable, str(SERVED), str(told), *arguments])
    answer = daemon.client.post("/exec", json={"command": f"PYTHONPATH= {command}", "timeout": 0})
    assert answer.status_code == 202, answer.text
    return int(wait_for(lambda: told.exists() and told.read_text()))


def passed(daemon: RunningDaemon, port: int, path: str, method: str = "GET", **options: Any) -> Answer:
    """Send a request to a port, with the key."""
    return ask(daemon.url, method, f"/ports/{port}{path}", key=KEY, **options)


def seen(answer: Answer) -> tuple[bytes, dict[str, str], bytes]:
    """Return the first line, the headers and the body that have come to the port."""
    assert answer.status == 200, answer
    head, _, body = answer.body.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    fields = [line.decode().split(": ", 1) for line in lines]
    assert len({name.lower() for name, _ in fields}) == len(fields), "a header came twice"
    return first, {name.lower(): value for name, value in fields}, body


def code(answer: Answer) -> str:
    """Return the code of an error."""
    assert answer.headers["content-type"] == "application/problem+json", answer
    return str(json.loads(answer.body)["code"])


@contextlib.contextmanager
def raw(daemon: RunningDaemon, data: bytes) -> Iterator[Any]:
    """Send bytes on a connection of their own; yield a file to read what comes."""
    address = urlsplit(daemon.url)
    with socket.create_connection((address.hostname, address.port), 30) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as file:
            yield file


# --- what comes there, and back -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/", "/a/b?c=d&e=%20", "/a%2Fb/..%2f..", "/../x", "//double//", "/%00%ff;x=y", "/ports/1/link", "/?a=/../b"],
)
def test_a_path_goes_on_byte_for_byte(proxying: RunningDaemon, port: int, path: str) -> None:
    assert seen(passed(proxying, port, path))[0] == f"GET {path} HTTP/1.1".encode()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
def test_any_method_goes_on_with_its_body(proxying: RunningDaemon, port: int, method: str) -> None:
    first, _, body = seen(passed(proxying, port, "/x", method, body=b"some bytes \0"))
    assert (first, body) == (f"{method} /x HTTP/1.1".encode(), b"some bytes \0")


def test_only_what_is_the_ports_own_goes_on(proxying: RunningDaemon, port: int) -> None:
    """Neither the key, nor what is for this hop, nor a cookie of a link; another authorization and cookie do."""
    headers = {
        "Connection": "close, X-Private, Host",
        "X-Private": "1",
        "Keep-Alive": "timeout=5",
        "Proxy-Authorization": "Basic eDp5",
        "TE": "trailers",
        "Authorization": "Bearer another",
        "Cookie": f"a=1; shelld-port-{port}=secret; b=2",
        "Accept": "x/y",
    }
    _, fields, _ = seen(passed(proxying, port, "/", headers=headers))
    host = urlsplit(proxying.url).netloc
    assert fields == {
        "host": host,
        "accept-encoding": "identity",
        "authorization": "Bearer another",
        "cookie": "a=1; b=2",
        "accept": "x/y",
        "x-forwarded-for": "127.0.0.1",
        "x-forwarded-host": host,
        "x-forwarded-proto": "http",
        "x-forwarded-prefix": f"/ports/{port}",
        "connection": "close",
    }


def test_the_key_does_not_go_on_as_authorization(proxying: RunningDaemon, port: int) -> None:
    answer = ask(proxying.url, "GET", f"/ports/{port}/", headers={"Authorization": f"Bearer {KEY}"})
    assert "authorization" not in seen(answer)[1]
    answer = passed(proxying, port, "/", headers={"Authorization": f"bearer  {KEY}", "X-Forwarded-For": "10.0.0.1"})
    assert "authorization" not in seen(answer)[1]
    assert seen(answer)[1]["x-forwarded-for"] == "10.0.0.1, 127.0.0.1"


def test_what_a_proxy_in_front_says_of_the_host_is_kept(proxying: RunningDaemon, port: int) -> None:
    """Wherever its header stands; the host of the request goes on as it came."""
    answer = passed(proxying, port, "/", headers={"X-Forwarded-Host": "outside", "X-Forwarded-Proto": "https"})
    fields = seen(answer)[1]
    assert (fields["x-forwarded-host"], fields["x-forwarded-proto"]) == ("outside", "https")
    assert fields["host"] == urlsplit(proxying.url).netloc


def test_a_request_with_very_many_fields_is_not_passed_on(proxying: RunningDaemon, port: int) -> None:
    refused = passed(proxying, port, "/", headers={f"A{number}": "1" for number in range(600)})
    assert (refused.status, code(refused)) == (400, "invalid_request")


def answered(daemon: RunningDaemon, port: int, answer: bytes, method: str = "POST") -> Answer:
    """Have the port answer with these very bytes."""
    return passed(daemon, port, "/raw", method, body=answer)


def test_what_the_port_says_of_itself_holds_for_its_path(proxying: RunningDaemon, port: int) -> None:
    """Redirections and cookies stay below the path; what would hold for all the host, and for this hop, is left out."""
    own = urlsplit(proxying.url).netloc
    answer = answered(
        proxying,
        port,
        b"HTTP/1.1 302 Elsewhere\r\nLocation: /login?a=b\r\nSet-Cookie: a=1; Path=/; Domain=x.y; HttpOnly\r\n"
        b"Set-Cookie: shelld-port-1=2\r\nSet-Cookie: b=2\r\nClear-Site-Data: *\r\nService-Worker-Allowed: /\r\n"
        b"NEL: {}\r\nReport-To: {}\r\n"
        b"Connection: close, X-Hop\r\nX-Hop: 1\r\nX-Request-Id: theirs\r\nServer: S\r\nContent-Length: 0\r\n\r\n",
    )
    assert answer.status == 302
    assert answer.headers.pop("x-request-id") != "theirs"
    assert answer.headers.pop("date")
    assert answer.headers == {
        "location": f"/ports/{port}/login?a=b",
        "set-cookie": f"a=1; Path=/ports/{port}/; HttpOnly, b=2",
        "server": "S",
        "content-length": "0",
        "content-security-policy": "sandbox",
    }
    for sent, expected in (
        (f"http://127.0.0.1:{port}/x", f"/ports/{port}/x"),
        (f"http://LOCALHOST:{port}", f"/ports/{port}/"),
        (f"http://{own}/x", f"/ports/{port}/x"),
        (f"/ports/{port}/x", f"/ports/{port}/x"),
        ("x/y", "x/y"),
        ("//elsewhere/x", "//elsewhere/x"),
        ("https://elsewhere/x", "https://elsewhere/x"),
    ):
        head = b"HTTP/1.1 307 x\r\nContent-Length: 0\r\nLocation: " + sent.encode() + b"\r\n\r\n"
        assert answered(proxying, port, head).headers["location"] == expected


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nabcd", b"ab"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n1;x\r\na\r\n0\r\nT: 1\r\n\r\n",
            b"a",
        ),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\na", b"a"),
        (b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", b""),
        (b"HTTP/1.1 304 No\r\nContent-Length: 5\r\nETag: x\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 5000 + b"0\r\n\r\n", b"a" * 5000),
    ],
)
def test_what_is_odd_and_allowed_is_passed_back(proxying: RunningDaemon, port: int, answer: bytes, body: bytes) -> None:
    assert answered(proxying, port, answer).body == body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\x01c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 999 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 103 Hint\r\n\r\nHTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 O",
    ],
)
def test_what_is_no_good_http_is_a_bad_gateway(proxying: RunningDaemon, port: int, answer: bytes) -> None:
    refused = answered(proxying, port, answer)
    assert (refused.status, code(refused)) == (502, "bad_gateway")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_a_body_that_is_cut_off_comes_back_cut_off(proxying: RunningDaemon, port: int, answer: bytes) -> None:
    """It cannot be taken for a whole one, whatever its form."""
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answered(proxying, port, answer)


def test_there_is_a_time_for_the_answer_to_begin(proxying: RunningDaemon, port: int) -> None:
    refused = passed(proxying, port, "/never")
    assert (refused.status, code(refused)) == (504, "port_timeout")
    assert b"server.proxy_timeout" in refused.body


# --- streams ------------------------------------------------------------------------------------------------


def test_events_come_as_they_are_sent(proxying: RunningDaemon, port: int) -> None:
    """The second is sent only when the first has been read."""
    with proxying.client.stream("GET", f"/ports/{port}/events") as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"data: 1\n\n"
        passed(proxying, port, "/go")
        assert b"".join(pieces) == b"data: 2\n\n"


def test_bodies_go_both_ways_at_once(proxying: RunningDaemon, port: int) -> None:
    """A piece is sent only when the one before has come back."""
    request = f"POST /ports/{port}/echo HTTP/1.1\r\nHost: localhost\r\nX-Shell-Key: {KEY}\r\n"
    with raw(proxying, request.encode() + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n") as file:
        while file.readline() != b"\r\n":
            pass
        assert file.read(6) == b"1\r\na\r\n"
        file.raw._sock.sendall(b"2\r\nbc\r\n0\r\n\r\n")
        assert file.read(12) == b"2\r\nbc\r\n0\r\n\r\n"


def test_an_offered_body_is_asked_for_when_the_port_is_open(proxying: RunningDaemon, port: int) -> None:
    """Not before: so it is not sent in vain."""
    for number, lines in (
        (port, [b"HTTP/1.1 100 Continue\r\n", b"\r\n", b"HTTP/1.1 200 OK\r\n"]),
        (1, [b"HTTP/1.1 502 Bad Gateway\r\n"]),
    ):
        head = f"POST /ports/{number}/sink HTTP/1.1\r\nHost: localhost\r\nX-Shell-Key: {KEY}\r\n"
        with raw(proxying, f"{head}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n".encode()) as file:
            assert file.readline() == lines[0]
            file.raw._sock.sendall(b"ab")
            assert [lines[0], *(file.readline() for _ in lines[1:])] == lines


def test_a_head_alone_comes_with_its_length(proxying: RunningDaemon, port: int) -> None:
    answer = passed(proxying, port, "/big?70000", "HEAD")
    assert (answer.status, answer.headers["content-length"], answer.body) == (200, "70000", b"")


def memory(daemon: RunningDaemon) -> int:
    """Return the resident bytes of a daemon."""
    stat = process_stat(daemon.process.pid)
    assert stat
    return stat.memory


def test_large_bodies_are_never_held(proxying: RunningDaemon, port: int) -> None:
    """32 MiB down, in a form with a length, and up, in chunks and so with none that could be refused."""
    size = 1 << 25
    passed(proxying, port, "/big?1000000")
    before = memory(proxying)
    answer = passed(proxying, port, f"/big?{size}")
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(bytes(size)).digest()
    pieces = iter([bytes(1 << 20)] * 32)
    assert passed(
        proxying, port, "/sink", "POST", headers={"Content-Length": str(size)}, body=b"".join(pieces)
    ).body == (str(size).encode())
    assert memory(proxying) - before < size // 4


def test_a_slow_reader_holds_up_the_port_alone(proxying: RunningDaemon, port: int, tmp_path: Path) -> None:
    """What is sent without end stops at some point, the daemon's memory with it, and ends when the reader goes."""
    own = serve(proxying, tmp_path)
    before = memory(proxying)
    sent = tmp_path / "port.sent"
    request = f"GET /ports/{own}/endless HTTP/1.1\r\nHost: localhost\r\nX-Shell-Key: {KEY}\r\n\r\n"
    with raw(proxying, request.encode()):
        stopped = 0

        def is_held_up() -> bool:
            nonlocal stopped
            last, stopped = stopped, int(sent.read_text() or 0) if sent.exists() else 0
            passed(proxying, port, "/")  # takes its time, and is not held up
            return bool(stopped) and last == stopped

        wait_for(is_held_up)
        assert memory(proxying) - before < 1 << 24
    wait_for((tmp_path / "port.ended").exists)


# --- WebSockets ---------------------------------------------------------------------------------------------


class Socket:
    """A WebSocket to a port."""

    def __init__(self, url: str, path: str, **headers: str) -> None:
        address = urlsplit(url)
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._socket = socket.create_connection((address.hostname, address.port), 30)
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        opening = Request(host=address.netloc, target=path, extra_headers=fields, subprotocols=["chat", "other"])
        self._socket.sendall(self._connection.send(opening))
        self._events: list[Any] = []

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._socket.sendall(self._connection.send(BytesMessage(message)))

    def receive(self) -> Any:
        """Return the next event; None at the end of the connection."""
        while not self._events:
            try:
                data = self._socket.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self._connection.receive_data(data)
            self._events = list(self._connection.events())
        return self._events.pop(0)

    def message(self) -> bytes:
        """Return the next message, of however many frames."""
        whole = b""
        while True:
            event = self.receive()
            assert isinstance(event, BytesMessage), event
            whole += event.data
            if event.message_finished:
                return whole

    def close(self) -> None:
        """Close it, and wait for the answer to that."""
        self._socket.sendall(self._connection.send(CloseConnection(1000, "done")))
        assert isinstance(self.receive(), CloseConnection)
        self.drop()

    def drop(self) -> None:
        """End the connection."""
        self._socket.close()


def test_a_websocket_is_passed_on(proxying: RunningDaemon, port: int) -> None:
    """With its subprotocol, its first bytes, large messages, and its orderly end."""
    connection = Socket(
        proxying.url, f"/ports/{port}/ws?a=b", **{"X-Shell-Key": KEY, "Cookie": f"shelld-port-{port}=x"}
    )
    opened = connection.receive()
    assert isinstance(opened, AcceptConnection)
    assert opened.subprotocol == "chat"
    head = connection.message()
    assert head.startswith(b"GET /ws?a=b HTTP/1.1\r\n")
    assert b"x-shell-key" not in head.lower()
    assert b"cookie" not in head.lower()
    assert KEY.encode() not in head
    for message in (b"hello", bytes(1 << 20)):
        connection.send(message)
        assert connection.message() == message
    connection.close()


def test_a_websocket_that_is_refused_is_answered(proxying: RunningDaemon, port: int) -> None:
    """By the port, or by the daemon."""
    key = {"X-Shell-Key": KEY}
    for path, headers, status in (
        (f"/ports/{port}/no", key, 200),
        ("/ports/1/ws", key, 502),
        (f"/ports/{port}/ws", {}, 401),
        (f"/ports/{port}/ws", {**key, "Origin": "http://elsewhere"}, 403),
    ):
        refused = Socket(proxying.url, path, **headers)
        event = refused.receive()
        assert isinstance(event, RejectConnection)
        assert event.status_code == status
        refused.drop()


def test_an_offer_of_another_protocol_is_left_out(proxying: RunningDaemon, port: int) -> None:
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "x"}
    _, fields, _ = seen(passed(proxying, port, "/", headers=headers))
    assert fields["connection"] == "close"
    assert not {"upgrade", "http2-settings"} & set(fields)


# --- what is never reached ----------------------------------------------------------------------------------


def test_ports_of_other_processes_are_never_reached(proxying: RunningDaemon, tmp_path: Path) -> None:
    """Not this process's, not the daemon's own ones, not one that nobody has."""
    link = proxying.json("POST", "/ports/1/link", json={})["url"]
    metrics = _METRICS.search(proxying.log.read_text())
    assert metrics
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        own = [urlsplit(url).port for url in (proxying.url, link, metrics[1])]
        for foreign in (other.getsockname()[1], six.getsockname()[1], *own, 1, 65535, 65536, 99999):
            refused = passed(proxying, foreign, "/")
            assert (refused.status, code(refused)) == (502, "port_not_open"), foreign
        for listener in (other, six):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_a_port_that_is_shared_with_another_process_is_not_reached(proxying: RunningDaemon, tmp_path: Path) -> None:
    """The kernel would choose whose socket gets a connection (SO_REUSEPORT)."""
    program = (
        "import socket, sys, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); "
        "s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); open(sys.argv[2], 'w').close(); time.sleep(600)"
    )
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        shared = other.getsockname()[1]
        command = shlex.join([sys.executable, "-c", program, str(shared), str(tmp_path / "listens")])
        proxying.client.post("/exec", json={"command": command, "timeout": 0})
        wait_for((tmp_path / "listens").exists)
        assert [each["port"] for each in proxying.json("GET", "/ports") if each["port"] == shared] == [shared]
        other.listen()
        assert code(passed(proxying, shared, "/")) == "port_not_open"
        other.close()
        assert code(passed(proxying, shared, "/")) == "port_timeout"


def test_a_port_on_ipv6_alone_is_reached(proxying: RunningDaemon, tmp_path: Path) -> None:
    assert seen(passed(proxying, serve(proxying, tmp_path, "::1"), "/x"))[0] == b"GET /x HTTP/1.1"


def test_a_port_is_not_reached_when_its_process_has_ended(proxying: RunningDaemon, tmp_path: Path) -> None:
    """Nor is who takes the port after it."""
    own = serve(proxying, tmp_path)
    (run,) = {each["run_id"] for each in proxying.json("GET", "/ports") if each["port"] == own}
    proxying.client.post(f"/runs/{run}/kill")
    assert code(passed(proxying, own, "/")) == "port_not_open"
    with socket.create_server(("127.0.0.1", own)):
        assert code(passed(proxying, own, "/")) == "port_not_open"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("CONNECT 127.0.0.1:{port} HTTP/1.1", (400, 404, 405)),
        ("CONNECT /ports/{port}/ HTTP/1.1", (400, 404, 405)),
        ("GET http://example.org/ports/{port}/x HTTP/1.1", (200,)),  # still this port; the daemon's name is Host
        ("GET http://example.org/ HTTP/1.1", (200,)),  # the daemon's own GET /
        ("GET /ports/0{port}/ HTTP/1.1", (404,)),
        ("GET /ports/{port}@example.org/ HTTP/1.1", (404,)),
        ("GET /ports/-1/ HTTP/1.1", (404,)),
        ("GET /ports/{port}%2Fx HTTP/1.1", (404,)),
        ("GET /ports//{port}/ HTTP/1.1", (404,)),
        ("POST /ports/{port}/x HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", (400,)),
        ("POST /ports/{port}/x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2", (400,)),
        ("POST /ports/{port}/x HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", (400,)),
        ("GET /ports/{port}/x HTTP/1.1\r\nA: b\rc", (400,)),
        ("GET /ports/{port}/x HTTP/1.1\r\nHost: elsewhere", (400,)),
    ],
)
def test_no_form_of_a_request_leads_elsewhere(
    proxying: RunningDaemon, port: int, head: str, status: tuple[int, ...]
) -> None:
    request = f"{head.format(port=port)}\r\nHost: localhost\r\nX-Shell-Key: {KEY}\r\n\r\n"
    with raw(proxying, request.encode()) as file:
        assert int(file.readline().split()[1]) in status


def test_hosts_origins_and_keys_are_checked_as_everywhere(proxying: RunningDaemon, port: int) -> None:
    path = f"/ports/{port}/"
    for headers, status in (
        ({}, 401),
        ({"X-Shell-Key": "wrong"}, 401),
        ({"X-Shell-Key": KEY, "Host": "elsewhere"}, 403),
        ({"X-Shell-Key": KEY, "Origin": "http://elsewhere"}, 403),
        ({"X-Shell-Key": KEY, "Origin": "null"}, 403),
    ):
        assert ask(proxying.url, "GET", path, headers=headers).status == status
    observer = proxying.json("POST", "/observers", json={})["key"]
    assert ask(proxying.url, "GET", path, key=observer).status == 403
    assert ask(proxying.url, "POST", f"/ports/{port}/link", key=observer).status == 403


# --- links --------------------------------------------------------------------------------------------------


class Browser:
    """What a browser would do with a link: it keeps the cookies that it is given, and sends no key."""

    def __init__(self, daemon: RunningDaemon, port: int, **request: Any) -> None:
        made = daemon.client.post(f"/ports/{port}/link", json=request)
        assert made.status_code == 201, made.text
        self.url = made.json()["url"]
        self.expires_at = made.json()["expires_at"]
        self.site = "{0.scheme}://{0.netloc}".format(urlsplit(self.url))
        self.cookie = ""
        self.port = port

    def open(self) -> Answer:
        """Use the link."""
        answer = ask(self.site, "GET", urlsplit(self.url).path)
        self.cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        return answer

    def get(self, path: str = "/", site: str = "", **headers: str) -> Answer:
        """Ask for a path of the port."""
        sent = {"Cookie": self.cookie, **headers}
        return ask(site or self.site, "GET", f"/ports/{self.port}{path}", headers=sent)


def test_a_link_lets_a_browser_in_once(proxying: RunningDaemon, port: int) -> None:
    browser = Browser(proxying, port, expires="1m")
    assert browser.site != proxying.url
    assert browser.get().status == 401
    assert ask(browser.site, "HEAD", urlsplit(browser.url).path).status == 405
    page = browser.open()
    assert page.status == 200
    assert f'content="0; url=/ports/{port}/"'.encode() in page.body
    name, *attributes = page.headers["set-cookie"].split("; ")
    assert name.startswith(f"shelld-port-{port}=")
    assert attributes[0] == f"Path=/ports/{port}/"
    assert set(attributes[2:]) == {"HttpOnly", "SameSite=Strict"}
    assert seen(browser.get("/x"))[0] == b"GET /x HTTP/1.1"
    assert "content-security-policy" not in browser.get().headers
    again = ask(browser.site, "GET", urlsplit(browser.url).path)
    assert (again.status, code(again)) == (404, "link_not_found")
    assert "set-cookie" not in again.headers
    assert seen(browser.get("/x"))[0] == b"GET /x HTTP/1.1"
    assert ask(proxying.url, "GET", urlsplit(browser.url).path).status == 401
    assert urlsplit(browser.url).path.rpartition("/")[2] not in proxying.log.read_text()


def test_a_program_with_a_base_sees_whole_paths(proxying: RunningDaemon, port: int) -> None:
    """Where the link says so, and for that browser alone."""
    browser = Browser(proxying, port, strip_prefix=False)
    browser.open()
    first, fields, _ = seen(browser.get("/x?y"))
    assert first == f"GET /ports/{port}/x?y HTTP/1.1".encode()
    assert "x-forwarded-prefix" not in fields
    assert seen(passed(proxying, port, "/x"))[0] == b"GET /x HTTP/1.1"


def test_what_visitors_do_is_noted_and_counted(proxying: RunningDaemon, port: int) -> None:
    """Without secrets: neither that of a link, nor the program's own."""
    browser = Browser(proxying, port)
    browser.open()
    headers = {"Cookie": browser.cookie, "Authorization": "Bearer of-the-program"}
    assert ask(browser.site, "POST", f"/ports/{port}/noted", headers=headers).status == 200
    audit = proxying.data.parent / "audit"
    (line,) = wait_for(lambda: [line for line in audit.read_text().splitlines() if "/noted" in line])
    noted = json.loads(line)
    assert (noted["action"], noted["status"], "key" in noted) == (f"POST /ports/{port}/noted", 200, False)
    links = [json.loads(line) for line in audit.read_text().splitlines() if "/links/" in line]
    assert links[-1]["action"] == "GET /links/SECRET"
    for secret in (browser.cookie.partition("=")[2], urlsplit(browser.url).path.rpartition("/")[2], "of-the-program"):
        assert secret not in audit.read_text() + proxying.log.read_text()
    metrics = _METRICS.search(proxying.log.read_text())
    assert metrics
    assert 'route="/ports/{port}/{path}",status="200"' in httpx.get(f"{metrics[1]}").text


def test_the_client_makes_links(proxying: RunningDaemon, port: int) -> None:
    """Both clients do."""

    async def from_async() -> str:
        async with AsyncClient(proxying.url, KEY) as client:
            return (await client.link_port(port, expires="1m")).url

    with Client(proxying.url, KEY) as client:
        urls = [client.link_port(port).url, asyncio.run(from_async())]
    assert [ask(url, "GET", urlsplit(url).path).status for url in urls] == [200, 200]


def test_the_command_prints_a_link(proxying: RunningDaemon, port: int) -> None:
    environ = {**os.environ, "SHELLD_URL": proxying.url, "SHELLD_KEY": KEY}
    command = [sys.executable, "-m", "shelld_py", "link", str(port), "--expires", "1m", "--whole-paths"]
    printed = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()
    assert ask(printed, "GET", urlsplit(printed).path).status == 200


def test_a_cookie_admits_to_its_port_alone(proxying: RunningDaemon, port: int, tmp_path: Path) -> None:
    """Not to another port, nor to the daemon: not by its own address, and there is nothing of it at the other."""
    one, two = Browser(proxying, port), Browser(proxying, serve(proxying, tmp_path))
    one.open()
    two.open()
    both = f"{one.cookie}; {two.cookie}"
    assert seen(two.get(Cookie=both))[1]["x-forwarded-prefix"] == f"/ports/{two.port}"
    assert "cookie" not in seen(two.get(Cookie=both))[1]
    secret = one.cookie.partition("=")[2]
    assert two.get(Cookie=f"shelld-port-{two.port}={secret}").status == 401
    assert two.get(Cookie=one.cookie).status == 401
    assert one.get(site=proxying.url).status == 401
    assert one.get(Authorization="Bearer of-the-program").status == 200
    for path in ("/status", "/run", "/", "/health", "/docs", "/openapi.json", "/ports", "/ports/", "/links/"):
        for headers in ({"Cookie": one.cookie}, {"X-Shell-Key": KEY}):
            assert ask(one.site, "GET", path, headers=headers).status == 404, path
    for path in ("/status", "/ports", "/sessions"):
        assert ask(proxying.url, "GET", path, headers={"Cookie": one.cookie}).status == 401


def test_pages_of_a_port_are_strangers_to_the_daemon(proxying: RunningDaemon, port: int) -> None:
    """They have another origin, which the daemon refuses; nobody else's pages are let in to the port."""
    browser = Browser(proxying, port)
    browser.open()
    assert browser.get(Origin=browser.site).status == 200
    for origin in ("http://elsewhere", proxying.url, "null"):
        assert browser.get(Origin=origin).status == 403
    assert ask(proxying.url, "GET", "/status", key=KEY, headers={"Origin": browser.site}).status == 403
    assert browser.get(Host="elsewhere").status == 403


def test_a_link_and_its_cookie_expire(proxying: RunningDaemon, port: int) -> None:
    """With them what goes on."""
    unused, used = Browser(proxying, port, expires="100ms"), Browser(proxying, port, expires="600ms")
    used.open()
    connection = Socket(used.site, f"/ports/{port}/ws", Cookie=used.cookie, Origin=used.site)
    assert isinstance(connection.receive(), AcceptConnection)
    connection.message()
    assert connection.receive() is None
    connection.drop()
    assert used.get().status == 401
    assert unused.open().status == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/ports/x/link", {}, 400),
        ("/ports/0/link", {}, 400),
        ("/ports/65536/link", {}, 400),
        ("/ports/80/link", {"expires": "1ms"}, 400),
        ("/ports/80/link", {"expire": "1m"}, 400),
        ("/ports/80/link", {"expires": "8761h"}, 400),
    ],
)
def test_what_a_link_cannot_be_is_refused(
    proxying: RunningDaemon, path: str, body: dict[str, Any], status: int
) -> None:
    assert proxying.client.post(path, json=body).status_code == status


def test_what_goes_on_ends_with_the_key(proxying: RunningDaemon, tmp_path: Path) -> None:
    """A recycle ends streams and WebSockets, links and cookies. Last in this file: it ends what others use."""
    own = serve(proxying, tmp_path)
    used, unused = Browser(proxying, own), Browser(proxying, own)
    used.open()
    connection = Socket(used.site, f"/ports/{own}/ws", Cookie=used.cookie)
    assert isinstance(connection.receive(), AcceptConnection)
    connection.message()
    with proxying.client.stream("GET", f"/ports/{own}/endless") as stream:
        assert proxying.client.post("/shutdown?recycle=true").status_code == 200
        with pytest.raises(httpx.HTTPError):
            list(stream.iter_raw())
    assert connection.receive() is None
    connection.drop()
    assert used.get().status == 401
    assert unused.open().status == 404


def test_nothing_is_passed_on_unless_it_is_set(ready_daemon: RunningDaemon) -> None:
    assert ready_daemon.client.get("/ports/80/").status_code == 404
    refused = ready_daemon.client.post("/ports/80/link", json={})
    assert refused.status_code == 404
    assert "server.proxy" in refused.json()["detail"]
