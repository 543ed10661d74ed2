"""Tools that run one command to its end, and sessions: called over HTTP, with a real bash."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import alive
from tests.tools.conftest import Bench

VOLATILE = {"run_id", "session_id", "started_at", "duration", "usage", "state"}
SHELL_ID = re.compile(r'"shell_id": "([0-9a-f]{32})"')


def test_run_shell_command_gives_the_named_members(bench: Bench) -> None:
    called = bench.call(
        "run_shell_command",
        command="echo out; echo err >&2; exit 3",
        description="says",
        directory=str(bench.directory),
    )
    assert called.result == {
        "command": "echo out; echo err >&2; exit 3",
        "directory": str(bench.directory),
        "stdout": "out\n",
        "stderr": "err\n",
        "error": None,
        "exit_code": 3,
        "signal": None,
        "background_pids": [],
    }
    assert called.answer["is_error"] is False
    run = bench.daemon.json("GET", f"/runs/{called.answer['run_id']}")
    assert (run["description"], run["exit_code"], run["stdout"]) == ("says", 3, "out\n")


def test_run_shell_command_runs_as_bash_c_does(bench: Bench) -> None:
    """It is not interactive, has a pid of its own, and its errors are those of `bash -c`."""
    assert "i" not in bench.call("run_shell_command", command="echo $-").result["stdout"]
    assert bench.call("run_shell_command", command="shopt -q expand_aliases").result["exit_code"] == 1
    assert "-c: line 1: syntax error" in bench.call("run_shell_command", command="echo (").result["stderr"]
    killed = bench.call("run_shell_command", command="kill -9 $$").result
    assert (killed["exit_code"], killed["signal"], killed["error"]) == (137, 9, None)
    assert bench.call("run_shell_command", command="x=1; cd /").result["exit_code"] == 0
    assert bench.call("run_shell_command", command="echo $x; pwd").result["stdout"].startswith("\n/")


def test_run_shell_command_in_the_background_returns_at_once(bench: Bench) -> None:
    called = bench.call("run_shell_command", command="sleep 60 & echo started")
    assert (called.result["stdout"], called.result["stderr"]) == ("started\n", "")
    (pid,) = called.result["background_pids"]
    assert alive(pid)
    assert called.footer.endswith(f"left in the background: pid {pid}")
    os.kill(pid, 9)


@pytest.mark.parametrize(
    "command",
    ['it\'s "quoted" $HOME `x`', "a\nb\n", "é ☃", "\\", "-n", "x" * 200_000],
    ids=["quotes", "lines", "unicode", "backslash", "option", "long"],
)
def test_run_shell_command_takes_any_command_as_it_is(bench: Bench, command: str) -> None:
    """Also one that is too long to be an argument of a program."""
    called = bench.call("run_shell_command", command=f"cat <<'E'\n{command}\nE\nls -1 /proc/self/fd; exit 4")
    assert called.result["exit_code"] == 4
    shown, _, descriptors = called.result["stdout"].rpartition("0\n1\n2\n3\n")
    assert descriptors == ""
    assert shown == f"{command}\n" or (len(command) > 100_000 and "characters omitted" in shown)


def test_run_shell_command_in_a_relative_directory(bench: Bench) -> None:
    work = bench.directory.parent
    called = bench.call("run_shell_command", command="pwd", directory=bench.directory.name)
    assert called.result["directory"] == str(work / bench.directory.name)
    assert called.result["stdout"] == f"{bench.directory}\n"
    refusal = bench.refused("run_shell_command", command="pwd", directory="nowhere")
    assert (refusal["status"], "not a directory that exists" in refusal["detail"]) == (400, True)


def test_a_command_that_takes_too_long_goes_on(bench: Bench) -> None:
    """The call hands over to a shell_id, by which the rest is had."""
    called = bench.call("run_shell_command", query="&timeout=200ms", command="echo a; sleep 0.6; echo b; exit 5")
    assert (called.result["stdout"], called.result["exit_code"], called.answer["running"]) == ("a\n", None, True)
    assert called.result["error"].startswith("The command is still running: shell_wait")
    found = SHELL_ID.search(called.footer)
    assert found
    assert found[1] == called.answer["run_id"]
    waited = bench.call("shell_wait", shell_id=found[1])
    assert (waited.result["output"], waited.result["exit_code"]) == ("a\nb\n", 5)


def test_run_shell_command_has_no_terminal_and_no_input(bench: Bench) -> None:
    """So nothing is drawn for a person, and what asks does not hold anybody up; it can be ended, not typed into."""
    called = bench.call("run_shell_command", command="read -p 'name? ' x; echo $?; test -t 1 || test -t 2; echo $?")
    assert (called.result["stdout"], called.result["stderr"]) == ("1\n1\n", "")
    slow = bench.call("run_shell_command", query="&timeout=100ms", command="sleep 60")
    assert "shell_write" not in slow.text + slow.result["error"]
    assert bench.refused("shell_write", shell_id=slow.answer["run_id"], text="x")["code"] == "stdin_closed"
    assert bench.call("shell_close", shell_id=slow.answer["run_id"]).result["killed"]


def test_a_command_that_asks_is_answered_at_once(bench: Bench) -> None:
    called = bench.call("execute_command", command='read -p "name? " x; echo "<$x>"')
    assert called.result["stderr"] == "name? "
    assert "waiting for input" in called.footer
    assert "shell_write answers it" in called.footer
    shell_id = called.answer["run_id"]
    assert bench.call("shell_write", shell_id=shell_id, text="me\n").result["accepted"] == 3
    assert bench.call("shell_wait", shell_id=shell_id).result["output"] == "<me>\n"


def test_a_session_keeps_its_state(bench: Bench) -> None:
    session_id = bench.call("open_session").result["session_id"]
    first = bench.call("execute_command", session_id=session_id, command="x=5; cd /; echo a; echo b >&2; false")
    assert first.result == {
        "stdout": "a\n",
        "stderr": "b\n",
        "exit_code": 1,
        "original_stdout_size": 2,
        "original_stderr_size": 2,
    }
    assert first.text.startswith("a\n[stderr]\nb\n[exit code 1, ")
    assert first.footer.endswith(", /")
    second = bench.call("execute_command", session_id=session_id, command="echo $x; pwd")
    assert second.result["stdout"] == "5\n/\n"
    assert bench.call("close_session", session_id=session_id).result == {"session_id": session_id}
    refusal = bench.refused("execute_command", session_id=session_id, command="true")
    assert (refusal["status"], refusal["code"]) == (404, "session_not_found")
    assert bench.refused("close_session", session_id=session_id)["code"] == "session_not_found"


def test_a_busy_session_refuses(bench: Bench) -> None:
    session_id = bench.call("open_session").result["session_id"]
    running = bench.call("execute_command", query="&timeout=0", session_id=session_id, command="sleep 60")
    assert (running.result["exit_code"], running.answer["running"]) == (None, True)
    assert "the session is busy until it ends" in running.footer
    assert bench.refused("execute_command", session_id=session_id, command="true")["code"] == "shell_busy"
    closed = bench.call("close_session", session_id=session_id)
    assert closed.text == f"[session {session_id} is closed]"


def test_execute_command_without_a_session_is_exec(bench: Bench) -> None:
    command = "cd /; x=1; echo out; echo err >&2; exit 3"
    over_http = bench.daemon.json("POST", "/exec", json={"command": command})
    result = bench.call("execute_command", command=command).result
    assert result == {name: over_http[name] for name in result}


def test_shell_exec_is_exec(bench: Bench) -> None:
    fields: dict[str, Any] = {
        "command": 'cat; echo "$A"; pwd; echo err >&2; exit 9',
        "description": "all",
        "directory": "/",
        "environment": {"A": "b c"},
        "stdin": "typed\n",
        "streams": "merged",
        "max_output": 12,
    }
    over_http = bench.daemon.json("POST", "/exec", json=fields)
    called = bench.call("shell_exec", **fields)
    assert list(called.result) == list(over_http)
    for result in (called.result, over_http):
        result["stdout"] = re.sub(r"the full output: .*\]", "WHERE]", result["stdout"])
    assert {name: value for name, value in called.result.items() if name not in VOLATILE} == {
        name: value for name, value in over_http.items() if name not in VOLATILE
    }
    assert called.result["truncated"] is True
    assert f'shell_read with shell_id "{called.result["run_id"]}"' in called.text


def test_shell_exec_stops_waiting_and_a_killed_command_is_an_error(bench: Bench) -> None:
    called = bench.call("shell_exec", command="sleep 60", timeout=0.1)
    assert (called.result["status"], called.result["timed_out"]) == ("running", True)
    bench.daemon.client.post(f"/runs/{called.answer['run_id']}/kill")
    waited = bench.call("shell_wait", shell_id=called.answer["run_id"])
    assert (waited.result["status"], waited.result["error"]) == ("killed", "Killed by request.")
    lost = bench.call("execute_command", command="kill -9 $$")
    assert lost.answer["is_error"] is True
    assert "lost, The shell died of SIGKILL" in lost.footer


def test_a_deadline_and_what_is_said_of_it(bench: Bench) -> None:
    """While the command goes on, when it will be killed; afterwards that it was."""
    bench.daemon.fresh()
    called = bench.call("shell_exec", command="sleep 987", timeout=0.05, deadline=0.5)
    assert re.search(r"still running, .*, killed in \d+ms at its deadline, shell_wait", called.footer)
    waited = bench.call("shell_wait", shell_id=called.answer["run_id"])
    assert waited.footer.startswith("killed at its deadline of 500ms, ")
    called = bench.call("bash", command="kept=1; sleep 987", deadline_ms=100)
    assert called.answer["is_error"] is True
    assert called.footer.startswith("killed at its deadline of 100ms, ")
    assert bench.call("bash", command="echo $kept").result["output"] == "1\n"


def test_shell_metadata_is_what_metadata_says(bench: Bench) -> None:
    over_http = bench.daemon.json("GET", "/metadata")
    called = bench.call("shell_metadata")
    assert called.result == {name: over_http[name] for name in ("operating_system", "shell", "workspace_directory")}
    assert called.text == "".join(f"{value}\n" for value in called.result.values())


def test_the_text_is_the_output_and_a_footer(bench: Bench) -> None:
    """A missing last newline is added, an empty output leaves the footer alone; as text the answer is that alone."""
    called = bench.call("shell_exec", command="printf 'no newline'")
    assert re.fullmatch(r"no newline\n\[exit code 0, \d+ms, /.*\]", called.text)
    assert re.fullmatch(r"\[exit code 1, \d+ms, /.*\]", bench.call("shell_exec", command="false").text)
    answer = bench.daemon.client.post(
        "/tools/shell_exec", json={"command": "echo a; sleep 60", "timeout": 0.2}, headers={"Accept": "text/plain"}
    )
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert (answer.headers["x-is-error"], answer.headers["x-running"]) == ("false", "true")
    assert answer.text.startswith("a\n[still running, 2")
    assert bench.call("shell_close", shell_id=answer.headers["x-run-id"]).result["killed"] is True


def test_a_repeated_call_is_done_once(bench: Bench) -> None:
    """An Idempotency-Key makes the second one get the answer of the first."""
    counted = Path(bench.file("count", ""))
    headers = {"Idempotency-Key": f"tools-{counted}"}
    body = {"command": f"echo x >>{counted}; echo $$"}
    first, second = (
        bench.daemon.client.post("/tools/run_shell_command", json=body, headers=headers).json() for _ in range(2)
    )
    assert first == second
    assert counted.read_text() == "x\n"
