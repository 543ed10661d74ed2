"""What bash reads at its start: `shell.startup_file`, and what a request says in its place."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemons import RunningDaemon

SHOW = 'echo "<$FROM>"'


def _home(tmp_path: Path) -> Path:
    """Make the home directory of a daemon, with a ~/.bashrc, and another file to be read."""
    work = tmp_path / "daemon1" / "work"
    work.mkdir(parents=True)
    (work / ".bashrc").write_text("FROM=bashrc\n")
    (work / "other").write_text("FROM=other\nalias greet='echo hello'\n")
    return work


@pytest.mark.parametrize(("setting", "read"), [(None, "bashrc"), ("", ""), ("{}/other", "other"), ("~/other", "other")])
def test_the_setting(
    start_daemon: Callable[..., RunningDaemon], tmp_path: Path, setting: str | None, read: str
) -> None:
    """It holds for every shell, and a recycled one; a request can say otherwise."""
    work = _home(tmp_path)
    options = {} if setting is None else {"shell__startup_file": setting.format(work)}
    daemon = start_daemon(**options)
    daemon.fresh()
    assert daemon.run(SHOW)["stdout"] == f"<{read}>\n"
    daemon.fresh()
    assert daemon.run(SHOW)["stdout"] == f"<{read}>\n"
    for path, expected in (("", ""), (f"{work}/other", "other"), ("~/.bashrc", "bashrc")):
        fields = {"startup_file": path}
        assert daemon.json("POST", "/exec", json={"command": SHOW, **fields})["stdout"] == f"<{expected}>\n"
        session = daemon.json("POST", "/sessions", json=fields)["session_id"]
        for _ in range(2):
            result = daemon.json("POST", f"/sessions/{session}/run", json={"command": SHOW})
            assert result["stdout"] == f"<{expected}>\n"
            daemon.client.post(f"/sessions/{session}/recycle")


def test_the_main_shell(start_daemon: Callable[..., RunningDaemon], tmp_path: Path) -> None:
    """It reads what its startup names, and after an `exit` knows what it had read; aliases are known."""
    work = _home(tmp_path)
    daemon = start_daemon()
    assert daemon.client.post("/startup", json={"startup_file": f"{work}/other"}).text == "ready"
    assert daemon.run("greet; exit")["stdout"] == "hello\n"
    assert daemon.run(f"greet; {SHOW}")["stdout"] == "hello\n<other>\n"


@pytest.mark.parametrize(
    ("path", "told"), [("/not/there", "exists"), ("/tmp", "exists"), ("rc", "absolute"), ("/a\0b", "exists")]
)
def test_files_that_cannot_be_read(daemon: RunningDaemon, path: str, told: str) -> None:
    for where in ("/exec", "/sessions"):
        fields = {"command": "true"} if where == "/exec" else {}
        answer = daemon.json("POST", where, json={**fields, "startup_file": path})
        assert (answer["status"], answer["code"]) == (400, "invalid_request")
        assert answer["detail"].startswith("startup_file: ")
        assert told in answer["detail"]


def test_a_configured_file_that_is_not_there(start_daemon: Callable[..., RunningDaemon]) -> None:
    """It is told of in the log: it may come yet."""
    daemon = start_daemon(shell__startup_file="/not/there")
    daemon.fresh()
    assert "shell.startup_file: there is no file '/not/there'" in daemon.log.read_text()


def test_one_that_keeps_bash_from_coming_up_is_named(ready_daemon: RunningDaemon, tmp_path: Path) -> None:
    """With what it wrote, if anything."""
    file = tmp_path / "rc"
    for text, told in (("kill -9 $$", "wrote nothing."), ("echo oops; kill -9 $$", "wrote: oops.")):
        file.write_text(text)
        answer = ready_daemon.json("POST", "/exec", json={"command": "true", "startup_file": str(file)})
        assert answer["code"] == "shell_start_failed"
        end = f"ended while it started, and {told} It begins with {file} (shell.startup_file)."
        assert answer["detail"].endswith(end)
