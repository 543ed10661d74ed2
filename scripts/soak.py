#!/usr/bin/env python3
"""Runs many mixed commands against a fresh daemon and checks every answer, and what is left at the end.

    scripts/soak.py [COMMANDS]       100,000 by default; 1,500 in the test suite

Exit status 0 when every answer was right and nothing grew: descriptors, threads, children, zombies, memory,
files beyond the retention. Prints what it measured.
"""

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

KEY = "soak"
RETAINED = 50
LARGEST_GROWTH_MB = 6.0


class Daemon:
    """A daemon process and one connection to it."""

    def __init__(self, directory: str) -> None:
        self.data = Path(directory, "data")
        environ = {**os.environ, "SHELLD_KEY": KEY, "SHELLD_SERVER__PORT": "0", "SHELLD_LOGGING__LEVEL": "warning"}
        environ |= {"SHELLD_SERVER__DATA_DIRECTORY": str(self.data), "SHELLD_OUTPUT__RETAIN_RUNS": str(RETAINED)}
        environ |= {"SHELLD_TIMEOUT__KILL": "200ms"}
        with Path("/proc/net/tcp").open() as table:
            before = table.read()
        self.process = subprocess.Popen([sys.executable, "-m", "shelld_py"], env=environ, cwd=directory)
        self.port = self._port(before)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """Send a request; return status, body and headers."""
        headers = {"X-Shell-Key": KEY, **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}

    def run(self, command: str, **parameters: object) -> tuple[int, bytes, dict[str, str]]:
        """Run a command; return status, raw output and headers."""
        query = "&".join(f"{name}={value}" for name, value in {"format": "raw", "max_output": 0, **parameters}.items())
        return self.request("POST", f"/run?{query}", command.encode("utf-8", "surrogateescape"))

    def usage(self) -> dict[str, float]:
        """What the daemon holds now."""
        pid = self.process.pid
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        shells = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        below = [
            child for shell in shells for child in Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        ]
        return {
            "memory_mb": int(status["VmRSS"].split()[0]) / 1024,
            "threads": int(status["Threads"]),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "children": len(shells) + len(below),
            "run_directories": len(os.listdir(self.data / "runs")),
        }

    def _port(self, before: str) -> int:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and line not in before and self._owns(fields[9]):
                    return int(fields[1].rpartition(":")[2], 16)
            time.sleep(0.02)
        raise SystemExit("the daemon did not start")

    def _owns(self, inode: str) -> bool:
        directory = f"/proc/{self.process.pid}/fd"
        return any(_link(f"{directory}/{name}") == f"socket:[{inode}]" for name in os.listdir(directory))


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


Check = Callable[[int, bytes, dict[str, str]], bool]


def steps(random_source: random.Random) -> Iterator[tuple[str, dict[str, object], Check]]:
    """Yield commands, how to run them, and what the answer must be."""
    count = 0
    while True:
        count += 1
        code = random_source.randrange(256)
        size = random_source.choice((0, 1, 100, 4095, 4096, 5000, 70_000))
        text = "".join(random_source.choice("abc \\'\"$`\n\t€\x01") for _ in range(30))
        quoted = "'" + text.replace("'", "'\\''") + "'"
        choices: list[tuple[str, dict[str, object], Check]] = [
            ("true", {}, _gives(b"", 0)),
            (f"(exit {code})", {}, _gives(b"", code)),
            (f"x{count % 50}={count}; echo $x{count % 50}", {}, _gives(f"{count}\n".encode(), 0)),
            (f"printf %s {quoted}", {}, _gives(text.encode(), 0)),
            (f"head -c {size} /dev/zero | tr '\\0' x", {}, _gives(b"x" * size, 0)),
            (f"cat <<'EOF'\n{text}\nEOF", {}, _gives(f"{text}\n".encode(), 0)),
            ("echo a; fi", {}, _fails_to_parse),
            (f"exit {code}", {}, _gives(b"", code)),
            ("set -e; false; echo no", {}, _gives(b"", 1)),
            ("cd /tmp; pwd; cd - >/dev/null", {}, _gives(b"/tmp\n", 0)),
            ("sleep 0.01 & wait; true", {}, _succeeds),
            ("for i in 1 2 3; do echo $i; done | sort -r", {}, _gives(b"3\n2\n1\n", 0)),
            ("echo e >&2; echo o", {"streams": "separate"}, _gives(b"o\ne\n", 0)),
            ("cat; pwd", {"stdin": "fed", "directory": "/usr"}, _gives(b"fed/usr\n", 0)),
            ('read -r line; echo "[$line]"', {"timeout": 0}, _starts),
            ("sleep 30", {"timeout": 0}, _starts),
        ]
        weights = [30, 10, 10, 10, 8, 4, 2, 1, 1, 3, 2, 2, 2, 1, 1, 1]
        yield random_source.choices(choices, weights)[0]


def _gives(output: bytes, code: int) -> Check:
    return lambda status, body, headers: (status, body, headers.get("x-exit-code")) == (200, output, str(code))


def _fails_to_parse(_status: int, body: bytes, headers: dict[str, str]) -> bool:
    return headers["x-exit-code"] == "2" and b"syntax error" in body


def _succeeds(_status: int, _body: bytes, headers: dict[str, str]) -> bool:
    return headers["x-exit-code"] == "0"


def _starts(status: int, _body: bytes, _headers: dict[str, str]) -> bool:
    return status == 202


def finish(daemon: Daemon, command: str, headers: dict[str, str]) -> bool:
    """Bring a run that was left running to its end: feed it or kill it; return whether that went right."""
    run_id = headers["x-run-id"]
    if command.startswith("read"):
        daemon.request("POST", "/stdin", b"typed\n")
        answer = json.loads(daemon.request("GET", f"/runs/{run_id}/wait?timeout=10")[1])
        return (answer["stdout"], answer["exit_code"]) == ("[typed]\n", 0)
    status, body, _ = daemon.request("POST", "/kill", b"")
    answer = json.loads(daemon.request("GET", f"/runs/{run_id}/wait?timeout=10")[1])
    seen = (status, body, answer["status"], answer["exit_code"])
    if seen != (200, b"ready", "killed", 130):
        print("the kill gave", seen, answer, file=sys.stderr)
    return seen == (200, b"ready", "killed", 130)


def soak(commands: int) -> int:
    """Run so many commands; return how many things went wrong."""
    random_source = random.Random(7)
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(directory)
        try:
            daemon.request("POST", "/startup", b"")
            source = steps(random_source)
            started = time.monotonic()
            warm = min(2000, commands // 2)
            before: dict[str, float] = {}
            for number in range(commands):
                if number == warm:
                    before = daemon.usage()
                command, parameters, check = next(source)
                status, body, headers = daemon.run(command, **parameters)
                right = check(status, body, headers)
                if status == 202:
                    right = finish(daemon, command, headers) and right
                if not right:
                    wrong += 1
                    print("wrong:", repr(command)[:200], parameters, status, repr(body)[:200], headers, file=sys.stderr)
            seconds = time.monotonic() - started
            daemon.request("POST", "/recycle", b"")
            after = daemon.usage()
            print(f"{commands} commands in {seconds:.0f} s, {wrong} wrong answers")
            for name in after:
                print(f"  {name}: {before[name]:.1f} after {warm} commands, {after[name]:.1f} at the end")
            for name in ("threads", "descriptors", "children"):
                wrong += after[name] > before[name]
            wrong += after["memory_mb"] > before["memory_mb"] + LARGEST_GROWTH_MB
            wrong += after["run_directories"] > RETAINED + 1
        finally:
            daemon.request("POST", "/shutdown", b"")
            if daemon.process.wait(20):
                wrong += 1
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run mixed commands against a fresh daemon, and check every answer.")
    parser.add_argument("commands", nargs="?", type=int, default=100_000, help="how many (default: %(default)s)")
    sys.exit(bool(soak(parser.parse_args().commands)))
