"""The endpoints that k8s-agent-sandbox expects: by hand, and with that client itself where it can be had."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shelld_py.api.agent_sandbox import part_of
from shelld_py.errors import InvalidRequest
from tests.daemons import KEY, RunningDaemon, running_daemon

CLIENT = os.environ.get("SHELLD_TEST_AGENT_SANDBOX")
"""The directory that k8s-agent-sandbox was installed into; scripts/test-agent-sandbox does that."""
WALK = """
import io, sys
from k8s_agent_sandbox.commands.command_executor import CommandExecutor
from k8s_agent_sandbox.files.filesystem import Filesystem
from k8s_agent_sandbox.exceptions import SandboxRequestError
from k8s_agent_sandbox.connector import SandboxConnector
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

url, key = sys.argv[1:]
config = SandboxDirectConnectionConfig(api_url=url, extra_headers={"X-Shell-Key": key})
connector = SandboxConnector("sandbox", "default", config, None)
commands = CommandExecutor(connector, None, "test")
files = Filesystem(connector, None, "test")

done = commands.run("echo out; echo err >&2; exit 3")
assert (done.stdout, done.stderr, done.exit_code, done.timed_out) == ("out\\n", "err\\n", 3, False), done
late = commands.run("echo begun; sleep 60", command_timeout=0.3)
assert (late.stdout, late.exit_code, late.timed_out) == ("begun\\n", 124, True), late
assert commands.run("cat").stdout == "", "nothing to read, and no waiting for it"

content = bytes(range(256)) * 1000
files.write("deep/er/a file \\u00e4.bin", content)
assert files.read("deep/er/a file \\u00e4.bin") == content
files.write("streamed", io.BytesIO(content))
into = io.BytesIO()
assert files.read_to("streamed", into) == len(content) and into.getvalue() == content
listed = {entry.name: (entry.type, entry.size) for entry in files.list("")}
assert listed["streamed"] == ("file", len(content)) and listed["deep"][0] == "directory", listed
assert [entry.name for entry in files.list("deep/er")] == ["a file \\u00e4.bin"]
assert files.exists("deep") and files.exists("streamed") and not files.exists("deep/none")
for path in ("../outside", "/etc/passwd"):
    try:
        files.read(path, allow_unsafe_paths=True)
    except SandboxRequestError as error:
        assert error.status_code in (403, 404), error.status_code
    else:
        raise AssertionError(path)
print("walked")
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon that is a runtime for that client."""
    with running_daemon(tmp_path_factory.mktemp("runtime"), server__agent_sandbox="true") as daemon:
        yield daemon


@pytest.mark.skipif(not CLIENT, reason="k8s-agent-sandbox is not there: scripts/test-agent-sandbox installs it")
def test_its_own_client_can_do_all(runtime: RunningDaemon) -> None:
    """Commands and files, by the classes that its users have."""
    environ = {**os.environ, "PYTHONPATH": CLIENT or ""}
    command = [sys.executable, "-c", WALK, runtime.url, KEY]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("walked\n", 0), done.stderr


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"command": "echo out; echo err >&2; exit 3"}, ("out\n", "err\n", 3, False)),
        ({"command": "cat; pwd | wc -l"}, ("1\n", "", 0, False)),
        ({"command": "printf 'a\\377'"}, ("a\ufffd", "", 0, False)),
    ],
)
def test_a_command(runtime: RunningDaemon, body: dict[str, Any], answer: tuple[Any, ...]) -> None:
    told = runtime.json("POST", "/execute", json=body)
    assert tuple(told[name] for name in ("stdout", "stderr", "exit_code", "timed_out")) == answer


def test_a_command_that_takes_too_long_is_killed(runtime: RunningDaemon) -> None:
    """Its output up to then is told, and the exit code of timeout(1)."""
    told = runtime.json("POST", "/execute", json={"command": "echo begun; sleep 4761", "timeout_seconds": 0.2})
    assert (told["stdout"], told["exit_code"], told["timed_out"]) == ("begun\n", 124, True)
    assert "Killed at its deadline" in told["stderr"]


@pytest.mark.parametrize(
    "body", [{}, {"command": " "}, {"command": "true", "timeout_seconds": 0}, {"commando": "true"}]
)
def test_what_is_no_command_is_refused(runtime: RunningDaemon, body: dict[str, Any]) -> None:
    assert runtime.client.post("/execute", json=body).status_code == 400


def test_files_there_and_back(runtime: RunningDaemon) -> None:
    """Any bytes and names; parents are made; a directory is listed and exists."""
    content, path = bytes(range(256)) * 50, 'there/an "odd" näme'
    answer = runtime.client.post("/upload", files={"file": (path, content)})
    assert (answer.status_code, answer.json()) == (200, {"message": f"File '{path}' uploaded successfully."})
    assert runtime.client.get(f"/download/{httpx.URL(path=f'/{path}').raw_path.decode()[1:]}").content == content
    (entry,) = runtime.client.get("/list/there").json()
    assert (entry["name"], entry["size"], entry["type"]) == ('an "odd" näme', len(content), "file")
    assert abs(entry["mod_time"] - os.stat(runtime.log.parent / "work" / path).st_mtime) < 1
    assert {each["name"]: each["type"] for each in runtime.client.get("/list/").json()}["there"] == "directory"
    for name, exists in (("there", True), ("there/none", False), ("", True)):
        assert runtime.client.get(f"/exists/{name}").json()["exists"] is exists


def test_nothing_is_reached_outside(runtime: RunningDaemon, tmp_path: Path) -> None:
    """Paths are confined as all file operations are, and all of it needs the key."""
    upload = runtime.client.post("/upload", files={"file": (f"{tmp_path}/outside", b"x")})
    assert (upload.status_code, (tmp_path / "outside").exists()) == (403, False)
    assert runtime.client.get("/download/%2Fetc%2Fpasswd").status_code == 403
    assert runtime.client.get("/download/..%2F..%2Flog").status_code == 403
    for method, path in (("POST", "/execute"), ("POST", "/upload"), ("GET", "/list/"), ("GET", "/exists/x")):
        assert runtime.ask(method, path, body="x" if method == "POST" else None).status == 401


def test_without_the_setting_there_is_none_of_it(ready_daemon: RunningDaemon) -> None:
    answer = ready_daemon.client.post("/execute", json={"command": "true"})
    assert answer.status_code == 404
    assert "server.agent_sandbox = true" in answer.text


FORM = b"multipart/form-data; boundary=b"
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (b"", HEAD + b"\r\n--b--"), (b"text/plain", HEAD + b"\r\n--b--"), (FORM, b""), (FORM, HEAD),
        (FORM, HEAD + b"\r\n--b\r\n"),
        (FORM, b"--b\r\n\r\n\r\n--b--"), (FORM, HEAD.replace(b'"x"', b'""') + b"\r\n--b--"),
        (FORM, HEAD.replace(b'"x"', b'"\xff"') + b"\r\n--b--"), (FORM, b"--b\r\n" + b"x" * 99_999),
    ],
)  # fmt: skip
def test_a_form_that_is_none_is_refused(content_type: bytes, body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        part_of(content_type, body)


@given(st.binary(max_size=200), st.binary(max_size=100))
def test_any_bytes_are_a_file_or_refused(content: bytes, noise: bytes) -> None:
    """What does not hold the boundary comes back as it is; any other body is refused, or is what it says."""
    if b"\r\n--b" not in content:
        assert part_of(FORM, HEAD + content + b"\r\n--b--\r\n") == ("x", content)
    with contextlib.suppress(InvalidRequest):
        assert isinstance(part_of(noise, content)[1], bytes)
