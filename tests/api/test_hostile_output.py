"""Output that was written to do harm: the run is answered all the same, and nobody else has to wait for it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.test_events import EVENTS, server_events
from tests.daemons import RunningDaemon


@pytest.mark.parametrize("form", ["text/plain", "application/json", "text/event-stream"])
def test_a_parameter_of_5000_digits_is_answered(daemon: RunningDaemon, form: str) -> None:
    """The run has its exit code and its text, when it is started and ever after."""
    command = r"printf 'a\e[%05000dCb\n' 7; (exit 3)"
    answer = daemon.client.post(
        "/run", json={"command": command, "run_id": f"digits-{form[-4:]}"}, headers={"Accept": form}
    )
    assert answer.status_code == 200
    later = daemon.client.get(f"/runs/digits-{form[-4:]}").json()
    assert (later["exit_code"], later["stdout"]) == (3, "a       b\n")
    assert later["original_stdout_size"] == len("a       b\n")


def test_movements_do_not_blow_up_a_text(daemon: RunningDaemon) -> None:
    """A cursor that is sent off again and again stops where a terminal ends."""
    result = daemon.run(r"for i in {1..1000}; do printf '\e[65535C'; done; echo x")
    assert result["exit_code"] == 0
    assert result["original_stdout_size"] < 2000


@pytest.mark.parametrize("unit", [r"\r", r"ab\b", r"a\e[K\b", r"\e[1K", r"\eP\n"])
def test_the_size_of_what_redraws_is_that_of_its_text(daemon: RunningDaemon, unit: str) -> None:
    """More than is rendered in the event loop: what the answer says of it is exact."""
    result = daemon.run(rf"yes $'{unit}' | tr -d '\n' | head -c 200000; echo end")
    assert result["exit_code"] == 0
    assert result["stdout"].endswith("end\n")
    assert result["original_stdout_size"] == len(result["stdout"]) or result["truncated"]


def test_others_are_answered_while_redraws_are_followed(daemon: RunningDaemon) -> None:
    """Events of output that only redraws are made beside the event loop: probes are answered in between."""
    daemon.run(r"yes $'a\e[K\bb' | tr -d '\n' | head -c 600000", run_id="redraws", max_output=1)
    answered, over = 0, threading.Event()

    def probe() -> None:
        nonlocal answered
        while not over.is_set():
            assert daemon.client.get("/health").text == "ok"
            answered += not over.is_set()

    with (
        ThreadPoolExecutor(1) as pool,
        daemon.client.stream("GET", "/runs/redraws/output", headers=EVENTS) as answer,
    ):
        events = server_events(answer)
        next(events)
        probes = pool.submit(probe)
        names = [event.name for event in events]
        over.set()
        probes.result()
    assert names[-1] == "result"
    assert answered >= 3
