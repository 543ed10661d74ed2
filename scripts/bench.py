#!/usr/bin/env python3
"""Measures the daemon side by side with what it is built on, interleaved in one run, and prints ratios.

    scripts/bench.py [ROUNDS]        2000 rounds by default; about a minute

The machine's own speed and its noise cancel out in the ratios. Compared are
    bare      a Starlette endpoint that does nothing, on the same server
    bare pty  the same around the simplest loop over a pty: write the command and an `echo MARK`, read up to it
    bash -c   a process for each command
    drain     `head | tr` through a raw pty into a tight read loop
"""

import asyncio
import contextlib
import http.client
import json
import logging
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop

from shelld_py.computer import Computer, Surroundings
from shelld_py.loading import load
from shelld_py.models import Command, StartupRequest

KEY = "bench"
HUNDRED_MB = "head -c 100000000 /dev/zero | tr '\\0' x"
TWO_MILLION_LINES = "seq 2000000"
COLOURED = r"yes $'\e[32m10:15:01\e[0m \e[1;34mINFO\e[0m  module.name  something has happened' | head -c 20000000"
PROGRESS = r"yes $'10%\r20%\r30%\r40%\r50%\r60%\r70%\r80%\r90%\r' | tr -d '\n' | head -c 20000000"


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
    """A keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def post(self, path: str, body: str = "", **headers: str) -> bytes:
        """Send a request; return the body of the answer."""
        self.connection.request("POST", path, body.encode(), {"X-Shell-Key": KEY, **headers})
        return self.connection.getresponse().read()

    def get(self, path: str) -> bytes:
        """Send a request; return the body of the answer."""
        self.connection.request("GET", path, headers={"X-Shell-Key": KEY})
        return self.connection.getresponse().read()


@contextlib.contextmanager
def daemon(directory: str) -> Iterator[tuple[subprocess.Popen[str], int, float]]:
    """Start the daemon; give its process, its port, and the seconds until it was healthy."""
    environ = {**os.environ, "SHELLD_KEY": KEY, "SHELLD_SERVER__PORT": "0", "SHELLD_LOGGING__LEVEL": "warning"}
    environ["SHELLD_FILES__MAX_TOKEN_COUNT"] = "0"
    environ["SHELLD_SERVER__DATA_DIRECTORY"] = f"{directory}/data"
    environ["HOME"] = directory  # bash reads ~/.bashrc at its start: somebody's own is not to be measured
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "shelld_py"], env=environ, cwd=directory, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline().strip().rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b"ok"
    healthy = time.perf_counter() - started
    try:
        yield process, port, healthy
    finally:
        process.terminate()
        process.wait(20)


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


def show_latency(rounds: int, port: int, bare_port: int) -> None:
    """Measure quick commands."""
    ours, bare = Connection(port), Connection(bare_port)
    ours.post("/startup")
    bare.post("/pty", "true")
    seconds = latency(
        rounds,
        {
            "bare": lambda: bare.post("/nothing", "true"),
            "bare pty: true": lambda: bare.post("/pty", "true"),
            "true": lambda: ours.post("/run", "true"),
            "bare pty: echo": lambda: bare.post("/pty", "echo hello"),
            "echo": lambda: ours.post("/run", "echo hello"),
            "bare pty: ls": lambda: bare.post("/pty", "ls /etc"),
            "ls": lambda: ours.post("/run", "ls /etc"),
        },
    )
    seconds |= latency(rounds // 20, {"bash -c true": lambda: subprocess.run(["/bin/bash", "-c", "true"], check=True)})
    for name, values in seconds.items():
        print(f"  {name:16} {percentiles(values)}")
    for name in ("true", "echo", "ls"):
        ratio = statistics.median(seconds[name]) / statistics.median(seconds[f"bare pty: {name}"])
        print(f"  {name} / bare pty: {ratio:.2f}")
    print(f"  true / bare: {statistics.median(seconds['true']) / statistics.median(seconds['bare']):.2f}")


def show_sessions(rounds: int, port: int) -> None:
    """Measure how long it takes to open a session, and a hundred jobs at once, each in a shell of its own."""
    ours = Connection(port)
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        session_id = json.loads(ours.post("/sessions"))["session_id"]
        seconds.append(time.perf_counter() - started)
        ours.connection.request("DELETE", f"/sessions/{session_id}", headers={"X-Shell-Key": KEY})
        ours.connection.getresponse().read()
    print(f"  open a session     {percentiles(sorted(seconds))}")
    threads = [threading.Thread(target=lambda: Connection(port).post("/exec", "sleep 1")) for _ in range(100)]

    def all_at_once() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    print(f"  100 times `sleep 1` by /exec, at once: {timed(all_at_once):.1f} s")


def show_throughput(port: int, repeats: int = 3) -> None:
    """Measure large outputs, and what they cost others."""
    ours = Connection(port)
    for name, command in (("100 MB", HUNDRED_MB), ("two million lines", TWO_MILLION_LINES)):
        pairs = [(drain(command), timed(lambda command=command: ours.post("/run", command))) for _ in range(repeats)]
        ratios = sorted(tight / full for tight, full in pairs)
        best = min(full for _, full in pairs)
        print(f"  {name}: {ratios[repeats // 2]:.2f} of the tight drain; {best:.2f} s")
    for name, command in (("100 MB", HUNDRED_MB), ("colours", COLOURED), ("carriage returns", PROGRESS)):
        tight, flood = drain(command), threading.Thread(target=timed, args=(ours.post, "/run", command))
        started, waits = time.perf_counter(), []
        flood.start()
        while flood.is_alive():
            waits.append(timed(Connection(port).get, "/health"))
            time.sleep(0.005)
        ratio = tight / (time.perf_counter() - started)
        print(f"  {name}: {ratio:.2f} of the tight drain; /health meanwhile: {percentiles(sorted(waits))}")


def show_memory(pid: int, port: int) -> None:
    """Measure memory and the answers to others while 1 GB flows."""
    ours, other = Connection(port), Connection(port)
    print(f"  resident when idle: {memory_mb(pid):.1f} MB")
    flood = threading.Thread(target=lambda: ours.post("/run", "head -c 1000000000 /dev/zero | tr '\\0' x"))
    flood.start()
    most, waits = 0.0, []
    while flood.is_alive():
        waits.append(timed(lambda: other.get("/status")))
        most = max(most, memory_mb(pid))
        time.sleep(0.01)
    waits.sort()
    print(f"  resident while 1 GB flows: {most:.1f} MB at most; after: {memory_mb(pid):.1f} MB")
    print(f"  /status meanwhile: {percentiles(waits)}")


def show_rest(pid: int) -> None:
    """Count how often the daemon wakes up with nothing to do."""
    time.sleep(1)
    before = switches(pid)
    time.sleep(5)
    print(f"  wake-ups at rest: {(switches(pid) - before) / 5:.1f} a second")


def _forget(_data: memoryview) -> None:
    """Take output and do nothing with it."""


async def show_layers(rounds: int, directory: str) -> None:
    """Measure the layers below HTTP in this process: where the time of a quick command goes."""
    settings = load(None, {}).settings
    surroundings = Surroundings(
        environment=dict(os.environ),
        working_directory=directory,
        data_directory=Path(directory, "layers"),
        open_files=(1024, 4096),
    )
    computer = Computer(settings, surroundings, logging.getLogger("bench"))
    computer.open()
    await computer.startup(StartupRequest())
    shell = computer.main
    bash = shell._bash
    assert bash is not None
    seconds: dict[str, list[float]] = {"fence": [], "bash and fence": [], "run with its files": []}
    for _ in range(rounds):
        started = time.perf_counter()
        await bash.terminal.fence()
        seconds["fence"].append(time.perf_counter() - started)
        started = time.perf_counter()
        await bash.outcome(bash.begin("true", _forget))
        seconds["bash and fence"].append(time.perf_counter() - started)
        started = time.perf_counter()
        await shell.submit(Command(text="true")).wait(10)
        seconds["run with its files"].append(time.perf_counter() - started)
    for name, values in seconds.items():
        print(f"  {name:18} {percentiles(sorted(values))}")
    await computer.end()


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


def main(rounds: int) -> None:
    """Run all and print."""
    with tempfile.TemporaryDirectory() as directory:
        starts = []
        for number in range(5):
            Path(directory, str(number)).mkdir()
            with daemon(f"{directory}/{number}") as (_, port, healthy):
                first = healthy + timed(
                    lambda port=port: [Connection(port).post(path, "true") for path in ("/startup", "/run")]
                )
                starts.append((healthy, first))
        print("start")
        print(f"  healthy after {statistics.median(start[0] for start in starts):.2f} s, ", end="")
        print(f"first result after {statistics.median(start[1] for start in starts):.2f} s")
        bare = subprocess.Popen([sys.executable, __file__, "--bare", "9389"])
        time.sleep(1.5)
        try:
            with daemon(directory) as (process, port, _):
                print("latency over a keep-alive connection")
                show_latency(rounds, port, 9389)
                print("shells")
                show_sessions(100, port)
                print("layers of `true`, below HTTP")
                uvloop.run(show_layers(rounds, directory))
                print("throughput")
                show_throughput(port)
                print("memory")
                show_memory(process.pid, port)
                print("rest")
                show_rest(process.pid)
                print("files")
                show_files(port, directory)
        finally:
            bare.terminate()
            bare.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        serve_bare(int(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
