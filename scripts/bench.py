#!/usr/bin/env python3
"""Measures the daemon side by side with what it is built on, interleaved in one run, and prints ratios.

    scripts/bench.py [PART ...] [--rounds N] [--against CHECKOUT] [--pause SECONDS]

The machine's own speed and its noise cancel out in the ratios. Compared are
    bare      a Starlette endpoint that does nothing, on the same server
    bare pty  the same around the simplest loop over a pty: write the command and an `echo MARK`, read up to it
    drain     a command through a raw pty, or a pipe, into a tight read loop
    other     the daemon of another checkout (--against), in the same interpreter
The last part is the table of all targets that the parts have measured, met or missed: docs/performance.md has it.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import fcntl
import http.client
import json
import os
import pty
import socket
import statistics
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

KEY = "bench"
ROOT = Path(__file__).resolve().parent.parent
HUNDRED_MB = "head -c 100000000 /dev/zero | tr '\\0' x"
COLOURED = r"yes $'\e[32m10:15:01\e[0m \e[1;34mINFO\e[0m  module.name  something has happened' | head -c 20000000"
PROGRESS = r"yes $'10%\r20%\r30%\r40%\r50%\r60%\r70%\r80%\r90%\r' | tr -d '\n' | head -c 20000000"
BUSY = "import re, json, random\nwhile True: json.dumps([random.random() for _ in range(20000)])"


def serve_bare(port: int) -> None:
    """Serve the two endpoints that the daemon is compared with; in a process of its own."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    shell = BarePty()

    async def nothing(request: Request) -> PlainTextResponse:
        await request.body()
        return PlainTextResponse("")

    async def loop(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await shell.run(await request.body()))

    routes = [Route("/nothing", nothing, methods=["POST"]), Route("/pty", loop, methods=["POST"])]
    uvicorn.run(
        Starlette(routes=routes), port=port, http="httptools", loop="uvloop", access_log=False, log_level="error"
    )


class BarePty:
    """bash in a pty, driven in the simplest way that works for well-behaved commands."""

    def __init__(self) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ["PS1"] = ""
            os.execv("/bin/bash", ["bash", "--norc", "--noprofile", "--noediting"])
        modes = termios.tcgetattr(self.master)
        modes[1] &= ~termios.OPOST
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(self.master, termios.TCSANOW, modes)
        os.set_blocking(self.master, False)
        self.buffer = b""
        self.count = 0
        self.mark = b""
        self.done: asyncio.Future[bytes] | None = None

    async def run(self, command: bytes) -> bytes:
        """Run a command; return what it wrote."""
        loop = asyncio.get_running_loop()
        if not self.count:
            loop.add_reader(self.master, self.read)
        self.count += 1
        self.mark = b"<%d-END>\n" % self.count
        self.done = loop.create_future()
        os.write(self.master, command + b"; echo '<%d-END>'\n" % self.count)
        return await self.done

    def read(self) -> None:
        """Take what is there."""
        self.buffer += os.read(self.master, 65536)
        output, found, _ = self.buffer.partition(self.mark)
        if found and self.done:
            self.buffer = b""
            self.done.set_result(output)
            self.done = None


class Connection:
    """A keep-alive connection, with the key."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def post(self, path: str, body: str = "", **headers: str) -> bytes:
        """Send a request; return the body of the answer."""
        self.connection.request("POST", path, body.encode(), {"X-Shell-Key": KEY, **headers})
        return self.connection.getresponse().read()

    def get(self, path: str) -> bytes:
        """Send a request; return the body of the answer."""
        self.connection.request("GET", path, headers={"X-Shell-Key": KEY})
        return self.connection.getresponse().read()

    def open_session(self) -> str:
        """Open a session; return its path."""
        return f"/sessions/{json.loads(self.post('/sessions'))['session_id']}"


def first_output(port: int, streams: str) -> None:
    """Run a command in a shell of its own, up to its first output."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = json.dumps({"command": "printf 'be%s' gun", "streams": streams})
    headers = {"X-Shell-Key": KEY, "Content-Type": "application/json", "Accept": "text/event-stream"}
    connection.request("POST", "/exec", body.encode(), headers)
    answer = connection.getresponse()
    while b"begun" not in answer.readline():
        pass
    connection.close()


class RawConnection:
    """A keep-alive connection that costs the client next to nothing: one write, one read, no parser."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: str) -> None:
        """Send a request whose answer is short."""
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Shell-Key: {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall((head + body).encode())
        answer = self.socket.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 "), answer


@dataclasses.dataclass
class Daemon:
    """A daemon under measurement, and the seconds until it was healthy."""

    process: subprocess.Popen[str]
    port: int
    healthy: float
    directory: Path


@contextlib.contextmanager
def daemon(directory: Path, checkout: Path = ROOT, **settings: str) -> Iterator[Daemon]:
    """Start the daemon of a checkout; `settings` are written as `section__key`."""
    directory.mkdir(exist_ok=True)
    environ = {**os.environ, "SHELLD_KEY": KEY, "SHELLD_SERVER__PORT": "0", "SHELLD_LOGGING__LEVEL": "error"}
    environ |= {"SHELLD_FILES__MAX_TOKEN_COUNT": "0", "SHELLD_LIMITS__MAX_SESSIONS": "0"}
    environ |= {f"SHELLD_{name.upper()}": value for name, value in settings.items()}
    environ["SHELLD_SERVER__DATA_DIRECTORY"] = f"{directory}/data"
    environ["HOME"] = str(directory)  # bash reads ~/.bashrc at its start: somebody's own is not to be measured
    environ["PYTHONPATH"] = str(checkout)
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "shelld_py"], env=environ, cwd=directory, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline().strip().rpartition(":")[2])
    assert Connection(port).get("/health") == b"ok"
    try:
        yield Daemon(process, port, time.perf_counter() - started, directory)
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@contextlib.contextmanager
def bare() -> Iterator[Connection]:
    """Serve what the daemon is compared with, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, "--bare", str(port)])
    try:
        while True:
            with contextlib.suppress(ConnectionError):
                Connection(port).post("/pty", "true")
                break
            time.sleep(0.05)
        yield Connection(port)
    finally:
        process.terminate()
        process.wait()


def timed(action: Callable[..., object], *arguments: object) -> float:
    """Return the seconds that `action` takes."""
    started = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - started


def latency(rounds: int, actions: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Do all actions in turn, `rounds` times; return the seconds of each, sorted."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            seconds[name].append(timed(action))
    return {name: sorted(values) for name, values in seconds.items()}


def percentiles(seconds: list[float]) -> str:
    """Return the median and the 99th percentile of sorted seconds."""
    median, highest = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    return f"p50 {1000 * median:7.3f} ms   p99 {1000 * highest:7.3f} ms"


def drain(command: str) -> float:
    """Return the seconds that `command` needs through a raw pty into a tight loop, which forgets what it reads."""
    started = time.perf_counter()
    pid, master = pty.fork()
    if pid == 0:
        modes = termios.tcgetattr(0)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(0, termios.TCSANOW, modes)
        os.execv("/bin/bash", ["bash", "-c", command])
    buffer = bytearray(65536)
    with contextlib.suppress(OSError):
        while os.readv(master, [buffer]):
            pass
    os.waitpid(pid, 0)
    os.close(master)
    return time.perf_counter() - started


def drain_pipe(command: str) -> float:
    """Return the seconds that `command` needs through a pipe of the size of ours, likewise."""
    started = time.perf_counter()
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 1024 * 1024)
    process = subprocess.Popen(["/bin/bash", "-c", command], stdin=subprocess.DEVNULL, stdout=writing)
    os.close(writing)
    buffer = bytearray(256 * 1024)
    while os.readv(reading, [buffer]):
        pass
    process.wait()
    os.close(reading)
    return time.perf_counter() - started


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def switches(pid: int) -> int:
    """Return how often a process has been put on a CPU by its own doing (voluntary context switches)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


class Bench:
    """The parts, what they share, and what they have found of the targets."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.rounds: int = options.rounds
        self.pause: float = options.pause
        self.against: Path | None = options.against
        self.directory = directory
        self.targets: list[tuple[str, float, float, bool]] = []

    def target(self, name: str, measured: float, target: float, *, at_least: bool = False) -> None:
        """Note what was measured of a target: at most so much, or `at_least`."""
        self.targets.append((name, measured, target, at_least))

    def start(self) -> None:
        """How long it takes until it is healthy, and until the first result."""
        for name, checkout in self.checkouts().items():
            starts = []
            for number in range(5):
                with daemon(self.directory / f"start{number}", checkout) as one:
                    connection = Connection(one.port)
                    first = timed(lambda to=connection: (to.post("/startup"), to.post("/run", "true")))
                    starts.append((one.healthy, one.healthy + first))
            healthy, first = (statistics.median(column) for column in zip(*starts, strict=True))
            print(f"  {name}: healthy after {healthy:.2f} s, first result after {first:.2f} s")
            if name == "ours":
                self.target("healthy after, s", healthy, 0.18)

    def checkouts(self) -> dict[str, Path]:
        """The daemons that are measured."""
        return {"ours": ROOT, **({"other": self.against} if self.against else {})}

    @contextlib.contextmanager
    def daemons(self, **settings: str) -> Iterator[dict[str, Daemon]]:
        """Start the daemons that are measured, each with its main shell."""
        with contextlib.ExitStack() as stack:
            started = {}
            for name, checkout in self.checkouts().items():
                place = Path(tempfile.mkdtemp(dir=self.directory))
                started[name] = stack.enter_context(daemon(place, checkout, **settings))
                Connection(started[name].port).post("/startup")
            yield started

    def quick(self) -> None:
        """Quick commands over one connection: as text, by a raw client, as JSON, in a session."""
        with bare() as simple, self.daemons() as daemons:
            raw_simple = RawConnection(simple.port)
            actions: dict[str, Callable[[], object]] = {"bare": lambda: simple.post("/nothing", "true")}
            for label, command in (("true", "true"), ("echo", "echo hello"), ("ls", "ls /etc")):
                actions[f"bare pty: {label}"] = lambda command=command: simple.post("/pty", command)
                for name, one in daemons.items():
                    to = Connection(one.port)
                    actions[f"{name}: {label}"] = lambda to=to, command=command: to.post("/run", command)
            actions["bare pty: raw"] = lambda: raw_simple.post("/pty", "true")
            for name, one in daemons.items():
                raw, to = RawConnection(one.port), Connection(one.port)
                session = to.open_session()
                actions[f"{name}: raw"] = lambda raw=raw: raw.post("/run", "true")
                actions[f"{name}: JSON"] = lambda to=to: to.post("/run", "true", Accept="application/json")
                actions[f"{name}: session"] = lambda to=to, path=session: to.post(
                    f"{path}/run", "true", Accept="text/plain"
                )
            seconds = latency(self.rounds, actions)
        for name, values in seconds.items():
            print(f"  {name:16} {percentiles(values)}")
        compared = {"true": 1.4, "echo": 1.5, "ls": 1.15, "raw": 1.6, "JSON": 1.6, "session": 1.6}
        for label, target in compared.items():
            beside = f"bare pty: {label}" if f"bare pty: {label}" in seconds else "bare pty: true"
            ratio = statistics.median(seconds[f"ours: {label}"]) / statistics.median(seconds[beside])
            self.target(f"{label}, to the bare pty loop", ratio, target)
        self.show_ratios_to_other(seconds)

    def show_ratios_to_other(self, seconds: dict[str, list[float]]) -> None:
        """Print how we stand to the other checkout."""
        for name, values in seconds.items():
            other = seconds.get(name.replace("ours: ", "other: ")) if name.startswith("ours: ") else None
            if other:
                print(f"  {name[6:]}, ours to other: {statistics.median(values) / statistics.median(other):.2f}")

    def cold(self, batches: int = 5) -> None:
        """`true` in batches of 20, other programs busy in between, as an agent that thinks between its commands."""
        with bare() as simple, self.daemons() as daemons:
            actions: dict[str, Callable[[], object]] = {"bare pty": lambda: simple.post("/pty", "true")}
            for name, one in daemons.items():
                to = Connection(one.port)
                actions[f"{name}: cold"] = lambda to=to: to.post("/run", "true")
            seconds: dict[str, list[float]] = {name: [] for name in actions}
            for _ in range(batches):
                for name, action in actions.items():
                    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
                    time.sleep(self.pause)
                    for process in busy:
                        process.kill()
                        process.wait()
                    seconds[name] += [timed(action) for _ in range(20)]
        seconds = {name: sorted(values) for name, values in seconds.items()}
        for name, values in seconds.items():
            print(f"  {name:16} {percentiles(values)}")
        self.target(
            "cold, to the loop likewise",
            statistics.median(seconds["ours: cold"]) / statistics.median(seconds["bare pty"]),
            2,
        )
        self.show_ratios_to_other(seconds)

    def clients(self, count: int = 100, seconds: float = 5.0) -> None:
        """Commands per second of one client, and of a hundred with a session each."""
        rates: dict[str, float] = {}
        with self.daemons() as daemons:
            for name, one in daemons.items():
                rates[f"{name}: one"], _ = throughput(one.port, 1, seconds)
                rates[f"{name}: {count}"], waits = throughput(one.port, count, seconds)
                print(f"  {name}: one client {rates[f'{name}: one']:.0f}/s, {count} clients ", end="")
                print(f"{rates[f'{name}: {count}']:.0f}/s, {percentiles(waits)}")
                if name == "ours":
                    self.target(f"p99 of {count} clients, ms", 1000 * waits[len(waits) * 99 // 100], 60)
        beside = rates.get("other: one", rates["ours: one"])
        self.target(f"commands/s of {count} clients, to one", rates[f"ours: {count}"] / beside, 2.5, at_least=True)

    def output(self, repeats: int = 3) -> None:
        """Large outputs beside a tight drain of the same, and /health meanwhile."""
        with self.daemons() as daemons:
            for label, command, target in (
                ("100 MB in one line", HUNDRED_MB, 0.87), ("coloured", COLOURED, 0.6), ("progress", PROGRESS, 0.6)
            ):  # fmt: skip
                times: dict[str, list[float]] = {"drain": [], **{name: [] for name in daemons}}
                waits: list[float] = []
                for _ in range(repeats):
                    times["drain"].append(drain(command))
                    for name, one in daemons.items():
                        took, meanwhile = beside_health(one.port, command)
                        times[name].append(took)
                        waits += meanwhile if name == "ours" else []
                waits.sort()
                for name in daemons:
                    ratio = statistics.median(times["drain"]) / statistics.median(times[name])
                    print(f"  {label}, {name}: {ratio:.2f} of the tight drain, {min(times[name]):.2f} s")
                    if name == "ours":
                        self.target(f"{label}, of a tight drain", ratio, target, at_least=True)
                print(f"  /health meanwhile: {percentiles(waits)}")
                self.target(f"/health p99 beside it ({label}), ms", 1000 * waits[len(waits) * 99 // 100], 20)

    def pipes(self, repeats: int = 5) -> None:
        """100 MB over pipes, log on disk and answer included, beside a tight drain of the same pipe; the first byte."""
        with self.daemons() as daemons:
            first = latency(30, {
                f"{name}: {streams}": partial(first_output, one.port, streams)
                for name, one in daemons.items() for streams in ("pipes", "merged")
            })  # fmt: skip
            for name, values in first.items():
                print(f"  first byte of /exec, {name:14} {percentiles(values)}")
            over_terminal = statistics.median(first["ours: pipes"]) / statistics.median(first["ours: merged"])
            self.target("first byte over pipes, to that over a terminal", over_terminal, 1.0)
            times: dict[str, list[float]] = {"drain": [], **{name: [] for name in daemons}}
            form = {"Content-Type": "application/json"}
            for _ in range(repeats):
                times["drain"].append(drain_pipe(HUNDRED_MB))
                for name, one in daemons.items():
                    body = json.dumps({"command": HUNDRED_MB, "streams": "pipes"})
                    times[name].append(timed(partial(Connection(one.port).post, "/exec", body, **form)))
            for name in daemons:
                ratio = statistics.median(times["drain"]) / statistics.median(times[name])
                print(f"  100 MB over pipes, {name}: {ratio:.2f} of the tight drain, {min(times[name]):.2f} s")
                if name == "ours":
                    self.target("100 MB over pipes, of a tight drain", ratio, 0.9, at_least=True)

    def kept(self, count: int = 10_000) -> None:
        """What many kept runs cost: disk, memory, and time at the next start."""
        place = Path(tempfile.mkdtemp(dir=self.directory))
        with daemon(place, output__retain_runs=str(count)) as one:
            connection = Connection(one.port)
            connection.post("/startup")
            before = memory_mb(one.process.pid)
            for _ in range(count):
                connection.post("/run", "true")
            grown = memory_mb(one.process.pid) - before
        disk = int(subprocess.run(["du", "-sk", place], capture_output=True, check=True).stdout.split()[0]) / 1024
        with daemon(place, output__retain_runs=str(count)) as one:
            again = one.healthy
        with daemon(Path(tempfile.mkdtemp(dir=self.directory))) as one:
            empty = one.healthy
        print(
            f"  {count} kept runs: {disk:.1f} MB on disk, {grown:.1f} MB of memory, {again - empty:.3f} s at the start"
        )
        self.target("kept runs: disk, MB", disk, 2)
        self.target("kept runs: memory, MB", grown, 5)
        self.target("kept runs: start, ms", 1000 * (again - empty), 50)

    def rest(self) -> None:
        """Memory, and wake-ups, of a daemon with nothing to do."""
        with self.daemons() as daemons:
            for name, one in daemons.items():
                time.sleep(1)
                before = switches(one.process.pid)
                time.sleep(5)
                woken = (switches(one.process.pid) - before) / 5
                held = pss_mb(one.process.pid)
                print(f"  {name}: {held:.1f} MB (PSS), {woken:.1f} wake-ups a second")
                if name == "ours":
                    self.target("idle, PSS, MB", held, 22)
                    self.target("idle, wake-ups a second", woken, 0.2)

    def files(self) -> None:
        """Operations on a file of 5 MB, and a directory of 100,000 entries."""
        with self.daemons() as daemons:
            show_files(daemons["ours"].port, str(daemons["ours"].directory))

    def show_targets(self) -> None:
        """Print the table of what the parts have found."""
        print("| target | measured | wanted | |\n|---|--:|--:|---|")
        for name, measured, target, at_least in self.targets:
            met = measured >= target if at_least else measured <= target
            sign = "≥" if at_least else "≤"
            print(f"| {name} | {measured:.2f} | {sign} {target:g} | {'met' if met else 'missed'} |")


def throughput(port: int, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Return the commands per second of so many clients, each with a session of its own, and the times of all."""
    connections = [Connection(port) for _ in range(clients)]
    paths = [connection.open_session() for connection in connections]
    waits: list[float] = []
    end = time.perf_counter() + seconds

    def work(connection: Connection, path: str) -> None:
        while time.perf_counter() < end:
            waits.append(timed(lambda: connection.post(f"{path}/run", "true")))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(connections, paths, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection, path in zip(connections, paths, strict=True):
        connection.connection.request("DELETE", path, headers={"X-Shell-Key": KEY})
        connection.connection.getresponse().read()
    return len(waits) / seconds, sorted(waits)


def beside_health(port: int, command: str) -> tuple[float, list[float]]:
    """Return the seconds that a command takes, and those of requests for /health meanwhile."""
    took: list[float] = []
    runner = threading.Thread(target=lambda: took.append(timed(lambda: Connection(port).post("/run", command))))
    other, waits = Connection(port), []
    runner.start()
    while runner.is_alive():
        waits.append(timed(lambda: other.get("/health")))
        time.sleep(0.002)
    return took[0], waits


def pss_mb(pid: int) -> float:
    """Return the memory of a process, with its share of what it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def show_files(port: int, directory: str) -> None:
    """Measure operations on a file of 5 MB, and a directory of 100,000 entries."""
    ours = Connection(port)
    text = "".join(f"line {number} of a file that is neither small nor large\n" for number in range(95_000))
    Path(directory, "large.txt").write_text(text)
    many = Path(directory, "many")
    many.mkdir()
    for number in range(100_000):
        os.close(os.open(f"{many}/{number}", os.O_CREAT | os.O_WRONLY))
    read = json.dumps({"path": "large.txt", "view_range": [1000, 1100]})
    seconds = sorted(timed(lambda: ours.post("/files/read", read)) for _ in range(5))
    print(f"  read 100 lines of {len(text) / 1e6:.1f} MB: {1000 * seconds[2]:.1f} ms")
    seconds = sorted(timed(lambda: ours.post("/files/read", json.dumps({"path": "large.txt"}))) for _ in range(5))
    print(f"  read all of it: {1000 * seconds[2]:.1f} ms")
    seconds = []
    for number in range(5):
        body = json.dumps({"path": "large.txt", "old_string": f"line {5000 + number} of", "new_string": "changed"})
        seconds.append(timed(lambda body=body: ours.post("/files/replace", body)))
    print(f"  replace in it: {1000 * sorted(seconds)[2]:.1f} ms")
    view = timed(lambda: ours.post("/files/view", json.dumps({"path": "many"})))
    print(f"  view of 100,000 entries: {1000 * view:.0f} ms")


PARTS = ("start", "quick", "cold", "clients", "output", "pipes", "kept", "rest", "files")


def main() -> None:
    """Run the parts that are asked for, and print."""
    parser = argparse.ArgumentParser(description="Measure the daemon beside what it is built on.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--rounds", type=int, default=1000, help="of quick commands")
    parser.add_argument("--pause", type=float, default=30.0, help="seconds for which others are busy, for `cold`")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="also measure the daemon of this checkout")
    parser.add_argument("--bare", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        serve_bare(options.bare)
        return
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(options, Path(directory))
        for name in options.parts or PARTS:
            part = getattr(bench, name)
            print(f"{name}: {part.__doc__}", flush=True)
            part()
        bench.show_targets()


if __name__ == "__main__":
    main()
