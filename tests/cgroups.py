"""Real cgroups for tests: what this machine has, and one of a test's own to start a daemon in."""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shelld_py.linux import cgroup_paths
from shelld_py.linux.cgroups import pids_in


def hierarchy() -> Path | None:
    """Return this process's cgroup of version 2 where cgroups can be made below it."""
    place = cgroup_paths.unified()
    if place is None or not os.access(place.directory / "cgroup.procs", os.W_OK):
        return None
    probe = place.directory / f"probe-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
    except OSError:
        return None
    probe.rmdir()
    return place.directory


def controllers() -> set[str]:
    """Return the controllers that the children of this process's cgroup have, or can be given."""
    own = hierarchy()
    return set((own / "cgroup.controllers").read_text().split()) if own else set()


def need(*names: str) -> None:
    """Skip the test where this machine has no cgroups of version 2, or not these controllers."""
    if hierarchy() is None:
        pytest.skip("cgroups of version 2 cannot be made here")
    missing = set(names) - controllers()
    if missing:
        pytest.skip(f"the hierarchy of version 2 has no controller {', '.join(sorted(missing))}")


@contextlib.contextmanager
def cgroup(*names: str, delegated: bool = True) -> Iterator[Path]:
    """Make a cgroup with the controllers `names`, marked as delegated as systemd does; it is removed at the end."""
    need(*names)
    own = hierarchy()
    assert own is not None
    for name in names:
        (own / "cgroup.subtree_control").write_text(f"+{name}")
    made = own / f"test-{secrets.token_hex(4)}"
    made.mkdir()
    try:
        if delegated:
            os.setxattr(made, "user.delegate", b"1")
        yield made
    finally:
        deadline = time.monotonic() + 5
        while made.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                (made / "cgroup.kill").write_text("1")
            for path, _, _ in os.walk(made, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        assert not made.exists(), [(path, pids_in(Path(path))) for path, _, _ in os.walk(made)]


@contextlib.contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Have processes that are started meanwhile begin in a cgroup with so many bytes, of version 2 or 1."""
    if "memory" in controllers():
        with cgroup("memory") as made:
            (made / "memory.max").write_text(str(size))
            with inside(made):
                yield
        return
    place = cgroup_paths.version_1("memory")
    if place is None or not os.access(place.directory / "cgroup.procs", os.W_OK):
        pytest.skip("cgroups that limit memory cannot be made here")
    made = place.directory / f"test-{secrets.token_hex(4)}"
    made.mkdir()
    try:
        (made / "memory.limit_in_bytes").write_text(str(size))
        (made / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (place.directory / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        deadline = time.monotonic() + 5
        while made.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                made.rmdir()


@contextlib.contextmanager
def inside(directory: Path) -> Iterator[None]:
    """Have processes that are started meanwhile begin in a cgroup."""
    before = hierarchy()
    assert before is not None
    (directory / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.contextmanager
def half_a_cpu() -> Iterator[None]:
    """Have processes that are started meanwhile begin with a quota of half a CPU, in whichever version there is."""
    place = cgroup_paths.version_1("cpu")
    if place is None or os.getuid():
        with cgroup("cpu") as made:
            (made / "cpu.max").write_text("50000 100000")
            with inside(made):
                yield
        return
    made = place.directory / f"test-{secrets.token_hex(4)}"
    made.mkdir()
    try:
        (made / "cpu.cfs_quota_us").write_text("50000")
        (made / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (place.directory / "cgroup.procs").write_text(str(os.getpid()))
        deadline = time.monotonic() + 5
        while pids_in(made) and time.monotonic() < deadline:
            time.sleep(0.01)
        made.rmdir()
