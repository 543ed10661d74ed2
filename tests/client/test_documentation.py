"""The examples of docs/client.md do what they show."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemons import KEY, RunningDaemon

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/client.md").read_text(encoding="utf-8")


def test_the_examples_in_python_run(daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, one after the other, as one program."""
    monkeypatch.setenv("SHELLD_URL", daemon.url)
    monkeypatch.setenv("SHELLD_KEY", KEY)
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(re.findall(r"^```python", TEXT, re.MULTILINE))
    names: dict[str, object] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, "docs/client.md", "exec"), names)  # the examples are ours
    # What is written while nobody reads comes as one event.
    assert re.search(r"stdout 1\n(stdout )?2\n(stdout )?3\n", printed.getvalue())
    assert "invalid_request The command is empty." in printed.getvalue()
    names["client"].close()  # type: ignore[attr-defined]


def test_the_examples_of_the_command_run(daemon: RunningDaemon) -> None:
    """Every line that is shown appears in the answer, in that order."""
    (block,) = re.findall(r"^```console\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    environ = {"SHELLD_URL": daemon.url, "SHELLD_KEY": KEY, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    program = f'shelld-py() {{ {sys.executable} -m shelld_py "$@"; }}\n'
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        done = subprocess.run(
            ["bash", "-c", program + command], env=environ, stdout=subprocess.PIPE, text=True, timeout=60, check=False
        )
        assert done.stdout == shown, command


def test_every_verb_of_the_client_is_documented() -> None:
    from shelld_py.client.client import Client, Files, Runs, Session, Sessions, Tools

    for kind in (Client, Session, Sessions, Runs, Files, Tools):
        for name in dir(kind):
            if not name.startswith("_"):
                assert re.search(rf"`[^`\n]*\b{name}\b", TEXT), f"{kind.__name__}.{name}"
