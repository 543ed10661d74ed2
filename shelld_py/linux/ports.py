"""Does a process of a tree listen on a TCP port? Read from the kernel, at the moment it is asked for.

/proc/PID/net/tcp and tcp6 (proc(5)) list the sockets of the network namespace of PID with their inodes, and
/proc/PID/fd shows which process holds such a socket open. There is nothing that tells when this changes: who
wants to wait has to look again.
"""

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from shelld_py.linux import processes

_LISTENING = re.compile(rb"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:0000 0A(?: +\S+){5} +(\d+)", re.MULTILINE)


def listened_ports(pid: int, ports: Collection[int]) -> set[int]:
    """Return those of `ports` that `pid` or something below it listens on, by IPv4 or IPv6.

    In the network namespace of `pid`. Takes milliseconds where there are thousands of sockets: call it in a thread.
    """
    inodes = _listening_sockets(pid, ports)
    found: set[int] = set()
    if not inodes:
        return found
    for stat in processes.tree(pid):
        found |= {inodes[link] for link in _open_files(stat.pid) if link in inodes}
        if len(found) == len(ports):
            break
    return found


def _listening_sockets(pid: int, ports: Collection[int]) -> dict[str, int]:
    """Return the port of each socket that listens on one of `ports`, by the name it has in /proc/PID/fd."""
    sockets = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for port, inode in _LISTENING.findall(Path(f"/proc/{pid}/net/{name}").read_bytes()):
                if int(port, 16) in ports:
                    sockets[f"socket:[{inode.decode()}]"] = int(port, 16)
    return sockets


def _open_files(pid: int) -> list[str]:
    links = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return links
