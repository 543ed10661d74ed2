"""Events of an adapter over HTTP: success and failure in the form of events."""

from typing import Any

import pytest

from shelld_py.tools.catalogue import TOOLS
from shelld_py.tools.events import ADAPTERS
from tests.tools.conftest import Bench


def send(bench: Bench, **event: Any) -> tuple[int, dict[str, Any]]:
    """Send an event; return the status and the answer."""
    answer = bench.daemon.client.post("/events", json=event)
    return answer.status_code, answer.json()


def test_every_event_is_a_tool() -> None:
    shell = ["open_session", "close_session", "execute_command", "shell_metadata"]
    file = ["view", "read", "create", "delete", "move", "update", "insert", "replace", "undo"]
    assert list(ADAPTERS) == [*shell, *file]
    assert set(ADAPTERS) <= {tool.name for tool in TOOLS}


def test_an_event_succeeds_with_the_members_of_the_tool(bench: Bench) -> None:
    status, answer = send(
        bench, event_type="execute_command", data={"command": "echo a; echo b >&2; exit 3"}, request_id="r1"
    )
    assert status == 200
    assert answer == {
        "request_success": {
            "adapter_type": "shell",
            "request_id": "r1",
            "stdout": "a\n",
            "stderr": "b\n",
            "exit_code": 3,
            "original_stdout_size": 2,
            "original_stderr_size": 2,
        }
    }


def test_a_session_by_events(bench: Bench) -> None:
    _, opened = send(bench, event_type="open_session")
    session_id = opened["request_success"]["session_id"]
    assert len(opened["request_success"]["request_id"]) == 32
    for command, output in (("x=7; cd /", ""), ("echo $x; pwd", "7\n/\n")):
        _, answer = send(bench, event_type="execute_command", data={"command": command, "session_id": session_id})
        assert answer["request_success"]["stdout"] == output
    _, closed = send(bench, event_type="close_session", data={"session_id": session_id}, request_id="c")
    assert closed == {"request_success": {"adapter_type": "shell", "request_id": "c", "session_id": session_id}}
    _, metadata = send(bench, event_type="shell_metadata", request_id="m")
    over_http = bench.daemon.json("GET", "/metadata")
    assert metadata["request_success"] == {
        "adapter_type": "shell",
        "request_id": "m",
        **{name: over_http[name] for name in ("operating_system", "shell", "workspace_directory")},
    }


def test_files_by_events(bench: Bench) -> None:
    """Every file event, one after the other on one file."""
    path, moved = str(bench.directory / "a.txt"), str(bench.directory / "b.txt")
    steps: list[tuple[str, dict[str, Any], str, Any]] = [
        ("create", {"path": path, "content": "one\n"}, "size", 4),
        ("insert", {"path": path, "content": "two", "line": 1}, "size", 8),
        ("replace", {"path": path, "old_string": "o", "new_string": "0"}, "replacements", 2),
        ("update", {"path": path, "content": "new\n"}, "undo_depth", 4),
        ("undo", {"path": path}, "undone", "update"),
        ("read", {"path": path, "view_range": [1, 1]}, "content", "0ne\n"),
        ("view", {"path": str(bench.directory)}, "files", ["a.txt"]),
        ("move", {"source_path": path, "destination_path": moved}, "path", moved),
        ("delete", {"path": moved}, "operation", "delete"),
    ]
    for event_type, data, member, value in steps:
        status, answer = send(bench, event_type=event_type, data=data, request_id=event_type)
        done = answer["request_success"]
        assert (status, done["adapter_type"], done["request_id"]) == (200, "file", event_type)
        assert done[member] == value, event_type


@pytest.mark.parametrize(
    ("event", "status", "code", "adapter"),
    [
        ({"event_type": "read", "data": {"path": "none"}}, 404, "file_not_found", "file"),
        ({"event_type": "read", "data": {}}, 400, "invalid_request", "file"),
        ({"event_type": "close_session", "data": {"session_id": "x"}}, 404, "session_not_found", "shell"),
        ({"event_type": "execute_command", "data": {"command": ""}}, 400, "invalid_request", "shell"),
        ({"event_type": "view", "data": {"path": "/etc"}}, 403, "path_not_allowed", "file"),
        ({"event_type": "bash", "data": {"command": "ls"}}, 400, "invalid_request", None),
    ],
)
def test_a_failure_is_an_event_with_the_status_of_the_error(
    bench: Bench, event: dict[str, Any], status: int, code: str, adapter: str | None
) -> None:
    answered, answer = send(bench, **event, request_id="f")
    failed = answer["request_failed"]
    assert list(answer) == ["request_failed"]
    assert (answered, failed["status"], failed["code"]) == (status, status, code)
    assert (failed["adapter_type"], failed["request_id"]) == (adapter, "f")
    assert failed["error"]


def test_an_unknown_event_names_the_nearest(bench: Bench) -> None:
    _, answer = send(bench, event_type="execute_comand")
    assert answer["request_failed"]["error"].endswith("Do you mean execute_command?")
    assert answer["request_failed"]["nearest"] == "execute_command"


@pytest.mark.parametrize(
    "body", [{}, {"event_type": 1}, {"event_type": "view", "data": []}, {"event_type": "view", "x": 1}, []]
)
def test_what_is_no_event_is_a_problem(bench: Bench, body: Any) -> None:
    answer = bench.daemon.client.post("/events", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert answer.headers["content-type"] == "application/problem+json"


def test_events_need_the_key(bench: Bench) -> None:
    body = b'{"event_type": "shell_metadata"}'
    assert bench.daemon.ask("POST", "/events", body=body).status == 401
    assert bench.daemon.ask("POST", "/events", body=body, key="other").status == 401
