"""The process tree as the kernel shows it: who descends from whom, what they use, and how to end them.

Everything is read from /proc (proc(5)) at the moment it is asked for; nothing is kept. It knows nothing of
shells, runs or HTTP.

Who belongs to a shell
    Each bash is made a child subreaper before it is executed (PR_SET_CHILD_SUBREAPER of prctl(2), which
    survives execve(2)). A process whose parent dies is then handed to that bash and not to PID 1, also
    when it has made itself a session of its own. So "what the shell started" is exactly the tree below
    its pid, without a marker in the environment that a program could drop.
"""

import contextlib
import math
import os
import resource
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from shelld_py.linux.descriptors import Descriptor
from shelld_py.linux.syscalls import copied_descriptor

CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")

_LONGEST_ENTRY: Final = 16
"""Bytes of a pid in a list of children and of what is between two: 8. One read gives a page of them at most, so a page
that has room for another is the last one."""
_PF_EXITING: Final = 0x4
_HARMLESS: Final = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGURG,
        signal.SIGWINCH,
    }
)
"""Those whose default action does not end a process (signal(7))."""
_MOST_ROUNDS: Final = 16
"""How often the children of a root are read for one walk: what forks for ever would never let it end."""


class Pidfd:
    """A child of ours that is signalled by a descriptor (pidfd_open(2)), and so never as one that has its pid later."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)
        """Readable when it has ended."""

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.descriptor, number)

    def copies(self, descriptors: Iterable[int]) -> list[int]:
        """Return copies of its descriptors, of those that there are and can be had."""
        copies = (copied_descriptor(self.descriptor, number) for number in descriptors)
        return [copy for copy in copies if copy is not None]

    def close(self) -> None:
        """Give the descriptor up."""
        os.close(self.descriptor)
        self.descriptor = -1


class ProcessStat(Struct, frozen=True):
    """The fields of /proc/PID/stat that are used here; times in seconds, memory in bytes."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    terminal: int
    cpu_seconds: float
    reaped_cpu_seconds: float
    start_ticks: int
    memory: int
    flags: int
    blocked: int
    ignored: int
    caught: int
    wait_status: int
    """How it ends, as wait(2) says it; 0 before that is decided, and for the processes of others."""

    @property
    def alive(self) -> bool:
        """Whether it can still run: not a zombie, not dead."""
        return self.state not in "ZXx"

    def blocks(self, number: int) -> bool:
        """Whether it has blocked the signal `number`."""
        return bool(self.blocked & 1 << (number - 1))

    def catches(self, number: int) -> bool:
        """Whether it has a handler for the signal `number`."""
        return bool(self.caught & 1 << (number - 1))

    def dies_of(self, number: int) -> bool:
        """Whether the signal `number` would end it at once."""
        held_off = (self.blocked | self.ignored | self.caught) & 1 << (number - 1)
        return number not in _HARMLESS and not held_off and self.state not in "Tt"

    @property
    def ending(self) -> bool:
        """Whether it is about to be gone, so that it takes no signals any more (PF_EXITING in linux/sched.h)."""
        return not self.alive or bool(self.flags & _PF_EXITING)


class Used(NamedTuple):
    """What a process has used: CPU seconds, of what it has waited for as well, and bytes of memory now."""

    cpu_seconds: float
    memory: int


def parse_used(line: bytes) -> Used:
    """Return what `line`, the content of /proc/PID/stat, says of that: a tenth of the work of `parse_stat`."""
    fields = line[line.rfind(b")") + 2 :].split(None, 22)
    ticks = int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
    return Used(ticks / CLOCK_TICKS, int(fields[21]) * PAGE_SIZE)


def process_stat(pid: int) -> ProcessStat | None:
    """Return what the kernel says of `pid`, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return parse_stat(pid, file.read(1024))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def parse_stat(pid: int, line: bytes) -> ProcessStat:
    """Return what `line`, the content of /proc/PID/stat, says. The name may hold spaces and parentheses."""
    opening, closing = line.find(b"("), line.rfind(b")")
    fields = line[closing + 2 :].split()
    return ProcessStat(
        pid=pid,
        name=line[opening + 1 : closing].decode("utf-8", "replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        terminal=int(fields[4]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / CLOCK_TICKS,
        reaped_cpu_seconds=(int(fields[13]) + int(fields[14])) / CLOCK_TICKS,
        start_ticks=int(fields[19]),
        memory=int(fields[21]) * PAGE_SIZE,
        flags=int(fields[6]),
        blocked=int(fields[29]),
        ignored=int(fields[30]),
        caught=int(fields[31]),
        wait_status=int(fields[49]),
    )


def children(pid: int) -> list[int]:
    """Return the pids of the children of `pid`, zombies among them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                piece = b"-" * PAGE_SIZE
                while len(piece) > PAGE_SIZE - _LONGEST_ENTRY:
                    piece = file.read(PAGE_SIZE)
                    found.extend(map(int, piece.split()))
    return found


def descendants(pid: int) -> Iterator[ProcessStat]:
    """Yield every process below `pid`, a subreaper, that is alive; parents before their children.

    A process whose parent ends while the tree is walked becomes a child of `pid`, whose children have been read by
    then. So they are read again until there are no new ones: none is missed that was there before.
    """
    seen: set[int] = set()
    for _ in range(_MOST_ROUNDS):
        queue = [child for child in children(pid) if child not in seen]
        if not queue:
            return
        seen.update(queue)
        while queue:
            child = queue.pop(0)
            stat = process_stat(child)
            if stat is None:
                continue
            if stat.alive:
                yield stat
            below = [pid for pid in children(child) if pid not in seen]
            seen.update(below)
            queue.extend(below)


class TreeUsage(Struct, frozen=True):
    """What a process and all below it use: CPU seconds since their start, resident bytes, their number."""

    cpu_seconds: float
    memory: int
    processes: int


def tree(pid: int) -> list[ProcessStat]:
    """Return `pid` and all that lives below it."""
    root = process_stat(pid)
    return [root, *descendants(pid)] if root else []


def tree_usage(pid: int) -> TreeUsage:
    """Return what `pid` and its descendants use now, the CPU time of those that have ended included."""
    return usage_of(tree(pid))


def usage_of(members: Sequence[ProcessStat]) -> TreeUsage:
    """Return what `members` use together."""
    return TreeUsage(
        cpu_seconds=sum(stat.cpu_seconds + stat.reaped_cpu_seconds for stat in members),
        memory=sum(stat.memory for stat in members),
        processes=len(members),
    )


def command_line(pid: int) -> str:
    """Return the words of the command of `pid`, or its name in brackets when it shows none."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
        if words:
            return words[:4096].decode("utf-8", "replace")
    stat = process_stat(pid)
    return f"[{stat.name}]" if stat else ""


def executable(pid: int) -> str:
    """Return the path of the program that `pid` executes; empty where that cannot be known."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe")
    return ""


def run_time(pid: int) -> float:
    """Return the seconds for which `pid` has been on a CPU, to the nanosecond; infinity where that is not counted."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/schedstat", "rb", buffering=0) as file:
        return int(file.read(64).split()[0]) / 1e9
    return math.inf


def starved_time(pid: int) -> float:
    """Return the seconds for which `pid` could have run, but had to wait for a CPU; 0 where that is not counted.

    The kernel counts a wait when it is over.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/schedstat", "rb", buffering=0) as file:
        return int(file.read(64).split()[1]) / 1e9
    return 0.0


def working_directory(pid: int) -> str | None:
    """Return the physical working directory of `pid`; the kernel adds ` (deleted)` to one that is gone."""
    try:  # it is asked for each command
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def send_signal(stat: ProcessStat, number: int) -> bool:
    """Signal the very process that `stat` describes, never one that has got its pid since.

    Returns whether it was there and could be signalled.
    """
    with contextlib.suppress(OSError), Descriptor(os.pidfd_open(stat.pid)) as handle:
        now = process_stat(stat.pid)
        if now and now.start_ticks == stat.start_ticks:
            signal.pidfd_send_signal(handle, number)
            return True
    return False


def kill_descendants(pid: int, *, spare: Iterable[int] = ()) -> list[ProcessStat]:
    """Send SIGKILL to everything below `pid`, apart from the processes `spare` and what is below them.

    Stops all of them before it kills any, and looks again until a look finds nothing new, so that a fork
    storm cannot outrun it. Returns the processes that were signalled; they may need a moment to be gone.
    """
    spared = set(spare)
    signalled: dict[tuple[int, int], ProcessStat] = {}
    for _ in range(50):
        found = [stat for stat in _below(pid, spared) if (stat.pid, stat.start_ticks) not in signalled]
        if not found:
            break
        for stat in found:
            send_signal(stat, signal.SIGSTOP)
        for stat in found:
            send_signal(stat, signal.SIGKILL)
            signalled[stat.pid, stat.start_ticks] = stat
    return list(signalled.values())


def still_alive(stat: ProcessStat) -> bool:
    """Return whether the very process that `stat` describes still runs."""
    now = process_stat(stat.pid)
    return now is not None and now.alive and now.start_ticks == stat.start_ticks


def _below(pid: int, spared: set[int]) -> Iterator[ProcessStat]:
    """Yield what lives below `pid`, without the trees of `spared`."""
    hidden = set(spared)
    for stat in descendants(pid):
        if stat.pid in hidden or stat.parent in hidden:
            hidden.add(stat.pid)
        else:
            yield stat


@contextlib.contextmanager
def files_of_any_size(pid: int) -> Iterator[None]:
    """Let `pid` write files of any size meanwhile, or as large as its hard limit allows where we may not raise that.

    The limit holds for memory files as well, and whoever exceeds it gets SIGXFSZ.
    """
    no_limit = resource.RLIM_INFINITY
    before = None
    with contextlib.suppress(OSError):
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        try:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (no_limit, no_limit))
        except (PermissionError, ValueError):  # ValueError is what Python makes of EPERM
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (before[1], before[1]))
    try:
        yield
    finally:
        if before:
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def default_signals() -> None:
    """Set every signal to its default action and unblock all.

    Python ignores SIGPIPE, and a daemon that was started in the background ignores SIGINT: both would be
    inherited through execve(2), and then `yes | head` complains and an interrupt does nothing.
    """
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
