"""Users of the system: who is meant by a name or a number, how to become one, and what they can do to a path.

Knows nothing of shells.
"""

import grp
import os
import pwd
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NEEDED: Final = {
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_PTRACE": 19,
}  # fmt: skip
"""What root needs to run a shell of another user and to look after it, as capability.h numbers it."""


@dataclass(frozen=True, slots=True)
class User:
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
        """Make this process one of theirs, for good. Raises `OSError`."""
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)

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


def missing_capabilities() -> list[str]:
    """Return the names of those that this process would need to run and look after processes of another user."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    effective = int(found[1], 16) if found else 0
    return [name for name, number in _NEEDED.items() if not effective >> number & 1]
