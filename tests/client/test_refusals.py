"""What both clients make of refusals, of answers that are none, and of daemons that do not answer."""

import asyncio
import socket
import threading
from typing import Any

import msgspec
import pytest

from shelld_py import AsyncClient, Client, errors
from shelld_py.client import Metadata, Retries, TransportError, UnknownAnswer, WaitResult
from shelld_py.client.call import Answer, decode, segment
from shelld_py.client.failures import refusal
from shelld_py.errors import ShelldError
from shelld_py.models import RunStatus, ShellState, Status
from shelld_py.websocket import Closed
from tests.daemons import KEY, RunningDaemon

# --- refusals ----------------------------------------------------------------------------------------------


REFUSALS = [
    (lambda client: client.startup(), errors.ShellAlreadyStarted, "shell_already_started"),
    (lambda client: client.run(" "), errors.InvalidRequest, "invalid_request"),
    (lambda client: client.run("true", timeout="soon"), errors.InvalidRequest, "invalid_request"),
    (lambda client: client.stdin("x"), errors.NoRunningCommand, "no_running_command"),
    (lambda client: [*client.stream("a\0b")], errors.InvalidRequest, "invalid_request"),
    (lambda client: [*client.runs.follow("nobody")], errors.RunNotFound, "run_not_found"),
    (lambda client: client.runs.get("a/b?c"), errors.NotFound, "not_found"),
    (lambda client: client.files.read("/etc/passwd"), errors.PathNotAllowed, "path_not_allowed"),
    (lambda client: client.files.read("none.txt"), errors.FileNotFound, "file_not_found"),
]


@pytest.mark.parametrize(("ask", "kind", "code"), REFUSALS, ids=[code for _, _, code in REFUSALS])
def test_refusals_are_exceptions_of_their_code(client: Any, ask: Any, kind: type[ShelldError], code: str) -> None:
    with pytest.raises(kind) as caught:
        ask(client)
    assert (type(caught.value), caught.value.code, caught.value.status) == (kind, code, kind.status)
    assert caught.value.detail == str(caught.value)


def test_further_members_of_a_refusal_are_kept(client: Any) -> None:
    client.run("sleep 100", timeout=0)
    with pytest.raises(errors.ShellBusy) as caught:
        client.run("true")
    assert caught.value.extra["state"] == "busy"
    assert "POST /kill" in caught.value.extra["hint"]
    client.kill()


def test_a_wrong_key_and_no_key(connect: Any, daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHELLD_KEY", raising=False)
    with pytest.raises(errors.KeyMismatch):
        connect(daemon.url, "guess").status()
    with pytest.raises(errors.KeyRequired):
        connect(daemon.url, None).status()
    assert connect(daemon.url, None).health() == "ok"


def test_address_and_key_come_from_the_environment(
    connect: Any, daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELLD_URL", daemon.url + "/")
    monkeypatch.setenv("SHELLD_KEY", KEY)
    assert connect(None, None).status().state is ShellState.READY
    monkeypatch.delenv("SHELLD_URL")
    assert connect(None, None).url == "http://127.0.0.1:8080"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    "arguments", [("nonsense", "k"), ("ftp://x", "k"), ("http://[::1", "k"), (None, "a b"), (None, "")]
)
def test_what_cannot_be_an_address_or_a_key(kind: Any, arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"looks like http://|visible ASCII"):
        kind(*arguments)


def test_every_code_has_its_class() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ShelldError)]
    assert len(kinds) > 30
    for kind in kinds:
        document = f'{{"status": {kind.status}, "code": "{kind.code}", "detail": "d", "more": 1}}'
        error = refusal(kind.status, document.encode())
        assert (type(error), error.detail, error.extra) == (kind, "d", {"more": 1})


def test_a_code_of_a_newer_daemon_is_kept() -> None:
    error = refusal(418, b'{"code": "teapot", "detail": "short and stout"}')
    assert (error.status, error.code, error.detail) == (418, "teapot", "short and stout")


@pytest.mark.parametrize("kind", [Status, Metadata, WaitResult])
def test_members_of_a_newer_daemon_are_passed_over(client: Any, kind: Any) -> None:
    """Results are the daemon's own models, which must not be as strict as those of requests."""
    run_id = client.run("true").run_id
    known = {Status: client.status, Metadata: client.metadata, WaitResult: lambda: client.runs.wait(run_id)}[kind]()
    answer = {**msgspec.to_builtins(known), "in_the_future": [1]}
    assert decode(Answer(200, {}, msgspec.json.encode(answer)), kind) == known


@pytest.mark.parametrize("content", [b"<html>Bad Gateway</html>", b"", b"[]", b"\xff", b'{"code": "x"}'])
def test_an_answer_of_something_else(content: bytes) -> None:
    error = refusal(502, content)
    assert (type(error).__name__, error.status, error.code) == ("UnknownAnswer", 502, "unknown_answer")
    assert "502" in error.detail


def test_nonsense_with_status_200(connect: Any) -> None:
    with _server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi") as url:
        for ask in (lambda client: client.status(), lambda client: client.health()):
            with pytest.raises(UnknownAnswer):
                ask(connect(url))


# --- transport --------------------------------------------------------------------------------------------


def test_nobody_listens(connect: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    client = connect(url, retries=Retries(most=1, first=0.01))
    for ask, method in ((client.status, "GET"), (client.kill, "POST"), (lambda: client.run("true"), "POST")):
        with pytest.raises(TransportError) as caught:
            ask()
        assert (caught.value.method, caught.value.maybe_done, caught.value.code) == (method, False, "transport_error")
        assert caught.value.url.startswith(url)
        assert url in caught.value.detail


def test_an_answer_that_does_not_come(connect: Any) -> None:
    """A request that was sent may have been done; the exception says so."""
    with _server(b"") as url:
        client = connect(url, timeout=0.1, retries=Retries(most=0))
        with pytest.raises(TransportError) as caught:
            client.kill("TERM")
        assert caught.value.maybe_done
        assert "may have been done" in caught.value.detail


def test_a_long_wait_is_not_cut_by_the_time_out_for_answers(connect: Any, daemon: RunningDaemon) -> None:
    client = connect(daemon.url, timeout=0.1, retries=Retries(most=0))
    assert client.run("sleep 0.15; echo over", timeout=60).stdout == "over\n"
    run_id = client.run("sleep 0.15", timeout=0).run_id
    assert client.runs.wait(run_id, timeout=60).status is RunStatus.COMPLETED
    assert next(iter(client.stream("sleep 0.15; echo over"))).text == "over\n"


def test_names_in_paths_are_quoted() -> None:
    assert segment("a/../b?c#d e") == "a%2F..%2Fb%3Fc%23d%20e"


class _server:  # noqa: N801
    """Something that is no daemon: it answers each connection with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self._kept: list[socket.socket] = []

    def __enter__(self) -> str:
        threading.Thread(target=self._serve, daemon=True).start()
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for item in self._kept:
            item.close()

    def _serve(self) -> None:
        try:
            while True:
                connection, _ = self._server.accept()
                self._kept.append(connection)
                connection.recv(65536)
                connection.sendall(self._answer)
        except OSError:
            pass


# --- the terminal in a WebSocket ---------------------------------------------------------------------------


def test_the_terminal_is_opened_or_refused(daemon: RunningDaemon) -> None:
    """As every other request is, in the same exceptions."""

    async def test() -> None:
        async with AsyncClient(daemon.url, KEY) as client:
            terminal = await client.terminal(watch=True)
            assert msgspec.json.decode(await terminal.receive()) == {"type": "state", "state": "ready"}
            await terminal.close()
            with pytest.raises(Closed):
                await terminal.send(b"x")
            with pytest.raises(errors.SessionNotFound):
                await client.terminal("nobody")
        async with AsyncClient(daemon.url, "wrong") as client:
            with pytest.raises(errors.KeyMismatch):
                await client.terminal()
        with socket.create_server(("127.0.0.1", 0)) as server:
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
        async with AsyncClient(url, KEY) as client:
            with pytest.raises(TransportError) as failed:
                await client.terminal()
            assert not failed.value.maybe_done

    asyncio.run(test())
