"""What a caller asks for, as text that bash understands."""

import pytest

from shelld_py.bash.command import Directories, check_command, check_environment, input_bytes, script_of
from shelld_py.errors import InvalidRequest


def test_a_plain_command_is_its_text() -> None:
    """Nothing is set up for it, and nothing undone."""
    script = script_of("ls", directory=None, environment=None, stdin=None, place=Directories("/", "/"), saved="/saved")
    assert (script.text, list(script.setup), list(script.cleanup)) == ("ls", [], [])


@pytest.mark.parametrize(("previous", "restored"), [("/it's", True), (None, False)])
def test_what_holds_for_one_command_is_undone(previous: str | None, restored: bool) -> None:
    """Directory and variables; a previous directory that is not known is not set."""
    script = script_of(
        "ls",
        directory="/a b",
        environment={"A": "it's"},
        stdin="/in",
        place=Directories("/x y", previous),
        saved="/saved",
    )
    assert script.text == "\\builtin cd -- '/a b' && \\builtin eval -- ls </in"
    assert script.setup[-1] == "\\builtin export -- A='it'\"'\"'s'"
    assert "\\builtin cd -- '/x y'" in script.cleanup
    assert any(step.startswith("OLDPWD=") for step in script.cleanup) is restored


def test_a_long_value_is_quoted_without_a_look_at_it() -> None:
    """To find out whether it has to be takes long for megabytes."""
    script = script_of(
        "ls", directory=None, environment={"A": "it's" * 2_000}, stdin=None, place=Directories("/", "/"), saved="/saved"
    )
    assert script.setup[-1] == "\\builtin export -- A='" + "it'\\''s" * 2_000 + "'"


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_what_bash_cannot_be_given(text: str) -> None:
    """A NUL, and a surrogate that stands for no byte."""
    with pytest.raises(InvalidRequest):
        check_command(text)
    with pytest.raises(InvalidRequest):
        check_environment({"A": text})


def test_names_of_variables() -> None:
    """Only what bash takes for one."""
    with pytest.raises(InvalidRequest, match="cannot be the name"):
        check_environment({"A-B": "x"})
    check_environment({"_a1": "x"})


def test_bytes_of_input() -> None:
    """Surrogates stand for bytes that were not UTF-8."""
    assert input_bytes("\xfc\udcff") == b"\xc3\xbc\xff"
    with pytest.raises(InvalidRequest):
        input_bytes("\ud800")
