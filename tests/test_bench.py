"""The benchmark runs: what it finds is for people to read, and no test looks at a figure."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    command = [sys.executable, f"{ROOT}/scripts/bench.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_parts_end_with_a_table_of_targets() -> None:
    """The parts that are asked for, also beside another checkout, and which targets are met."""
    done = bench("quick", "--rounds", "3", "--against", str(ROOT))
    assert done.returncode == 0, done.stderr
    assert "true, ours to other: " in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.endswith(("| met |", "| missed |"))]
    assert len(rows) == 6, done.stdout


def test_a_part_that_there_is_not() -> None:
    """It is named, with those that there are."""
    done = bench("quack")
    assert done.returncode == 2
    assert "no such part: quack; there are: start, quick, cold" in done.stderr
