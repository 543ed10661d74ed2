"""Where the time of a request went, and whose trace it belongs to."""

import json
import re

import pytest

from tests.daemons import RunningDaemon, wait_for

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SHOW = "printf %s ${TRACEPARENT-none}"


def shown_to(daemon: RunningDaemon, trace: str | bytes) -> str:
    """Return what a command of a request with this `traceparent` finds in its environment."""
    return daemon.client.post("/run", content=SHOW, headers={"traceparent": trace}).text


@pytest.mark.parametrize("path", ["/run", "/exec"])
@pytest.mark.parametrize("form", ["text/plain", "application/json"])
def test_the_answer_of_a_command_tells_where_its_time_went(daemon: RunningDaemon, path: str, form: str) -> None:
    """The parts are in milliseconds, and take at least as long as the command, which may begin before that is noted."""
    answer = daemon.client.post(path, content="sleep 0.05", headers={"Accept": form})
    parts = re.fullmatch(r"queue;dur=([\d.]+), bash;dur=([\d.]+), render;dur=([\d.]+)", answer.headers["server-timing"])
    assert parts
    assert float(parts[1]) + float(parts[2]) >= 50


def test_a_command_is_given_the_trace_of_its_request(daemon: RunningDaemon) -> None:
    """It is given to that command alone, and an `environment` of the request's own goes before it."""
    assert shown_to(daemon, TRACE) == TRACE
    assert daemon.run(SHOW)["stdout"] == "none"
    own = {"command": SHOW, "environment": {"TRACEPARENT": "mine"}}
    assert daemon.client.post("/run", json=own, headers={"traceparent": TRACE}).text == "mine"


def test_a_later_version_of_a_trace_is_taken_as_the_first(daemon: RunningDaemon) -> None:
    """What follows the fields of version 00 is not known, and is left out."""
    assert shown_to(daemon, f"cc{TRACE[2:]}-what-comes-later") == TRACE


@pytest.mark.parametrize(
    "trace",
    [
        "", "00", TRACE.upper(), TRACE + "-more", "ff" + TRACE[2:], TRACE[:-1],
        f"00-{'0' * 32}-{TRACE[36:]}", f"{TRACE[:36]}{'0' * 16}-01", "00-$(touch owned)-00f067aa0ba902b7-01",
        b"00-\xff\xfe", "0" * 50_000,
    ],
)  # fmt: skip
def test_a_trace_that_is_none_is_passed_over(daemon: RunningDaemon, trace: str | bytes) -> None:
    """Nothing hostile reaches the command or the log."""
    request_id = f"hostile-{abs(hash(trace))}"
    headers = {"traceparent": trace, "x-request-id": request_id}
    assert daemon.client.post("/run", content=SHOW, headers=headers).text == "none"
    (line,) = wait_for(lambda: [line for line in daemon.log.read_text().splitlines() if request_id in line])
    assert "/run 200" in line
    assert line.count("[") == 1


def test_a_repeat_with_another_trace_joins_the_run(daemon: RunningDaemon) -> None:
    """Each repeat of a request is a span of its own."""
    body = {"command": SHOW, "run_id": "traced-once"}
    first = daemon.client.post("/run", json=body, headers={"traceparent": TRACE})
    again = daemon.client.post("/run", json=body, headers={"traceparent": TRACE.replace("4b", "5c")})
    assert (first.text, again.text, again.status_code) == (TRACE, TRACE, 200)


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_trace_is_in_the_log(start_daemon, form: str) -> None:
    """A line about a request has its trace beside its id."""
    daemon = start_daemon(logging__format=form)
    daemon.client.get("/status", headers={"traceparent": TRACE, "x-request-id": "the-one"})
    (line,) = wait_for(lambda: [line for line in daemon.log.read_text().splitlines() if "the-one" in line])
    if form == "json":
        assert json.loads(line)["traceparent"] == TRACE
    else:
        assert f"[the-one] [{TRACE}] GET /status 200" in line
