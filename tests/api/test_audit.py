"""The audit log: who did what, with what result, and nothing that is nobody's business."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shelld_py.audit import Audit, key_fingerprint
from shelld_py.config import LoggingSettings
from tests.daemons import KEY, RunningDaemon, running_daemon, wait_for
from tests.websockets import websocket


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon that has an audit log, `audit` beside its log."""
    directory = tmp_path_factory.mktemp("audited")
    with running_daemon(directory, logging__audit=str(directory / "audit"), server__agent_sandbox="true") as daemon:
        daemon.fresh()
        yield daemon


def audit_file(daemon: RunningDaemon) -> Path:
    return daemon.log.parent / "audit"


def line_of(daemon: RunningDaemon, method: str, path: str, **options: Any) -> dict[str, Any]:
    """Send a request, and return the line about it."""
    request_id = f"audit-{len(audit_file(daemon).read_text())}"
    headers = {"X-Request-Id": request_id, **options.pop("headers", {})}
    daemon.client.request(method, path, headers=headers, **options)
    (line,) = wait_for(lambda: [line for line in audit_file(daemon).read_text().splitlines() if request_id in line])
    told = json.loads(line)
    assert told.pop("time").endswith("Z")
    assert told.pop("address").startswith("127.0.0.1:")
    assert told.pop("request_id") == request_id
    return told


def test_a_command(audited: RunningDaemon) -> None:
    """Its text and its end are told; not its output, what it reads, or its variables."""
    body = {"command": "cat; echo $SECRET; exit 3", "stdin": "typed-secret", "environment": {"SECRET": "var-secret"}}
    told = line_of(audited, "POST", "/run", json={**body, "run_id": "told"})
    assert told == {
        "key": key_fingerprint(KEY.encode()), "action": "POST /run", "command": body["command"], "status": 200,
        "run_id": "told", "run_status": "completed", "exit_code": 3,
    }  # fmt: skip
    text = audit_file(audited).read_text()
    assert "typed-secret" not in text
    assert "var-secret" not in text
    assert KEY not in text


def test_a_repeat_that_joins_a_run_that_has_ended(audited: RunningDaemon) -> None:
    """It is told as the first one was."""
    first, second = (line_of(audited, "POST", "/run", json={"command": "exit 4", "run_id": "twice"}) for _ in range(2))
    assert first["exit_code"] == 4
    assert second == first


@pytest.mark.parametrize(
    ("method", "path", "options", "members"),
    [
        ("POST", "/files/create", {"json": {"path": "a", "content": "file-secret"}}, {"path": "a", "status": 200}),
        ("GET", "/files/raw", {"params": {"path": "a"}}, {"path": "a", "status": 200}),
        ("POST", "/upload", {"files": {"file": ("b", b"file-secret")}}, {"path": "b", "status": 200}),
        ("POST", "/run", {"content": ""}, {"status": 400, "error": "invalid_request"}),
        ("POST", "/kill", {"params": {"signal": "TERM"}}, {"signal": "TERM", "status": 200}),
        ("POST", "/tools/shell_exec", {"json": {"command": "true"}}, {"command": "true", "status": 200}),
        (
            "POST", "/events", {"json": {"event_type": "execute_command", "data": {"command": "false"}}},
            {"event_type": "execute_command", "command": "false", "status": 200},
        ),
    ],
)  # fmt: skip
def test_other_actions(
    audited: RunningDaemon, method: str, path: str, options: dict[str, Any], members: dict[str, Any]
) -> None:
    """Each tells what it was about, and how it was answered; content is not told."""
    told = line_of(audited, method, path, **options)
    assert told == {"key": key_fingerprint(KEY.encode()), "action": f"{method} {path}", **members}
    assert "file-secret" not in audit_file(audited).read_text()


def test_a_file_that_is_taken_away_in_another_form(audited: RunningDaemon) -> None:
    """What the client of agent-sandbox downloads is told like any other file."""
    assert line_of(audited, "GET", "/download/nowhere")["action"] == "GET /download/nowhere"


def test_strangers_cannot_have_it_rotated_away(audited: RunningDaemon) -> None:
    """Of a refused request little is kept, however long its path is; many are counted, and have one line."""
    guess = {"X-Shell-Key": "guess"}
    told = line_of(audited, "POST", f"/{'x' * 30_000}", headers=guess)
    assert (told["key"], told["status"], told["error"]) == (key_fingerprint(b"guess"), 401, "key_mismatch")
    assert len(told["action"]) < 300
    before = len(audit_file(audited).read_text().splitlines())
    for _ in range(50):
        assert audited.client.post("/kill", headers=guess).status_code == 401
    assert line_of(audited, "POST", "/resize", json={"rows": 24, "cols": 80})["refused_before"] == 50
    assert "refused_before" not in line_of(audited, "POST", "/resize", json={"rows": 24, "cols": 80})
    assert len(audit_file(audited).read_text().splitlines()) == before + 2


def test_looking_is_no_action(audited: RunningDaemon) -> None:
    before = audit_file(audited).read_text()
    for path in ("/status", "/runs", "/health", "/output"):
        audited.client.get(path)
    assert line_of(audited, "POST", "/resize", json={"rows": 24, "cols": 80})["action"] == "POST /resize"
    assert len(audit_file(audited).read_text().splitlines()) == len(before.splitlines()) + 1


def test_only_its_owner_reads_it(audited: RunningDaemon) -> None:
    assert audit_file(audited).stat().st_mode & 0o777 == 0o600


def test_a_full_disk_stops_nothing_but_the_audit(start_daemon) -> None:
    """The daemon goes on, and says once that lines are lost."""
    daemon = start_daemon(logging__audit="/dev/full")
    daemon.fresh()
    for _ in range(3):
        assert daemon.run("echo works")["stdout"] == "works\n"
    lines = wait_for(lambda: [line for line in daemon.log.read_text().splitlines() if "audit: /dev/full" in line])
    assert len(lines) == 1
    assert "cannot be written, lines are lost: No space left on device" in lines[0]


def test_it_is_rotated(tmp_path: Path) -> None:
    """No file exceeds the size, so many old ones are kept, and no line is parted."""
    path = tmp_path / "audit"
    settings = LoggingSettings(audit=str(path), max_size=1000, backup_count=2)
    audit = Audit(settings, logging.getLogger(__name__))
    audit.open()
    for number in range(100):
        audit.note(number=number, nothing=None)
    audit.close()
    files = sorted(tmp_path.glob("audit*"), reverse=True)
    assert [file.name for file in files] == ["audit.2", "audit.1", "audit"]
    assert all(file.stat().st_size <= 1000 for file in files)
    numbers = [json.loads(line)["number"] for file in files for line in file.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 100))


def test_a_file_that_cannot_be_put_away_goes_on(tmp_path: Path) -> None:
    """Where something is in the way of the old file, no line is lost."""
    path = tmp_path / "audit"
    (tmp_path / "audit.1").mkdir()
    audit = Audit(LoggingSettings(audit=str(path), max_size=1000, backup_count=1), logging.getLogger(__name__))
    audit.open()
    for number in range(100):
        audit.note(number=number)
    audit.close()
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == list(range(100))


def test_the_last_line_counts_who_was_refused(tmp_path: Path) -> None:
    """What no line tells when the daemon ends."""
    audit = Audit(LoggingSettings(audit=str(tmp_path / "audit")), logging.getLogger(__name__))
    audit.open()
    for _ in range(3):
        audit.note_refused(error="key_required")
    audit.close()
    first, last = map(json.loads, (tmp_path / "audit").read_text().splitlines())
    assert first.keys() == {"time", "error"}
    assert (last.keys(), last["refused_before"]) == ({"time", "refused_before"}, 2)


def test_a_file_that_cannot_be_had_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    audit = Audit(LoggingSettings(audit=str(tmp_path / "none" / "audit")), logging.getLogger(__name__))
    with pytest.raises(FileNotFoundError):
        audit.open()


def test_what_somebody_does_at_a_terminal(audited: RunningDaemon) -> None:
    """What is run and signalled, and that a run is typed into: once, and not what is typed."""
    before = len(audit_file(audited).read_text())
    with websocket(audited.url) as terminal:
        terminal.tell("run", command="read -r line; sleep 100")
        for text in (b"ty", b"ped-secret\r"):
            terminal.type(text)
        terminal.until(lambda: b"ped-secret" in terminal.shown)
        terminal.tell("signal", signal="TERM")
        run_id = terminal.until_told("run", status="killed")["run_id"]
    lines = wait_for(lambda: len(found := audit_file(audited).read_text()[before:].splitlines()) > 2 and found)
    told = [(line["action"], line["key"], line.get("command"), line["run_id"]) for line in map(json.loads, lines)]
    key = key_fingerprint(KEY.encode())
    assert told == [
        ("run /terminal", key, "read -r line; sleep 100", run_id),
        ("type /terminal", key, None, run_id),
        ("signal /terminal", key, None, run_id),
    ]
    assert "ped-secret" not in audit_file(audited).read_text()
