"""Users of the system: who is meant by a name or a number, and how to become one. Knows nothing of shells."""

import grp
import os
import pwd
from dataclasses import dataclass


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
