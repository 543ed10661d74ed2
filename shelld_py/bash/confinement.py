"""What binds a shell, and all that it starts, from its first moment: limits of the kernel, and its cgroup.

It is entered between fork and execve, in bash's own process or in a keeper, and knows neither.
"""

import contextlib
import os
import resource

from msgspec import Struct
from msgspec.structs import replace

from shelld_py.errors import ShellStartFailed
from shelld_py.linux import oom
from shelld_py.linux.cgroups import ShellCgroup


class Confinement(Struct, frozen=True):
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
