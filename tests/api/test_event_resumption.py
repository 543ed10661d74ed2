"""Events that go on after a broken connection, in the middle of a line too, as if nothing had been."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shelld_py.http.sse import LiveText, follow
from shelld_py.models import OutputFormat, RunStatus, Stream
from shelld_py.output.log import OutputLog
from shelld_py.output.text import render
from shelld_py.shells.record import Record
from shelld_py.shells.run import StoredRun
from tests.api.conftest import Gate
from tests.api.test_events import EVENTS, server_events, text_of
from tests.daemons import RunningDaemon

PIECES = [
    b"a",
    b"xyz ",
    b"\n",
    b"\r",
    b"\r\n",
    b"\b",
    "ä€𝄞".encode(),
    b"\xff",
    b"\xf0\x9d",
    b"\x1b[",
    b"31m",
    b"\x1b[K",
]


def rest_of(log: OutputLog, cursor: int) -> list[dict[str, object]]:
    """Return the data of the events of a complete log from `cursor` on."""

    async def no_result() -> None:
        pass

    async def collected() -> bytes:
        logs = [(Stream.STDOUT, log, cursor)]
        record = Record("r1", "main", 0, RunStatus.COMPLETED, in_directory=True, command="ls", duration=0)
        run = StoredRun(record, lambda _: log)
        events = follow(run, logs, OutputFormat.TEXT, None, no_result)  # type: ignore[arg-type]
        return b"".join([event async for event in events])

    blocks = asyncio.run(collected()).decode().split("\n\n")
    return [json.loads(block.partition("data: ")[2]) for block in blocks if block.startswith("event: output")]


def joined(*texts: str) -> str:
    """Return what a reader has in the end: a text that begins with CR replaces the last line."""
    seen = ""
    for text in texts:
        seen = seen[: seen.rfind("\n") + 1] + text[1:] if text.startswith("\r") else seen + text
    return seen


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=25), cut=st.floats(0, 1), beyond=st.booleans())
def test_texts_join_over_a_break_anywhere(pieces: list[bytes], cut: float, beyond: bool) -> None:
    """What came before the break and what comes after it, from the cursor on, is the text of the whole."""
    data = (b"line\n" * 30_000 if beyond else b"") + b"".join(pieces)
    received = data[: len(data) - int(cut * len(b"".join(pieces)))]
    before, held = LiveText(OutputFormat.TEXT).feed(received)
    with tempfile.TemporaryDirectory() as directory:
        log = OutputLog(str(Path(directory, "log")), 1 << 30).create()
        log.append(data)
        after = [str(event["text"]) for event in rest_of(log, len(received) - held)]
        log.close()
    assert joined(before, *after) == render(data)


def test_a_break_beyond_a_gap(tmp_path: Path) -> None:
    """Where the line before the cursor is not kept any more, the events begin at the cursor, or behind the gap."""
    log = OutputLog(str(tmp_path / "log"), 4096).create()
    log.append(b"".join(b"%07d\n" % number for number in range(4096)))
    assert str(rest_of(log, 4)[0]["text"]).startswith("000\n0000001\n")
    assert str(rest_of(log, 20_004)[-1]["text"]).endswith("0004095\n")
    assert rest_of(log, 8 * 4096 - 4)[-1]["text"] == "095\n"
    log.close()


def test_both_streams_of_a_run_from_their_cursors(daemon: RunningDaemon) -> None:
    run = daemon.run("echo out; echo bad >&2", streams="separate")
    path = f"/runs/{run['run_id']}/output?cursor=1&stderr_cursor=2"
    with daemon.client.stream("GET", path, headers=EVENTS) as answer:
        events = list(server_events(answer))
    assert (text_of(events), text_of(events, "stderr"), events[-1].name) == ("ut\n", "d\n", "result")


@pytest.mark.parametrize(("parameters", "timed_out"), [("timeout=200ms", True), ("on_input=return&timeout=60s", False)])
def test_following_ends_before_the_run_does(
    daemon: RunningDaemon, gate: Gate, parameters: str, timed_out: bool
) -> None:
    run_id = daemon.start("read -r line")
    with daemon.client.stream("GET", f"/runs/{run_id}/output?{parameters}", headers=EVENTS) as answer:
        (event,) = server_events(answer)
    assert (event.data["status"], event.data["timed_out"] or not timed_out) == ("running", True)


@pytest.mark.parametrize("parameter", ["stderr_cursor=x", "timeout=soon", "on_input=sing"])
def test_wrong_parameters_of_events(ready_daemon: RunningDaemon, parameter: str) -> None:
    run = ready_daemon.run("true")
    answer = ready_daemon.client.get(f"/runs/{run['run_id']}/output?{parameter}", headers=EVENTS)
    assert answer.status_code == 400
    assert parameter.partition("=")[0] in answer.text
