"""The open descriptors of this process: how many there are and may be, and some that are kept for emergencies.

Knows nothing of what they are used for.
"""

import contextlib
import os
import resource
from typing import Self

from shelld_py.errors import TooFewDescriptors


class Descriptor(int):
    """One that is closed at the end of its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self)


class DescriptorHolder:
    """What has one descriptor, and is closed at the end of a `with` block, or when nobody has it any more."""

    descriptor = -1

    def close(self) -> None:
        """Close it. May be called twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """A cancelled task drops what its thread answers; the descriptor must not stay open for that."""
        self.close()


def free() -> int:
    """Return how many descriptors can still be opened."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The size is their number since Linux 6.2 (proc_pid_fd(5)); before, it is 0, and they have to be listed.
    try:
        return limit - (os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")))
    except OSError:
        # A command of root's can hide /proc. The next number is about how many there are: the lowest that is free.
        return limit - _next_number(limit)


def _next_number(none: int) -> int:
    try:
        descriptor = os.open("/", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return none
    os.close(descriptor)
    return descriptor


def require(number: int) -> None:
    """Raises `TooFewDescriptors` where so many cannot be opened any more."""
    if (left := free()) < number:
        raise TooFewDescriptors(
            f"The daemon may open {max(0, left)} more files, and this takes {number} for a moment. "
            "Close a session, or raise the daemon's limit of open files (ulimit -n)."
        )


def raise_limit() -> tuple[int, int]:
    """Let this process open as many files as it may; return the limits that it had, soft and hard."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


class Reserve:
    """Descriptors that are kept open to be closed when none is left: others can then be opened in their place."""

    def __init__(self, size: int) -> None:
        """Nothing is kept before `fill`."""
        self._size = size
        self.kept: list[int] = []
        """Those that are open."""

    def fill(self) -> None:
        """Keep as many as are wanted, where there are more than these."""
        if not self.kept and free() >= 2 * self._size:
            with contextlib.suppress(OSError):
                while len(self.kept) < self._size:
                    self.kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> bool:
        """Close all that are kept; return whether there were any."""
        kept, self.kept = self.kept, []
        for descriptor in kept:
            os.close(descriptor)
        return bool(kept)

    def spent(self) -> bool:
        """Whether it had to be released, and there is too little to keep it again."""
        if not self.kept:
            self.fill()
        return not self.kept

    def spare(self) -> None:
        """Release it if hardly anything is left beside it: for what needs descriptors and must be possible."""
        if self.kept and free() < self._size // 2:
            self.release()
