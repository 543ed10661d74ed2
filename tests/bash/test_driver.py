"""The scripts and texts that bash is given."""

import time

import pytest
from msgspec.structs import fields

from shelld_py.bash.driver import Carried, Driver, Paths, defines_exit_trap, sets_exit_trap
from shelld_py.bash.protocol import Report, ReportKind

PATHS = Paths(**{field.name: f"/proc/4194304/fd/{number}" for number, field in enumerate(fields(Paths))})


def driver(*, restore: bool = True) -> Driver:
    """Return a driver with the longest paths that there are."""
    return Driver(PATHS, "tag0123456789abcdef", restore=restore)


@pytest.mark.parametrize("restore", [True, False])
def test_all_that_stands_for_something_is_filled_in(restore: bool) -> None:
    """No placeholder is left, no comment, and not the name that the variable has in the file."""
    made = driver(restore=restore)
    lines = [made.start_lines, made.loop_lines, made.repair_lines, made.rescue_line]
    texts = [*made.files.values(), *(line.decode() for line in lines), made.command_text("", Carried(jobs=True))]
    for text in texts:
        assert "@" not in text.replace('"$@"', "").replace("$@", "").replace("@Q", "").replace("@a", "")
        assert "\n#" not in text
        assert "__shelld" not in text.replace(made._variable, "")


def test_what_is_sent_through_the_boot_pipe_is_read_at_once() -> None:
    """bash reads 1024 bytes at a time: what waits behind an interrupted loop must have been read with it."""
    assert len(driver().start_lines) <= 1024
    assert len(driver().loop_lines) <= 1024


def test_two_drivers_have_variables_of_different_names() -> None:
    """So a command cannot know the name."""
    assert driver()._variable != driver()._variable


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo hello", False),
        ("exit 3", False),
        ("trap 'echo bye' INT", False),
        ("trap 'echo bye' EXIT; exit", True),
        ("trap 'echo bye' 0", True),
        ("trap 'rm x' INT\nexit", True),
        ("trap '\nrm x\n' EXIT", True),
        ('trap "rm $x" "EXIT"', True),
        (". ./script", True),
        ("source script", True),
        ("cd x; . y", True),
    ],
)
def test_commands_that_may_set_an_exit_trap(command: str, expected: bool) -> None:
    """Those get a `trap` that keeps the driver's own."""
    assert sets_exit_trap(command) is expected


@pytest.mark.parametrize(
    "text",
    ["trap ", "trap '", 'trap "\\', "trap x\\\n", "trap exi ", ". ", "source", "f() { trap ", "(" * 10, "\\" * 10],
)
def test_the_search_for_traps_takes_time_that_grows_with_the_text(text: str) -> None:
    """Four times the text takes nothing like sixteen times as long."""

    def seconds(size: int) -> float:
        command = text * (size // len(text))
        best = float("inf")
        for _ in range(3):
            begin = time.process_time()
            sets_exit_trap(command)
            defines_exit_trap(command)
            best = min(best, time.process_time() - begin)
        return best

    assert seconds(1 << 15) < 10 * seconds(1 << 13) + 0.05


def test_long_commands_are_not_searched_for_traps() -> None:
    """That would hold the event loop. They are taken for such as set a trap, where they name it for such as define."""
    assert sets_exit_trap("x" * 40_000)
    assert not defines_exit_trap("x" * 40_000)
    assert defines_exit_trap("x" * 40_000 + "trap")


def test_what_is_carried_to_the_next_command() -> None:
    """Traps, options and the status come back, in an order in which none spoils another."""
    made = driver()
    report = Report(ReportKind.RAN, status=3, flags="hx", traps={"ERR": "echo 'e'", "EXIT": made._exit_action})
    carried = made.carry(report, Carried(), "true", children=False)
    assert (carried.status, carried.exit_trap_set, carried.exit_action, carried.jobs) == (3, True, None, False)
    line, _, command = made.command_text("echo", carried).partition("\n")
    assert command == "echo"
    steps = [
        "unset -v",
        "set -x",
        "trap -- 'echo '\"'\"'e'\"'\"'' ERR",
        f". {PATHS.script} tag0123456789abcdefstatus 3",
    ]
    places = [line.index(step) for step in steps]
    assert places == sorted(places)


def test_a_trap_of_the_user_on_exit_is_kept_behind_the_drivers() -> None:
    """It is set again with the user's action as an argument."""
    made = driver()
    report = Report(ReportKind.RAN, traps={"EXIT": "rm 'x'"})
    carried = made.carry(report, Carried(), "trap", children=False)
    assert (carried.exit_trap_set, carried.exit_action) == (False, "rm 'x'")
    assert "--on-exit" in made.command_text("true", carried)


@pytest.mark.parametrize(
    ("before", "last_job", "children", "expected"),
    [
        (Carried(), "0", False, False),
        (Carried(), "77", False, True),
        (Carried(), "0", True, True),
        (Carried(last_job="77", children=True), "77", False, True),
        (Carried(last_job="77"), "77", False, False),
    ],
)
def test_whether_there_may_be_jobs(before: Carried, last_job: str, children: bool, expected: bool) -> None:
    """A job was started, or is there, or was there when the command began and may have ended since."""
    report = Report(ReportKind.RAN, last_job=last_job)
    assert driver().carry(report, before, "", children=children).jobs is expected
