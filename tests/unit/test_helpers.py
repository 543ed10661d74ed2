"""Helper processes: the same ones by an interpreter and by the program itself, as a bundle starts them."""

import subprocess
import sys

import pytest

from shelld_py.helpers import helper_command


@pytest.mark.parametrize("command", [helper_command("lines"), [sys.executable, "-m", "shelld_py", "--helper", "lines"]])
def test_helper_answers_and_ends_with_its_input(command: list[str]) -> None:
    """The one that looks for lines says whether it takes the patterns."""
    for patterns, answer in (('["a"]', "null\n"), ('["("]', "[0, ")):
        done = subprocess.run(command, input=f"{patterns}\n", capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.startswith(answer)
        assert done.stderr == ""
