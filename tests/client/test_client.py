"""What both clients do: each test is run with the blocking one and with the one for asyncio."""

import importlib.util
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import shelld_py
from shelld_py import AsyncClient, Client, errors
from shelld_py.client import Gap, Output, Result, Retries, TransportError, UnknownAnswer
from shelld_py.client.calls import segment
from shelld_py.client.failures import refusal
from shelld_py.errors import ShelldError
from shelld_py.models import RunStatus, ShellState, Stream
from tests.api.conftest import Gate
from tests.daemons import KEY, RunningDaemon, wait_for

# --- the main shell ---------------------------------------------------------------------------------------


def test_a_run_from_start_to_end(client: Any) -> None:
    result = client.run("echo out; echo err >&2; false", streams="separate", description="a test")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (RunStatus.COMPLETED, 1, "out\n", "err\n")
    assert result.description == "a test"
    assert client.runs.get(result.run_id).stdout == "out\n"


def test_every_field_of_the_run_request_arrives(client: Any, tmp_path: Path) -> None:
    command = "pwd; echo $NAME; cat"
    result = client.run(
        command,
        run_id=f"mine-{tmp_path.parent.name}{tmp_path.name}"[:64],
        timeout="20s",
        directory=str(tmp_path),
        stdin="fed",
        environment={"NAME": "value"},
        format="raw",
        max_output=0,
        on_input="wait",
    )
    assert result.run_id.startswith("mine-")
    assert result.stdout == f"{tmp_path}\nvalue\nfed"


def test_a_wait_that_is_over_returns_the_running_run(client: Any, gate: Gate) -> None:
    result = client.run(f"echo begun; {gate}; echo over", timeout=0.2)
    assert (result.status, result.stdout, result.timed_out) == (RunStatus.RUNNING, "begun\n", True)
    gate.open()
    waited = client.runs.wait(result.run_id, timeout=10)
    assert (waited.status, waited.stdout) == (RunStatus.COMPLETED, "begun\nover\n")


def test_input_is_typed(client: Any) -> None:
    started = client.run("read -rp 'Name? ' name; echo \"<$name>\"; cat", timeout="10s")
    assert (started.status, started.awaiting_input) == (RunStatus.RUNNING, True)
    assert client.stdin("Ada\n") == 4
    assert client.runs.stdin(started.run_id, b"more\n", offset=4) == 9
    assert client.runs.stdin(started.run_id, b"more\n", offset=4, eof=True) == 9, "a repeat is not typed twice"
    assert client.runs.wait(started.run_id, timeout=10).stdout == "Name? <Ada>\nmore\n"


def test_state_size_and_kill(client: Any) -> None:
    assert client.resize(33, 111) is ShellState.READY
    assert client.run("stty size").stdout == "33 111\n"
    run = client.run("sleep 100", timeout=0)
    status = client.status()
    assert (status.state, status.run.run_id, status.session_id) == (ShellState.BUSY, run.run_id, "main")
    wait_for(lambda: client.status().run.foreground.command == "sleep 100")
    assert client.kill("TERM").killed
    assert client.runs.wait(run.run_id, timeout=10).signal == 15
    again = client.run("sleep 100", timeout=0)
    killed = client.kill()
    assert (killed.state, killed.run, killed.killed) == (ShellState.READY, again.run_id, True)
    assert client.recycle() is ShellState.READY
    assert client.health() == "ok"
    assert client.metadata().allowed_directories


def test_output_by_cursor(client: Any) -> None:
    run = client.run("printf 'one\\ntwo\\n'")
    assert client.output().output == "one\ntwo\n"
    part = client.output(cursor=4, wait="1s")
    assert (part.output, part.next_cursor, part.eof, part.stream) == ("two\n", 8, True, Stream.STDOUT)
    assert client.runs.output(run.run_id, limit=4, cursor=0).output == "one\n"


def test_one_command_in_a_shell_of_its_own(client: Any) -> None:
    result = client.exec("echo out; echo err >&2")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    events = list(client.exec_stream("echo out; echo err >&2"))
    assert sorted(event.text for event in events[:-1]) == ["err\n", "out\n"]


def test_bytes_that_are_not_text_come_back(client: Any) -> None:
    """In raw form they are lone surrogates, which most JSON readers refuse."""
    result = client.run(r"printf 'a\xff\x00b'", format="raw")
    assert result.stdout.encode("utf-8", "surrogateescape") == b"a\xff\x00b"
    part = client.runs.output(result.run_id, format="raw")
    assert part.output.encode("utf-8", "surrogateescape") == b"a\xff\x00b"


# --- sessions and runs ------------------------------------------------------------------------------------


def test_a_session_is_a_shell_of_its_own(client: Any, tmp_path: Path) -> None:
    with client.sessions.open(working_directory=str(tmp_path), environment={"NAME": "n"}, rows=10, cols=20) as session:
        assert session.run("pwd; echo $NAME; stty size").stdout == f"{tmp_path}\nn\n10 20\n"
        assert [event.text for event in session.stream("echo x") if isinstance(event, Output)] == ["x\n"]
        assert session.status().session_id == session.session_id
        assert client.sessions.get(session.session_id).expires_at
        assert session.session_id in [item.session_id for item in client.sessions.list()]
        assert client.sessions.use(session.session_id).run("echo $NAME").stdout == "n\n"
    with pytest.raises(errors.SessionNotFound):
        client.sessions.get(session.session_id)


def test_runs_are_listed_waited_for_killed_and_deleted(client: Any, gate: Gate) -> None:
    run_id = client.run(f"echo begun; {gate}", timeout=0).run_id
    assert client.runs.list(status="running", limit=1)[0].run_id == run_id
    assert client.runs.list(session_id="nobody") == []
    assert client.runs.wait(run_id, cursor=0, timeout=10).run_id == run_id
    assert client.runs.kill(run_id).killed
    client.runs.delete(run_id)
    with pytest.raises(errors.RunNotFound):
        client.runs.get(run_id)


def test_pieces_join_to_the_whole(client: Any, gate: Gate) -> None:
    """An iterator by cursor goes on until the end of the run, across pauses."""
    run_id = client.run(f"seq 1000; {gate}; seq 1000 | tr -d 9", timeout=0).run_id
    pieces = client.runs.pieces(run_id, limit=500)
    text = next(pieces).output
    gate.open()
    text += "".join(part.output for part in pieces)
    assert text == client.runs.get(run_id, max_output=0).stdout
    assert "".join(part.output for part in client.runs.pieces(run_id, cursor=len(text) - 5)) == text[-5:]


def test_a_followed_run(client: Any, gate: Gate) -> None:
    """Following begins at the cursors, has both streams, and ends with the run; or with the timeout."""
    run_id = client.run(f"echo one; echo bad >&2; {gate}; echo two", streams="separate", timeout=0).run_id
    client.runs.wait(run_id, cursor=0, timeout=10)
    *_, last = client.runs.follow(run_id, timeout=0.1)
    assert last.run.status is RunStatus.RUNNING
    gate.open()
    events = list(client.runs.follow(run_id, cursor=4, stderr_cursor=1))
    assert _texts(events, Stream.STDOUT) == "two\n"
    assert _texts(events, Stream.STDERR) == "ad\n"
    assert isinstance(events[-1], Result)


@pytest.mark.skipif(importlib.util.find_spec("shelld_py.http.until") is None, reason="this daemon knows no conditions")
def test_a_wait_for_a_condition(client: Any) -> None:
    run_id = client.run("echo starting; sleep 0.1; echo serving; read line", timeout=0).run_id
    assert client.runs.wait(run_id, until=["output:^serv+", "exit"], timeout=10).reached == "output:^serv+"
    assert client.runs.wait(run_id, until="input", timeout=10).reached == "input"
    assert client.runs.wait(run_id, until="exit", timeout=0).reached is None
    with pytest.raises(errors.InvalidRequest):
        client.runs.wait(run_id, until="nonsense")


# --- events -----------------------------------------------------------------------------------------------


def test_streamed_output_is_the_output(client: Any) -> None:
    *outputs, last = client.stream("echo out; echo err >&2; exit 3", streams="separate")
    assert all(isinstance(event, Output) for event in outputs)
    assert _texts(outputs, Stream.STDERR).startswith("err\n")
    assert (_texts(outputs, Stream.STDOUT), last.run.exit_code, last.run.stdout) == ("out\n", 3, "out\n")


def test_streamed_bytes_that_are_no_text(client: Any) -> None:
    """They are U+FFFD in events, the last one included."""
    *outputs, last = client.stream("printf 'a\\377b'", format="raw")
    assert (_texts(outputs, Stream.STDOUT), last.run.stdout) == ("a\ufffdb", "a\ufffdb")


def test_output_is_streamed_while_it_is_written(client: Any, gate: Gate) -> None:
    events = client.stream(f"echo first; {gate}; echo second")
    assert next(events).text == "first\n"
    gate.open()
    assert [event.text for event in events if isinstance(event, Output)] == ["second\n"]


def test_a_stream_ends_when_the_wait_is_over(client: Any) -> None:
    assert [*client.stream("sleep 100", timeout=0.1)][-1].run.timed_out
    client.kill()
    assert [*client.stream("read line", timeout=10)][-1].run.awaiting_input
    client.kill()


def test_an_unread_stream_leaves_the_run_running(client: Any, gate: Gate) -> None:
    events = client.stream(f"echo first; {gate}")
    next(events)
    events.close()
    assert client.status().state is ShellState.BUSY
    gate.open()


def test_a_gap_is_an_event(start_daemon: Any, connect: Any) -> None:
    daemon = start_daemon(output__log_max="64KiB")
    daemon.fresh()
    client = connect(daemon.url)
    run = client.run("seq 100000; echo over")
    gaps = [event for event in client.runs.follow(run.run_id) if isinstance(event, Gap)]
    assert gaps
    assert sum(gap.dropped for gap in gaps) > 100_000


# --- files ------------------------------------------------------------------------------------------------


def test_file_operations(client: Any) -> None:
    files = client.files
    made = files.create("client/a.txt", "one\ntwo\n", if_none_match="*")
    assert files.read("client/a.txt", view_range=(2, -1)).content == "two\n"
    assert files.insert("client/a.txt", "half\n", 1, if_match=made.etag).undo_depth == 2
    assert files.replace("client/a.txt", "half", "1.5", expected_replacements=1).replacements == 1
    assert files.undo("client/a.txt").undone == "replace"
    assert [match.line for match in files.search("hal.", "client", include=["*.txt"]).matches] == [2]
    assert [Path(found.path).name for found in files.find("*.txt", "client").files] == ["a.txt"]
    assert files.view("client").files == ("a.txt",)
    assert files.move("client/a.txt", "client/b.txt", overwrite=True).destination_path.endswith("b.txt")
    assert files.update("client/b.txt", "new\n").size == 4
    assert files.delete("client/b.txt").etag is None


def test_bytes_of_files(client: Any) -> None:
    content = bytes(range(256))
    written = client.files.write_raw("client/raw.bin", content)
    whole = client.files.read_raw("client/raw.bin")
    assert (whole.content, whole.size, whole.etag) == (content, 256, written.etag)
    part = client.files.read_raw("client/raw.bin", start=10, length=5)
    assert (part.content, part.start, part.size) == (content[10:15], 10, 256)
    assert client.files.read_raw("client/raw.bin", start=250).content == content[250:]
    with pytest.raises(errors.PreconditionFailed) as caught:
        client.files.write_raw("client/raw.bin", b"", if_match="0" * 64)
    assert caught.value.extra["etag"] == written.etag
    client.files.write_raw("client/raw.bin", b"", if_match=written.etag)
    client.files.delete("client/raw.bin", if_match="*")


# --- errors -----------------------------------------------------------------------------------------------

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
    assert caught.value.extra == {"state": "busy"}
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
    client = connect(daemon.url, timeout=0.2, retries=Retries(most=0))
    assert client.run("sleep 0.3; echo over", timeout=10).stdout == "over\n"
    run_id = client.run("sleep 0.3", timeout=0).run_id
    assert client.runs.wait(run_id, timeout=10).status is RunStatus.COMPLETED
    assert next(iter(client.stream("sleep 0.3; echo over"))).text == "over\n"


# --- the package ------------------------------------------------------------------------------------------


def test_the_package_exports_what_it_says() -> None:
    assert set(shelld_py.__all__) == {"AsyncClient", "Client", "ShelldError", "__version__"}
    for name in shelld_py.__all__:
        assert getattr(shelld_py, name) is not None
        assert name in dir(shelld_py)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = shelld_py.nonsense


def _imported(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    modules = _imported("import shelld_py")
    assert {name for name in modules if name.startswith("shelld_py")} == {"shelld_py", "shelld_py.version"}
    assert not modules & {"httpx", "msgspec", "asyncio"}


def test_the_client_imports_nothing_of_the_daemon() -> None:
    own = {name for name in _imported("import shelld_py.client") if name.startswith("shelld_py.")}
    shared = {"shelld_py.errors", "shelld_py.models", "shelld_py.units", "shelld_py.version"}
    shared |= {"shelld_py.files", "shelld_py.files.models"}
    assert {name for name in own if not name.startswith("shelld_py.client")} == shared


def test_the_daemon_imports_nothing_of_the_client() -> None:
    modules = _imported("import shelld_py.cli, shelld_py.daemon")
    assert not [name for name in modules if name.startswith("shelld_py.client")]
    assert "httpx" not in modules


def test_names_in_paths_are_quoted() -> None:
    assert segment("a/../b?c#d e") == "a%2F..%2Fb%3Fc%23d%20e"


def _texts(events: Any, stream: Stream) -> str:
    return "".join(event.text for event in events if isinstance(event, Output) and event.stream is stream)


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
