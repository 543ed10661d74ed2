"""Every state of the shell against every endpoint that depends on it, over HTTP, with the exact messages."""

from collections.abc import Callable

import pytest

from tests.api.problems import problem, text_problem
from tests.daemons import RunningDaemon, wait_for

NOT_STARTED = (409, "shell_not_started", "The shell has not been started.")
BUSY = (409, "shell_busy", "The shell is busy executing another command.")
ALREADY = (409, "shell_already_started", "The shell is already started.")
BROKEN = (409, "shell_unrecoverable", "The shell is in an unrecoverable state and must be recycled.")
NOTHING_RUNS = (409, "no_running_command", None)
NO_RUN = (404, "run_not_found", None)

REQUESTS = {
    "startup": {"url": "/startup"},
    "run": {"url": "/run", "content": "printf ran"},
    "kill": {"url": "/kill"},
    "signal": {"url": "/kill?signal=WINCH"},
    "recycle": {"url": "/recycle"},
    "stdin": {"url": "/stdin", "content": "hello"},
    "resize": {"url": "/resize", "json": {"rows": 30, "cols": 90}},
    "reset": {"url": "/shutdown?recycle=true"},
}

TABLE = {
    "available": {
        "startup": ("ready", "ready"),
        "run": NOT_STARTED,
        "kill": NOT_STARTED,
        "signal": NOT_STARTED,
        "recycle": NOT_STARTED,
        "stdin": NOT_STARTED,
        "resize": NOT_STARTED,
        "reset": ("available", "available"),
    },
    "ready": {
        "startup": ALREADY,
        "run": ("ran", "ready"),
        "kill": ("ready", "ready"),
        "signal": ("ready", "ready"),
        "recycle": ("ready", "ready"),
        "stdin": NOTHING_RUNS,
        "resize": ("ready", "ready"),
        "reset": ("available", "available"),
    },
    "busy": {
        "startup": ALREADY,
        "run": BUSY,
        "kill": ("ready", "ready"),
        "signal": ("busy", "busy"),
        "recycle": ("ready", "ready"),
        "stdin": ("5", "busy"),
        "resize": ("busy", "busy"),
        "reset": ("available", "available"),
    },
    "unrecoverable": {
        "startup": BROKEN,
        "run": BROKEN,
        "kill": ("unrecoverable", "unrecoverable"),
        "signal": ("unrecoverable", "unrecoverable"),
        "recycle": ("ready", "ready"),
        "stdin": BROKEN,
        "resize": BROKEN,
        "reset": ("available", "available"),
    },
}


def make_available(daemon: RunningDaemon) -> None:
    assert daemon.client.post("/shutdown?recycle=true").text == "available"


def make_busy(daemon: RunningDaemon) -> None:
    daemon.start("sleep 60; true")
    wait_for(lambda: (daemon.json("GET", "/status")["run"] or {}).get("foreground", {}).get("command") == "sleep 60")


def make_unrecoverable(daemon: RunningDaemon) -> None:
    daemon.run("kill -KILL $$")


ENTER: dict[str, Callable[[RunningDaemon], None]] = {
    "available": make_available,
    "ready": lambda _: None,
    "busy": make_busy,
    "unrecoverable": make_unrecoverable,
}


@pytest.mark.parametrize(("state", "request_name"), [(state, name) for state in TABLE for name in REQUESTS])
def test_request_in_state(daemon: RunningDaemon, state: str, request_name: str) -> None:
    """Each request in each state is answered, or refused with the message, as the table says."""
    ENTER[state](daemon)
    assert daemon.state() == state
    request, expected = REQUESTS[request_name], TABLE[state][request_name]
    if len(expected) == 2:
        answer = daemon.client.post(**request)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert (answer.text, daemon.state()) == expected
        return
    status, code, message = expected
    text = text_problem(daemon.client.post(**request), status)
    document = problem(daemon.client.post(**request, headers={"Accept": "application/json"}), status, code)
    assert document["state"] == state
    assert document["detail"] == text
    if message:
        assert text == message
    assert daemon.state() == state


@pytest.mark.parametrize("state", TABLE)
def test_reading_in_state(daemon: RunningDaemon, state: str) -> None:
    """Status, health, runs and listings can be read in every state, and change nothing."""
    ENTER[state](daemon)
    status = daemon.json("GET", "/status")
    assert status["state"] == state
    assert (status["run"] is not None) == (state == "busy")
    assert (status["shell_pid"] is not None) == (state in ("ready", "busy"))
    assert daemon.client.get("/health").text == "ok"
    assert daemon.client.get("/runs").status_code == 200
    assert daemon.state() == state


def test_no_output_before_the_first_run(daemon: RunningDaemon) -> None:
    """GET /output is 404 as long as no command has been run."""
    make_available(daemon)
    text_problem(daemon.client.get("/output"), 404)
    problem(daemon.client.get("/output", headers={"Accept": "application/json"}), 404, "run_not_found")


@pytest.mark.parametrize("path", ["/startup", "/recycle", "/kill", "/shutdown?recycle=true"])
def test_states_as_json(daemon: RunningDaemon, path: str) -> None:
    """What answers a state in one word answers it as the member `state` in JSON."""
    if path == "/startup":
        make_available(daemon)
    answer = daemon.json("POST", path)
    assert answer["state"] == daemon.state()


@pytest.mark.parametrize(("method", "path", "allowed"), [
    ("GET", "/run", {"POST"}), ("GET", "/startup", {"POST"}), ("GET", "/kill", {"POST"}), ("PUT", "/recycle", {"POST"}),
    ("DELETE", "/shutdown", {"POST"}), ("POST", "/status", {"GET", "HEAD"}), ("POST", "/output", {"GET", "HEAD"}),
    ("GET", "/stdin", {"POST"}), ("PATCH", "/resize", {"POST"}), ("POST", "/health", {"GET", "HEAD"}),
    ("POST", "/runs", {"GET", "HEAD"}), ("PUT", "/runs/some", {"GET", "HEAD", "DELETE"}),
    ("GET", "/runs/some/kill", {"POST"}), ("POST", "/runs/some/output", {"GET", "HEAD"}),
])  # fmt: skip
def test_wrong_method(ready_daemon: RunningDaemon, method: str, path: str, allowed: set[str]) -> None:
    """A wrong method is 405 with a problem document, and Allow lists every method that there is."""
    answer = ready_daemon.client.request(method, path, headers={"Accept": "application/json"})
    problem(answer, 405, "method_not_allowed")
    assert {name.strip() for name in answer.headers["allow"].split(",")} == allowed


@pytest.mark.parametrize("path", ["//", "/nowhere", "/run/", "/status/x", "/runs/x/y", "/RUN", "//run", "/%72un/"])
def test_unknown_path(ready_daemon: RunningDaemon, path: str) -> None:
    """An unknown path is 404 with a problem document; none is redirected."""
    answer = ready_daemon.ask("GET", path, key="test-key")
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(("accept", "media_type"), [
    (None, "text/plain; charset=utf-8"),
    ("*/*", "text/plain; charset=utf-8"),
    ("text/plain", "text/plain; charset=utf-8"),
    ("text/html", "text/plain; charset=utf-8"),
    ("application/json", "application/json"),
    ("Application/JSON; charset=utf-8", "application/json"),
    ("application/json, text/plain, */*", "application/json"),
    ("text/html, application/json;q=0.9, */*;q=0.8", "application/json"),
    ("text/plain;q=0.1, application/json", "application/json"),
    ("application/json;q=0", "text/plain; charset=utf-8"),
])  # fmt: skip
def test_accept(ready_daemon: RunningDaemon, accept: str | None, media_type: str) -> None:
    """The shell paths answer text, and JSON where Accept names it."""
    answer = ready_daemon.ask("GET", "/status", key="test-key", headers={"Accept": accept} if accept else {})
    assert answer.headers["content-type"] == media_type


@pytest.mark.parametrize(("given", "kept"), [
    ("abc-123_X.y", True), ("a" * 128, True), ("a" * 129, False), ("with space", False), ("new|line", False),
    ("", False),
])  # fmt: skip
@pytest.mark.parametrize("path", ["/status", "/health", "/nowhere"])
def test_request_id(ready_daemon: RunningDaemon, path: str, given: str, kept: bool) -> None:
    """Every answer carries X-Request-Id: the caller's if that is sane, else one of its own."""
    answer = ready_daemon.ask("GET", path, key="test-key", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"]
    assert (answer.headers["x-request-id"] == given) == kept


def test_request_id_of_refusals(ready_daemon: RunningDaemon) -> None:
    """Refused requests have a request id as well, and each its own."""
    first, second = (ready_daemon.ask("GET", "/status").headers["x-request-id"] for _ in range(2))
    assert first != second
