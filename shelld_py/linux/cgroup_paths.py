"""Where in the file system the cgroups of this process lie, in version 2 and version 1. Reading only.

Two files of /proc/self tell (cgroups(7), proc(5)): `cgroup` names the process's cgroup in each hierarchy, as seen
from the root of its cgroup namespace, and `mountinfo` says which part of a hierarchy is mounted where. Distributions
mount version 2 at /sys/fs/cgroup, at /sys/fs/cgroup/unified beside version 1, or not at all; so nothing is assumed.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

PROC_SELF: Final = Path("/proc/self")

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


class OwnCgroup(Struct, frozen=True):
    """A cgroup of this process: its directory, and the top of what is mounted of its hierarchy."""

    directory: Path
    top: Path

    def upwards(self) -> Iterator[Path]:
        """Yield the directory and those above it, up to the top."""
        yield self.directory
        if self.directory != self.top:
            for above in self.directory.parents:
                yield above
                if above == self.top:
                    break


class _Mount(Struct, frozen=True):
    root: str
    point: str
    kind: str
    controllers: frozenset[str]


def unified(proc: Path = PROC_SELF) -> OwnCgroup | None:
    """Return the process's cgroup in the hierarchy of version 2; None where that cannot be seen from here."""
    return _place(proc, "cgroup2", None)


def version_1(controller: str, proc: Path = PROC_SELF) -> OwnCgroup | None:
    """Return the process's cgroup in the hierarchy of version 1 that has `controller`; None without one."""
    return _place(proc, "cgroup", controller)


def _place(proc: Path, kind: str, controller: str | None) -> OwnCgroup | None:
    path = _path(proc, controller)
    if path is None:
        return None
    for mount in _mounts(proc):
        if mount.kind != kind or (controller is not None and controller not in mount.controllers):
            continue
        top = Path(mount.point)
        inside = os.path.relpath(path, mount.root)
        # `/..` is what lies outside of the cgroup namespace: which directory that is, it does not tell.
        if ".." not in [*path.split("/"), *mount.root.split("/"), *inside.split("/")]:
            return OwnCgroup(top / inside, top)
    return None


def _path(proc: Path, controller: str | None) -> str | None:
    """Return the path of the process's cgroup: `0::PATH` for version 2, `N:CONTROLLERS:PATH` for version 1."""
    with contextlib.suppress(OSError):
        for line in (proc / "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            number, controllers, path = line.split(":", 2)
            if (number == "0" and not controllers) if controller is None else controller in controllers.split(","):
                return path
    return None


def _mounts(proc: Path) -> Iterator[_Mount]:
    """Yield what is mounted: lines `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS`."""
    with contextlib.suppress(OSError):
        for line in (proc / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = after.split(" ", 2)
            root, point = before.split(" ")[3:5]
            yield _Mount(_unescaped(root), _unescaped(point), kind, frozenset(options.split(",")))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
