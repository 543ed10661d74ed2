"""What a client may know of the machine: its system, its shell, and what it may really use.

Read from the kernel and from files; what forks, the question for the shell's version, is for the caller to ask once.
"""

import asyncio
import contextlib
import math
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shelld_py import models
from shelld_py.config import LimitSettings, TimeoutSettings
from shelld_py.errors import ConfigError
from shelld_py.linux import cgroup_paths
from shelld_py.linux.users import User
from shelld_py.units import MEBIBYTE

_VERSION_TIMEOUT: Final = 5.0
_OLDEST_BASH: Final = (4, 4)
_TELL_VERSION: Final = 'printf %s "${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]}"'
_QUOTA_WORDS: Final = 2
_ESCAPED: Final = re.compile(r"\\([$`])")
"""What os-release(5) escapes in double quotes and `shlex` leaves escaped."""
_CPU_VARIABLES: Final = (
    "CARGO_BUILD_JOBS",
    "CMAKE_BUILD_PARALLEL_LEVEL",
    "GOMAXPROCS",
    "OMP_NUM_THREADS",
    "PYTEST_XDIST_AUTO_NUM_WORKERS",
    "PYTHON_CPU_COUNT",
    "RAYON_NUM_THREADS",
)
"""What sets the number of jobs or threads. nproc(1), and so `make -j$(nproc)`, obeys OMP_NUM_THREADS."""


class Metadata(models.Metadata[LimitSettings, TimeoutSettings], frozen=True, kw_only=True):
    """What a client may know of the machine and of the rules. `cpus` and `memory_mb` (MiB) are what may be used."""


def operating_system(os_release: str) -> str:
    """Return the name of the system from the content of os-release(5): PRETTY_NAME, or NAME and VERSION_ID."""
    fields = {}
    for line in os_release.splitlines():
        name, separator, value = line.strip().partition("=")
        if separator and not name.startswith("#"):
            with contextlib.suppress(ValueError):
                fields[name] = _ESCAPED.sub(r"\1", " ".join(shlex.split(value)))
    if fields.get("PRETTY_NAME"):
        return fields["PRETTY_NAME"]
    named = " ".join(fields[name] for name in ("NAME", "VERSION_ID") if fields.get(name))
    return named or f"{os.uname().sysname} {os.uname().release}"


def read_os_release() -> str:
    """Return the content of the file that describes the system; empty where there is none."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        with contextlib.suppress(OSError):
            return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


async def shell_version(command: str) -> str:
    """Return the name of the shell and the first line of its `--version`."""
    program = shlex.split(command)[0]
    name = Path(program).name
    command_line = [program, "--version"]
    try:
        done = await asyncio.to_thread(
            subprocess.run, command_line, stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired):
        return name
    output = done.stdout
    first = output.decode("utf-8", "replace").partition("\n")[0].strip()
    return f"{name} {first}".strip()


def check_shell(command: str, environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless `command` (`shell.command`) starts a bash that is new enough."""
    words = shlex.split(command)
    if not shutil.which(words[0], path=environment.get("PATH")):
        raise ConfigError(f"shell.command: there is no program {words[0]!r}")
    try:
        done = subprocess.run(
            [*words, "-c", _TELL_VERSION],
            env={name: value for name, value in environment.items() if name != "BASH_ENV"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"shell.command: {command!r} cannot be asked for its version: {error}") from None
    version = re.fullmatch(rb"(\d{1,4}) (\d{1,4})", done.stdout)
    if not version:
        raise ConfigError(f"shell.command: {command!r} is no bash; it must be bash 4.4 or newer")
    if (int(version[1]), int(version[2])) < _OLDEST_BASH:
        found = done.stdout.decode().replace(" ", ".")
        raise ConfigError(f"shell.command: {command!r} is bash {found}; it must be bash 4.4 or newer")


def user_name(user: User | None = None) -> str:
    """Return the name of `user`, or of that of this process; the number where it has none."""
    uid = user.uid if user else os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def usable_cpus(proc: Path = cgroup_paths.PROC_SELF) -> float:
    """Return how many CPUs can be used at once: those allowed (sched_setaffinity(2)), cut to the cgroups' quotas."""
    cpus = float(len(os.sched_getaffinity(0)))
    places = (
        (cgroup_paths.unified(proc), ("cpu.max",)),
        (cgroup_paths.version_1("cpu", proc), ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    )
    for place, names in places:
        for directory in place.upwards() if place else ():
            words = [word for name in names for word in _words(directory / name)]
            if len(words) == _QUOTA_WORDS and words[0].isdecimal():
                cpus = min(cpus, round(int(words[0]) / int(words[1]), 2))
    return cpus


def cpu_variables(cpus: float) -> dict[str, str]:
    """Return the variables by which tools know that they may use `cpus` at once; none where that is all there are.

    Many tools count the CPUs that they are allowed to run on, and know nothing of a quota on the time.
    """
    if cpus >= len(os.sched_getaffinity(0)):
        return {}
    return dict.fromkeys(_CPU_VARIABLES, str(max(1, math.ceil(cpus))))


def usable_memory_mb(proc: Path = cgroup_paths.PROC_SELF) -> float:
    """Return the memory that can be used, in MiB: that of the machine, cut to the cgroups' limits."""
    import psutil

    total: int = psutil.virtual_memory().total
    places = (
        (cgroup_paths.unified(proc), "memory.max"),
        (cgroup_paths.version_1("memory", proc), "memory.limit_in_bytes"),
    )
    for place, name in places:
        for directory in place.upwards() if place else ():
            limit = next(iter(_words(directory / name)), "max")
            if limit.isdecimal():
                total = min(total, int(limit))
    return round(total / MEBIBYTE, 1)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []
