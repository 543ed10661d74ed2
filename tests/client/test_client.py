"""What both clients do: each test is run with the blocking one and with the one for asyncio."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from shelld_py import Client, errors
from shelld_py.client import Gap, Output, Result, os_errors
from shelld_py.models import ChangeKind, RunStatus, ShellState, Stream
from shelld_py.units import LONGEST_DURATION
from tests.api.conftest import Gate
from tests.daemons import KEY, wait_for

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


def test_a_run_tells_what_it_did_to_files(client: Any) -> None:
    result = client.exec("echo hi >$(mktemp -p .)", changes=True)
    assert [(change.kind, change.size) for change in result.changes] == [(ChangeKind.CREATED, 3)]
    assert result.changes_truncated is False
    assert client.runs.get(result.run_id).changes == result.changes


def test_input_is_text_bytes_or_a_file(client: Any, tmp_path: Path) -> None:
    """Bytes and files are sent to `exec` as they are, from where the file stands; to `run` with the command."""
    data = bytes(range(256)) * 4000
    file = tmp_path / "data"
    file.write_bytes(b"before" + data)
    expected = hashlib.sha256(data).hexdigest()
    for run in (client.exec, client.run):
        with file.open("rb") as opened:
            opened.seek(len(b"before"))
            result = run("sha256sum; echo $NAME", stdin=opened, environment={"NAME": "a b&c"}, timeout="30s")
        assert result.stdout == f"{expected}  -\na b&c\n"
        assert run("sha256sum", stdin=data, max_output=0).stdout == f"{expected}  -\n"
        assert run(argv=["sha256sum"], stdin=data).stdout == f"{expected}  -\n"
        assert run("cat", stdin="text").stdout == "text"
    words = ["printf", "%s|", "it's", "$HOME", "\udcff", "x" * 100_000]
    printed = "it's|$HOME|\udcff|" + "x" * 100_000 + "|"
    for few in (words[:4], words):  # those that fit into an address, and those that do not
        for streams in ("pipes", "separate"):
            result = client.exec(argv=few, stdin=data, streams=streams, format="raw", max_output=0)
            assert result.stdout == printed[: len(result.stdout)], streams
    assert result.stdout == printed


def test_a_deadline_is_waited_for(start_daemon: Any) -> None:
    """Without a timeout the end is waited for, however short the daemon's longest wait is; a question ends that."""
    with Client(start_daemon(timeout__command_maximum="50ms").url, KEY) as client:
        result = client.exec("echo begun; sleep 60", deadline="300ms")
        assert (result.status, result.cause, result.stdout) == (RunStatus.KILLED, "deadline", "begun\n")
        assert client.exec("sleep 60", deadline="60s", timeout=0).status is RunStatus.RUNNING
        assert client.exec("true", deadline=LONGEST_DURATION).status is RunStatus.COMPLETED
        asked = client.exec("read -rp 'Name? '", deadline="60s")
        assert (asked.status, asked.awaiting_input) == (RunStatus.RUNNING, True)


def test_a_wait_that_is_over_returns_the_running_run(client: Any, gate: Gate) -> None:
    result = client.run(f"echo begun; {gate}; echo over", timeout=0.2)
    assert (result.status, result.stdout, result.timed_out) == (RunStatus.RUNNING, "begun\n", True)
    gate.open()
    waited = client.runs.wait(result.run_id, timeout=60)
    assert (waited.status, waited.stdout) == (RunStatus.COMPLETED, "begun\nover\n")


def test_input_is_typed(client: Any) -> None:
    started = client.run("read -rp 'Name? ' name; echo \"<$name>\"; cat", timeout="10s")
    assert (started.status, started.awaiting_input) == (RunStatus.RUNNING, True)
    assert client.stdin("Ada\n") == 4
    assert client.runs.stdin(started.run_id, b"more\n", offset=4) == 9
    assert client.runs.stdin(started.run_id, b"more\n", offset=4, eof=True) == 9, "a repeat is not typed twice"
    assert client.runs.wait(started.run_id, timeout=60).stdout == "Name? <Ada>\nmore\n"


def test_a_dialogue_is_one_call_a_turn(client: Any) -> None:
    """With `wait`, what is typed is answered with what came of it."""
    started = client.run(
        "read -rp 'Name? ' name; read -rp 'Why? ' why; echo \"<$name>\"; echo \"<$why>\" >&2", timeout="60s"
    )
    first = client.stdin("Ada\n", wait="60s")
    assert (first.accepted, first.run_id) == (4, started.run_id)
    assert (first.status, first.awaiting_input) == (RunStatus.RUNNING, True)
    second = client.runs.stdin(started.run_id, "So\n", offset=4, wait=60)
    assert (second.accepted, second.status, second.awaiting_input) == (7, RunStatus.COMPLETED, False)
    assert (second.output, second.stderr) == ("<Ada>\n<So>\n", "")
    assert (first.output, first.cursor, first.next_cursor) == ("Why? ", 6, 11)
    assert (second.cursor, second.next_cursor) == (11, 22)


def test_state_size_and_kill(client: Any) -> None:
    assert client.resize(33, 111) is ShellState.READY
    assert client.run("stty size").stdout == "33 111\n"
    run = client.run("sleep 100", timeout=0)
    status = client.status()
    assert (status.state, status.run.run_id, status.session_id) == (ShellState.BUSY, run.run_id, "main")
    wait_for(lambda: client.status().run.foreground.command == "sleep 100")
    assert client.kill("TERM").killed
    assert client.runs.wait(run.run_id, timeout=60).signal == 15
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
    assert client.runs.wait(run_id, cursor=0, timeout=60).run_id == run_id
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
    client.runs.wait(run_id, cursor=0, timeout=60)
    *_, last = client.runs.follow(run_id, timeout=0.1)
    assert last.run.status is RunStatus.RUNNING
    gate.open()
    events = list(client.runs.follow(run_id, cursor=4, stderr_cursor=1))
    assert _texts(events, Stream.STDOUT) == "two\n"
    assert _texts(events, Stream.STDERR) == "ad\n"
    assert isinstance(events[-1], Result)


def test_a_wait_for_a_condition(client: Any) -> None:
    run_id = client.run("echo starting; sleep 0.1; echo serving; read line", timeout=0).run_id
    assert client.runs.wait(run_id, until=["output:^serv+", "exit"], timeout=60).reached == "output:^serv+"
    assert client.runs.wait(run_id, until="input", timeout=60).reached == "input"
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
    assert [*client.stream("read line", timeout=60)][-1].run.awaiting_input
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
    assert [each.operation for each in files.history("client").changes][:2] == ["replace", "insert"]
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
    none = client.files.read_raw("client/raw.bin", start=10, length=0)
    assert (none.content, none.start, none.size) == (b"", 10, 256)
    with pytest.raises(errors.PreconditionFailed) as caught:
        client.files.write_raw("client/raw.bin", b"", if_match="0" * 64)
    assert caught.value.extra["etag"] == written.etag
    client.files.write_raw("client/raw.bin", b"", if_match=written.etag)
    assert client.files.read_raw("client/raw.bin", length=10).content == b"", "of an empty file there is no range"
    client.files.delete("client/raw.bin", if_match="*")


def _texts(events: Any, stream: Stream) -> str:
    return "".join(event.text for event in events if isinstance(event, Output) and event.stream is stream)


def test_screen(client: Any) -> None:
    """The screen of a shell, and of a run."""
    result = client.run("printf 'a\\nb'")
    screen = client.screen(wait="1s")
    assert (screen.lines[:3], screen.cursor.row, screen.at) == (("a", "b", ""), 1, 3)
    assert client.runs.screen(result.run_id) == screen


def test_recording(client: Any) -> None:
    result = client.run("echo recorded", description="a test")
    header, event = client.runs.recording(result.run_id).decode().splitlines()
    assert '"version":2' in header
    assert '"title":"a test"' in header
    assert event.endswith(r'"o","recorded\r\n"]')
    with pytest.raises(errors.RunNotFound):
        client.runs.recording("none")


def test_keys(client: Any) -> None:
    """Keys by their names, and a paste, go where text goes."""
    run = client.run('IFS= read -r -d . a; printf %s "$a" | od -An -c', timeout=0)
    assert client.stdin(keys=["a", "Tab", "Enter"]) == 3
    assert client.runs.stdin(run.run_id, paste="b\n.") == 6
    assert client.runs.wait(run.run_id).stdout.split() == ["a", "\\t", "\\n", "b", "\\n"]


def test_refused_files_are_errors_of_the_system(client: Any) -> None:
    """For programs that know files, but not the daemon: what `open` would raise. Other refusals stay what they are."""
    client.files.write_raw("client/there", b"")
    for path, kind in (("client/none", FileNotFoundError), ("client", IsADirectoryError)):
        with pytest.raises(kind, match=path), os_errors(path):
            client.files.read_raw(path)
    with pytest.raises(errors.TextNotFound), os_errors("client/there"):
        client.files.replace("client/there", "a", "b")


def test_files_and_directories_are_uploaded(client: Any, tmp_path: Path) -> None:
    """From this machine, read while they are sent; a directory, or what a link to one leads to, with all below it."""
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/data").write_bytes(bytes(range(256)) * 2000)
    (tmp_path / "tree/run.sh").write_text("true")
    (tmp_path / "tree/run.sh").chmod(0o755)
    assert client.files.upload(tmp_path / "tree/sub/data", "client/data").size == 512_000
    (tmp_path / "link").symlink_to("tree")
    client.files.upload(str(tmp_path / "link"), "client/tree")
    listed = client.exec("cmp client/data client/tree/sub/data && cd client/tree && test -x run.sh && find . | sort")
    assert listed.stdout == ".\n./run.sh\n./sub\n./sub/data\n"
    with pytest.raises(FileNotFoundError):
        client.files.upload(tmp_path / "none", "client/none")
