"""Real daemons for tests: started as a process, spoken to over a real socket."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from shelld_py.linux.processes import descendants, process_stat

LONG = os.environ.get("SHELLD_TEST_LONG") == "1"
"""Whether tests with random or many inputs take minutes rather than seconds."""
BASH = os.environ.get("SHELLD_TEST_BASH")
"""The bash that daemons use in place of the one that they would; another version of it, for example."""
KEY = "test-key"
PATIENCE = 240.0
"""Seconds after which a condition has failed to come: only a failure waits so long, so it may be much."""
_SERVING = re.compile(r"serving on (http://[^\s\"]+)")


class Answer(NamedTuple):
    """What a daemon answered: header names in lower case, repeated headers joined by a comma."""

    status: int
    headers: dict[str, str]
    body: bytes


class RunningDaemon:
    """A daemon process and a client for it."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path, data: Path) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.data = data
        self.client = httpx.Client(base_url=url, headers={"X-Shell-Key": KEY}, timeout=PATIENCE)

    def json(self, method: str, path: str, **options: Any) -> Any:
        """Send a request that asks for JSON; return the decoded answer, whatever its status."""
        headers = {"Accept": "application/json", **options.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **options).json()

    def run(self, command: str, **fields: Any) -> dict[str, Any]:
        """Run a command; return the result."""
        return self.json("POST", "/run", json={"command": command, **fields})

    def start(self, command: str, **fields: Any) -> str:
        """Start a command without waiting for it; return its run id."""
        started = self.json("POST", "/run", json={"command": command, "timeout": 0, **fields})
        assert "run_id" in started, started
        return started["run_id"]

    def finished(self, run_id: str) -> dict[str, Any]:
        """Wait for the end of a run; return its result."""
        result = self.json("GET", f"/runs/{run_id}/wait", params={"timeout": PATIENCE})
        assert result["status"] != "running", result
        return result

    def ask(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, body: Any = None, key: str | None = None
    ) -> Answer:
        """Send one request on a connection of its own, with no header but those given."""
        return ask(self.url, method, path, headers=headers, body=body, key=key)

    def output(self, command: str, **fields: Any) -> bytes:
        """Run a command; return the raw bytes of its output."""
        answer = self.client.post("/run", json={"command": command, "format": "raw", "max_output": 0, **fields})
        assert answer.status_code == 200, answer.text
        return answer.content

    def state(self) -> str:
        """Return the state of the main shell."""
        return self.client.get("/status").text

    def fresh(self) -> None:
        """Bring the main shell to `ready` with a fresh bash."""
        path = "/startup" if self.state() == "available" else "/recycle"
        answer = self.client.post(path)
        assert answer.text == "ready", answer.text

    def children(self) -> list[int]:
        """Return the pids of the daemon's children."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def shells(self) -> list[int]:
        """Return the pids of those that are no helpers, which may stay for a while after the run that needed them."""
        found = []
        for pid in self.children():
            with contextlib.suppress(OSError):
                if b"--helper" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def stop(self) -> int:
        """Ask the daemon to end by a signal; return its exit status."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def running_daemon(
    directory: Path, *, key: str | None = KEY, config: str = "", **overrides: str
) -> Iterator[RunningDaemon]:
    """Start a daemon that works in `directory`; `overrides` are settings written as `section__key`."""
    directory.mkdir(parents=True, exist_ok=True)
    data = directory / "data"
    work = directory / "work"
    work.mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHELLD_")}
    environ |= {"SHELLD_SERVER__PORT": "0", "SHELLD_SERVER__DATA_DIRECTORY": str(data), "HOME": str(work)}
    if BASH:
        environ["SHELLD_SHELL__COMMAND"] = BASH
    environ |= {f"SHELLD_{name.upper()}": value for name, value in overrides.items()}
    if key is not None:
        environ["SHELLD_KEY"] = key
    arguments = [sys.executable, "-m", "shelld_py"]
    if config:
        (directory / "config.toml").write_text(config)
        arguments += ["--config", str(directory / "config.toml")]
    stderr_log = directory / "log"
    log = directory / overrides["logging__file"] if "logging__file" in overrides else stderr_log
    before = log.stat().st_size if log.exists() else 0
    with stderr_log.open("ab") as stderr:
        process = subprocess.Popen(arguments, cwd=work, env=environ, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        url = wait_for(lambda: serving_url(process, log, before, stderr_log), PATIENCE)
        daemon = RunningDaemon(process, url, log, data)
        with daemon.client:  # closed also where the test fails
            yield daemon
            daemon.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """Return what `condition` returns as soon as it is true; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
    return found


def ask(
    url: str,
    method: str,
    path: str,
    *,
    headers: dict[str, str] | None = None,
    body: Any = None,
    key: str | None = None,
    timeout: float = PATIENCE,
) -> Answer:
    """Send one request to `url`; `path` goes out as it is, and a body that is an iterator goes out in chunks."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    try:
        sent = {**({"X-Shell-Key": key} if key is not None else {}), **(headers or {})}
        connection.request(method, path, body=body, headers=sent, encode_chunked=hasattr(body, "__next__"))
        answer = connection.getresponse()
        joined: dict[str, str] = {}
        for name, value in answer.getheaders():
            joined[name.lower()] = f"{joined[name.lower()]}, {value}" if name.lower() in joined else value
        return Answer(answer.status, joined, answer.read())
    finally:
        connection.close()


def alive(pid: int) -> bool:
    """Return whether a process runs: it exists, and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def processes_with(marker: str) -> list[int]:
    """Return the pids of the processes that have `marker` in their command line.

    Those that this process has started, and those that have lost their parent: not those of tests beside it.
    """
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker.encode() in (path / "cmdline").read_bytes():
                    found.append(process_stat(int(path.name)))
    ours = {stat.pid for stat in descendants(os.getpid())}
    return [stat.pid for stat in found if stat and stat.alive and (stat.pid in ours or stat.parent == 1)]


def serving_url(process: subprocess.Popen[bytes], log: Path, before: int, stderr_log: Path) -> str | None:
    """Return where a daemon serves; None as long as its `log`, from the offset `before` on, does not say."""
    assert process.poll() is None, stderr_log.read_text()
    found = _SERVING.search(log.read_text()[before:]) if log.exists() else None
    return found[1] if found else None
