#!/usr/bin/env python3
"""Starts many daemons beside one another, and tells what each costs: memory, wake-ups at rest, start-up, latency.

    scripts/density.py [DAEMONS] [--commands N] [--idle SECONDS] [--program COMMAND] [--at-once N]

Each has a shell, has run commands, and is left alone then. Memory is PSS (smaps_rollup): what is shared is parted among
those who share it, so the sum is what the machine really gives. `--program` is another way to start a daemon, such as
the program of a bundle. docs/performance.md has figures.
"""

import argparse
import contextlib
import http.client
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

KEY = "density"
PATIENCE = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


class Daemon:
    """A daemon, a connection to it, and how long it took to come."""

    def __init__(self, program: Sequence[str], directory: Path) -> None:
        directory.mkdir()
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SHELLD_")}
        environ |= {
            "SHELLD_KEY": KEY, "SHELLD_SERVER__PORT": "0", "SHELLD_TIMEOUT__IDLE": "0",
            "SHELLD_SERVER__DATA_DIRECTORY": str(directory / "data"), "SHELLD_LOGGING__FILE": str(directory / "log"),
            "HOME": str(directory),
        }  # fmt: skip
        begun = time.perf_counter()
        self.process = subprocess.Popen(program, cwd=directory, env=environ, stdout=subprocess.PIPE)
        assert self.process.stdout
        address = urlsplit(self.process.stdout.readline().decode().strip())
        assert address.hostname, "the daemon did not start"
        self._connection = http.client.HTTPConnection(address.hostname, address.port or 0, timeout=PATIENCE)
        self.ask("GET", "/ready")
        self.start_up = time.perf_counter() - begun
        self.ask("POST", "/startup")

    def ask(self, method: str, path: str, body: str | None = None) -> bytes:
        """Send a request; return the answer, which must be a success."""
        self._connection.request(method, path, body, {"X-Shell-Key": KEY})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:200]!r}")
        return content

    def connect_anew(self) -> None:
        """Have a fresh connection: a daemon ends one that has been idle for long, as while many others start."""
        self._connection.close()
        self.ask("GET", "/ready")

    def timed(self, command: str) -> float:
        """Run a command; return the seconds that took."""
        begun = time.perf_counter()
        self.ask("POST", "/run", command)
        return time.perf_counter() - begun

    def memory(self) -> tuple[int, int]:
        """Return the PSS in bytes of the daemon, and of bash."""
        own = self.process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()
        return pss(own), sum(pss(int(pid)) for pid in children)

    def spent(self) -> tuple[float, int]:
        """Return the CPU time that it has used, and how often it has gone to sleep."""
        pid = self.process.pid
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        switches = next(line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches:"))
        return (int(fields[11]) + int(fields[12])) / TICKS, int(switches.split()[1])

    def end(self) -> None:
        """End it in order; kill it where that takes too long."""
        self._connection.close()
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def pss(pid: int) -> int:
    """Return the proportional set size of a process in bytes; 0 where it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def told(name: str, values: Sequence[float], unit: str, factor: float = 1.0) -> None:
    """Print the percentiles of some values."""
    ordered = sorted(value * factor for value in values)
    shown = {f"p{part}": ordered[min(len(ordered) - 1, len(ordered) * part // 100)] for part in (50, 95, 99)}
    figures = "  ".join(f"{part} {value:8.2f}" for part, value in shown.items())
    print(f"{name:34} {figures}  mean {statistics.fmean(ordered):8.2f}  {unit}")


def measure(daemons: Sequence[Daemon], arguments: argparse.Namespace, everywhere: Callable[..., list[object]]) -> None:
    """Run the commands, leave the daemons alone, and print what there is to tell."""
    mebibyte = 1 / (1 << 20)
    everywhere(Daemon.connect_anew)
    told("start-up", [daemon.start_up for daemon in daemons], "s")
    for command in ("true", "ls /etc >/dev/null"):
        rounds = [everywhere(lambda daemon, text=command: daemon.timed(text)) for _ in range(arguments.commands)]
        told(
            f"{command}, {arguments.at_once} at a time",
            [float(str(each)) for part in rounds for each in part],
            "ms",
            1e3,
        )
    before = [daemon.spent() for daemon in daemons]
    begun = time.monotonic()
    time.sleep(arguments.idle)
    seconds = time.monotonic() - begun
    after = [daemon.spent() for daemon in daemons]
    cpu = [100 * (now[0] - then[0]) / seconds for then, now in zip(before, after, strict=True)]
    woken = [(now[1] - then[1]) / seconds for then, now in zip(before, after, strict=True)]
    told(f"CPU at rest over {seconds:.0f} s", cpu, "% of a core")
    told("wake-ups at rest", woken, "a second")
    memory = [daemon.memory() for daemon in daemons]
    told("PSS of a daemon", [own for own, _ in memory], "MiB", mebibyte)
    told("PSS of its shell", [shell for _, shell in memory], "MiB", mebibyte)
    total = sum(own + shell for own, shell in memory) * mebibyte
    print(f"{'PSS in all':34} {total:.0f} MiB for {len(daemons)} daemons: {total / len(daemons):.1f} MiB each")


def main() -> None:
    """Start, measure, end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("daemons", type=int, nargs="?", default=10)
    parser.add_argument("--commands", type=int, default=10, help="how often each command is run in each daemon")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to leave them alone")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="how many start or work at a time")
    parser.add_argument("--program", default=f"{shlex.quote(sys.executable)} -m shelld_py", help="what starts a daemon")
    arguments = parser.parse_args()
    program = shlex.split(arguments.program)
    daemons: list[Daemon] = []
    with tempfile.TemporaryDirectory(prefix="density-") as scratch, ThreadPoolExecutor(arguments.at_once) as workers:

        def start(number: int) -> None:
            daemons.append(Daemon(program, Path(scratch) / str(number)))

        try:
            list(workers.map(start, range(arguments.daemons)))
            measure(daemons, arguments, lambda work: list(workers.map(work, daemons)))
        finally:
            list(workers.map(Daemon.end, daemons))


if __name__ == "__main__":
    main()
