"""Starting a bash: in a pseudo-terminal and a session of its own, bound to its limits from the first moment.

It knows the system calls between fork and execve, and nothing of the protocol.
"""

import contextlib
import fcntl
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ptyprocess import PtyProcess

from shelld_py.errors import ShellStartFailed
from shelld_py.linux import oom, processes
from shelld_py.linux.cgroups import ShellCgroup
from shelld_py.linux.syscalls import be_subreaper, die_with_parent
from shelld_py.linux.terminal import set_baseline_modes


@dataclass(frozen=True, slots=True)
class Confinement:
    """What bash, and with it all that it starts, is bound to from its first moment."""

    open_files: tuple[int, int]
    """RLIMIT_NOFILE, soft and hard."""
    process_ceiling: int | None = None
    """The soft RLIMIT_NPROC."""
    oom_score_adj: int | None = None
    cgroup: ShellCgroup | None = None
    """Entered if it can be: whoever needs to know asks it (`holds`)."""

    def with_descriptors(self, count: int) -> "Confinement":
        """Return the same with at least `count` descriptors. Raises `ShellStartFailed` where there are not so many."""
        soft, hard = self.open_files
        if hard != resource.RLIM_INFINITY and hard < count:
            raise ShellStartFailed(
                f"A shell needs {count} descriptors, and the hard limit is {hard} (RLIMIT_NOFILE, ulimit -Hn)."
            )
        if soft == resource.RLIM_INFINITY:
            return self
        return replace(self, open_files=(max(soft, count), hard))

    def enter(self) -> None:
        """Bind this process: called between fork and execve. Raises `OSError`."""
        if self.cgroup:
            with contextlib.suppress(OSError):
                entrance = os.open(self.cgroup.entrance, os.O_WRONLY | os.O_CLOEXEC)
                os.write(entrance, b"0")
                os.close(entrance)
        if self.oom_score_adj is not None:
            oom.set_adjustment(self.oom_score_adj)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.open_files)
        if self.process_ceiling is not None:
            hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            ceiling = self.process_ceiling if hard == resource.RLIM_INFINITY else min(self.process_ceiling, hard)
            resource.setrlimit(resource.RLIMIT_NPROC, (ceiling, hard))


def spawn(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: str,
    size: tuple[int, int],
    confinement: Confinement,
    standard_input: str,
) -> tuple[int, int]:
    """Start `argv`, and return its pid and the master side of its terminal.

    The terminal, of `size` (rows, columns), is its controlling terminal, its standard output and standard error;
    what it reads is the file at the path `standard_input`. It adopts the orphans of what it starts, and ends with
    this process. Call it on the main thread: PR_SET_PDEATHSIG is about the thread that forks. Raises `OSError`.
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

    process = PtyProcess.spawn(
        list(argv), cwd=directory, env=dict(environment), echo=False, preexec_fn=in_child, dimensions=size
    )
    master = fcntl.fcntl(process.fd, fcntl.F_DUPFD_CLOEXEC, 3)
    process.fileobj.close()
    process.closed = True
    return process.pid, master
