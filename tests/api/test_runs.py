"""Runs by their ids: listings, results, output by cursor, waiting, deleting."""

import shutil
import threading
import uuid
from typing import Any

import pytest

from tests.api.conftest import Gate
from tests.api.problems import problem
from tests.daemons import RunningDaemon, alive, wait_for

TEXT = {"Accept": "text/plain"}


def read(daemon: RunningDaemon, run_id: str, **parameters: Any) -> dict[str, Any]:
    """Read output as JSON."""
    answer = daemon.client.get(f"/runs/{run_id}/output", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- listings -----------------------------------------------------------------------------------------------


def test_listing(daemon: RunningDaemon) -> None:
    """GET /runs has the newest first, as results without output."""
    ids = [daemon.run(f"echo {number}")["run_id"] for number in range(3)]
    ids.append(daemon.start("sleep 60"))
    listed = daemon.json("GET", "/runs")
    assert [run["run_id"] for run in listed[:4]] == ids[::-1]
    assert {run["stdout"] for run in listed} == {run["stderr"] for run in listed} == {None}
    assert [run["status"] for run in listed[:2]] == ["running", "completed"]
    assert listed[1]["original_stdout_size"] == 2


def test_filters(daemon: RunningDaemon) -> None:
    """`status`, `session_id` and `limit` choose from the listing."""
    daemon.run("true")
    running = daemon.start("sleep 60")
    assert {run["status"] for run in daemon.json("GET", "/runs?status=running")} == {"running"}
    # Jobs that other tests have started on this daemon may be running, too, but not in the main shell.
    assert [run["run_id"] for run in daemon.json("GET", "/runs?status=running&session_id=main")] == [running]
    assert {run["status"] for run in daemon.json("GET", "/runs?status=completed")} == {"completed"}
    assert len(daemon.json("GET", "/runs?limit=1")) == 1
    assert daemon.json("GET", "/runs?limit=1&session_id=main")[0]["run_id"] == running
    assert daemon.json("GET", "/runs?session_id=other") == []


def test_state_of_the_shell_in_the_result_of_an_ended_run(daemon: RunningDaemon) -> None:
    """It is the one at the end of the run, but that of now while the run has processes left which may still write."""
    alone = daemon.run("true")["run_id"]
    accompanied = daemon.run("sleep 60 &")["run_id"]
    daemon.start("sleep 60")
    assert [daemon.json("GET", f"/runs/{run_id}")["state"] for run_id in (alone, accompanied)] == ["ready", "busy"]


@pytest.mark.parametrize(
    "query", ["status=done", "limit=0", "limit=-1", "limit=x", "limit=1e3", "colour=red", "status="]
)
def test_malformed_filters(ready_daemon: RunningDaemon, query: str) -> None:
    """A filter that is none is 400."""
    problem(ready_daemon.client.get(f"/runs?{query}"), 400, "invalid_request")


@pytest.mark.parametrize("path", ["", "/output", "/wait"])
def test_unknown_run(ready_daemon: RunningDaemon, path: str) -> None:
    """What asks for a run that there is not is 404, with a problem document whatever Accept says."""
    for headers in ({}, {"Accept": "application/json"}):
        problem(ready_daemon.client.get(f"/runs/no-such-run{path}", headers=headers), 404, "run_not_found")
    problem(ready_daemon.client.delete("/runs/no-such-run"), 404, "run_not_found")


def test_listing_survives_lost_files(daemon: RunningDaemon) -> None:
    """A run whose files somebody has removed does not make the others unreadable."""
    kept, lost = daemon.run("echo kept")["run_id"], daemon.run("echo lost; sleep 0.1")["run_id"]
    shutil.rmtree(daemon.data / "runs" / lost)
    answer = daemon.client.get("/runs")
    assert daemon.json("GET", f"/runs/{lost}")["stdout"] == ""
    daemon.client.delete(f"/runs/{lost}")
    assert answer.status_code == 200, answer.text
    assert kept in {run["run_id"] for run in answer.json()}


def test_runs_by_pages(daemon: RunningDaemon) -> None:
    """Pages of the list join to the whole, also where runs are deleted and begun between them."""
    ids = [daemon.run(f"echo {number}; {'sleep 0.05' if number % 2 else ''}")["run_id"] for number in range(7)]
    seen, cursor, deleted = [], None, ids[4]
    while cursor is not None or not seen:
        page = daemon.client.get("/runs", params={"limit": 3, **({} if cursor is None else {"cursor": cursor})})
        assert page.status_code == 200, page.text
        assert len(page.json()) <= 3
        seen += [run["run_id"] for run in page.json()]
        cursor = page.headers.get("x-next-cursor")
        if deleted:
            daemon.client.delete(f"/runs/{deleted}")
            daemon.run("true")
            deleted = None
    whole = [run["run_id"] for run in daemon.client.get("/runs?limit=1000").json()]
    assert seen[:7] == ids[::-1]
    assert seen[7:] == whole[7:][: len(seen) - 7]
    assert "x-next-cursor" not in daemon.client.get("/runs?limit=1000").headers
    for wrong in ("limit=0", "limit=1001", "cursor=-1", "cursor=x"):
        problem(daemon.client.get(f"/runs?{wrong}"), 400, "invalid_request")


def test_retained_runs(start_daemon) -> None:
    """The newest output.retain_runs ended runs are kept, in memory and on disk; a running one does not count."""
    daemon = start_daemon(output__retain_runs="3")
    daemon.fresh()
    ids = [daemon.run(f"echo {number}; sleep 0.1")["run_id"] for number in range(6)]
    running = daemon.start("sleep 60")
    wait_for(lambda: [run["run_id"] for run in daemon.json("GET", "/runs")] == [running, *ids[:2:-1]])
    kept = {path.name for path in (daemon.data / "runs").iterdir()}
    assert kept == {running, *ids[3:]}
    problem(daemon.client.get(f"/runs/{ids[0]}"), 404, "run_not_found")


# --- results ------------------------------------------------------------------------------------------------


def test_result_of_a_running_run(daemon: RunningDaemon) -> None:
    """GET /runs/ID of a running run is 200 with its output so far."""
    run_id = daemon.start("echo x; sleep 60")
    wait_for(lambda: daemon.json("GET", f"/runs/{run_id}")["stdout"] == "x\n")
    answer = daemon.client.get(f"/runs/{run_id}")
    assert (answer.status_code, answer.json()["status"]) == (200, "running")


def test_parameters_of_a_result(daemon: RunningDaemon) -> None:
    """A result takes `format` and `max_output`."""
    run_id = daemon.run(r"printf '\e[1m%0100d' 0")["run_id"]
    assert daemon.json("GET", f"/runs/{run_id}?format=raw")["stdout"].startswith("\x1b[1m")
    assert daemon.json("GET", f"/runs/{run_id}?max_output=10")["truncated"] is True
    for query in ("format=html", "max_output=-1", "colour=red"):
        problem(daemon.client.get(f"/runs/{run_id}?{query}"), 400, "invalid_request")


# --- output by cursor ---------------------------------------------------------------------------------------


def test_output_of_an_ended_run(daemon: RunningDaemon) -> None:
    """The members of an answer with output, from the beginning, from a cursor, and at the end."""
    run_id = daemon.run("printf 'one\\ntwo\\n'")["run_id"]
    assert read(daemon, run_id) == {
        "run_id": run_id, "stream": "stdout", "cursor": 0, "next_cursor": 8, "output": "one\ntwo\n",
        "status": "completed", "eof": True, "dropped": 0,
    }  # fmt: skip
    part = read(daemon, run_id, cursor=4)
    assert (part["cursor"], part["output"], part["next_cursor"], part["eof"]) == (4, "two\n", 8, True)
    end = read(daemon, run_id, cursor=8)
    assert (end["output"], end["next_cursor"], end["eof"]) == ("", 8, True)


def test_a_list_of_long_commands_ends_sooner(daemon: RunningDaemon) -> None:
    """However many runs are asked for, a list has some megabytes at the most; the next one goes on with the rest."""
    command = ": " + "x" * 65_534
    ids = [daemon.json("POST", "/run", json={"command": command})["run_id"] for _ in range(70)]
    first = daemon.client.get("/runs?limit=1000")
    assert 4_000_000 < sum(len(run["command"]) for run in first.json()) < 5_000_000
    second = daemon.client.get("/runs", params={"limit": 1000, "cursor": first.headers["x-next-cursor"]})
    found = [run["run_id"] for run in (*first.json(), *second.json())]
    assert found[:70] == ids[::-1]


@pytest.mark.parametrize("form", ["text", "raw"])
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 64, 1000])
def test_parts_join_to_the_whole(daemon: RunningDaemon, form: str, limit: int) -> None:
    """Reads of any size, joined, are the whole; none splits a character, and the cursor only grows."""
    command = r"for i in {1..12}; do printf '\e[1mGrüße 世界 🎉 %d\e[0m\r\n' $i; done; printf 'abc\rX'"
    whole = daemon.run(command, format=form)
    text, cursor = "", 0
    while not (part := read(daemon, whole["run_id"], cursor=cursor, limit=limit, format=form))["eof"]:
        assert part["next_cursor"] > cursor
        text, cursor = text + part["output"], part["next_cursor"]
    assert text + part["output"] == whole["stdout"]
    assert "\N{REPLACEMENT CHARACTER}" not in text


def test_output_as_text(daemon: RunningDaemon) -> None:
    """As plain text the cursor, the status and the end are headers."""
    run_id = daemon.run("printf 'one\\ntwo'")["run_id"]
    answer = daemon.client.get(f"/runs/{run_id}/output?cursor=4", headers=TEXT)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == "two"
    assert (answer.headers["x-next-cursor"], answer.headers["x-run-status"]) == ("7", "completed")
    assert answer.headers["x-eof"] == "true"


def test_raw_parts_as_bytes(daemon: RunningDaemon) -> None:
    """In raw form plain text is the bytes from the cursor on."""
    run_id = daemon.run(r"printf 'ab\xff\xfe\0cd'")["run_id"]
    assert daemon.client.get(f"/runs/{run_id}/output?cursor=1&format=raw", headers=TEXT).content == b"b\xff\xfe\0cd"


def test_output_streams(daemon: RunningDaemon) -> None:
    """`stream` chooses; standard error of a merged run is empty and at its end."""
    run_id = daemon.run("echo out; echo err >&2", streams="separate")["run_id"]
    assert read(daemon, run_id, stream="stdout")["output"] == "out\n"
    assert read(daemon, run_id, stream="stderr")["output"] == "err\n"
    merged = daemon.run("echo out; echo err >&2")["run_id"]
    assert read(daemon, merged)["output"] == "out\nerr\n"
    part = read(daemon, merged, stream="stderr")
    assert (part["output"], part["eof"], part["stream"]) == ("", True, "stderr")


def test_incomplete_character(daemon: RunningDaemon, gate: Gate) -> None:
    """A read of a running run stops before a character that has not come whole."""
    run_id = daemon.start(rf"printf 'a\n\xe4\xb8'; {gate}; printf '\x96\n'")
    part = wait_for(lambda: (found := read(daemon, run_id, cursor=0))["output"] and found)
    assert (part["output"], part["next_cursor"], part["eof"]) == ("a\n", 2, False)
    raw = wait_for(lambda: (found := read(daemon, run_id, cursor=0, format="raw"))["output"] and found)
    assert (raw["output"], raw["next_cursor"]) == ("a\n", 2)
    gate.open()
    daemon.finished(run_id)
    assert read(daemon, run_id, cursor=2)["output"] == "世\n"


@pytest.mark.parametrize("written", ["a\\xc3", "a\\xe2\\x82", "a\\xf0\\x9f\\x98"])
def test_whole_raw_output_ends_at_a_character(daemon: RunningDaemon, gate: Gate, written: str) -> None:
    """A raw read without a cursor holds an incomplete character back too: its cursor lies where its body ends."""
    run_id = daemon.start(f"printf '{written}'; {gate}")
    wait_for(lambda: daemon.json("GET", f"/runs/{run_id}")["cursor"] == written.count("\\") + 1)
    answer = daemon.client.get(f"/runs/{run_id}/output?format=raw", headers=TEXT)
    assert (answer.content, answer.headers["x-next-cursor"]) == (b"a", "1")
    gate.open()


def test_answers_while_a_command_writes_quickly(daemon: RunningDaemon) -> None:
    """An answer has the output of one moment, to which its figures belong, however much is written as it is sent."""
    # bash's own loop: it writes all the time, and not so much that sending it all is a test of the machine
    run_id = daemon.start("while echo 0123456; do :; done")
    wait_for(lambda: daemon.json("GET", f"/runs/{run_id}")["cursor"] > 400_000)
    whole = daemon.client.get(f"/runs/{run_id}/output?format=raw", headers=TEXT)
    streamed = daemon.json("GET", f"/runs/{run_id}?max_output=0")
    shown = daemon.json("GET", f"/runs/{run_id}?max_output=100000000")
    daemon.client.post("/kill")
    assert len(whole.content) == int(whole.headers["x-next-cursor"])
    for result in (streamed, shown):
        assert len(result["stdout"]) == result["original_stdout_size"] == result["cursor"]


def test_waiting_for_output(daemon: RunningDaemon, gate: Gate) -> None:
    """With `wait` a read at the end of what there is comes back as soon as there is more."""
    run_id = daemon.start(f"echo one; {gate}; echo two; sleep 60")
    assert wait_for(lambda: read(daemon, run_id, cursor=0)["output"]) == "one\n"
    parts: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: parts.append(daemon.json("GET", f"/runs/{run_id}/output?cursor=4&wait=20s"))
    )
    thread.start()
    gate.open()
    thread.join(60)
    assert [(part["output"], part["next_cursor"], part["eof"]) for part in parts] == [("two\n", 8, False)]


def test_wait_ends(daemon: RunningDaemon) -> None:
    """A wait ends with its time, or with the run, with nothing to show."""
    run_id = daemon.start("sleep 60")
    part = read(daemon, run_id, cursor=0, wait="100ms")
    assert (part["output"], part["eof"], part["status"]) == ("", False, "running")
    timer = threading.Timer(0.1, lambda: daemon.client.post("/kill?signal=KILL"))
    timer.start()
    cursor = 0
    while not (part := read(daemon, run_id, cursor=cursor, wait="20s"))["eof"]:
        cursor = part["next_cursor"]
    assert part["status"] == "killed"
    timer.join()


@pytest.mark.parametrize("query", [
    "cursor=-1", "cursor=x", "cursor=1.5", "limit=0", "limit=x", "stream=both", "format=html", "wait=soon", "wait=-1",
    "colour=red",
])  # fmt: skip
def test_malformed_reads(ready_daemon: RunningDaemon, query: str) -> None:
    """A parameter that is not as it may be is 400."""
    run_id = ready_daemon.run("true")["run_id"]
    problem(ready_daemon.client.get(f"/runs/{run_id}/output?{query}"), 400, "invalid_request")


@pytest.mark.parametrize("cursor", [9, 10**6, 10**17])
def test_cursor_beyond_the_end(ready_daemon: RunningDaemon, cursor: int) -> None:
    """A cursor beyond the end is not an error: there is nothing there."""
    run_id = ready_daemon.run("echo x")["run_id"]
    part = read(ready_daemon, run_id, cursor=cursor)
    assert (part["output"], part["eof"]) == ("", True)


def test_dropped_output(start_daemon) -> None:
    """A log over output.log_max keeps its beginning and its end; a read across says how much it skipped."""
    daemon = start_daemon(output__log_max="64KiB")
    daemon.fresh()
    result = daemon.run("echo first; seq 200000; echo last", max_output=0)
    size = result["cursor"]
    assert result["stdout"].startswith("first\n1\n2\n")
    assert result["stdout"].endswith("200000\nlast\n")
    cursor, dropped, shown = 0, 0, 0
    while True:
        part = read(daemon, result["run_id"], cursor=cursor, limit=10_000, format="raw")
        dropped, shown, cursor = dropped + part["dropped"], shown + len(part["output"]), part["next_cursor"]
        if part["eof"]:
            break
    assert cursor == size
    assert dropped + shown == size
    assert dropped > 0
    files = daemon.data / "runs" / result["run_id"]
    wait_for(lambda: {path.name for path in files.iterdir()} - {"timing"} == {"output.log", "snapshot.json"})
    assert sum(path.stat().st_size for path in files.iterdir()) < 200_000


def test_cursors_never_become_invalid(start_daemon, gate: Gate) -> None:
    """Any cursor of a growing log can be read from; where its bytes are gone, the next that are kept come."""
    daemon = start_daemon(output__log_max="64KiB")
    daemon.fresh()
    run_id = daemon.start(f"seq 20000; {gate}; seq 20001 40000")
    whole = "".join(f"{number}\n" for number in range(1, 40001))
    for ended in (False, True):
        size = len(whole) if ended else whole.index("20001")
        wait_for(lambda size=size: daemon.json("GET", f"/runs/{run_id}")["cursor"] == size)
        for cursor in (0, 1, 20_000, 40_000, 70_000, size - 1, size):
            part = read(daemon, run_id, cursor=cursor, limit=50, format="raw")
            start = cursor + part["dropped"]
            assert whole[start : part["next_cursor"]] == part["output"]
            assert part["output"] or cursor == size
        if not ended:
            gate.open()
    assert read(daemon, run_id, cursor=40_000, limit=50)["dropped"] > 0


# --- wait ---------------------------------------------------------------------------------------------------


def test_wait(daemon: RunningDaemon, gate: Gate) -> None:
    """/wait answers 202 while the run goes on and 200 with the result once it has ended."""
    run_id = daemon.start(f"echo x; {gate}; (exit 3)")
    answer = daemon.client.get(f"/runs/{run_id}/wait?timeout=50ms")
    assert (answer.status_code, answer.json()["status"], answer.headers["retry-after"]) == (202, "running", "1")
    gate.open()
    answer = daemon.client.get(f"/runs/{run_id}/wait")
    assert (answer.status_code, answer.json()["exit_code"], answer.json()["stdout"]) == (200, 3, "x\n")
    assert daemon.client.get(f"/runs/{run_id}/wait?timeout=0").status_code == 200


def test_wait_for_a_cursor(daemon: RunningDaemon, gate: Gate) -> None:
    """With `cursor` a wait ends as soon as there is output past it."""
    run_id = daemon.start(f"echo x; {gate}; echo y; sleep 60")
    answer = daemon.client.get(f"/runs/{run_id}/wait?cursor=0&timeout=60s")
    assert (answer.status_code, answer.json()["stdout"]) == (202, "x\n")
    assert daemon.client.get(f"/runs/{run_id}/wait?cursor=2&timeout=50ms").json()["stdout"] == "x\n"
    gate.open()
    assert daemon.client.get(f"/runs/{run_id}/wait?cursor=2&timeout=60s").json()["stdout"] == "x\ny\n"


def test_wait_for_a_cursor_of_a_stream(daemon: RunningDaemon, gate: Gate) -> None:
    """`stream` says which output the cursor of a wait is of: the other one does not end the wait."""
    run_id = daemon.start(f"echo out; {gate}; echo err >&2; sleep 60", streams="separate")
    assert daemon.client.get(f"/runs/{run_id}/wait?cursor=0&stream=stdout&timeout=60s").json()["stdout"] == "out\n"
    assert daemon.client.get(f"/runs/{run_id}/wait?cursor=0&stream=stderr&timeout=50ms").json()["stderr"] == ""
    gate.open()
    assert daemon.client.get(f"/runs/{run_id}/wait?cursor=0&stream=stderr&timeout=60s").json()["stderr"] == "err\n"


@pytest.mark.parametrize("query", ["timeout=soon", "cursor=-1", "max_output=x", "format=html", "colour=red"])
def test_malformed_waits(ready_daemon: RunningDaemon, query: str) -> None:
    """A parameter that is not as it may be is 400."""
    run_id = ready_daemon.run("true")["run_id"]
    problem(ready_daemon.client.get(f"/runs/{run_id}/wait?{query}"), 400, "invalid_request")


# --- delete -------------------------------------------------------------------------------------------------


def test_delete_of_an_ended_run(daemon: RunningDaemon) -> None:
    """A deleted run is forgotten, and its files are gone."""
    run_id = daemon.run("echo x; sleep 0.1")["run_id"]
    assert (daemon.data / "runs" / run_id / "output.log").read_bytes() == b"x\n"
    answer = daemon.client.delete(f"/runs/{run_id}")
    assert (answer.status_code, answer.json()) == (200, {"run_id": run_id})
    assert not (daemon.data / "runs" / run_id).exists()
    problem(daemon.client.get(f"/runs/{run_id}"), 404, "run_not_found")
    problem(daemon.client.delete(f"/runs/{run_id}"), 404, "run_not_found")
    assert daemon.client.get("/output").status_code == 404


def test_delete_of_a_short_run(daemon: RunningDaemon) -> None:
    """Nothing of a short run is left on the disk when it was deleted."""
    word = uuid.uuid4().hex
    run_id = daemon.run(f"echo {word}")["run_id"]
    assert [path for path in daemon.data.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]
    assert daemon.client.delete(f"/runs/{run_id}").status_code == 200
    assert [path for path in daemon.data.rglob("*") if path.is_file() and word.encode() in path.read_bytes()] == []
    problem(daemon.client.get(f"/runs/{run_id}"), 404, "run_not_found")


def test_delete_of_a_running_run(daemon: RunningDaemon) -> None:
    """A running run is killed, and the shell is ready for the next."""
    run_id = daemon.start("sleep 60")
    wait_for(lambda: "sleep" in str(daemon.json("GET", "/status")["run"]["foreground"]))
    pid = daemon.json("GET", "/status")["run"]["foreground"]["pid"]
    assert daemon.client.delete(f"/runs/{run_id}").status_code == 200
    assert not alive(pid)
    assert daemon.state() == "ready"
    assert not (daemon.data / "runs" / run_id).exists()
    assert daemon.run("echo next")["stdout"] == "next\n"
    assert not (daemon.data / "runs" / run_id).exists()
