"""GET /metadata: the contract's members, and nothing started for it but once."""

import platform
from collections.abc import Callable
from pathlib import Path

from tests.daemons import RunningDaemon

MEMBERS = [
    "operating_system", "shell", "workspace_directory", "version", "user", "cpus", "memory_mb", "limits", "timeouts",
    "allowed_directories",
]  # fmt: skip


def test_the_form_of_the_contract(start_daemon: Callable[..., RunningDaemon], tmp_path: Path) -> None:
    """Members in the contract's order; the shell is asked for its version once, however often a client asks."""
    program = tmp_path / "bin/bash"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\nexec /bin/bash "$@"\n')
    program.chmod(0o755)
    daemon = start_daemon(shell__command=str(program))
    answers = [daemon.json("GET", "/metadata") for _ in range(5)]
    assert all(answer == answers[0] for answer in answers)
    assert (tmp_path / "calls").read_text().splitlines().count("--version") == 1
    found = answers[0]
    assert list(found) == MEMBERS
    assert found["operating_system"] == platform.freedesktop_os_release()["PRETTY_NAME"]
    assert found["shell"].startswith("bash GNU bash, version ")
    assert found["shell"].endswith(")")
    assert Path(found["workspace_directory"]) == daemon.data.parent / "work"
    assert list(found["timeouts"])[:2] == ["command", "command_maximum"]
    assert {"cpu_percent", "memory_mb", "disk_mb", "processes"} <= found["limits"].keys()
