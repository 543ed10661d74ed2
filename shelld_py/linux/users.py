"""Users of the system: who is meant by a name or a number, how to become one, and what they can do to a path.

Knows nothing of shells.

How a thread uses files as another user
    The kernel has credentials for each thread (credentials(7)). A thread of a process of root becomes somebody else for
    files alone by its file system ids (setfsuid(2)) and its supplementary groups: the kernel asks these and no others
    where a path is walked, a file opened, made, renamed, linked or removed. Its uids stay 0, so that user can neither
    signal nor trace it, as they could if it had become them altogether. No capability is effective meanwhile: those
    that are about files go with the id, the others would still open what others hide (CAP_SYS_PTRACE, /proc).

    One rule remains: a thread may look at all that /proc shows of its own process, whoever it is. So what is on
    a proc file system is refused to it (`files/paths.py`).

    Descriptors are what passes between the two sides: what is open can be read and written by any thread.
"""

import grp
import os
import pwd
import re
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from shelld_py.linux import syscalls

_NEEDED: Final = {
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_PTRACE": 19,
}  # fmt: skip
"""What root needs to run a shell of another user and to look after it, as capability.h numbers it."""
_LONGEST_NAME: Final = 256
"""Characters, as of LOGIN_NAME_MAX. Where names are looked up (nss-systemd), one of megabytes aborts the process."""


class User(Struct, frozen=True):
    """Somebody whom a command can run as, with the groups that a login would give."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    variables: dict[str, str]
    """HOME, USER, LOGNAME and SHELL."""

    @classmethod
    def find(cls, text: str) -> "User":
        """Return who `text` names: a name, a uid, or `uid:gid`. Raises `LookupError` for one that there is not.

        A number needs no entry in the user database; `gid` may be the name of a group, and is the only one then.
        """
        if len(text) > _LONGEST_NAME:
            raise LookupError(f"there is no user {text[:20]!r}...: a name has at most {_LONGEST_NAME} characters")
        who, colon, group = text.partition(":")
        number = int(who) if who.isascii() and who.isdigit() and len(who) < 10 else None
        try:
            entry = pwd.getpwnam(who) if number is None else pwd.getpwuid(number)
        except (KeyError, ValueError):  # ValueError: a NUL, a surrogate that has no byte
            if number is None:
                raise LookupError(f"there is no user {who!r}") from None
            entry = pwd.struct_passwd((who, "x", number, number, "", "/", "/bin/sh"))
        gid = entry.pw_gid
        if colon:
            try:
                gid = int(group) if group.isascii() and group.isdigit() and len(group) < 10 else grp.getgrnam(group)[2]
            except (KeyError, ValueError):
                raise LookupError(f"there is no group {group!r}") from None
        groups = (gid,) if colon else tuple(os.getgrouplist(entry.pw_name, gid))
        variables = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}
        return cls(entry.pw_uid, gid, groups, variables)

    def become(self) -> None:
        """Make this process one of theirs, for good.

        It gets the signal at the end of its parent as before, though not if that ends meanwhile. Raises `OSError`.
        """
        at_parents_death = syscalls.signal_at_parents_death()
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        syscalls.die_with_parent(at_parents_death)  # the kernel forgets it when a process changes its user (prctl(2))

    def use_files(self) -> None:
        """Have this thread use files as they would, from now on. Raises `OSError`."""
        syscalls.set_thread_groups(self.groups)
        syscalls.set_file_ids(self.uid, self.gid)
        syscalls.set_thread_capabilities(effective=False)
        _thread.user = self

    def can_read(self, path: str) -> bool:
        """Return whether they could read the file, or list the directory, at `path`: the kernel is asked.

        Raises `OSError` where it does not let us ask.
        """

        def look() -> bool:
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError:
                return False
            return True

        with ThreadPoolExecutor(1) as pool:  # a thread that ends with it, for it is somebody else
            pool.submit(self.use_files).result()
            return pool.submit(look).result()

    def reach(self, path: str) -> str | None:
        """Return the path at or above `path` which they could write to, and so put something else in its place.

        None where there is none. In a directory with the sticky bit only the owner of a name can change it.
        """
        place = Path(path).resolve()
        for part in (place, *place.parents):
            if part.exists():
                status = part.stat()
                mode = status.st_mode
                writable = mode & stat.S_IWOTH or (mode & stat.S_IWGRP and status.st_gid in (self.gid, *self.groups))
                if status.st_uid == self.uid or (writable and not (mode & stat.S_ISVTX and part != place)):
                    return str(part)
        return None


_thread = threading.local()


def uses_files_as() -> User | None:
    """Return whom this thread uses files as; None where that is the user of the process."""
    return getattr(_thread, "user", None)


@contextmanager
def own_files() -> Iterator[None]:
    """Have this thread use files as the user of the process for a while, for what is the daemon's own."""
    user = uses_files_as()
    if user is None:
        yield
        return
    try:
        _thread.user = None
        syscalls.set_thread_capabilities(effective=True)
        syscalls.set_file_ids(0, 0)
        yield
    finally:
        try:
            user.use_files()
        except OSError:  # a thread of which nobody knows what it may: rather no daemon than that
            os.abort()


def missing_capabilities() -> list[str]:
    """Return the names of those that this process would need to run and look after processes of another user."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    return [name for name, number in _NEEDED.items() if not effective >> number & 1]
