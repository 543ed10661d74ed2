"""Real programs in a real daemon: which are taken to be waiting for terminal input, and after how long.

The table of docs/waiting.md is printed by `python -m tests.test_waiting_programs`.
"""

import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.daemons import KEY, RunningDaemon, ask, running_daemon

KILL = None
EOF = ""
AT_ONCE = 4
PATIENCE = 1.3


class Program(NamedTuple):
    """A command, the program that has to be installed for it, and what ends it: typed text, EOF or KILL."""

    command: str
    needs: str = "bash"
    end: str | None = KILL


class Seen(NamedTuple):
    """What the daemon answered, after how many seconds, and how the run ended."""

    status: int
    result: dict[str, Any]
    seconds: float
    ended: dict[str, Any]


def python(code: str) -> str:
    """Return a command that runs `code`."""
    return f"python3 -c {shlex.quote(IMPORTS + code)}"


IMPORTS = "import os, select, signal, socket, subprocess, sys, termios, threading, time, tty\n"
ASYNCIO = """
import asyncio
async def main():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.readline()
asyncio.run(main())
"""
REPOSITORY = "git init -q r; cd r; git config user.email a@b; git config user.name a; echo 1 >f; git add f"

WAITING = {
    "bash: read": Program("read -r a", end="x\n"),
    "bash: read -p": Program("read -rp 'name? ' a", end="x\n"),
    "bash: read -s": Program("read -rsp 'secret? ' a", end="x\n"),
    "bash: read -n 1": Program("read -rn 1 a", end="x"),
    "bash: read -t 30": Program("read -rt 30 a", end="x\n"),
    "bash: read -e (readline)": Program("read -re a", end="x\n"),
    "bash: read </dev/tty, stdin redirected": Program("read -r a </dev/tty", end="x\n"),
    "bash: read in a subshell": Program("(read -r a)", end="x\n"),
    "bash: read in a function in a loop": Program("f() { read -r a; }; while ! f; do :; done", end="x\n"),
    "bash: read in $( )": Program("b=$(read -r a; echo $a)", end="x\n"),
    "bash: select": Program("select x in one two; do break; done", end="1\n"),
    "bash: mapfile": Program("mapfile lines", end=EOF),
    "bash --norc -i": Program("bash --norc -i", end="exit\n"),
    "bash: read with a background child": Program("sleep 60 & read -r a; kill $!", end="x\n"),
    "sh: read": Program("sh -c 'read a'", "sh", "x\n"),
    "sh -i": Program("sh -i", "sh", "exit\n"),
    "cat": Program("cat", end=EOF),
    "cat | tr": Program("cat | tr a b", end=EOF),
    "cat /dev/tty </dev/null": Program("cat /dev/tty </dev/null", end=EOF),
    "timeout --foreground 30 cat": Program("timeout --foreground 30 cat", end=EOF),
    "head -1": Program("head -1", end="x\n"),
    "sort": Program("sort", end=EOF),
    "tee": Program("tee copy", end=EOF),
    "dd": Program("dd of=/dev/null", end=EOF),
    "wc": Program("wc", end=EOF),
    "sed": Program("sed s/a/b/", end=EOF),
    "grep": Program("grep x", end="x\n\x04"),
    "awk": Program("awk '{ print $1 }'", "awk", EOF),
    "xargs": Program("xargs echo", end=EOF),
    "rm -i": Program("touch f; rm -i f", end="y\n"),
    "perl: <STDIN>": Program("perl -e '$a = <STDIN>'", "perl", "x\n"),
    "python3: input()": Program(python("input('name? ')"), end="x\n"),
    "python3: input() with readline": Program(python("import readline; input('name? ')"), end="x\n"),
    "python3: getpass (echo off, /dev/tty)": Program(python("import getpass; getpass.getpass()"), end="x\n"),
    "python3: sys.stdin": Program(python("sys.stdin.read()"), end=EOF),
    "python3 -q (REPL)": Program("python3 -q", end="exit()\n"),
    "python3: pdb": Program(python("breakpoint()"), end="c\n"),
    "python3: child reads": Program(python("subprocess.run(['cat'])"), end=EOF),
    "python3: one raw key": Program(python("tty.setraw(0); os.read(0, 1)"), end="x"),
    "python3: select": Program(python("select.select([0], [], []); input()"), end="x\n"),
    "python3: select, raw": Program(python("tty.setraw(0); select.select([0], [], []); os.read(0, 1)"), end="x"),
    "python3: poll": Program(python("p = select.poll(); p.register(0, 1); p.poll(); input()"), end="x\n"),
    "python3: poll, raw, with a socket": Program(
        python("tty.setraw(0); a, b = socket.socketpair(); select.select([0, a], [], []); os.read(0, 1)"), end="x"
    ),
    "python3: epoll": Program(python("p = select.epoll(); p.register(0, 1); p.poll(); input()"), end="x\n"),
    "python3: epoll, raw": Program(
        python("tty.setraw(0); p = select.epoll(); p.register(0, 1); p.poll(); os.read(0, 1)"), end="x"
    ),
    "python3: read in a thread": Program(python("threading.Thread(target=input).start()"), end="x\n"),
    "ssh-keygen (passphrase)": Program(
        "ssh-keygen -qt ed25519 -N secret -f key; ssh-keygen -yf key", "ssh-keygen", "secret\n"
    ),
    "openssl passwd": Program("openssl passwd", "openssl", "x\nx\n"),
    "bc": Program("bc -q", "bc", EOF),
    "dc": Program("dc", "dc", "q\n"),
    "ed": Program("ed -s", "ed", "q\n"),
    "sqlite3": Program("sqlite3", "sqlite3", ".quit\n"),
    "gdb": Program("gdb -q -nx", "gdb", "quit\n"),
    "node (REPL)": Program("node", "node", ".exit\n"),
    "less": Program("seq 999 | TERM=xterm less", "less", "q"),
    "more": Program("seq 999 >f; TERM=xterm more f", "more", "q"),
    "man": Program("seq 999 >f.1; TERM=xterm MANPAGER=less man ./f.1", "man", "q"),
    "vim": Program("TERM=xterm vim -u NONE f", "vim", "\x1b:q!\r"),
    "git commit (vim)": Program(f"{REPOSITORY}; TERM=xterm GIT_EDITOR='vim -u NONE' git commit", "vim", "\x1b:q!\r"),
    "git log (pager)": Program(f"{REPOSITORY}; git commit -qm 1; TERM=xterm LESS= GIT_PAGER=less git log", "less", "q"),
    "git add -p": Program(f"{REPOSITORY}; git commit -qm 1; echo 2 >f; git add -p", "git", "q\n"),
}

NOT_WAITING = {
    "sleep": "sleep 60",
    "sleep in a pipe": "sleep 60 | cat",
    "sleep, then a pipeline": "(sleep 60; echo) | sort | tail -1",
    "sleep in a subshell": "(sleep 60)",
    "sleep in $( )": "a=$(sleep 60)",
    "prompt, then sleep": "printf 'Password: '; sleep 60",
    "timeout 5 sleep 9": "timeout 5 sleep 9",
    "wait for a background child": "sleep 60 & wait",
    "wait for a stopped background reader": "cat & sleep 60",
    "nohup in the foreground": "nohup sleep 60",
    "coproc": "coproc sleep 60; wait",
    "cat </dev/null; sleep": "cat </dev/null; sleep 60",
    "read </dev/null; sleep": "read -r a </dev/null; sleep 60",
    "read -t from a silent pipe": "sleep 60 | { read -rt 30 a; }",
    "read from process substitution": "read -r a < <(sleep 60)",
    "tail -f": "touch f; tail -f f",
    "fifo: open": "mkfifo p; cat p",
    "fifo: read": "mkfifo p; exec 9<>p; cat <&9",
    "flock": "exec 9>l; flock 9; flock l true",
    "CPU loop in bash": "while :; do :; done",
    "loop of small commands": "while :; do /bin/true; done",
    "loop with short sleeps": "while :; do sleep 0.3; done",
    "output loop": "while :; do echo .; sleep 0.2; done",
    "yes >/dev/null": "yes >/dev/null",
    "dd to /dev/null": "dd if=/dev/zero of=/dev/null",
    "raw mode, then sleep": "stty raw; sleep 60",
    "python3: CPU loop": python("while True: pass"),
    "python3: time.sleep": python("time.sleep(60)"),
    "python3: time.sleep, raw": python("tty.setraw(0); time.sleep(60)"),
    "python3: accept": python("s = socket.create_server(('127.0.0.1', 0)); s.accept()"),
    "python3: connect and recv": python(
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); c.recv(1)"
    ),
    "python3: connect to a full backlog": python(
        "s = socket.create_server(('127.0.0.1', 0), backlog=0)\n"
        "c = [socket.create_connection(s.getsockname()) for _ in range(3)]"
    ),
    "python3: http.server": "python3 -m http.server --bind 127.0.0.1 0",
    "python3: select on a socket": python("a, b = socket.socketpair(); select.select([a], [], [])"),
    "python3: poll on a pipe": python("r, w = os.pipe(); p = select.poll(); p.register(r, 1); p.poll()"),
    "python3: epoll on a pipe": python("r, w = os.pipe(); p = select.epoll(); p.register(r, 1); p.poll()"),
    "python3: asyncio.sleep": python("import asyncio; asyncio.run(asyncio.sleep(60))"),
    "python3: communicate": python("subprocess.Popen(['sleep', '60'], stdout=-1, stderr=-1).communicate()"),
    "python3: Event().wait": python("threading.Event().wait()"),
    "python3: Thread.join": python("t = threading.Thread(target=time.sleep, args=[60]); t.start(); t.join()"),
    "python3: signal.pause": python("signal.pause()"),
    "python3: select for writing, then sleep": python("select.select([], [0], []); time.sleep(60)"),
    "perl: sleep": "perl -e 'sleep 60'",
    "node: timer": "node -e 'setTimeout(() => {}, 60000)'",
    "setsid -w": "setsid -w sleep 60",
}

MISSED = {
    "python3: asyncio reads the terminal": Program(python(ASYNCIO), end="x\n"),
    "python3: select on terminal and socket, line mode": Program(
        python("a, b = socket.socketpair(); select.select([0, a], [], []); input()"), end="x\n"
    ),
    "python3: input() while a thread prints": Program(
        python(
            "threading.Thread(target=lambda: [(print(i, flush=True), time.sleep(0.1)) for i in range(50)],"
            " daemon=True).start(); input()"
        ),
        end="x\n",
    ),
    "setsid -w cat": Program("setsid -w cat", end=EOF),
    "bash: read with a busy background child": Program("yes >/dev/null & read -r a; kill $!", end="x\n"),
}
"""Waiting for something else too, with something going on meanwhile, or from another session: docs/waiting.md."""

MISTAKEN = {
    "script -qc 'sleep 60'": Program("script -qc 'sleep 60' /dev/null", "script"),
    "top": Program("TERM=xterm top", "top"),
}
"""They hold the terminal in key mode, for a program in a terminal of its own or for keys that nobody need press."""


def look_at(daemon: RunningDaemon, program: Program, timeout: float, directory: Path) -> Seen:
    """Run a program in a session of its own, until it is seen waiting or for `timeout` seconds, then end it."""
    json = {"Accept": "application/json"}
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    opened = daemon.json(
        "POST", "/sessions", json={"working_directory": str(directory), "environment": {"PATH": path, "HISTFILE": ""}}
    )
    root = f"/sessions/{opened['session_id']}"
    started = time.monotonic()
    answer = daemon.client.post(
        f"{root}/run", json={"command": program.command, "timeout": timeout, "on_input": "return"}, headers=json
    )
    seconds = time.monotonic() - started
    result = answer.json()
    ended = result
    if answer.status_code == 202:
        if program.end is KILL:
            daemon.client.post(f"{root}/kill?signal=KILL")
        else:
            daemon.client.post(f"{root}/stdin", json={"text": program.end, "eof": program.end == EOF})
            where = f"/runs/{result['run_id']}/wait"
            ended = daemon.json("GET", where, params={"timeout": 60})
    assert ask(daemon.url, "DELETE", root, key=KEY).status == 200
    return Seen(answer.status_code, result, seconds, ended)


class Bench:
    """Looks at all programs, four at a time; each test takes its own result."""

    def __init__(self, daemon: RunningDaemon, directory: Path) -> None:
        self._daemon = daemon
        self._directory = directory
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._futures: dict[str, Future[Seen]] = {}

    def begin(self, names: list[str]) -> None:
        """Begin with the programs of these names."""
        for number, name in enumerate(names):
            directory = self._directory / str(number)
            directory.mkdir()
            program, timeout = program_of(name)
            if shutil.which(program.needs):
                self._futures[name] = self._pool.submit(look_at, self._daemon, program, timeout, directory)

    def seen(self, name: str) -> Seen:
        """Return what was seen of one program; skip the test where it is not installed."""
        if name not in self._futures:
            pytest.skip("not installed")
        return self._futures[name].result()

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(cancel_futures=True)


def program_of(name: str) -> tuple[Program, float]:
    """Return a program of the tables and how long to wait for it."""
    if name in WAITING:
        return WAITING[name], 60
    limits = {**MISSED, **MISTAKEN}
    if name in limits:
        return limits[name], PATIENCE
    command = NOT_WAITING[name]
    return Program(command, command.split()[0] if command.startswith(("perl", "node")) else "bash"), PATIENCE


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """All programs that the chosen tests ask for, under way."""
    directory = tmp_path_factory.mktemp("waiting")
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    with running_daemon(directory, limits__max_sessions="16") as daemon:
        started = Bench(daemon, directory)
        started.begin([item.callspec.params["name"] for item in items])
        yield started
        started.close()


@pytest.mark.parametrize("name", WAITING)
def test_waiting_is_seen(bench: Bench, name: str) -> None:
    """The request is answered soon after the program stops for input; what it waits for ends it."""
    seen = bench.seen(name)
    assert (seen.status, seen.result["awaiting_input"], seen.result["timed_out"]) == (202, True, False), seen
    assert seen.ended["status"] == "completed", seen


@pytest.mark.parametrize("name", NOT_WAITING)
def test_other_things_are_not_taken_for_it(bench: Bench, name: str) -> None:
    """The request is answered when its timeout is over, and the program is still at it."""
    seen = bench.seen(name)
    assert (seen.status, seen.result["awaiting_input"], seen.result["timed_out"]) == (202, False, True), seen
    assert seen.seconds >= PATIENCE


@pytest.mark.parametrize("name", MISSED)
def test_waiting_that_is_missed(bench: Bench, name: str) -> None:
    """A known limit (docs/waiting.md): the timeout answers, and typing ends the program all the same."""
    seen = bench.seen(name)
    assert seen.status == 202
    assert seen.ended["status"] == "completed", seen
    if not seen.result["awaiting_input"]:
        pytest.xfail("a known limit")


@pytest.mark.parametrize("name", MISTAKEN)
def test_mistaken_for_waiting(bench: Bench, name: str) -> None:
    """A known limit (docs/waiting.md): the request is answered early, and the program goes on."""
    seen = bench.seen(name)
    assert seen.status == 202
    assert seen.result["status"] == "running"
    if seen.result["awaiting_input"]:
        pytest.xfail("a known limit")


def left_out() -> list[str]:
    """Return a line for each program that is not installed, with the number of tests that are left out for it."""
    needed = [program_of(name)[0].needs for name in {**WAITING, **NOT_WAITING, **MISSED, **MISTAKEN}]
    return [f"{name} ({needed.count(name)})" for name in sorted(set(needed)) if not shutil.which(name)]


def main() -> None:
    """Print the table: program, what it does, what was seen, milliseconds until it was (one at a time).

    With the argument `left-out`, print what is not installed instead.
    """
    if sys.argv[1:] == ["left-out"]:
        print(*left_out(), sep=", ")
        return
    with tempfile.TemporaryDirectory() as name, running_daemon(Path(name)) as daemon:
        for row, program_name in enumerate({**WAITING, **NOT_WAITING, **MISSED, **MISTAKEN}):
            program, timeout = program_of(program_name)
            if not shutil.which(program.needs):
                continue
            directory = Path(name) / str(row)
            directory.mkdir()
            seen = look_at(daemon, program, timeout, directory)
            expected = "waits" if program_name in WAITING or program_name in MISSED else "does not"
            found = "waits" if seen.result["awaiting_input"] else "does not"
            after = f"{seen.seconds * 1000:.0f}" if found == "waits" else ""
            label = program_name.replace("|", "\\|")
            print(f"| `{label}` | {expected} | {found} | {after} |", flush=True)


if __name__ == "__main__":
    main()
