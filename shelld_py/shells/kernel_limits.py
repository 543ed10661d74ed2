"""The limits of shells that the kernel holds: a cgroup for each shell, its limits set, where that can be had.

Says in the log where limits are sampled instead, and why. How cgroups are made and removed is in cgroups.py, what is
looked at while a command runs in limits.py.
"""

import logging
from typing import Final

from shelld_py.config import CgroupUse, LimitSettings
from shelld_py.linux import cgroup_paths
from shelld_py.linux.cgroups import Cgroups, CgroupsUnavailable, ShellCgroup
from shelld_py.shells.limits import task_ceiling

_MEBIBYTE: Final = 1024 * 1024


class KernelLimits:
    """Gives out cgroups for shells between `take` and `release`; none at any other time."""

    def __init__(self, limits: LimitSettings, logger: logging.Logger) -> None:
        self._limits = limits
        self._logger = logger
        self._cgroups: Cgroups | None = None

    def take(self) -> None:
        """Make part of the hierarchy ours, where a limit gains by it and the system lets us."""
        if not limits_for_cgroups(self._limits):
            return
        try:
            self._cgroups = Cgroups.take(cgroup_paths.unified(), self._logger)
        except CgroupsUnavailable as reason:
            self._logger.info("limits: sampled, for there are no cgroups: %s", reason)
            return
        needed = {"memory": self._limits.memory_mb, "pids": self._limits.processes}
        missing = [name for name, limit in needed.items() if limit and name not in self._cgroups.controllers]
        lacking = f", without the controllers {', '.join(missing)}: those limits are sampled" if missing else ""
        self._logger.info("limits: in cgroups below %s%s", self._cgroups.directory, lacking)

    def release(self) -> None:
        """Remove the cgroups, and kill what is left there."""
        if self._cgroups:
            self._cgroups.close()
            self._cgroups = None

    def make_cgroup(self) -> ShellCgroup | None:
        """Return a cgroup for a shell, its limits set; None where its limits are to be sampled."""
        if self._cgroups is None:
            return None
        try:
            cgroup = self._cgroups.create()
        except OSError as error:
            self._logger.warning("limits: sampled for this shell, for it has no cgroup: %s", error)
            return None
        try:
            confine(cgroup, self._limits)
        except OSError as error:
            self._logger.warning("limits: sampled for this shell, for its cgroup has no limits: %s", error)
            cgroup.remove()
            return None
        return cgroup


def confine(cgroup: ShellCgroup, limits: LimitSettings) -> None:
    """Have the kernel hold what it can of `limits`. Raises `OSError`."""
    memory = int(limits.memory_mb * _MEBIBYTE) if limits.memory_mb and "memory" in cgroup.controllers else None
    cgroup.limit(memory=memory, tasks=task_ceiling(limits) if "pids" in cgroup.controllers else None)


def limits_for_cgroups(limits: LimitSettings) -> bool:
    """Return whether a cgroup would help to hold `limits`, and may be used."""
    return limits.cgroups is CgroupUse.AUTO and any((limits.cpu_percent, limits.memory_mb, limits.processes))
