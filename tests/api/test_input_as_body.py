"""`POST /exec?command=...`: the body is the standard input, of any size and of any bytes."""

import hashlib
import json
import os
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.daemons import KEY, RunningDaemon

EVERY_BYTE = bytes(range(256)) * 1000


def execute(daemon: RunningDaemon, command: str, content: Any, **fields: Any) -> dict[str, Any]:
    """Run COMMAND, which reads CONTENT; return its result."""
    headers = {"Content-Type": "application/octet-stream", "Accept": "application/json"}
    params = {"command": command, **fields}
    return daemon.client.post("/exec", params=params, content=content, headers=headers).json()


@pytest.mark.parametrize("streams", ["merged", "separate", "pipes"])
def test_the_command_reads_the_very_bytes(daemon: RunningDaemon, streams: str) -> None:
    """Whatever its streams are, and then end-of-file; it is no terminal."""
    command = "test -t 0 || sha256sum; wc -c"
    result = execute(daemon, command, EVERY_BYTE, streams=streams)
    assert result["stdout"].split() == [hashlib.sha256(EVERY_BYTE).hexdigest(), "-", "0"]
    assert result["command"] == command
    assert execute(daemon, "cat; echo end", b"", streams=streams)["stdout"] == "end\n"


def test_it_may_be_larger_than_any_other_body(start_daemon) -> None:
    """`server.max_body` holds for what is kept in memory; this goes to the disk, with its length told before or not."""
    daemon = start_daemon(server__max_body="64KiB")
    for content in (EVERY_BYTE, iter([EVERY_BYTE[:100_000], EVERY_BYTE[100_000:]])):
        assert execute(daemon, "wc -c", content, streams="pipes")["stdout"] == "256000\n"
    body = json.dumps({"command": "wc -c", "stdin": "x" * 256_000})
    headers = {"Content-Type": "application/json"}
    for path in ("/exec", "/exec?timeout=1&xcommand=cat", "/run?command=cat"):
        assert daemon.json("POST", path, content=body, headers=headers)["code"] == "body_too_large"
    known = {".shelld-py", "lock", "journal", "runs", "unpublished", "backups"}
    assert {path.name for path in daemon.data.iterdir()} <= known, "nothing is left of it"


def test_a_body_that_breaks_off_begins_nothing(daemon: RunningDaemon) -> None:
    """So a command never takes a part of its input for the whole."""
    url = urlsplit(daemon.url)
    with socket.create_connection((url.hostname or "", url.port or 0)) as connection:
        head = f"POST /exec?command=cat&run_id=broken HTTP/1.1\r\nHost: localhost\r\nX-Shell-Key: {KEY}\r\n"
        connection.sendall(f"{head}Content-Length: 2000000\r\n\r\n".encode() + b"x" * 1_000_000)
    assert execute(daemon, "wc -c", b"whole")["stdout"] == "5\n"
    assert daemon.json("GET", "/runs/broken")["code"] == "run_not_found"


def test_a_repeat_is_one_with_the_same_bytes(daemon: RunningDaemon) -> None:
    """It joins the run; with other bytes the id is taken."""
    first = execute(daemon, "cat; echo $RANDOM", b"one\n", run_id="input-1")
    assert execute(daemon, "cat; echo $RANDOM", b"one\n", run_id="input-1")["stdout"] == first["stdout"]
    assert execute(daemon, "cat; echo $RANDOM", b"two\n", run_id="input-1")["code"] == "run_id_conflict"


@pytest.mark.parametrize(
    ("query", "content_type", "told"),
    [
        ("command=cat", "application/json", "application/octet-stream"),
        ("command=cat", "multipart/form-data; boundary=x", "application/octet-stream"),
        ("command=cat&stdin=x", "", "leave out stdin"),
        ("command=cat&stdin_path=x", "", "leave out stdin_path"),
        ("command=cat&stdin_open=true&streams=pipes", "", "leave out stdin_open"),
        ("command=", "", "empty"),
        ("command=cat&argv=ls", "", "argv"),
    ],
)
def test_what_is_refused(daemon: RunningDaemon, query: str, content_type: str, told: str) -> None:
    answer = daemon.json("POST", f"/exec?{query}", content=b"{}", headers={"Content-Type": content_type})
    assert (answer["status"], answer["code"]) == (400, "invalid_request")
    assert told in answer["detail"]


@pytest.mark.parametrize("path", ["/run", "/exec"])
def test_the_json_form_takes_bytes_that_are_no_text(daemon: RunningDaemon, path: str) -> None:
    """As lone surrogates, which is how answers give them."""
    body = json.dumps({"command": "od -An -tx1", "stdin": b"a\xff\xc3(\x80\n".decode("utf-8", "surrogateescape")})
    answer = daemon.json("POST", path, content=body, headers={"Content-Type": "application/json"})
    assert answer["stdout"].split() == ["61", "ff", "c3", "28", "80", "0a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run commands as others")
def test_another_user_can_open_it_anew(daemon: RunningDaemon) -> None:
    assert execute(daemon, "head -c 2 /dev/stdin", b"hello", streams="pipes", user="65534")["stdout"] == "he"
