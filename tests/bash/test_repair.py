"""A bash that a command has damaged: the run ends with what is true, the next command works, and nothing is said."""

import asyncio
from pathlib import Path

import pytest

from shelld_py.bash.repair import DAMAGE
from tests.bash.driven import driven
from tests.bash.test_process import checked


def played(directory: Path, *commands: str) -> list[tuple[str, int | None, str | None]]:
    """Return the output, the status and the damage of each of the commands."""

    async def body() -> list[tuple[str, int | None, str | None]]:
        async with asyncio.timeout(60), driven(directory) as shell:
            ended = []
            for command in commands:
                output, outcome = await checked(shell, command)
                assert outcome.death is None, (command, output)
                ended.append((output, outcome.status, outcome.damage))
            assert not shell.idle
            return ended

    return asyncio.run(body())


@pytest.mark.parametrize(
    "damage",
    [
        "alias if=echo; alias {=echo",
        "alias if=echo then=echo",
        "exec 244<&-",
        "unset DIRSTACK; declare -A DIRSTACK",
        "unset DIRSTACK; DIRSTACK=x",
        "enable -n eval mapfile unset",
        "enable -n test set trap jobs .",
        "unset BASHPID; BASHPID=7",
        "ulimit -Sf 0",
        "shopt -u expand_aliases",
        *(f"{name}() {{ echo no; }}; readonly -f {name}" for name in ("eval", "mapfile", "unset", "trap", "set")),
    ],
)
def test_hostile_shells_go_on_as_if_nothing_were(tmp_path: Path, damage: str) -> None:
    """No word of bash's, no status lost; and they come back from `exit`."""
    ended = played(tmp_path, damage, "echo a; (exit 5)", "x=kept; exit 3", "echo $x")
    assert ended == [("", 0, None), ("a\n", 5, None), ("", 3, None), ("kept\n", 0, None)]


@pytest.mark.parametrize("damage", ["alias if=echo", "alias elif=echo"])
def test_an_interrupt_in_a_shell_with_aliases_of_reserved_words(tmp_path: Path, damage: str) -> None:
    """The loop begins anew without them, and they are there afterwards."""
    ended = played(tmp_path, damage, "kill -INT $$; echo no", "echo a; alias")
    assert [status for _, status, _ in ended] == [0, 130, 0]
    assert ended[2][0].startswith("a\nalias ")


@pytest.mark.parametrize("command", ["set -e; exec 248>&-", "exec 248>&-; set -e; true"])
def test_a_lost_report_does_not_end_a_shell_with_errexit(tmp_path: Path, command: str) -> None:
    """The status is not known, and is said not to be; the shell is the same."""
    (_, *first), second = played(tmp_path, f"x=kept; {command}", "echo $x$-")
    assert (first, second[0][:4]) == ([None, DAMAGE], "kept")
    assert "e" in second[0][4:]


def test_a_limit_on_files_comes_back_after_an_exit(tmp_path: Path) -> None:
    """The state of the shell is larger than it allows for a moment."""
    ended = played(tmp_path, "ulimit -Sf 1; x=$(printf %9000d 1); exit 3", "echo ${#x}; ulimit -Sf")
    assert ended == [("", 3, None), ("9000\n1\n", 0, None)]


def test_aliases_in_an_exit_trap(tmp_path: Path) -> None:
    """They are expanded in what the user wants done, and kept; so is that they are off."""
    ended = played(
        tmp_path,
        "alias ll='echo LL'; trap 'eval ll' EXIT",
        "exit 2",
        "ll; shopt -u expand_aliases; exit 4",
        "shopt expand_aliases",
    )
    assert [output.split() for output, _, _ in ended] == [[], ["LL"], ["LL"], ["expand_aliases", "off"]]
