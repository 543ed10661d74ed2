"""The persistent bash as a tool: started when needed, answered, restarted, never lost."""

import re
from collections.abc import Callable

import pytest

from tests.daemons import RunningDaemon, wait_for
from tests.tools.conftest import Bench
from tests.websockets import websocket

MEMBERS = [
    "output", "exit_code", "signal", "status", "awaiting_input", "error", "working_directory", "duration", "run_id",
    "restarted",
]  # fmt: skip


@pytest.fixture
def main(bench: Bench, daemon: RunningDaemon) -> Bench:
    """Tools of a daemon with a fresh main shell."""
    assert daemon is bench.daemon
    return bench


def test_bash_starts_the_shell_when_it_is_first_used(start_daemon: Callable[..., RunningDaemon]) -> None:
    """The hook runs; later calls find the shell as it was left, and it is the one of POST /run."""
    daemon = start_daemon(hooks__on_startup="echo hook >started")
    bench = Bench(daemon, daemon.data.parent / "work")
    assert daemon.state() == "available"
    assert bench.refused("bash_input", text="")["code"] == "no_running_command"
    called = bench.call("bash", command="x=5; cd /; cat ~/started")
    assert list(called.result) == MEMBERS
    assert (called.result["output"], called.result["exit_code"], called.result["status"]) == ("hook\n", 0, "completed")
    assert (called.result["working_directory"], called.result["restarted"]) == ("/", False)
    assert daemon.run("echo $x; pwd")["stdout"] == "5\n/\n"


def test_stdout_and_stderr_come_in_true_order(main: Bench) -> None:
    called = main.call("bash", command="echo a; echo b >&2; echo c; (exit 3)")
    assert (called.body, called.result["exit_code"]) == ("a\nb\nc\n", 3)
    assert re.fullmatch(r"exit code 3, \d+ms, /.*", called.footer)


def test_a_command_that_outlives_the_wait_goes_on(main: Bench) -> None:
    """What it writes since then comes with bash_input, and nothing twice or never."""
    gate = main.directory / "gate"
    command = f"echo one; printf two; until [ -e {gate} ]; do sleep 0.02; done; echo ' and more'; echo three; (exit 4)"
    called = main.call("bash", command=command, timeout_ms=300)
    assert (called.result["output"], called.result["status"]) == ("one\ntwo", "running")
    assert (called.result["exit_code"], called.answer["running"]) == (None, True)
    assert called.footer.startswith("still running, 3")
    assert 'bash_input {"text": ""} waits on' in called.footer
    refusal = main.refused("bash", command="ls")
    assert (refusal["status"], refusal["code"], refusal["run_id"]) == (409, "shell_busy", called.result["run_id"])
    assert refusal["detail"].startswith("The command was not run: 'echo one; printf two; ")
    assert 'bash {"restart": true} starts a fresh shell' in refusal["detail"]
    gate.touch()
    rest = main.call("bash_input", text="")
    assert (rest.result["output"], rest.result["exit_code"]) == ("two and more\nthree\n", 4)
    assert main.refused("bash_input", text="")["code"] == "no_running_command"


def test_a_question_is_answered(main: Bench) -> None:
    called = main.call("bash", command="python3 -q")
    assert (called.result["output"], called.result["awaiting_input"]) == (">>> ", True)
    assert called.footer.startswith("waiting for input, ")
    assert r'bash_input {"text": "ANSWER\n"} answers it' in called.footer
    assert main.call("bash_input", text="6*7\n").result["output"] == "42\n>>> "
    ended = main.call("bash_input", text="exit()\n")
    assert (ended.result["output"], ended.result["exit_code"]) == ("", 0)


def test_an_interrupt_keeps_the_shell(main: Bench) -> None:
    main.call("bash", command="kept=1")
    main.call("bash", command="sleep 60", timeout_ms=0)
    wait_for(lambda: main.daemon.json("GET", "/status")["run"]["foreground"]["command"] == "sleep 60")
    called = main.call("bash_input", text="\u0003")
    assert (called.result["exit_code"], called.result["signal"]) == (130, 2)
    assert main.call("bash", command="echo $kept").result["output"] == "1\n"


def test_what_ended_unseen_is_told(main: Bench) -> None:
    """By bash_input with its rest, where nothing is typed; by bash in the footer."""
    run_id = main.call("bash", command="sleep 0.1; echo rest; (exit 6)", timeout_ms=0).result["run_id"]
    main.daemon.finished(run_id)
    called = main.call("bash_input", text="typed\n")
    assert (called.result["output"], called.result["exit_code"]) == ("rest\n", 6)
    assert "the command had ended, nothing was typed" in called.footer
    run_id = main.call("bash", command="sleep 0.1; echo rest; (exit 6)", timeout_ms=0).result["run_id"]
    main.daemon.finished(run_id)
    called = main.call("bash", command="echo next")
    assert called.body == "next\n"
    assert "the command before has ended: exit code 6" in called.footer
    assert f'shell_read {{"shell_id": "{run_id}", "from_cursor": 0}}' in called.footer
    assert main.call("shell_read", shell_id=run_id, from_cursor=0).result["output"] == "rest\n"
    assert "before" not in main.call("bash", command="true").footer


def test_the_model_is_told_that_a_person_has_typed(main: Bench) -> None:
    """At the terminal in a WebSocket; what it types itself is no person's."""
    assert "waiting for input" in main.call("bash", command='read -r x; read -r y; echo "<$x$y>"').footer
    with websocket(main.daemon.url) as terminal:
        terminal.until_told("run")
        assert "person" not in main.call("bash_input", text="model\n").footer
        terminal.type(b"person\r")
        terminal.until_told("run", status="completed")
    called = main.call("bash_input", text="")
    assert called.result["output"].endswith("<modelperson>\n")
    assert "a person has typed into this command's terminal" in called.footer


def test_bash_input_shows_a_run_that_somebody_else_started(main: Bench) -> None:
    main.daemon.start("echo theirs; read -r x; echo $x")
    called = main.call("bash_input", text="mine\n")
    assert (called.result["output"], called.result["exit_code"]) == ("theirs\nmine\n", 0)


def test_a_long_rest_comes_in_pieces(main: Bench) -> None:
    run_id = main.call("bash", command="sleep 0.1; seq 30000", timeout_ms=0).result["run_id"]
    main.daemon.finished(run_id)
    parts = []
    while True:
        called = main.call("bash_input", text="")
        parts.append(called.result["output"])
        if 'more output: bash_input {"text": ""}' not in called.footer:
            break
    assert len(parts) == 2
    assert "".join(parts) == "".join(f"{number}\n" for number in range(1, 30001))


def test_restart_gives_a_fresh_shell(main: Bench) -> None:
    main.call("bash", command="lost=1; cd /")
    running = main.call("bash", command="sleep 60", timeout_ms=0)
    called = main.call("bash", restart=True)
    assert (called.result["restarted"], called.result["run_id"], called.result["status"]) == (True, None, None)
    assert called.text == f"[a fresh shell is ready, {called.result['working_directory']}]"
    assert main.daemon.finished(running.result["run_id"])["cause"] == "recycled"
    again = main.call("bash", restart=True, command="echo lost=$lost")
    assert (again.result["output"], again.result["restarted"]) == ("lost=\n", True)


def test_a_lost_shell_says_how_to_get_a_fresh_one(main: Bench) -> None:
    called = main.call("bash", command="kill -9 $$")
    assert (called.result["status"], called.answer["is_error"]) == ("lost", True)
    assert 'the shell has ended, bash {"restart": true} starts a fresh one' in called.footer
    refusal = main.refused("bash", command="ls")
    assert (refusal["status"], refusal["code"]) == (409, "shell_unrecoverable")
    assert 'bash {"restart": true} starts a fresh one' in refusal["detail"]
    assert main.call("bash", restart=True, command="echo back").result["output"] == "back\n"


def test_bash_needs_something_to_do(main: Bench) -> None:
    assert main.refused("bash")["argument"] == "command"
    assert main.refused("bash", command="")["argument"] == "command"
    assert main.refused("bash", command="ls", timeout_ms=-1)["argument"] == "timeout_ms"


def test_the_call_can_bound_every_wait(main: Bench) -> None:
    called = main.call("bash", query="&timeout=100ms", command="sleep 60", timeout_ms=50_000)
    assert called.answer["running"] is True
    assert 0.1 <= called.result["duration"] < 5


def test_a_program_that_draws_is_driven_by_keys_and_looked_at(main: Bench) -> None:
    """bash_input presses keys by their names, and bash_screen shows what comes of it."""
    command = r"printf '\033[2J\033[3;5Hdrawn'; read -rsn3 key; printf '\033[1;1H%s' ${key:1}; read -r"
    main.call("bash", command=command, timeout_ms=100)
    called = main.call("bash_screen")
    assert called.result["lines"][:3] == ["", "", "    drawn"]
    assert "cursor in row 3, column 10" in called.footer
    main.call("bash_input", keys=["Up"])
    assert main.call("bash_screen").result["lines"][:3] == ["[A", "", "    drawn"]
    main.call("bash_input", keys=["Enter"])
    assert "the command has ended" in main.call("bash_screen").footer
    assert main.refused("bash_input", keys=["F13"])["code"] in ("invalid_request", "no_running_command")
