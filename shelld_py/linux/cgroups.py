"""cgroups of version 2: one for each shell, where the kernel lets us have them.

It knows directories and files of the hierarchy (Documentation/admin-guide/cgroup-v2.rst of the kernel), and nothing of
runs or states. Where anything is refused, `Cgroups.take` raises `CgroupsUnavailable` with the reason, having left
nothing behind, and limits are sampled instead.

What is made
    OWN                     the cgroup that the daemon was started in; it must have been delegated to it
    OWN/shelld-TOKEN        made by this daemon, and locked (flock(2)) for as long as it lives
    OWN/shelld-TOKEN/daemon the daemon itself, unless OWN is the root of the hierarchy
    OWN/shelld-TOKEN/1 ...  one for each bash, with all that it starts

Why the daemon moves
    A controller is handed to the children of a cgroup by naming it in `cgroup.subtree_control`, which is refused as
    long as the cgroup has processes of its own ("no internal processes"; only the root of the hierarchy may have
    both). So the daemon moves itself into a leaf, and with it those it descends from that are there too: an init of a
    container, or the shell that started the daemon. With anybody else in OWN, it is not ours to divide.

What tells that OWN is ours
    systemd marks what it has delegated (`Delegate=yes`) with the extended attribute `user.delegate`; the root of a
    cgroup namespace belongs to its container; the root of the hierarchy to whoever is root where no systemd runs; and
    a cgroup whose files belong to the daemon's user, who is not root, has been given to that user.

What is left behind by a daemon that was killed
    Its directory is not locked any more. The next daemon that is started in OWN, or in the leaf (by a supervisor that
    was moved there), kills what else lives there and removes it.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from shelld_py.linux import processes
from shelld_py.linux.cgroup_paths import OwnCgroup
from shelld_py.linux.descriptors import Descriptor

CONTROLLERS: Final = ("memory", "pids")
"""What is asked for. The CPU time of a cgroup is counted without a controller."""

_PREFIX: Final = "shelld-"
_LEAF: Final = "daemon"
_BOOTED_BY_SYSTEMD: Final = Path("/run/systemd/system")
_ATTRIBUTES: Final = ("user.delegate", "trusted.delegate")
_MICROSECONDS: Final = 1e6
_TIMEOUT: Final = 1.0
_PAUSE: Final = 0.002
_PAGE: Final = 4096
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class CgroupsUnavailable(Exception):
    """Why there are no cgroups for shells."""


class CgroupEvents(Struct, frozen=True):
    """How often something has happened in a cgroup since it was made."""

    killed: int = 0
    """Processes that the kernel killed for want of memory (`oom_kill`)."""
    exhausted: int = 0
    """How often memory.max of this cgroup left no way out but that (`oom`)."""
    refused: int = 0
    """Forks that pids.max has refused (`max`)."""


class ShellCgroup:
    """The cgroup of one bash and all that it starts. Made by `Cgroups.create`."""

    def __init__(self, directory: Path, controllers: Iterable[str]) -> None:
        self.directory = directory
        self.controllers = frozenset(controllers)
        self._files: dict[str, int] = {}
        """Descriptors of files that have been read: reading again is much quicker than opening."""
        self._peak_before: int | None = None
        """memory.peak when the run began; None where the kernel counts from there (Linux 6.12)."""

    @property
    def entrance(self) -> str:
        """The file into which a process writes `0` to move itself here."""
        return f"{self.directory}/cgroup.procs"

    def limit(self, *, memory: int | None, tasks: int | None) -> None:
        """Set memory.max in bytes, without swap on top of it, and pids.max. Raises `OSError`.

        What exceeds its memory is killed as a whole (memory.oom.group): a shell with a part missing is of no use.
        """
        if memory is not None:
            self._write("memory.max", str(memory))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                if (self.directory / name).exists():
                    self._write(name, value)
        if tasks is not None:
            self._write("pids.max", str(tasks))

    def holds(self, pid: int) -> bool:
        """Whether the process `pid` is here, and not in a cgroup below."""
        return pid in pids_in(self.directory)

    def processes(self) -> int:
        """Return how many processes live here and below."""
        return sum(len(pids_in(directory)) for directory in _tree(self.directory))

    def cpu_seconds(self) -> float:
        """Return the CPU time used here, that of ended processes included."""
        return self._table("cpu.stat").get("usage_usec", 0) / _MICROSECONDS

    def memory(self) -> int | None:
        """Return the bytes in use; page cache and the kernel's own count. None without the controller."""
        return self._number("memory.current")

    def inactive_files(self) -> int:
        """Return the bytes of file pages that have not been used lately: the kernel drops them before it kills."""
        return self._table("memory.stat").get("inactive_file", 0)

    def begin_peak(self) -> None:
        """Measure the peak of the memory in use from now on, as far as the kernel can."""
        self._peak_before = None
        try:
            os.pwrite(self._file("memory.peak", os.O_RDWR), b"0", 0)
        except OSError:
            self._peak_before = self._number("memory.peak")

    def peak(self) -> int | None:
        """Return the most bytes in use since `begin_peak`; None where the kernel does not know."""
        peak = self._number("memory.peak")
        if peak is None or self._peak_before is None:
            return peak
        return peak if peak > self._peak_before else None

    def events(self) -> CgroupEvents:
        """Return what has happened so far, here and below."""
        memory, tasks = self._table("memory.events"), self._table("pids.events")
        return CgroupEvents(memory.get("oom_kill", 0), memory.get("oom", 0), tasks.get("max", 0))

    def kill(self) -> bool:
        """Kill all that lives here at once (cgroup.kill, Linux 5.14). Returns whether the kernel can do that."""
        try:
            self._write("cgroup.kill", "1")
        except OSError:
            return False
        return True

    def remove(self) -> bool:
        """Remove it, and what was made below it. Returns whether it is gone: it is not while anything lives there."""
        for descriptor in self._files.values():
            if descriptor >= 0:
                os.close(descriptor)
        self._files.clear()
        return _remove(self.directory)

    def _write(self, name: str, value: str) -> None:
        _write(self.directory / name, value)

    def _file(self, name: str, mode: int = os.O_RDONLY) -> int:
        """Return a descriptor of a file, kept until the end; -1 where there is none. What cannot be written is read."""
        if name not in self._files:
            self._files[name] = -1
            for attempt in dict.fromkeys((mode, os.O_RDONLY)):
                with contextlib.suppress(OSError):
                    self._files[name] = os.open(f"{self.directory}/{name}", attempt | os.O_CLOEXEC)
                    break
        return self._files[name]

    def _words(self, name: str) -> list[bytes]:
        descriptor = self._file(name)
        if descriptor < 0:
            return []
        with contextlib.suppress(OSError):
            return os.pread(descriptor, _PAGE, 0).split()
        return []

    def _number(self, name: str) -> int | None:
        words = self._words(name)
        return int(words[0]) if words and words[0].isdigit() else None

    def _table(self, name: str) -> dict[str, int]:
        """Return a file of lines `NAME NUMBER`."""
        words = self._words(name)
        return {key.decode(): int(value) for key, value in zip(words[::2], words[1::2], strict=False)}


class Cgroups:
    """The daemon's part of the hierarchy: `take` it, `create` cgroups for shells, `close` it."""

    def __init__(self, own: Path) -> None:
        self._own = own
        self.directory = own / f"{_PREFIX}{secrets.token_hex(4)}"
        self._lock = -1
        self._enabled: list[str] = []
        self._count = 0
        self.controllers: frozenset[str] = frozenset()
        """The controllers that shells have."""

    @classmethod
    def take(cls, place: OwnCgroup | None, logger: logging.Logger) -> "Cgroups":
        """Make a part of `place` the daemon's. Raises `CgroupsUnavailable`."""
        if place is None:
            raise CgroupsUnavailable("no hierarchy of version 2 is mounted")
        own = _outside_of_a_stale_leaf(place.directory)
        reason = _refusal(own, place.top)
        if reason:
            raise CgroupsUnavailable(f"{own}: {reason}")
        cgroups = cls(own)
        try:
            cgroups._set_up(place.directory)
        except OSError as error:
            cgroups.close()
            raise CgroupsUnavailable(f"{error.filename or own}: {error.strerror}") from None
        except CgroupsUnavailable:
            cgroups.close()
            raise
        for left in remove_stale(own):
            logger.info("cgroups: removed %s, which an earlier daemon has left", left)
        return cgroups

    def create(self) -> ShellCgroup:
        """Make a cgroup for a shell. Raises `OSError`."""
        self._count += 1
        directory = self.directory / str(self._count)
        directory.mkdir()
        return ShellCgroup(directory, self.controllers)

    def close(self) -> None:
        """Kill what lives in the cgroups of shells, remove them, and move back to where the daemon came from."""
        leaf = self.directory / _LEAF
        for directory in _below(self.directory):
            if directory != leaf:
                _clear(directory)
        for name in self._enabled:
            with contextlib.suppress(OSError):
                _write(self.directory / "cgroup.subtree_control", f"-{name}")
            with contextlib.suppress(OSError):
                _write(self._own / "cgroup.subtree_control", f"-{name}")
        for pid in pids_in(leaf):
            with contextlib.suppress(OSError):
                _write(self._own / "cgroup.procs", str(pid))
        _remove(self.directory)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _set_up(self, start: Path) -> None:
        """Make what is to be made; `start` is where the daemon is: in its own cgroup, or in a leaf that is stale."""
        self.directory.mkdir()
        self._lock = os.open(self.directory, _DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        offered = _words(self._own / "cgroup.controllers")
        wanted = [name for name in CONTROLLERS if name in offered]
        missing = [name for name in wanted if name not in _words(self._own / "cgroup.subtree_control")]
        if (missing and not is_root(self._own)) or start != self._own:
            self._move_to_leaf(start)
        if start != self._own:
            self._enabled += wanted
        for name in missing:
            _write(self._own / "cgroup.subtree_control", f"+{name}")
            self._enabled.append(name)
        for name in wanted:
            _write(self.directory / "cgroup.subtree_control", f"+{name}")
        self.controllers = frozenset(wanted)

    def _move_to_leaf(self, start: Path) -> None:
        """Move the daemon, and those it descends from, out of where they are and into a leaf."""
        lineage = _lineage(os.getpid())
        present = pids_in(self._own)
        others = sorted(present - lineage)
        if others:
            raise CgroupsUnavailable(f"{self._own}: other processes live there: {', '.join(map(str, others[:5]))}")
        leaf = self.directory / _LEAF
        leaf.mkdir()
        for pid in present | (pids_in(start) & lineage):
            _write(leaf / "cgroup.procs", str(pid))


def is_root(directory: Path) -> bool:
    """Whether `directory` is the root of the whole hierarchy: that alone has no type (cgroup-v2.rst)."""
    return not (directory / "cgroup.type").exists()


def pids_in(directory: Path) -> set[int]:
    """Return the processes in a cgroup itself; 0 stands for those that this PID namespace cannot see."""
    with contextlib.suppress(OSError):
        return {int(line) for line in (directory / "cgroup.procs").read_text(encoding="ascii").split()}
    return set()


def remove_stale(own: Path) -> list[Path]:
    """Remove what daemons that are gone have left in `own`; return what was removed."""
    return [
        directory for directory in _below(own) if directory.name.startswith(_PREFIX) and _remove_unlocked(directory)
    ]


def _remove_unlocked(directory: Path) -> bool:
    with contextlib.suppress(OSError), Descriptor(os.open(directory, _DIRECTORY)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _clear(directory)
    return False


def _outside_of_a_stale_leaf(start: Path) -> Path:
    """Return what an earlier daemon, which is gone, had as its own, where `start` is the leaf that it made."""
    made = start.parent
    if start.name != _LEAF or not made.name.startswith(_PREFIX):
        return start
    with Descriptor(os.open(made, _DIRECTORY)) as lock, contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return made.parent
    return start


def _refusal(own: Path, top: Path) -> str | None:
    """Return why the cgroup `own` is not the daemon's to divide; None where it is. `top` is what is mounted."""
    if not (own / "cgroup.procs").exists():
        return "it is not visible here"
    if not os.access(own, os.W_OK) or not os.access(own / "cgroup.procs", os.W_OK):
        return "it cannot be written"
    if is_root(own):
        return "it is systemd's" if _BOOTED_BY_SYSTEMD.exists() else None
    user = os.getuid()
    if own == top or _marked_as_delegated(own) or (user and own.stat().st_uid == user):
        return None
    return "it was not delegated to the daemon (for a service of systemd: Delegate=yes)"


def _marked_as_delegated(directory: Path) -> bool:
    for name in _ATTRIBUTES:
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return True
    return False


def _lineage(pid: int) -> set[int]:
    """Return `pid` and those it descends from."""
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = processes.process_stat(pid)
        pid = stat.parent if stat else 0
    return found


def _clear(directory: Path) -> bool:
    """Kill what lives in a cgroup and below, wait for its end, and remove it. Returns whether it is gone."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        with contextlib.suppress(OSError):
            _write(directory / "cgroup.kill", "1")
        for pid in {pid for below in _tree(directory) for pid in pids_in(below)} - {0, os.getpid()}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if _remove(directory) or time.monotonic() > deadline:
            return not directory.exists()
        time.sleep(_PAUSE)


def _remove(directory: Path) -> bool:
    """Remove a cgroup and those below it, as far as they are empty."""
    for below in reversed(_tree(directory)):
        with contextlib.suppress(OSError):
            below.rmdir()
    return not directory.exists()


def _tree(directory: Path) -> list[Path]:
    """Return a cgroup and all below it, parents before their children."""
    found = [directory]
    for above in found:
        found += _below(above)
    return found


def _below(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [Path(entry.path) for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False)]
    return []


def _write(file: Path, value: str) -> None:
    with Descriptor(os.open(file, os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
        try:
            os.write(descriptor, value.encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(file)) from None


def _words(file: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="ascii").split()
    return []
