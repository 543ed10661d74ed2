"""Orphans: processes that lost their parent and became children of the daemon.

Each bash adopts the orphans of what it started (see processes.py). Only when a bash itself ends do its
descendants come to the daemon, which is a subreaper too, or PID 1 of a container. They are killed, and in
any case reaped when they end. Children that have an owner in the daemon are left to it: reaping those
here would steal their exit status. So would it for processes that a library starts; those are told by
their session, which is the daemon's own: each shell and each hook begins a new one, and what descends from
it is never in ours.
"""

import contextlib
import os
import signal

from shelld_py.linux import processes


class Reaper:
    """Knows which children of this process have an owner; the others are orphans."""

    def __init__(self) -> None:
        self._owned: set[int] = set()

    def own(self, pid: int) -> None:
        """Declare that somebody waits for `pid`. Call it before the event loop runs again."""
        self._owned.add(pid)

    def disown(self, pid: int) -> None:
        """Declare that `pid` has been waited for."""
        self._owned.discard(pid)

    def orphans(self) -> list[int]:
        """Return the pids of children without an owner."""
        ours = os.getsid(0)
        candidates = [pid for pid in processes.children(os.getpid()) if pid not in self._owned]
        return [pid for pid in candidates if (stat := processes.process_stat(pid)) and stat.session != ours]

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

    def kill_all(self) -> list[processes.ProcessStat]:
        """Kill every descendant of this process, those with an owner too, and return them: for the last moment."""
        return processes.kill_descendants(os.getpid())
