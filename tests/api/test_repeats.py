"""Requests that come twice: the caller's run id, and the Idempotency-Key."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from shelld_py.http.repeats import AnswerRepeats, Repeats
from tests.api.conftest import Gate
from tests.api.problems import problem
from tests.daemons import KEY, RunningDaemon, wait_for

JSON = {"Accept": "application/json"}
_numbers = count()


@pytest.fixture
def key() -> str:
    """An Idempotency-Key, or run id, that was not used before."""
    return f"unused-{next(_numbers)}"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A file that commands add a line to each time they are done."""
    (tmp_path / "traces").touch()
    return tmp_path / "traces"


def simultaneously(number: int, action: Any) -> list[Any]:
    """Call `action` in so many threads at the same time; return what it returned."""
    together = threading.Barrier(number)

    def act(index: int) -> Any:
        together.wait()
        return action(index)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(act, range(number)))


# --- run_id -------------------------------------------------------------------------------------------------


def test_same_run_id_joins_the_running_run(daemon: RunningDaemon, key: str, gate: Gate, traces: Path) -> None:
    """The same id with the same request waits for the run that is going on."""
    command = f"echo x >>{traces}; echo before; {gate}; echo after"
    assert daemon.start(command, run_id=key) == key
    again = daemon.json("POST", "/run", json={"command": command, "run_id": key, "timeout": "50ms"})
    assert (again["run_id"], again["status"], again["stdout"]) == (key, "running", "before\n")
    gate.open()
    last = daemon.run(command, run_id=key, timeout="20s")
    assert (last["status"], last["stdout"]) == ("completed", "before\nafter\n")
    assert traces.read_text() == "x\n"


@pytest.mark.parametrize("between", [None, "/recycle", "another run"])
def test_same_run_id_answers_for_the_ended_run(
    daemon: RunningDaemon, key: str, traces: Path, between: str | None
) -> None:
    """A repeat after the end gets the result of the first, whatever has happened in between."""
    command = f"echo x >>{traces}; echo out; (exit 3)"
    first = daemon.run(command, run_id=key)
    if between == "/recycle":
        daemon.client.post("/recycle")
    elif between:
        daemon.run("echo other")
    second = daemon.run(command, run_id=key)
    assert (second["stdout"], second["exit_code"], second["started_at"]) == ("out\n", 3, first["started_at"])
    assert traces.read_text() == "x\n"
    answer = daemon.client.post("/run", json={"command": command, "run_id": key})
    assert (answer.text, answer.headers["x-exit-code"]) == ("out\n", "3")


@pytest.mark.parametrize("changes", [
    {"command": "echo other"}, {"directory": "/tmp"}, {"environment": {"A": "1"}}, {"stdin": ""},
    {"streams": "separate"},
])  # fmt: skip
def test_run_id_with_another_request(daemon: RunningDaemon, key: str, changes: dict[str, Any]) -> None:
    """The id of a run with a different request is 409, and nothing is run."""
    daemon.run("echo first", run_id=key)
    body = {"command": "echo first", "run_id": key, **changes}
    document = problem(daemon.client.post("/run", json=body, headers=JSON), 409, "run_id_conflict")
    assert document["run_id"] == key
    assert daemon.json("GET", f"/runs/{key}")["stdout"] == "first\n"


@pytest.mark.parametrize("changes", [
    {"timeout": 5}, {"max_output": 3}, {"format": "raw"}, {"on_input": "wait"}, {"streams": "merged"}
])  # fmt: skip
def test_how_to_answer_does_not_make_another_request(daemon: RunningDaemon, key: str, changes: dict[str, Any]) -> None:
    """How long a request waits and what it wants to see are not part of what is run."""
    daemon.run("echo first", run_id=key)
    result = daemon.run("echo first", run_id=key, **changes)
    assert result["run_id"] == key


def test_simultaneous_run_ids(daemon: RunningDaemon, key: str, traces: Path) -> None:
    """Of simultaneous requests with one id all get the one run that there is."""

    def send(_: int) -> tuple[int, bytes]:
        answer = daemon.ask("POST", f"/run?run_id={key}", key=KEY, body=f"echo x >>{traces}; echo out")
        return answer.status, answer.body

    assert simultaneously(8, send) == [(200, b"out\n")] * 8
    assert traces.read_text() == "x\n"


def test_run_id_in_both_forms(daemon: RunningDaemon, key: str) -> None:
    """The form of a request does not matter: raw and JSON join."""
    daemon.run("echo x", run_id=key)
    answer = daemon.client.post(f"/run?run_id={key}", content="echo x")
    assert (answer.text, answer.headers["x-run-id"]) == ("x\n", key)


def test_deleted_run_id_is_free(daemon: RunningDaemon, key: str) -> None:
    """The id of a run that was deleted may be used for another."""
    daemon.run("echo x", run_id=key)
    assert daemon.client.delete(f"/runs/{key}").status_code == 200
    assert daemon.run("echo y", run_id=key)["stdout"] == "y\n"


# --- Idempotency-Key ----------------------------------------------------------------------------------------


def test_repeat_joins_the_running_run(daemon: RunningDaemon, key: str, gate: Gate, traces: Path) -> None:
    """A repeated /run with the same key joins the run, and later answers for it."""
    body = {"command": f"echo x >>{traces}; {gate}; echo out", "timeout": 0}
    headers = {**JSON, "Idempotency-Key": key}
    first = daemon.client.post("/run", json=body, headers=headers).json()
    second = daemon.client.post("/run", json=body, headers=headers).json()
    assert first["run_id"] == second["run_id"]
    gate.open()
    daemon.finished(first["run_id"])
    third = daemon.client.post("/run", json=body, headers=headers)
    assert (third.status_code, third.json()["stdout"]) == (200, "out\n")
    assert traces.read_text() == "x\n"


def test_key_with_another_request(daemon: RunningDaemon, key: str, traces: Path) -> None:
    """The same key with another request is 422, and nothing is done."""
    headers = {**JSON, "Idempotency-Key": key}
    assert daemon.client.post("/run", content="echo a", headers=headers).status_code == 200
    for path, content in (("/run", f"echo x >>{traces}"), ("/kill", ""), ("/recycle", ""), ("/stdin", "x")):
        answer = daemon.client.post(path, content=content, headers=headers)
        problem(answer, 422, "idempotency_mismatch")
    assert traces.read_text() == ""


def test_simultaneous_keys(daemon: RunningDaemon, key: str, traces: Path) -> None:
    """Of simultaneous requests with one key one is done, and all get its answer."""

    def send(_: int) -> tuple[int, bytes]:
        headers = {"Idempotency-Key": key}
        answer = daemon.ask("POST", "/run", key=KEY, headers=headers, body=f"echo x >>{traces}; echo out")
        return answer.status, answer.body

    assert simultaneously(8, send) == [(200, b"out\n")] * 8
    assert traces.read_text() == "x\n"


def test_simultaneous_keys_of_one_shots(daemon: RunningDaemon, key: str, traces: Path) -> None:
    """Simultaneous /exec with one key start one shell, although a shell takes time to start."""

    def send(_: int) -> tuple[int, str]:
        headers = {"Idempotency-Key": key}
        answer = daemon.ask("POST", "/exec", key=KEY, headers=headers, body=f"echo x >>{traces}; echo out")
        return answer.status, json.loads(answer.body)["run_id"]

    assert len(set(simultaneously(8, send))) == 1
    assert traces.read_text() == "x\n"


def test_one_shots_that_start_differently(daemon: RunningDaemon, key: str) -> None:
    """What bash reads at its start is a part of the request."""
    body = {"command": "echo out", "run_id": key}
    assert daemon.json("POST", "/exec", json={**body, "startup_file": ""})["stdout"] == "out\n"
    assert daemon.json("POST", "/exec", json={**body, "startup_file": ""})["stdout"] == "out\n"
    problem(daemon.client.post("/exec", json=body, headers=JSON), 409, "run_id_conflict")
    headers = {**JSON, "Idempotency-Key": key}
    other = {"command": "echo out", "startup_file": ""}
    assert daemon.client.post("/exec", json={"command": "echo out"}, headers=headers).status_code == 200
    problem(daemon.client.post("/exec", json=other, headers=headers), 422, "idempotency_mismatch")


def test_answers_that_broke_off_are_not_repeated() -> None:
    """Nobody could tell one from a whole answer. Neither is more of one kept than of all."""
    pieces = [b"begun, ", b"done"]
    fails = True

    async def streaming(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number, piece in enumerate(pieces):
            if fails and number:
                raise OSError("the disk is gone")
            await send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces) - 1})

    async def body() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    app = AnswerRepeats(streaming, repeats=Repeats(time.monotonic), starts_run=lambda _: False)
    scope = {
        "type": "http", "method": "POST", "path": "/x", "query_string": b"", "headers": [(b"idempotency-key", b"k")],
    }  # fmt: skip

    def answer() -> bytes:
        received: list[bytes] = []

        async def send(message: Message) -> None:
            received.append(message.get("body", b""))

        with contextlib.suppress(OSError):
            asyncio.run(app(dict(scope), body, send))
        return b"".join(received)

    assert answer() == b"begun, "
    fails = False
    assert answer() == b"begun, done"
    pieces[1] = b"again"
    assert answer() == b"begun, done"
    scope["path"] = "/large"
    scope["headers"] = [(b"idempotency-key", b"large")]
    pieces[:] = [b"x" * (3 << 20), b"x" * (3 << 20)]
    assert len(answer()) == 6 << 20
    pieces[:] = [b"small"]
    assert answer() == b"small"


def test_repeated_stdin(daemon: RunningDaemon, key: str) -> None:
    """A repeated /stdin is typed once and answered as the first one was."""
    run_id = daemon.start('read -r a; read -r b; echo "[$a][$b]"')
    headers = {"Idempotency-Key": key}
    answers = [daemon.client.post("/stdin", content="one\n", headers=headers) for _ in range(3)]
    assert [answer.text for answer in answers] == ["4"] * 3
    daemon.client.post("/stdin", content="two\n")
    assert "[one][two]" in daemon.finished(run_id)["stdout"]


@pytest.mark.parametrize("repeatable", [True, False])
def test_body_that_is_cut_off(daemon: RunningDaemon, key: str, repeatable: bool) -> None:
    """A request whose connection breaks in the middle of its body does nothing, and is no fault of the daemon."""
    run_id = daemon.start('read -r a; echo "[$a]"')
    request_id = f"cut-off-{key}"
    headers = {"X-Shell-Key": KEY, "X-Request-Id": request_id, "Content-Length": "20"}
    headers |= {"Idempotency-Key": key} if repeatable else {}
    with contextlib.closing(http.client.HTTPConnection(urlsplit(daemon.url).netloc)) as connection:
        connection.request("POST", "/stdin", body=b"rm -rf /\n", headers=headers)
    line = wait_for(lambda: next((line for line in daemon.log.read_text().splitlines() if request_id in line), None))
    assert "POST /stdin 400" in line
    assert daemon.client.post("/stdin", content="whole\n", headers={"Idempotency-Key": key}).text == "6"
    assert daemon.finished(run_id)["stdout"] == "[whole]\n"


def test_replayed_answers_are_whole(daemon: RunningDaemon, key: str) -> None:
    """Every replay has the status, the headers and the body of the first answer, and one request id of its own."""
    pid = daemon.json("GET", "/status")["shell_pid"]
    headers = {"Idempotency-Key": key, "X-Shell-Key": KEY}
    answers = [
        daemon.ask("POST", "/recycle", headers={**headers, "X-Request-Id": f"repeat-{number}"}) for number in range(4)
    ]
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"ready")] * 4
    assert [answer.headers["x-request-id"] for answer in answers] == [f"repeat-{number}" for number in range(4)]
    after = daemon.json("GET", "/status")["shell_pid"]
    assert after != pid
    daemon.ask("POST", "/recycle", headers=headers)
    assert daemon.json("GET", "/status")["shell_pid"] == after


def test_what_was_refused_can_be_sent_again(daemon: RunningDaemon, key: str) -> None:
    """A refusal did nothing, so the same request with the same key is tried anew."""
    headers = {"Idempotency-Key": key}
    busy = daemon.start("sleep 60")
    assert daemon.client.post("/run", content="echo x", headers=headers).status_code == 409
    daemon.client.post(f"/runs/{busy}/kill")
    assert daemon.client.post("/run", content="echo x", headers=headers).text == "x\n"


def test_simultaneous_repeats_of_what_is_refused(start_daemon, key: str) -> None:
    """When the first of simultaneous requests is refused, those with the same key are answered too."""
    daemon = start_daemon(hooks__on_startup="echo >>begun; read -r _ <gate")
    gate = Gate(daemon.log.parent / "work" / "gate")
    begun = daemon.log.parent / "work" / "begun"
    body = '{"working_directory": "/no/such/place"}'
    statuses: list[int | str] = []

    def send() -> None:
        try:
            headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
            statuses.append(daemon.ask("POST", "/startup", key=KEY, headers=headers, body=body).status)
        except OSError as error:
            statuses.append(repr(error))

    first, second = threading.Thread(target=send), threading.Thread(target=send)
    first.start()
    wait_for(begun.exists)
    second.start()
    before = daemon.ask("GET", "/health").status
    gate.open()
    if wait_for(lambda: not second.is_alive() or begun.read_text().count("\n") > 1) and second.is_alive():
        gate.open()
    first.join(60)
    second.join(60)
    assert (before, statuses) == (200, [400, 400])


def test_key_outlives_its_run(start_daemon, key: str, traces: Path) -> None:
    """A request is not done again although its run is no longer kept: the key counts for an hour."""
    daemon = start_daemon(output__retain_runs="1")
    daemon.fresh()
    send = {"content": f"echo x >>{traces}", "headers": {"Idempotency-Key": key}}
    assert daemon.client.post("/run", **send).status_code == 200
    for _ in range(3):
        daemon.run("true")
    daemon.client.post("/run", **send)
    assert traces.read_text() == "x\n"


@pytest.mark.parametrize("length", [255, 256])
def test_length_of_keys(ready_daemon: RunningDaemon, length: int) -> None:
    """An Idempotency-Key has at most 255 bytes."""
    answer = ready_daemon.client.post("/run", content="true", headers={"Idempotency-Key": "k" * length})
    assert answer.status_code == (200 if length == 255 else 400)


def test_keys_do_not_matter_to_reads(daemon: RunningDaemon, key: str) -> None:
    """A GET with a key is a plain read each time."""
    headers = {"Idempotency-Key": key}
    assert daemon.client.get("/status", headers=headers).text == "ready"
    daemon.client.post("/shutdown?recycle=true")
    assert daemon.client.get("/status", headers=headers).text == "available"


def test_keys_are_forgotten_with_the_client(start_daemon, key: str, traces: Path) -> None:
    """After /shutdown?recycle=true the keys of the last client mean nothing."""
    daemon = start_daemon()
    for _ in range(2):
        daemon.client.post("/startup")
        answer = daemon.client.post("/run", content=f"echo x >>{traces}", headers={"Idempotency-Key": key})
        assert answer.status_code == 200
        daemon.client.post("/shutdown?recycle=true", headers={"Idempotency-Key": f"{key}-reset"})
    assert traces.read_text() == "x\nx\n"


def test_repeat_over_a_broken_connection(daemon: RunningDaemon, key: str, gate: Gate, traces: Path) -> None:
    """A wrapper that lost its connection sends the request again and gets the answer; the command ran once."""
    send = {"content": f"echo x >>{traces}; {gate}; echo out", "headers": {"Idempotency-Key": key}}
    with pytest.raises(httpx.ReadTimeout):
        daemon.client.post("/run", **send, timeout=0.2)
    gate.open()
    assert daemon.client.post("/run", **send).text == "out\n"
    assert traces.read_text() == "x\n"
