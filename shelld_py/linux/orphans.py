"""Orphans: processes that lost their parent and became children of the daemon.

Each bash adopts the orphans of what it started (see processes.py). Only when a bash itself ends do its
descendants come to the daemon, which is a subreaper too, or PID 1 of a container. They are killed, and in
any case reaped when they end. Children that have an owner in the daemon are left to it: reaping those
here would steal their exit status. So would it for processes that a library starts; those are told by
their session, which is the daemon's own: each shell and each hook begins a new one, and what descends from
it is never in ours.

A program that uses a shell as a library may have children of any kind. There only those are orphans that bear a mark
in their environment, are in the session of a shell, or were seen below one.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from shelld_py.linux import processes
from shelld_py.linux.syscalls import be_subreaper, is_subreaper

_lock = threading.Lock()
_adopters: list[bool] = []
"""Those who want this process to be a subreaper now; the first entry says whether it was one before."""


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Have this process adopt the orphans below it for a while; then it is what it was before."""
    with _lock:
        _adopters.append(is_subreaper())
        be_subreaper()
    try:
        yield
    finally:
        with _lock:
            before = _adopters[0]
            _adopters.pop()
            if not _adopters:
                be_subreaper(yes=before)


class Reaper:
    """Knows which children of this process have an owner; the others are orphans."""

    def __init__(self, mark: str = "") -> None:
        """With `mark` (NAME=VALUE of the environment) only what is known to be of a shell is an orphan."""
        self._mark = mark.encode()
        self._owned: set[int] = set()
        self._session = 0
        self._known: set[tuple[int, int]] = set()
        """Pid and start of processes that were seen below a shell: a dead one's environment can't be read."""

    def own(self, pid: int) -> None:
        """Declare that somebody waits for `pid`. Call it before the event loop runs again."""
        self._owned.add(pid)
        self._session = pid

    def know(self, stats: Iterable[processes.ProcessStat]) -> None:
        """Declare that these were started by a shell; they may become children of this process."""
        if self._mark:
            self._known.update((stat.pid, stat.start_ticks) for stat in stats)

    def disown(self, pid: int) -> None:
        """Declare that `pid` has been waited for."""
        self._owned.discard(pid)

    def orphans(self) -> list[int]:
        """Return the pids of children without an owner."""
        candidates = [pid for pid in processes.children(os.getpid()) if pid not in self._owned]
        return [pid for pid in candidates if (stat := processes.process_stat(pid)) and self._is_orphan(stat)]

    def reap(self) -> None:
        """Collect the orphans that have ended; on SIGCHLD."""
        for pid in self.orphans():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def kill(self) -> None:
        """Kill all orphans and what descends from them."""
        for pid in self.orphans():
            processes.kill_descendants(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.reap()

    def _is_orphan(self, stat: processes.ProcessStat) -> bool:
        if not self._mark:
            return stat.session != os.getsid(0)
        known = (stat.pid, stat.start_ticks) in self._known or stat.session == self._session
        if not known:
            with contextlib.suppress(OSError):
                known = self._mark in Path(f"/proc/{stat.pid}/environ").read_bytes().split(b"\0")
        if known:
            self.know((stat,))
        return known

    def kill_all(self) -> list[processes.ProcessStat]:
        """Kill every descendant of this process, those with an owner too, and return them: for the last moment."""
        return processes.kill_descendants(os.getpid())
