"""Recordings of runs over HTTP: when output came, of real programs in real terminals."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.api.conftest import Gate
from tests.api.problems import problem
from tests.daemons import RunningDaemon, running_daemon, wait_for

BYTE_BY_BYTE = "python3 -c 'import os\nfor _ in range(100000): os.write(1, b\"x\")'"


def _recording(daemon: RunningDaemon, run_id: str) -> tuple[dict[str, Any], list[list[Any]]]:
    """Return the header and the events of a recording, whose times grow and don't go beyond the run's end."""
    answer = daemon.client.get(f"/runs/{run_id}/recording")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-asciicast")
    header, *events = map(json.loads, answer.text.splitlines())
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert "duration" not in header or all(at <= header["duration"] + 0.001 for at in times)
    return header, events


def _output(events: list[list[Any]]) -> str:
    return "".join(data for _, kind, data in events if kind == "o")


def _raw(daemon: RunningDaemon, run_id: str) -> bytes:
    return daemon.client.get(f"/runs/{run_id}/output?format=raw", headers={"Accept": "text/plain"}).content


def _is_that_of_the_log(daemon: RunningDaemon, run_id: str) -> list[list[Any]]:
    _, events = _recording(daemon, run_id)
    assert _output(events) == _raw(daemon, run_id).decode(errors="replace").replace("\n", "\r\n")
    return events


def _timing(daemon: RunningDaemon, run_id: str) -> Path:
    return daemon.data / "runs" / run_id / "timing"


def test_what_it_tells(daemon: RunningDaemon, gates: Callable[[str], Gate]) -> None:
    """Each piece with its time, new sizes of the terminal, and who has run what; also while the run goes on."""
    daemon.client.post("/resize", json={"rows": 30, "cols": 100})
    one, two = gates("one"), gates("two")
    command = f"printf 'first \\303'; {one}; printf '\\244\\377'; {two}; echo last"
    run_id = daemon.start(command, description="a test\nof more lines")
    wait_for(lambda: _output(_recording(daemon, run_id)[1]) == "first ")
    assert "duration" not in _recording(daemon, run_id)[0]
    wait_for(lambda: daemon.json("GET", f"/runs/{run_id}")["duration"] > 0.1)
    one.open()
    wait_for(lambda: _output(_recording(daemon, run_id)[1]) == "first ä\ufffd")
    daemon.client.post("/resize", json={"rows": 40, "cols": 120})
    two.open()
    result = daemon.finished(run_id)
    header, events = _recording(daemon, run_id)
    assert header.pop("timestamp") > 1_700_000_000
    assert header == {
        "version": 2, "width": 100, "height": 30, "command": command, "title": "a test",
        "env": {"SHELL": "/bin/bash", "TERM": "xterm-256color"}, "duration": result["duration"],
    }  # fmt: skip
    assert [event[1:] for event in events] == [["o", "first "], ["o", "ä\ufffd"], ["r", "120x40"], ["o", "last\r\n"]]
    assert max(events[0][0], 0.1) < events[1][0]
    _is_that_of_the_log(daemon, run_id)


def test_a_quick_run_is_one_event_at_its_end(daemon: RunningDaemon) -> None:
    result = daemon.run("printf 'one\\ntwo'")
    header, events = _recording(daemon, result["run_id"])
    assert events == [[round(result["duration"], 3), "o", "one\r\ntwo"]]
    assert (header["command"], header["title"]) == ("printf 'one\\ntwo'",) * 2
    assert _recording(daemon, daemon.run("true")["run_id"])[1] == []


def test_a_program_that_writes_byte_by_byte(daemon: RunningDaemon) -> None:
    """The times take less than a hundredth of the output, or 64 KiB for a minute."""
    result = daemon.run(BYTE_BY_BYTE, timeout="60s")
    size = _timing(daemon, result["run_id"]).stat().st_size
    assert size <= max(1000, 64 * 1024 * result["duration"] / 60)
    assert len(_is_that_of_the_log(daemon, result["run_id"])) > 1


def test_a_flood(daemon: RunningDaemon) -> None:
    """Of 20 MB the times are some hundred bytes, and the recording comes in pieces."""
    run_id = daemon.run("head -c 20000000 /dev/zero | tr '\\0' 'y'", max_output=1)["run_id"]
    assert _timing(daemon, run_id).stat().st_size < 200_000
    _, events = _recording(daemon, run_id)
    assert all(len(data) <= 16384 for _, _, data in events)
    assert sum(len(data) for _, _, data in events) == 20_000_000


def test_streams_apart(daemon: RunningDaemon) -> None:
    """Both are in it, in the order in which they came."""
    command = "echo one; sleep 0.3; echo two >&2; sleep 0.3; echo three"
    for streams in ("separate", "pipes"):
        result = daemon.json("POST", "/exec", json={"command": command, "streams": streams})
        assert _output(_recording(daemon, result["run_id"])[1]) == "one\r\ntwo\r\nthree\r\n"


def test_no_such_run(daemon: RunningDaemon) -> None:
    problem(daemon.client.get("/runs/none/recording", headers={"Accept": "application/json"}), 404, "run_not_found")


def test_what_is_no_utf8_in_a_description(daemon: RunningDaemon) -> None:
    body = b'{"command": "true", "description": "\\udcff"}'
    result = daemon.json("POST", "/run", content=body, headers={"Content-Type": "application/json"})
    assert _recording(daemon, result["run_id"])[0]["title"] == "\N{REPLACEMENT CHARACTER}"


def test_it_survives_the_daemon_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    """A daemon that starts knows the times of the one before, also of a run that was cut short by a crash.

    Files that are damaged lose the times, and nothing else. What is deleted or expires takes them with it.
    """
    command = "echo a; sleep 0.1; echo b"
    with running_daemon(tmp_path, output__log_max="2000") as daemon:
        daemon.fresh()
        runs = [daemon.run(command)["run_id"] for _ in range(4)]
        whole = daemon.run("seq 2000; sleep 0.5; echo end", max_output=1)
        long = whole["run_id"]
        recordings = [_recording(daemon, run_id) for run_id in (*runs, long)]
        killed = daemon.start("echo a; sleep 0.5; echo b; read -r")
        wait_for(lambda: _output(_recording(daemon, killed)[1]) == "a\r\nb\r\n")
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
    for run_id, content in ((runs[1], b"\xff" * 100), (runs[2], b"")):
        _timing(daemon, run_id).write_bytes(content)
    _timing(daemon, runs[3]).unlink()
    os.mkfifo(_timing(daemon, runs[3]))
    with running_daemon(tmp_path, output__log_max="2000", output__retain_runs="6") as daemon:
        assert [_recording(daemon, run_id) for run_id in (runs[0], long)] == [recordings[0], recordings[4]]
        for run_id in runs[1:]:
            duration = round(daemon.json("GET", f"/runs/{run_id}")["duration"], 3)
            assert _recording(daemon, run_id)[1] == [[duration, "o", "a\r\nb\r\n"]]
        first, second = _recording(daemon, killed)[1]
        assert (first[1:], second[1:]) == (["o", "a\r\n"], ["o", "b\r\n"])
        assert second[0] - first[0] > 0.05
        # Where the middle is missing, it is said, and what comes after has its own time.
        _, events = _recording(daemon, long)
        (marker,) = (event for event in events if event[1] == "m")
        dropped = int(marker[2].split()[0])
        assert dropped + len(_output(events).replace("\r\n", "\n")) == whole["cursor"]
        assert events[-1][2].endswith("end\r\n")
        assert events[-1][0] - events[0][0] > 0.05
        assert daemon.client.delete(f"/runs/{runs[3]}").status_code == 200
        daemon.fresh()
        for _ in range(6):
            daemon.run("true")
        wait_for(lambda: daemon.client.get(f"/runs/{runs[0]}").status_code == 404)
        wait_for(lambda: not any(_timing(daemon, run_id).parent.exists() for run_id in runs))
        # A directory of a run that is forgotten becomes that of another, and nothing of the old one is in it.
        for _ in range(3):
            _, (first, second) = _recording(daemon, daemon.run(command)["run_id"])
            assert (first[1:], second[1:]) == (["o", "a\r\n"], ["o", "b\r\n"])


def test_it_can_be_turned_off(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Without it nothing is kept; what is known of an earlier time stays."""
    daemon = start_daemon(output__timing="false")
    daemon.fresh()
    result = daemon.run("echo a; sleep 0.1; echo b")
    assert sorted(os.listdir(_timing(daemon, result["run_id"]).parent)) == ["output.log", "snapshot.json"]
    assert _recording(daemon, result["run_id"])[1] == [[round(result["duration"], 3), "o", "a\r\nb\r\n"]]
