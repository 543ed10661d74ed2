"""What meets somebody who starts it for the first time: on a terminal, in a log, with a setting that is not one."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.api.test_cli import shelld
from tests.daemons import KEY, RunningDaemon, ask, serving_url, wait_for


@contextmanager
def on_a_terminal(directory: Path, *arguments: str, **settings: str) -> Iterator[tuple[str, str]]:
    """Serve with a terminal as standard error; give the address, and what is written up to the end of the greeting."""
    master, slave = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHELLD_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "shelld_py", "--port", "0", *arguments],
        cwd=directory, env={**environ, "PYTHONPATH": os.getcwd(), **settings}, stdout=subprocess.PIPE, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    assert process.stdout
    try:
        address = process.stdout.readline().decode().strip()
        said = ""
        while "uname" not in said:
            said += os.read(master, 65536).decode()
        yield address, said.replace("\r\n", "\n")
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
        os.close(master)


def test_three_lines_to_copy(tmp_path: Path) -> None:
    """On a terminal: where it listens and whose the key will be, when it ends, and a curl that runs as it stands."""
    with on_a_terminal(tmp_path) as (address, said):
        assert f"serves on {address}; no key is set: the first X-Shell-Key becomes it\n" in said
        assert "ends after 30m without a request" in said
        line = re.search(r"try:  (curl .*)", said)
        assert line
        done = subprocess.run(line[1], shell=True, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.startswith("Linux ")


def test_closed_standard_descriptors(tmp_path: Path) -> None:
    """It serves all the same, and nothing of its own gets their numbers."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "shelld_py", "--port", "0", "--set", f"logging.file={log}"]
    environ = {**os.environ, "PYTHONPATH": os.getcwd(), "SHELLD_KEY": KEY}
    process = subprocess.Popen(
        ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-", *command],
        cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        address = wait_for(lambda: serving_url(process, log, 0, tmp_path / "none"))
        answer = ask(address, "POST", "/exec", body="echo out; echo err >&2; cat", key=KEY)
        assert json.loads(answer.body)["stdout"] == "out\n"
        assert json.loads(answer.body)["stderr"] == "err\n"
        for number in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{number}") == "/dev/null"
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_three_lines_with_a_key(tmp_path: Path) -> None:
    """Where the key is set, the curl takes it from the environment, and the key itself is never shown."""
    with on_a_terminal(tmp_path, "--set", "timeout.idle=0", SHELLD_KEY="sesame") as (_, said):
        assert "the key is set" in said
        assert '"$SHELLD_KEY"' in said
        assert "sesame" not in said
        assert "does not end by itself" in said


def test_one_line_in_a_log(start_daemon) -> None:
    """Elsewhere one line of the log has the same facts."""
    log = start_daemon(key=None, timeout__idle="10m").log.read_text()
    said = (
        r"info serving on \S+ \(no key is set: the first X-Shell-Key becomes it; ends after 10m without a request\)\n"
    )
    assert re.search(said, log)
    assert "curl" not in log


@pytest.mark.parametrize(("host", "key", "warned"), [
    ("127.0.0.1", None, False), ("0.0.0.0", None, True), ("0.0.0.0", KEY, False), ("::1", None, False),
])  # fmt: skip
def test_no_key_where_others_can_reach_it(start_daemon, host: str, key: str | None, warned: bool) -> None:
    """Beyond loopback, a daemon without a key warns that anybody may set it."""
    log = start_daemon(key=key, server__host=host).log.read_text()
    assert ("SHELLD_KEY sets it beforehand" in log) == warned


def test_root_is_warned_of(start_daemon) -> None:
    """A daemon that runs as root says so."""
    assert ("running as root" in start_daemon().log.read_text()) == (os.geteuid() == 0)


def test_settings_on_the_command_line(tmp_path: Path) -> None:
    """--set goes before the environment, and that before the file; --host and --port are settings, too."""
    (tmp_path / "config.toml").write_text('[shell.environment]\nA = "file"\nB = "file"\nC = "file"\n')
    environ = {"SHELLD_SHELL__ENVIRONMENT__B": "environment", "SHELLD_SHELL__ENVIRONMENT__C": "environment"}
    words = ["--config", f"{tmp_path}/config.toml", "--host", "localhost", "--set", "shell.environment.C=set"]
    with on_a_terminal(tmp_path, *words, **environ) as (address, _):
        command = {"command": "echo $A $B $C"}
        answer = ask(address, "POST", "/exec", key="k", body=json.dumps(command),
                     headers={"Content-Type": "application/json", "Accept": "text/plain"})  # fmt: skip
        assert answer.body == b"file environment set\n"


@pytest.mark.parametrize(("arguments", "said"), [
    (["--port", "x"], "server.port: must be a whole number from 0 to 65535, not 'x'"),
    (["serve", "--set", "server.prot=1"], "server.prot: no such key (did you mean port?)"),
    (["--set", "idle=1"], "--set idle=1: must be SECTION.KEY=VALUE, such as server.port=9000"),
    (["--set", "server.port"], "must be SECTION.KEY=VALUE"),
    (["--set", "sever.port=1"], "no such section (did you mean server?)"),
])  # fmt: skip
def test_wrong_settings_on_the_command_line(arguments: list[str], said: str) -> None:
    """What cannot be used is exit status 2, with what would be right."""
    done = shelld(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_health_of_the_same_settings(daemon: RunningDaemon) -> None:
    """`health` takes the settings as `serve` does."""
    done = shelld("health", "--port", daemon.url.rpartition(":")[2])
    assert (done.returncode, done.stdout) == (0, "ok\n")


@pytest.mark.parametrize(("variable", "meant"), [
    ("SHELLD_PORT", "SHELLD_SERVER__PORT"), ("SHELLD_KYE", "SHELLD_KEY"), ("SHELLD_IDLE", "SHELLD_TIMEOUT__IDLE"),
])  # fmt: skip
def test_variables_that_mean_nothing(tmp_path: Path, variable: str, meant: str) -> None:
    """A variable that looks like a setting and is none is told of, with the nearest, and hinders nothing."""
    (tmp_path / "config.toml").write_text("")
    done = shelld("check-config", f"{tmp_path}/config.toml", **{variable: "1"})
    assert done.returncode == 0
    assert done.stderr == f"shelld-py: the variable {variable} means nothing here (did you mean {meant}?)\n"


def test_variables_that_mean_nothing_are_logged(start_daemon) -> None:
    """The daemon logs the same as a warning."""
    log = start_daemon(port="9000").log.read_text()
    assert "warning the variable SHELLD_PORT means nothing here (did you mean SHELLD_SERVER__PORT?)" in log


@pytest.mark.parametrize(("text", "said"), [
    ("no-such-bash -i", "there is no program 'no-such-bash'"),
    ("/bin/cat", "'/bin/cat' is no bash; it must be bash 4.4 or newer"),
    ("{old}", "is bash 4.3; it must be bash 4.4 or newer"),
    ("/etc/passwd", "/etc/passwd"),
])  # fmt: skip
def test_shell_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    """A shell that does not exist, is no bash or too old a one is exit status 2 at the start, and leaves nothing."""
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nprintf '4 3'\n")
    old.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    settings = {"SHELLD_SHELL__COMMAND": text.format(old=old), "SHELLD_SERVER__PORT": "0"}
    done = shelld(**settings, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 2
    assert "shell.command: " in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_https_to_the_plain_port(daemon: RunningDaemon) -> None:
    """Both sides say what happened: the command that was told https://, and the log."""
    url = daemon.url.replace("http:", "https:")
    done = shelld("status", "--url", url)
    assert done.returncode == 3
    assert "no TLS is spoken there: try http:// in place of https://" in done.stderr
    wait_for(lambda: "This port speaks HTTP without TLS" in daemon.log.read_text())


def test_help_names_the_environment() -> None:
    """--help says which variables count, and what goes on the command line."""
    said = shelld("--help").stdout
    for word in ("SHELLD_KEY", "SHELLD_CONFIG", "SHELLD_SECTION__KEY", "SHELLD_URL", "--host", "--port", "--set"):
        assert word in said


def test_runs_that_go_on_count(start_daemon, tmp_path: Path) -> None:
    """With timeout.idle_counts_runs a run that nobody waits for keeps the daemon; without, it does not."""
    keeps = start_daemon(timeout__idle="3s", timeout__idle_counts_runs="true")
    keeps.fresh()
    os.mkfifo(tmp_path / "gate")
    keeps.start(f"read -r _ <{tmp_path}/gate")
    other = start_daemon(timeout__idle="3s")
    other.fresh()
    other.start("sleep 600")
    assert other.process.wait(60) == 0
    assert keeps.process.poll() is None
    (tmp_path / "gate").write_text("go\n")
    assert keeps.process.wait(60) == 0
