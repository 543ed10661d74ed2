"""What a run is answered with: plain text and its headers, the result, the 202 answers, cut outputs."""

import re
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

import pytest

from tests.api.conftest import Gate
from tests.api.problems import text_problem
from tests.daemons import RunningDaemon, alive, wait_for

TIMED_OUT = "The command timed out waiting for completion and is still running."
AWAITING = "The command is waiting for input."
RESULT_FIELDS = [
    "run_id", "session_id", "command", "description", "status", "cause", "exit_code", "signal", "error", "stdout",
    "stderr", "streams", "truncated", "original_stdout_size", "original_stderr_size", "cursor", "directory",
    "working_directory", "background_pids", "awaiting_input", "timed_out", "restored", "state", "started_at",
    "duration", "usage",
]  # fmt: skip


# --- plain answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [
    "", "\n", "\n\n\n", "no newline", "  leading and trailing  ", "\ttab\t\n\n", "a\n\n\nb\n\n",
    "ünï 世界 🎉\n", "%s %d \\n\n",
    "x" * 99_999 + "\n",
])  # fmt: skip
def test_plain_answer_is_the_output(daemon: RunningDaemon, tmp_path: Path, output: str) -> None:
    """The plain answer is the output exactly, with its blanks, blank lines and missing newlines."""
    (tmp_path / "output").write_text(output)
    answer = daemon.client.post("/run", content=f"cat {tmp_path}/output")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == output
    assert answer.headers["x-original-size"] == str(len(output))


def test_headers_of_a_plain_answer(daemon: RunningDaemon, tmp_path: Path) -> None:
    """The headers tell what the JSON result would."""
    directory = tmp_path / "with blank, % and ü"
    directory.mkdir()
    answer = daemon.client.post("/run", content=f"echo Grüße; cd '{directory}'; (exit 3)")
    headers = answer.headers
    assert answer.status_code == 200
    assert headers["x-exit-code"] == "3"
    assert headers["x-shell-state"] == "ready"
    assert headers["x-original-size"] == "6"
    assert headers["x-truncated"] == headers["x-awaiting-input"] == "false"
    assert unquote(headers["x-working-directory"]) == str(directory)
    assert re.fullmatch(r"[!-~]+", headers["x-working-directory"])
    assert "x-signal" not in headers
    assert "location" not in headers
    assert daemon.json("GET", f"/runs/{headers['x-run-id']}")["exit_code"] == 3


@pytest.mark.parametrize("accept", ["text/plain", "application/json"])
def test_an_answer_does_not_tell_how_it_was_made(daemon: RunningDaemon, accept: str) -> None:
    """A run that has ended at once, and one that was looked after: the same headers and members, in the same order."""
    answers = [
        daemon.client.post("/run", content=command, headers={"Accept": accept})
        for command in ("echo hello", "sleep 0.05; echo hello", "echo hello # ü", "printf 'hello\\r\\n'")
    ]
    assert len({tuple(name for name, _ in answer.headers.raw) for answer in answers}) == 1
    assert len({answer.headers["content-type"] for answer in answers}) == 1
    if accept == "text/plain":
        assert {answer.text for answer in answers} == {"hello\n"}
    else:
        assert {tuple(answer.json()) for answer in answers} == {tuple(RESULT_FIELDS)}
        assert {answer.json()["stdout"] for answer in answers} == {"hello\n"}


def test_header_of_a_directory_that_is_not_utf8(daemon: RunningDaemon, tmp_path: Path) -> None:
    """X-Working-Directory is percent-encoded byte by byte, so that any directory can be told."""
    answer = daemon.client.post("/run", content=f"cd {tmp_path}; mkdir $'\\xff'; cd $'\\xff'")
    assert unquote_to_bytes(answer.headers["x-working-directory"]) == bytes(tmp_path) + b"/\xff"


@pytest.mark.parametrize(("command", "code", "number"), [
    ("true", "0", None), ("false", "1", None), ("exit 7", "7", None), ("(exit 137)", "137", None),
    ("exit 255", "255", None),
    ("no-such-command-here", "127", None), ("/etc/passwd", "126", None),
    ("bash -c 'kill -KILL $$'", "137", "9"), ("bash -c 'kill -SEGV $$'", "139", "11"),
])  # fmt: skip
def test_exit_codes_and_signals(daemon: RunningDaemon, command: str, code: str, number: str | None) -> None:
    """A non-zero exit code is no error; a signal is told only where the command died of one."""
    answer = daemon.client.post("/run", content=command)
    assert answer.status_code == 200
    assert (answer.headers["x-exit-code"], answer.headers.get("x-signal")) == (code, number)
    assert daemon.state() == "ready"


def test_separate_streams_in_a_plain_answer(daemon: RunningDaemon) -> None:
    """A plain answer with separate streams has all of both, and counts all of both."""
    answer = daemon.client.post("/run?streams=separate", content="echo out; echo err >&2")
    assert answer.text == "out\nerr\n"
    assert answer.headers["x-original-size"] == "8"


# --- the result ---------------------------------------------------------------------------------------------


def test_every_field_of_a_result(daemon: RunningDaemon, tmp_path: Path) -> None:
    """The JSON answer is the run result: these fields in this order, each with what happened."""
    command = f"cd {tmp_path}; echo ö; echo err >&2; {{ sleep 60 & }} 2>/dev/null; md5sum /bin/ls >/dev/null; (exit 2)"
    daemon.client.delete("/runs/all-fields")
    result = daemon.run(
        command, run_id="all-fields", description="why", streams="separate", directory="/usr", environment={"A": "1"}
    )
    assert list(result) == RESULT_FIELDS
    (pid,) = result["background_pids"]
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x0060\0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", result["started_at"])
    assert 0 < result["duration"] < 10
    assert list(result["usage"]) == ["cpu_seconds", "peak_memory_mb", "processes_left"]
    assert result["usage"]["cpu_seconds"] >= 0
    assert result["usage"]["peak_memory_mb"] > 0
    assert result["usage"]["processes_left"] == 1
    expected = {
        "run_id": "all-fields", "session_id": "main", "command": command, "description": "why", "status": "completed",
        "cause": "exit", "exit_code": 2, "signal": None, "error": None, "stdout": "ö\n", "stderr": "err\n",
        "streams": "separate", "truncated": False, "original_stdout_size": 2, "original_stderr_size": 4,
        "directory": "/usr", "working_directory": result["working_directory"], "awaiting_input": False,
        "timed_out": False, "restored": False, "state": "ready",
    }  # fmt: skip
    assert {name: result[name] for name in expected} == expected
    assert daemon.json("GET", "/runs/all-fields") == result


def test_working_directory_of_a_result(daemon: RunningDaemon) -> None:
    """`working_directory` is where the shell is afterwards; `directory` is what the request said."""
    result = daemon.run("cd /usr")
    assert (result["directory"], result["working_directory"]) == (None, "/usr")
    result = daemon.run("cd /", directory="/tmp")
    assert (result["directory"], result["working_directory"]) == ("/tmp", "/usr")


@pytest.mark.parametrize(("command", "code"), [("exit 4", 4), ("set -e; false; echo never", 1), ("exit", 0)])
def test_exit_is_restored(daemon: RunningDaemon, command: str, code: int) -> None:
    """`exit`, or `set -e` with a failure, ends the run and not the shell, which keeps what it had."""
    daemon.run("V=kept; f() { echo function; }; alias a='echo alias'; cd /usr; umask 027")
    pid = daemon.json("GET", "/status")["shell_pid"]
    result = daemon.run(command)
    fields = {"status": "completed", "cause": "exit", "exit_code": code, "restored": True, "state": "ready"}
    assert {name: result[name] for name in fields} == fields
    after = daemon.run('echo "$V"; f; a; pwd; umask; case $- in *e*) echo errexit;; esac')
    assert after["stdout"] == "kept\nfunction\nalias\n/usr\n0027\n"
    assert after["restored"] is False
    assert daemon.json("GET", "/status")["shell_pid"] == pid


@pytest.mark.parametrize(("command", "cause", "code", "number"), [
    ("kill -KILL $$", "shell_crashed", 137, 9),
    ("exec sh -c 'exit 5'", "shell_replaced", 5, None),
])  # fmt: skip
def test_lost_runs(daemon: RunningDaemon, command: str, cause: str, code: int, number: int | None) -> None:
    """A run whose shell ended under it is `lost`, says why, keeps its output, and the shell is unrecoverable."""
    result = daemon.run(f"echo before; {command}")
    assert (result["status"], result["cause"]) == ("lost", cause)
    assert (result["exit_code"], result["signal"], result["state"]) == (code, number, "unrecoverable")
    assert result["stdout"] == "before\n"
    assert result["error"]


def test_exit_ends_the_shell_where_configured(start_daemon) -> None:
    """With on_exit = "end" an `exit` loses the run with its exit code and ends the shell; a recycle helps."""
    daemon = start_daemon(shell__on_exit="end")
    daemon.fresh()
    result = daemon.run("echo before; exit 6")
    assert (result["status"], result["cause"], result["exit_code"]) == ("lost", "shell_exited", 6)
    assert (result["restored"], result["state"]) == (False, "unrecoverable")
    assert result["stdout"].startswith("before\n")
    assert daemon.client.post("/recycle").text == "ready"
    assert daemon.run("echo again")["stdout"] == "again\n"


def test_lifetime(start_daemon) -> None:
    """A run that lasts longer than timeout.command_lifetime is killed with its shell; its result gives the figure."""
    daemon = start_daemon(timeout__command_lifetime="300ms")
    daemon.fresh()
    result = daemon.run("echo before; sleep 60")
    assert (result["status"], result["cause"]) == ("killed", "lifetime")
    assert result["stdout"].startswith("before\n")
    assert "300ms" in result["error"]
    assert daemon.state() == "unrecoverable"


# --- 202 ----------------------------------------------------------------------------------------------------


def test_timed_out_answer(daemon: RunningDaemon, gate: Gate) -> None:
    """A timeout answers 202 with where to go on, and loses nothing of what comes before and after."""
    answer = daemon.client.post("/run?timeout=150ms", content=f"echo before; {gate}; echo after; (exit 3)")
    run_id = answer.headers["x-run-id"]
    assert answer.status_code == 202
    assert answer.text == f"before\n{TIMED_OUT}"
    assert answer.headers["location"] == f"/runs/{run_id}"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-shell-state"] == "busy"
    assert answer.headers["x-awaiting-input"] == "false"
    assert "x-exit-code" not in answer.headers
    output = daemon.client.get("/output")
    assert (output.status_code, output.text) == (200, "before\n")
    assert (output.headers["x-run-id"], output.headers["x-run-status"]) == (run_id, "running")
    assert output.headers["x-eof"] == "false"
    running = daemon.json("GET", answer.headers["location"])
    assert (running["status"], running["cause"], running["exit_code"]) == ("running", None, None)
    gate.open()
    result = daemon.finished(run_id)
    assert (result["stdout"], result["exit_code"], result["status"]) == ("before\nafter\n", 3, "completed")
    output = daemon.client.get("/output")
    assert (output.text, output.headers["x-eof"]) == ("before\nafter\n", "true")
    assert output.headers["x-run-status"] == "completed"


@pytest.mark.parametrize(("command", "text"), [
    ("sleep 60", TIMED_OUT), ("printf x; sleep 60", f"x\n{TIMED_OUT}"), ("echo x; sleep 60", f"x\n{TIMED_OUT}"),
    ("read -r x", AWAITING), ("read -rp 'Name? ' x", f"Name? \n{AWAITING}"), ("cat", AWAITING),
    ("python3 -c 'input()'", AWAITING),
])  # fmt: skip
def test_line_of_a_202(daemon: RunningDaemon, command: str, text: str) -> None:
    """The line that says why stands on a line of its own behind the output."""
    timeout = "20s" if text.endswith(AWAITING) else "200ms"
    answer = daemon.client.post(f"/run?timeout={timeout}", content=command)
    assert (answer.status_code, answer.text) == (202, text)
    assert answer.headers["x-awaiting-input"] == str(text.endswith(AWAITING)).lower()
    assert answer.headers["location"] == f"/runs/{answer.headers['x-run-id']}"


def test_json_202(daemon: RunningDaemon) -> None:
    """A 202 in JSON is the result as it stands, with Location and Retry-After."""
    answer = daemon.client.post(
        "/run", json={"command": "echo x; sleep 60", "timeout": "150ms"}, headers={"Accept": "application/json"}
    )
    result = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/runs/{result['run_id']}"
    assert answer.headers["retry-after"] == "1"
    assert list(result) == RESULT_FIELDS
    fields = {"status": "running", "cause": None, "exit_code": None, "signal": None, "error": None, "stdout": "x\n"}
    fields |= {"timed_out": True, "awaiting_input": False, "state": "busy"}
    assert {name: result[name] for name in fields} == fields


# --- output of what is left behind --------------------------------------------------------------------------


def test_background_output_stays_with_its_run(daemon: RunningDaemon, gate: Gate) -> None:
    """What a background process writes after its run is kept with that run, and in no other's result."""
    result = daemon.run(f"{{ {{ {gate}; echo from behind; }} & }} 2>/dev/null; echo front")
    (pid,) = result["background_pids"]
    assert result["stdout"] == "front\n"
    gate.open()
    wait_for(lambda: not alive(pid))
    assert wait_for(lambda: "from behind" in daemon.json("GET", f"/runs/{result['run_id']}")["stdout"])
    assert daemon.run("echo next")["stdout"] == "next\n"


# --- cut output ---------------------------------------------------------------------------------------------


def test_output_is_cut_in_the_middle(daemon: RunningDaemon) -> None:
    """By default 100000 characters are answered: longer output keeps its beginning and its end around a mark."""
    exact = daemon.run("printf %0100000d 0")
    assert (exact["truncated"], len(exact["stdout"])) == (False, 100_000)
    result = daemon.run("printf 'B%.0s' {1..50000}; echo; printf 'E%.0s' {1..70000}")
    mark = f"... [20001 characters omitted; the full output: GET /runs/{result['run_id']}/output] ..."
    assert result["stdout"] == "B" * 40_000 + f"\n{mark}\n" + "E" * 60_000
    assert (result["truncated"], result["original_stdout_size"]) == (True, 120_001)
    output = daemon.client.get(f"/runs/{result['run_id']}/output", headers={"Accept": "text/plain"})
    assert output.text == "B" * 50_000 + "\n" + "E" * 70_000


def test_configured_sizes(impatient_daemon: RunningDaemon) -> None:
    """output.max_size, begin_size and end_size say what is answered."""
    result = impatient_daemon.run("printf %0101d 0")
    mark = f"... [21 characters omitted; the full output: GET /runs/{result['run_id']}/output] ..."
    assert result["stdout"] == f"{'0' * 30}\n{mark}\n{'0' * 50}"
    assert impatient_daemon.run("printf %0100d 0")["stdout"] == "0" * 100
    assert impatient_daemon.run("printf %0500d 0", max_output=0)["stdout"] == "0" * 500
    assert impatient_daemon.run("printf %0500d 0", max_output=500)["stdout"] == "0" * 500


def test_headers_of_a_cut_answer(daemon: RunningDaemon) -> None:
    """A plain answer that was cut says so, and how large the whole is."""
    answer = daemon.client.post("/run?max_output=10", content="printf 'ü%.0s' {1..100}")
    assert (answer.headers["x-truncated"], answer.headers["x-original-size"]) == ("true", "100")
    assert answer.text.startswith("ü")
    assert answer.text.count("ü") == 10


def test_each_separate_stream_is_cut(daemon: RunningDaemon) -> None:
    """With separate streams each is cut for itself, and its mark says where all of it is."""
    result = daemon.run("printf %0300d 0; printf %0200d 0 >&2", streams="separate", max_output=100)
    assert (result["original_stdout_size"], result["original_stderr_size"]) == (300, 200)
    assert "[200 characters omitted" in result["stdout"]
    assert (
        f"[100 characters omitted; the full output: GET /runs/{result['run_id']}/output?stream=stderr]"
        in (result["stderr"])
    )
    url = re.search(r"GET (\S+)\]", result["stderr"])[1]
    assert daemon.client.get(url, headers={"Accept": "text/plain"}).text == "0" * 200


def test_cut_by_characters_of_the_formatted_text(daemon: RunningDaemon) -> None:
    """Sizes are characters of the formatted text: escapes and bytes do not count."""
    result = daemon.run(r"for i in {1..10}; do printf '\e[1mü\e[0m'; done", max_output=10)
    assert (result["truncated"], result["original_stdout_size"], result["stdout"]) == (False, 10, "ü" * 10)


@pytest.mark.parametrize(("count", "maximum"), [(60, 100), (500, 100), (10, 10)])
def test_cut_of_raw_multibyte_output(daemon: RunningDaemon, count: int, maximum: int) -> None:
    """Raw output of characters of several bytes is cut without repeating any, and the mark's number is right."""
    result = daemon.run(f"printf 'ü%.0s' {{1..{count}}}", format="raw", max_output=maximum)
    shown, mark = result["stdout"].count("ü"), re.search(r"\[(\d+) characters omitted", result["stdout"])
    assert shown + (int(mark[1]) if mark else 0) in (count, 2 * count)
    assert shown <= count


def test_size_of_raw_output_as_len_counts(daemon: RunningDaemon) -> None:
    """The size of an output is what len() makes of it, also in raw form."""
    result = daemon.run("printf 'ü%.0s' {1..10}", format="raw")
    assert result["original_stdout_size"] == len(result["stdout"]) == 10


def test_size_header_of_large_raw_output(daemon: RunningDaemon) -> None:
    """The size of a raw output does not depend on whether it is sent in one piece or in many."""
    for count in (1000, 300_000):
        command = f"head -c {count} /dev/zero | tr '\\0' x | sed 's/x/\\x1b[1mx/g'"
        answer = daemon.client.post("/run?format=raw&max_output=0", content=command)
        assert len(answer.content) == 5 * count
        assert answer.headers["x-original-size"] == str(len(answer.content))


def test_large_output_whole(daemon: RunningDaemon) -> None:
    """With max_output 0 all of a large output comes, as text and as JSON."""
    command = "head -c 3000000 /dev/zero | tr '\\0' x"
    answer = daemon.client.post("/run?max_output=0", content=command)
    assert answer.content == b"x" * 3_000_000
    assert answer.headers["x-exit-code"] == "0"
    result = daemon.run(command, max_output=0)
    assert list(result) == RESULT_FIELDS
    assert (result["stdout"], result["original_stdout_size"]) == ("x" * 3_000_000, 3_000_000)


# --- raw ----------------------------------------------------------------------------------------------------

ALL_BYTES = bytes(range(256)) * 8


def test_raw_is_every_byte(daemon: RunningDaemon, tmp_path: Path) -> None:
    """In raw form every byte value arrives as the program wrote it, in plain answers and by cursor."""
    (tmp_path / "bytes").write_bytes(ALL_BYTES)
    answer = daemon.client.post("/run?format=raw", content=f"cat {tmp_path}/bytes; sleep 0.1")
    assert answer.content == ALL_BYTES
    output = daemon.client.get("/output?format=raw")
    assert output.content == ALL_BYTES
    assert (daemon.data / "runs" / answer.headers["x-run-id"] / "output.log").read_bytes() == ALL_BYTES


def test_raw_as_json(daemon: RunningDaemon, tmp_path: Path) -> None:
    """In JSON the bytes of a raw output that are not UTF-8 are escaped one by one, and can be had back."""
    (tmp_path / "bytes").write_bytes(ALL_BYTES)
    result = daemon.run(f"cat {tmp_path}/bytes", format="raw")
    assert result["stdout"].encode("utf-8", "surrogateescape") == ALL_BYTES


def test_raw_as_json_by_cursor(daemon: RunningDaemon, tmp_path: Path) -> None:
    """What holds for raw output in results holds for reads by cursor."""
    (tmp_path / "bytes").write_bytes(ALL_BYTES)
    run_id = daemon.run(f"cat {tmp_path}/bytes")["run_id"]
    answer = daemon.client.get(f"/runs/{run_id}/output?format=raw")
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"].encode("utf-8", "surrogateescape") == ALL_BYTES


def test_output_takes_no_unknown_parameters(daemon: RunningDaemon) -> None:
    """An unknown parameter of /output is 400."""
    daemon.run("true")
    text_problem(daemon.client.get("/output?colour=red"), 400)
