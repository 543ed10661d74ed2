"""Starting a bash: in a pseudo-terminal and a session of its own, bound to its limits from the first moment.

It knows the system calls between fork and execve, and nothing of the protocol.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Mapping, Sequence
from typing import Final

from ptyprocess import PtyProcess

from shelld_py.bash.confinement import Confinement
from shelld_py.linux import processes
from shelld_py.linux.syscalls import be_subreaper, die_with_parent
from shelld_py.linux.terminal import set_baseline_modes
from shelld_py.linux.users import User

_STEP: Final = 0.25
"""Seconds after which is looked again how many starts go on."""
_starting: Final[set[asyncio.Event]] = set()


def spawn(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: str,
    size: tuple[int, int],
    confinement: Confinement,
    standard_input: str,
    user: User | None = None,
) -> tuple[int, int]:
    """Start `argv`, and return its pid and the master side of its terminal.

    The terminal, of `size` (rows, columns), is its controlling terminal, its standard output and standard error;
    what it reads is the file at the path `standard_input`. With `user` it, and its terminal, are theirs. It adopts the
    orphans of what it starts, and ends with this process. Call it on the main thread: PR_SET_PDEATHSIG is about the
    thread that forks. Raises `OSError`.
    """
    daemon = os.getpid()

    def in_child() -> None:
        die_with_parent()
        if os.getppid() != daemon:
            os._exit(1)
        be_subreaper()
        processes.default_signals()
        confinement.enter()
        set_baseline_modes(0)
        lines = os.open(standard_input, os.O_RDONLY)
        os.dup2(lines, 0)
        os.close(lines)
        if user:
            os.fchown(1, user.uid, -1)
            user.become()
            if os.getppid() != daemon:
                os._exit(1)
            os.chdir(directory)  # once more, for it may be closed to them

    process = PtyProcess.spawn(
        list(argv), cwd=directory, env=dict(environment), echo=False, preexec_fn=in_child, dimensions=size
    )
    master = fcntl.fcntl(process.fd, fcntl.F_DUPFD_CLOEXEC, 3)
    process.fileobj.close()
    process.closed = True
    return process.pid, master


async def in_time(ready: asyncio.Event, seconds: float) -> bool:
    """Return whether `ready` is set within so many seconds: each start that goes on has those of a processor's share.

    A startup file can take a second of a processor, and a framework start a hundred shells at once: all would be late.
    """
    processors = len(os.sched_getaffinity(0))
    _starting.add(ready)
    try:
        while seconds > 0 and not ready.is_set():
            share = min(1.0, processors / len(_starting))
            step = min(_STEP, seconds / share)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ready.wait(), step)
            seconds -= step * share
    finally:
        _starting.discard(ready)
    return ready.is_set()
