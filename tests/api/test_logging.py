"""The log: its lines, its forms, its files, and what it never tells."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemons import KEY, RunningDaemon, wait_for

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info|warning|error)( \[[!-~]+\])? .+")


def lines_about(daemon: RunningDaemon, word: str) -> list[str]:
    """Return the log's lines with `word`, of which there must be one."""
    return wait_for(lambda: [line for line in daemon.log.read_text().splitlines() if word in line])


REQUESTS = [
    ("GET", "/status", KEY, 200), ("GET", "/health", None, 200),
    ("POST", "/run", KEY, 409), ("GET", "/nowhere", KEY, 404),
    ("DELETE", "/status", KEY, 405), ("GET", "/status", None, 401), ("GET", "/status", "wrong", 401),
]  # fmt: skip


@pytest.mark.parametrize("form", ["text", "json"])
def test_one_line_per_request(start_daemon, form: str) -> None:
    """Each request, refused or not, has one line with its method, path, status, duration and request id."""
    daemon = start_daemon(logging__format=form)
    for number, (method, path, key, status) in enumerate(REQUESTS):
        answer = daemon.ask(method, path, key=key, headers={"X-Request-Id": f"request-{number}"}, body="true")
        assert answer.status == status
    for number, (method, path, _, status) in enumerate(REQUESTS):
        (line,) = lines_about(daemon, f"request-{number}")
        if form == "json":
            record = json.loads(line)
            assert record["request_id"] == f"request-{number}"
            assert record["level"] == "info"
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
            line = record["message"]
        assert re.search(rf"{method} {path} {status} \d+\.\d ms", line)
    for line in daemon.log.read_text().splitlines():
        assert json.loads(line) if form == "json" else LINE.fullmatch(line)


def test_line_of_a_made_up_request_id(daemon: RunningDaemon) -> None:
    """The id in the log is the one of the answer."""
    request_id = daemon.client.get("/status").headers["x-request-id"]
    (line,) = lines_about(daemon, request_id)
    assert "GET /status 200" in line


def test_long_paths_are_cut(daemon: RunningDaemon) -> None:
    """Anybody can have them written, and the log is rotated by its size."""
    for number, path in enumerate(("/" + "x" * 30_000, "/" + "%C3%A9" * 5_000)):
        daemon.ask("GET", path, headers={"X-Request-Id": f"long-{number}"})
        (line,) = lines_about(daemon, f"long-{number}")
        assert len(line) < 1200
        assert "... 401" in line


def test_state_changes(start_daemon) -> None:
    """Each change of the shell's state has a line; those that come with every run are for debugging."""
    daemon = start_daemon(logging__level="debug")
    daemon.fresh()
    daemon.run("true")
    daemon.run("kill -KILL $$")
    daemon.client.post("/recycle")
    daemon.client.get("/health", headers={"X-Request-Id": "the-end"})
    lines_about(daemon, "the-end")
    changes = [line.rpartition("shell main: ")[2] for line in lines_about(daemon, " -> ")]
    assert changes[:5] == [
        "available -> ready", "ready -> busy", "busy -> ready", "ready -> busy", "busy -> unrecoverable"
    ]  # fmt: skip
    assert changes[-1].endswith("-> ready")
    levels = {line.rpartition(" shell main: ")[0].rpartition(" ")[2] for line in lines_about(daemon, "ready -> busy")}
    assert levels == {"debug"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_path_cannot_forge_lines(start_daemon, form: str) -> None:
    """Control characters of a path do not get into the log: one request, one line."""
    daemon = start_daemon(logging__format=form)
    paths = ["/a%0a2026-01-01T00:00:00.000Z%20info%20forged", "/a%0d%0aforged", "/%1b[2Jforged", "/%c2%85forged"]
    for path in paths:
        daemon.ask("GET", path, key="wrong")
    daemon.client.get("/health", headers={"X-Request-Id": "the-end"})
    lines_about(daemon, "the-end")
    lines = [line for line in daemon.log.read_bytes().decode().split("\n") if "forged" in line]
    assert len(lines) == len(paths)
    for line in lines:
        assert "GET /" in line
        assert " 401 " in line
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)


SECRET = "printf %s a-secret-in-a-command"


@pytest.mark.parametrize(("level", "logged"), [("info", False), ("debug", True)])
def test_commands_are_logged_at_debug_level_only(start_daemon, level: str, logged: bool) -> None:
    """Commands are in the log at the level debug, and at no other."""
    daemon = start_daemon(logging__level=level)
    daemon.fresh()
    daemon.run(SECRET, stdin="x", description="y")
    daemon.client.post("/run?nope=1", content=SECRET)
    daemon.client.post("/run", content=SECRET + "\0")
    daemon.client.get("/health", headers={"X-Request-Id": "the-end"})
    lines_about(daemon, "the-end")
    assert ("a-secret-in-a-command" in daemon.log.read_text()) == logged


def start_quietly(directory: Path, output: Path, **settings: str) -> "subprocess.Popen[bytes]":
    """Start a daemon on a free port whose output goes to a file."""
    environ = {
        **os.environ, "SHELLD_SERVER__PORT": "0", "SHELLD_SERVER__DATA_DIRECTORY": str(directory / "data"), **settings
    }  # fmt: skip
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "shelld_py"], env=environ, stdout=file, stderr=file, cwd=directory
        )


@pytest.mark.parametrize("settings", [
    {}, {"SHELLD_LOGGING__LEVEL": "warning"},
    {"SHELLD_LOGGING__FILE": "daemon.log"}, {"SHELLD_LOGGING__FORMAT": "json"},
])  # fmt: skip
def test_free_port_is_printed(tmp_path: Path, settings: dict[str, str]) -> None:
    """With port 0 the address is printed, wherever and however little is logged; a higher level logs no requests."""
    output = tmp_path / "output"
    process = start_quietly(tmp_path, output, **settings)
    try:
        wait_for(lambda: re.search(r"127\.0\.0\.1:[1-9]\d+", output.read_text()))
    finally:
        process.terminate()
        assert process.wait(60) == 0
    assert ("info" in output.read_text()) <= ("SHELLD_LOGGING__LEVEL" not in settings)


def test_log_file(start_daemon, tmp_path: Path) -> None:
    """With logging.file the lines go there and not to standard error, and a restart appends."""
    file = tmp_path / "daemon.log"
    for number in range(2):
        daemon = start_daemon(logging__file=str(file))
        daemon.client.get("/health", headers={"X-Request-Id": f"request-{number}"})
        assert lines_about(daemon, f"request-{number}")
        assert (tmp_path / f"daemon{number + 1}" / "log").read_text() == ""
        assert daemon.stop() == 0
    assert [f"request-{number}" in file.read_text() for number in range(2)] == [True, True]


def test_rotation(start_daemon, tmp_path: Path) -> None:
    """A log file is rotated at logging.max_size, and logging.backup_count old ones are kept."""
    file = tmp_path / "daemon.log"
    daemon = start_daemon(logging__file=str(file), logging__max_size="2KiB", logging__backup_count="2")
    for _ in range(150):
        daemon.client.get("/health")
    names = {path.name for path in tmp_path.glob("daemon.log*")}
    assert names == {"daemon.log", "daemon.log.1", "daemon.log.2"}
    assert all(path.stat().st_size <= 2048 for path in tmp_path.glob("daemon.log*"))
    assert daemon.client.get("/health").text == "ok"


def test_faults_are_logged_with_their_request(start_daemon, tmp_path: Path) -> None:
    """A fault of the daemon is 500, its log has the request's id, and the answer tells no more than that id."""
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\n[ "$1" = -c ] && exec /bin/bash "$@"\nexit 3\n')
    shell.chmod(0o755)
    daemon = start_daemon(shell__command=str(shell))
    answer = daemon.client.post("/startup", headers={"X-Request-Id": "failing-start", "Accept": "application/json"})
    assert answer.status_code == 500
    assert answer.json()["code"] == "shell_start_failed"
    assert answer.headers["x-request-id"] == "failing-start"
    assert lines_about(daemon, "failing-start")
    assert "Traceback" not in answer.text
    assert daemon.state() == "available"


def test_what_is_not_there_is_said_at_the_start(start_daemon, tmp_path: Path) -> None:
    """A directory that the settings name and that does not exist is a warning before it is a failure."""
    missing = tmp_path / "nowhere"
    daemon = start_daemon(files__base_directory=str(missing))
    assert f"warning files.allowed_directories: there is no directory '{missing}'" in daemon.log.read_text()
    missing.mkdir()
    created = daemon.client.post("/files/create", json={"path": "a.txt", "content": "x"})
    assert (created.status_code, (missing / "a.txt").read_text()) == (200, "x")


def test_a_start_without_faults_warns_of_nothing(start_daemon) -> None:
    """What is there is not warned of."""
    warnings = [line for line in start_daemon().log.read_text().splitlines() if " warning " in line]
    assert [line for line in warnings if "running as root" not in line] == []
