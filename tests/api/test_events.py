"""Output as server-sent events: of a run as it is started, and of a run by cursor."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.api.conftest import Gate
from tests.daemons import RunningDaemon, wait_for

EVENTS = {"Accept": "text/event-stream"}


class ServerEvent(NamedTuple):
    """One event as it came."""

    name: str
    event_id: str | None
    data: Any


def server_events(answer: httpx.Response) -> Iterator[ServerEvent]:
    """Yield the events of an answer as they come."""
    assert answer.status_code == 200
    assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            assert name in ("event", "id", "data"), line
            fields[name] = value
        else:
            yield ServerEvent(fields["event"], fields.get("id"), json.loads(fields["data"]))
            fields = {}


def run_events(daemon: RunningDaemon, command: str, **fields: Any) -> list[ServerEvent]:
    """Run a command; return all its events."""
    with daemon.client.stream("POST", "/run", json={"command": command, **fields}, headers=EVENTS) as answer:
        return list(server_events(answer))


def text_of(events: list[ServerEvent], stream: str = "stdout") -> str:
    """Return what a reader who appends, and redraws the line on a carriage return, ends up with."""
    text = ""
    for event in events:
        if event.name == "output" and event.data["stream"] == stream:
            piece = event.data["text"]
            if piece.startswith("\r"):
                text, piece = text[: text.rfind("\n") + 1], piece[1:]
            text += piece
    return text


def test_output_comes_as_it_is_written(daemon: RunningDaemon, gate: Gate) -> None:
    """Each piece of output is an event as soon as it is there; the last event is the result."""
    body = {"command": f"echo one; {gate}; echo zwölf; (exit 3)"}
    with daemon.client.stream("POST", "/run", json=body, headers=EVENTS) as answer:
        assert answer.headers["x-run-id"]
        assert answer.headers["x-request-id"]
        assert answer.headers["cache-control"] == "no-store"
        events = server_events(answer)
        first = next(events)
        assert first == ServerEvent("output", "4", {"stream": "stdout", "cursor": 4, "text": "one\n"})
        gate.open()
        rest = list(events)
    assert [event.name for event in rest] == ["output"] * (len(rest) - 1) + ["result"]
    assert text_of(rest) == "zwölf\n"
    assert rest[-1].data["stdout"] == "one\nzwölf\n"
    assert rest[-2].event_id == str(rest[-2].data["cursor"]) == str(4 + len("zwölf\n".encode()))
    result = rest[-1].data
    assert (result["run_id"], result["status"], result["exit_code"]) == (answer.headers["x-run-id"], "completed", 3)
    assert result["state"] == daemon.state() == "ready"


def test_lines_that_are_redrawn(daemon: RunningDaemon, gates) -> None:
    """A line comes as it grows; where it changes, a carriage return and the line as it looks now follow."""
    first, second = gates("first"), gates("second")
    command = rf"printf abc; {first}; printf '\rX'; {second}; printf 'Y\nend'"
    with daemon.client.stream("POST", "/run", json={"command": command}, headers=EVENTS) as answer:
        events = server_events(answer)
        assert next(events).data["text"] == "abc"
        first.open()
        assert next(events).data["text"] == "\rXbc"
        second.open()
        rest = list(events)
    assert text_of([ServerEvent("output", None, {"stream": "stdout", "text": "abc"}), *rest]) == "XYc\nend"


@pytest.mark.parametrize(("command", "text"), [
    ("true", ""), ("printf x", "x"), ("printf '\\n\\n'", "\n\n"), (r"printf '\e[31mred\e[0m\n'", "red\n"),
    (r"printf '10%%\r20%%\r100%%\n'", "100%\n"), ("seq 30000", "".join(f"{n}\n" for n in range(1, 30001))),
    (r"printf 'a\xffb'", "a\N{REPLACEMENT CHARACTER}b"),
    (r"printf 'data: x\r\n\r\nevent: y\n\n'", "data: x\n\nevent: y\n\n"),
])  # fmt: skip
def test_texts_of_events_join_to_the_output(daemon: RunningDaemon, command: str, text: str) -> None:
    """The texts of all events together are the output of the plain answer, and cursors only grow."""
    events = run_events(daemon, command)
    assert text_of(events) == text
    assert events[-1].name == "result"
    cursors = [event.data["cursor"] for event in events[:-1]]
    assert cursors == sorted(cursors)
    assert not cursors or cursors[-1] == events[-1].data["cursor"]


def test_both_streams(daemon: RunningDaemon) -> None:
    """With separate streams each event says which one it is of, with a cursor of that one."""
    events = run_events(daemon, "echo out; echo err >&2; echo more", streams="separate")
    assert text_of(events) == "out\nmore\n"
    assert text_of(events, "stderr") == "err\n"
    assert max(event.data["cursor"] for event in events[:-1] if event.data["stream"] == "stderr") == 4


def test_raw_events(daemon: RunningDaemon) -> None:
    """In raw form escape sequences stay in the texts."""
    assert text_of(run_events(daemon, r"printf '\e[31mred'", format="raw")) == "\x1b[31mred"


def test_a_client_that_goes_away_leaves_the_run_running(daemon: RunningDaemon, gate: Gate) -> None:
    """When the connection breaks the run goes on, and nothing of its output is lost."""
    with daemon.client.stream("POST", "/run", json={"command": f"echo a; {gate}; echo b"}, headers=EVENTS) as answer:
        assert next(server_events(answer)).data["text"] == "a\n"
        run_id = answer.headers["x-run-id"]
    assert daemon.state() == "busy"
    gate.open()
    result = daemon.finished(run_id)
    assert (result["status"], result["stdout"]) == ("completed", "a\nb\n")


def test_a_waiting_client_that_goes_away(daemon: RunningDaemon, gate: Gate) -> None:
    """A client that breaks off a plain wait leaves the run running as well."""
    with pytest.raises(httpx.ReadTimeout):
        daemon.client.post("/run", content=f"echo a; {gate}; echo b", timeout=0.2)
    assert daemon.state() == "busy"
    gate.open()
    run_id = daemon.json("GET", "/status")["last_run_id"]
    assert daemon.finished(run_id)["stdout"] == "a\nb\n"


def test_timeout_of_events(daemon: RunningDaemon) -> None:
    """When the timeout is over the events end with the result as it stands: running, and timed out."""
    events = run_events(daemon, "echo x; sleep 60", timeout="200ms")
    assert text_of(events) == "x\n"
    result = events[-1].data
    assert (events[-1].name, result["status"], result["state"]) == ("result", "running", "busy")
    assert result["timed_out"] is True


def test_events_end_when_input_is_awaited(daemon: RunningDaemon) -> None:
    """With on_input = return the events end with the result, rather than hang, when the command waits for input."""
    events = run_events(daemon, "read -rp 'Name? ' name", timeout="20s")
    result = events[-1].data
    assert (result["status"], result["awaiting_input"], result["timed_out"]) == ("running", True, False)
    assert result["duration"] < 10


def test_events_of_a_joined_run_that_has_ended(daemon: RunningDaemon) -> None:
    """A repeat of a request for events gets events, also when its run is over by then."""
    daemon.client.delete("/runs/repeated-events")
    for _ in range(2):
        events = run_events(daemon, "echo x", run_id="repeated-events")
        assert text_of(events) == "x\n"
        assert events[-1].data["status"] == "completed"


def test_refusals_are_no_events(daemon: RunningDaemon) -> None:
    """A request for events that is refused is answered with a problem document and its status."""
    daemon.start("sleep 60")
    answer = daemon.client.post("/run", content="true", headers=EVENTS)
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")


# --- by cursor ----------------------------------------------------------------------------------------------


def output_events(daemon: RunningDaemon, run_id: str, query: str = "", **headers: str) -> list[ServerEvent]:
    """Return all events of the output of a run."""
    sent = {**EVENTS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    with daemon.client.stream("GET", f"/runs/{run_id}/output{query}", headers=sent) as answer:
        return list(server_events(answer))


@pytest.mark.parametrize(("query", "headers", "text"), [
    ("", {}, "one\ntwo\nthree\n"), ("?cursor=4", {}, "two\nthree\n"), ("", {"Last_Event_ID": "8"}, "three\n"),
    ("?cursor=4", {"Last_Event_ID": "8"}, "three\n"), ("?cursor=14", {}, ""), ("?cursor=9999", {}, ""),
])  # fmt: skip
def test_events_from_a_cursor(daemon: RunningDaemon, query: str, headers: dict[str, str], text: str) -> None:
    """The output of an ended run comes from the cursor, or from the last event that the client saw, then the result."""
    run_id = daemon.run("printf 'one\\ntwo\\nthree\\n'")["run_id"]
    events = output_events(daemon, run_id, query, **headers)
    assert text_of(events) == text
    assert events[-1].name == "result"
    assert events[-1].data["run_id"] == run_id


def test_events_of_a_running_run(daemon: RunningDaemon, gate: Gate) -> None:
    """A running run is followed to its end, and a reader who comes back with Last-Event-ID misses nothing."""
    run_id = daemon.start(f"echo one; {gate}; echo two")
    with daemon.client.stream("GET", f"/runs/{run_id}/output", headers=EVENTS) as answer:
        first = next(server_events(answer))
        assert first.data["text"] == "one\n"
    with daemon.client.stream(
        "GET", f"/runs/{run_id}/output", headers={**EVENTS, "Last-Event-ID": str(first.event_id)}
    ) as answer:
        gate.open()
        events = list(server_events(answer))
    assert text_of(events) == "two\n"
    assert events[-1].data["status"] == "completed"


def test_events_of_one_stream(daemon: RunningDaemon) -> None:
    """`stream` chooses the stream of the events."""
    run_id = daemon.run("echo out; echo err >&2", streams="separate")["run_id"]
    assert text_of(output_events(daemon, run_id, "?stream=stderr"), "stderr") == "err\n"
    assert text_of(output_events(daemon, run_id), "stderr") == ""


def test_events_of_a_stream_go_on(daemon: RunningDaemon) -> None:
    """Last-Event-ID is a cursor of the stream that is asked for."""
    run_id = daemon.run("echo out; echo 1 >&2; echo 2 >&2", streams="separate")["run_id"]
    assert text_of(output_events(daemon, run_id, "?stream=stderr", Last_Event_ID="2"), "stderr") == "2\n"


@pytest.mark.parametrize("last", ["x", "-1", "1.5"])
def test_malformed_last_event_id(daemon: RunningDaemon, last: str) -> None:
    """A Last-Event-ID that no event had is 400."""
    run_id = daemon.run("true")["run_id"]
    answer = daemon.client.get(f"/runs/{run_id}/output", headers={**EVENTS, "Last-Event-ID": last})
    assert answer.status_code == 400


def test_gap(start_daemon) -> None:
    """Where a log that grew too large has dropped its middle, an event `gap` says how many bytes are missing."""
    daemon = start_daemon(output__log_max="64KiB")
    daemon.fresh()
    run_id = daemon.run("head -c 1000000 /dev/zero | tr '\\0' '\\n'", max_output=10)["run_id"]
    events = output_events(daemon, run_id, "?format=raw")
    gaps = [event for event in events if event.name == "gap"]
    assert len(gaps) == 1
    shown = sum(len(event.data["text"]) for event in events if event.name == "output")
    assert shown + gaps[0].data["dropped"] == 1_000_000
    assert shown <= 2 * 64 * 1024


def test_many_readers(daemon: RunningDaemon, gate: Gate) -> None:
    """Any number of clients may follow one run, each with all of its output."""
    run_id = daemon.start(f"echo one; {gate}; echo two")
    clients = [httpx.Client(base_url=daemon.url, headers=daemon.client.headers) for _ in range(3)]
    streams = [client.stream("GET", f"/runs/{run_id}/output", headers=EVENTS) for client in clients]
    answers = [stream.__enter__() for stream in streams]
    gate.open()
    for answer in answers:
        assert text_of(list(server_events(answer))) == "one\ntwo\n"
    for stream, client in zip(streams, clients, strict=True):
        stream.__exit__(None, None, None)
        client.close()
    assert wait_for(lambda: daemon.state() == "ready")


@pytest.mark.parametrize(("maximum", "size"), [({}, 100_000), ({"max_output": 10}, 10), ({"max_output": 0}, 100_000)])
def test_output_of_the_last_result_is_cut(daemon: RunningDaemon, maximum: dict[str, int], size: int) -> None:
    """The result has the output as any answer has it, and never all of a large one: that has been sent already."""
    result = run_events(daemon, "printf %0200000d 0", **maximum)[-1].data
    assert (result["truncated"], result["original_stdout_size"]) == (True, 200_000)
    assert result["stdout"].count("0") - str(200_000 - size).count("0") - result["run_id"].count("0") == size


def test_bytes_in_the_last_result(daemon: RunningDaemon) -> None:
    """Raw bytes that are no text are U+FFFD in it, as in the events before."""
    assert run_events(daemon, "printf 'a\\377'", format="raw")[-1].data["stdout"] == "a\ufffd"
