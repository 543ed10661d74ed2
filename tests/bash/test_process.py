"""One bash in its terminal: what a command finds, and what it leaves for the next one."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from shelld_py.bash.interpreter import HUNG_UP
from shelld_py.bash.process import NOT_RUN
from shelld_py.bash.repair import DAMAGE
from shelld_py.errors import ShellStartFailed
from shelld_py.linux.terminal_wait import blocked_read
from tests.bash.driven import Driven, driven
from tests.daemons import wait_for


def in_bash(directory: Path, test: Callable[[Driven], Awaitable[None]], **options: Any) -> None:
    """Run `test` with a bash of its own."""

    async def body() -> None:
        async with asyncio.timeout(30), driven(directory, **options) as shell:
            await test(shell)

    asyncio.run(body())


async def checked(shell: Driven, command: str, **options: Any) -> tuple[str, Any]:
    """Return the output and the outcome of a command, while somebody looks now and then whether bash hangs."""
    running = asyncio.ensure_future(shell.run(command, **options))
    while not running.done():
        await asyncio.wait({running}, timeout=0.02)
        shell.bash.check()
    return await running


def test_a_report_that_nobody_has_read_yet(tmp_path: Path) -> None:
    """A bash that has reported waits for the next command. It does not hang, however often one looks."""

    async def test(shell: Driven) -> None:
        bash = shell.bash
        run = bash.begin("(exit 3)", bytearray().extend)
        wait_for(lambda: bash._channels.report_waits)  # nothing reads it: this holds the event loop
        wait_for(lambda: blocked_read(bash.pid) is not None)
        for _ in range(5):
            bash.check()
        outcome = await bash.outcome(run)
        assert (outcome.status, outcome.damage) == (3, None)

    in_bash(tmp_path, test)


def test_what_a_command_leaves_for_the_next(tmp_path: Path) -> None:
    """Variables, status, options, traps; and no trace of the driver."""

    async def test(shell: Driven) -> None:
        await shell.run("x=5; set -u; trap 'echo E' ERR; (exit 3)")
        assert await shell.output("echo $? $x $-; compgen -v __shelld || ls /proc/self/fd | tr '\\n' ' '") == (
            "3 5 himuBHs\n0 1 2 3 "
        )
        assert (await shell.run("false"))[0] == "E\n"
        assert shell.bash.directory == str(tmp_path)
        assert not shell.idle

    in_bash(tmp_path, test)


def test_sourcing_and_setting_an_exit_trap_in_posix_mode_go_unnoticed(tmp_path: Path) -> None:
    """No function can be named `trap` there: nothing is said of one, and `$?` stays."""

    async def test(shell: Driven) -> None:
        await shell.run("set -o posix")
        assert await shell.output("echo $?; . /dev/null; echo b") == "0\nb\n"
        assert await shell.output("trap 'echo bye' EXIT; echo $?") == "0\n"
        assert (await shell.run("exit 3"))[0] == "bye\n"

    in_bash(tmp_path, test)


def test_a_colon_that_was_disabled_is_brought_back(tmp_path: Path) -> None:
    """The driver ends each command with it."""

    async def test(shell: Driven) -> None:
        await shell.run("enable -n :")
        assert await shell.output(": x; echo $?") == "0\n"
        assert await shell.output("echo b") == "b\n"

    in_bash(tmp_path, test)


@pytest.mark.parametrize(
    ("before", "command", "environment"),
    [
        ("set -o posix", "echo $A", {"A": "1"}),
        ("true", "set -o posix; echo $A", {"A": "1"}),
        ("true", "echo $A", {"A": "1", "POSIXLY_CORRECT": "1"}),
    ],
    ids=["before", "in the command", "by the environment"],
)
def test_variables_of_one_command_are_taken_back_in_posix_mode(
    tmp_path: Path, before: str, command: str, environment: dict[str, str]
) -> None:
    """Also PATH, without which nothing would be found any more."""

    async def test(shell: Driven) -> None:
        await shell.run(before)
        path = await shell.output("echo $PATH")
        assert await shell.output(command, environment={**environment, "PATH": "/x"}, directory="/") == "1\n"
        assert await shell.output("echo ${A-none}; echo $PATH; pwd; ls") == f"none\n{path}{tmp_path}\n"

    in_bash(tmp_path, test)


@pytest.mark.parametrize("attribute", ["-gi", "-gA", "-gu", "-gr", "-gn"])
def test_a_command_cannot_spoil_the_variable_of_the_driver(tmp_path: Path, attribute: str) -> None:
    """Whatever it declares of the name that the variable's begins with, the commands after it run."""

    async def test(shell: Driven) -> None:
        await shell.run(f"declare {attribute} __shelld")
        assert await shell.output("echo one") == "one\n"
        assert await shell.output("echo two") == "two\n"

    in_bash(tmp_path, test)


@pytest.mark.parametrize("unfinished", ["echo $(", 'echo "$(echo $(', "cat <(", "a=([1]=$("])
def test_an_unfinished_substitution_does_not_damage_memory_of_bash(tmp_path: Path, unfinished: str) -> None:
    """Deep quotes would find it: where bash has counted those that are open wrong, it dies of them."""
    deep = "echo deep"
    for _ in range(12):
        deep = f'echo "$({deep})"'

    async def test(shell: Driven) -> None:
        assert (await shell.run(unfinished))[1].status in (1, 2)
        assert await shell.output('echo "a"') == "a\n"
        assert await shell.output(deep) == "deep\n"

    in_bash(tmp_path, test)


def test_a_command_that_bash_has_not_run_is_not_told_to_have_ended(tmp_path: Path) -> None:
    """What takes away how commands are run leaves no status that looks like the next one's."""

    async def test(shell: Driven) -> None:
        await shell.run("enable -n eval enable")
        _, outcome = await shell.run("echo one")
        assert (outcome.status, outcome.damage) == (None, NOT_RUN)

    in_bash(tmp_path, test)


def test_an_exec_that_was_disabled_does_not_cost_the_shell_at_an_exit(tmp_path: Path) -> None:
    """bash is executed anew then."""

    async def test(shell: Driven) -> None:
        await shell.run("x=kept; enable -n exec")
        assert (await shell.run("exit 3"))[1].restored
        assert await shell.output("echo $x") == "kept\n"

    in_bash(tmp_path, test)


def test_a_shell_that_is_interrupted_again_and_again_as_it_comes_back_is_waited_for(tmp_path: Path) -> None:
    """Also where it has been in its loop for a moment, and out of it again before anybody could go on."""

    async def test(shell: Driven) -> None:
        loop = shell.bash._in_loop
        loop.clear()
        back = asyncio.ensure_future(shell.bash._back_in_loop())
        await asyncio.sleep(0.01)
        loop.set()
        loop.clear()
        await asyncio.sleep(0.01)
        assert not back.done()
        loop.set()
        assert await back

    in_bash(tmp_path, test)


def test_a_low_limit_of_descriptors_is_raised_as_far_as_bash_needs(tmp_path: Path) -> None:
    """The hard limit allowing."""

    async def test(shell: Driven) -> None:
        assert await shell.output("ulimit -n; ulimit -Hn") == "256\n4096\n"

    in_bash(tmp_path, test, open_files=(150, 4096))


def test_too_low_a_hard_limit_of_descriptors_is_said_at_once(tmp_path: Path) -> None:
    """Before anything is started."""

    async def test(shell: Driven) -> None:
        raise AssertionError

    with pytest.raises(ShellStartFailed, match="needs 256 descriptors, and the hard limit is 150"):
        in_bash(tmp_path, test, open_files=(100, 150))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="vhangup(2) needs root")
def test_a_terminal_that_is_hung_up_ends_the_shell_and_says_so(tmp_path: Path) -> None:
    """Nothing is waited for that will not come."""

    async def test(shell: Driven) -> None:
        program = "import ctypes; ctypes.CDLL(None).vhangup()"
        _, outcome = await checked(shell, f'trap "" HUP; {sys.executable} -c "{program}"; sleep 30')
        assert outcome.death
        assert (outcome.death.signal, outcome.damage) == (signal.SIGKILL, HUNG_UP)

    in_bash(tmp_path, test)


def test_large_values_do_not_hold_anything_up(tmp_path: Path) -> None:
    """A PWD and an OLDPWD of 30 MB: the kernel says where bash is. An EXIT trap of half a megabyte is kept."""

    async def test(shell: Driven) -> None:
        await shell.output("printf -v PWD '%*s' 30000000 x; OLDPWD=$PWD")
        assert shell.bash.directory == str(tmp_path)
        assert await shell.output("cd /; cd -- " + str(tmp_path)) == ""
        assert await shell.output("printf -v a '%*s' 500000 ''; trap \"echo end;$a\" EXIT") == ""
        output, outcome = await shell.run("exit 4")
        assert (output, outcome.status, outcome.restored) == ("end\n", 4, True)

    in_bash(tmp_path, test)


def test_texts_follow_one_another_in_one_file(tmp_path: Path) -> None:
    """Small ones and large ones, in bash that keeps its place, through an interrupt and an exit."""

    async def test(shell: Driven) -> None:
        for number in range(30):
            assert await shell.output(f"echo {number} {'# ' + 'x' * 30_000}") == f"{number}\n"
        assert await shell.output("echo ${#a}" + " " * 3_000_000) == "0\n"
        assert (await shell.run("kill -INT $$; echo no"))[1].interrupted
        assert await shell.output("echo after") == "after\n"
        assert (await shell.run("exit 2"))[1].restored
        assert await shell.output("echo again") == "again\n"

    in_bash(tmp_path, test)


@pytest.mark.parametrize(
    "command",
    [
        "cat <&244 >/dev/null",
        "exec 244<&-",
        "exec 244</dev/null",
        "exec 244<>x 245<>x 247<>x",
    ],
)
def test_a_command_that_takes_the_texts_away_costs_nothing(tmp_path: Path, command: str) -> None:
    """The text of the next one is put where bash reads, or the loop begins anew; it runs once."""

    async def test(shell: Driven) -> None:
        await shell.run(command)
        output, outcome = await checked(shell, "echo once >> log; cat log")
        assert (output.splitlines()[-1], outcome.status) == ("once", 0)
        assert (tmp_path / "log").read_text() == "once\n"

    in_bash(tmp_path, test)


def test_a_command_that_closes_all_is_repaired(tmp_path: Path) -> None:
    """Its status is not known, which is said; the next command finds all as it was."""

    async def test(shell: Driven) -> None:
        await shell.run("x=1")
        _, outcome = await checked(shell, 'for i in {3..255}; do eval "exec $i>&-"; done')
        assert (outcome.status, outcome.damage) == (None, DAMAGE)
        assert await shell.output("echo $x") == "1\n"

    in_bash(tmp_path, test)


def test_return_ends_the_command_alone(tmp_path: Path) -> None:
    """It is no interrupt; traps and options stay."""

    async def test(shell: Driven) -> None:
        await shell.run("trap 'echo D' DEBUG")
        output, outcome = await shell.run("return 5; echo no")
        assert (output, outcome.status, outcome.interrupted) == ("D\n", 5, False)
        assert await shell.output("echo $?") == "D\n0\n"
        await shell.run("trap - DEBUG")
        await shell.run("return 6")
        assert await shell.output("echo $?") == "6\n"
        assert not shell.idle

    in_bash(tmp_path, test)


def test_a_jobs_end_is_not_told_in_the_output_of_a_later_command(tmp_path: Path) -> None:
    """A job of an earlier command has ended meanwhile, between two commands or in one that did not wait."""

    async def test(shell: Driven) -> None:
        pid = (await shell.output("sleep 30 & echo $!")).strip()
        await shell.output("true")
        assert await shell.output(f"kill {pid}; while kill -0 {pid} 2>/dev/null; do :; done") == ""
        assert await shell.output("/bin/true; echo x") == "x\n"

    in_bash(tmp_path, test)
