"""On which TCP ports does a tree of processes listen? Read from the kernel, at the moment it is asked for.

/proc/PID/net/tcp and tcp6 (proc(5)) list the sockets of the network namespace of PID with their inodes, and
/proc/PID/fd shows which process holds such a socket open. There is nothing that tells when this changes: who
wants to wait has to look again.
"""

import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from shelld_py.linux import processes

_LISTENING = re.compile(rb"^ *\d+: ([0-9A-F]+):([0-9A-F]{4}) [0-9A-F]+:0000 0A(?: +\S+){5} +(\d+)", re.MULTILINE)


class ListeningPort(NamedTuple):
    """A socket that listens, and the first process of the tree, from its root downwards, that holds it open."""

    port: int
    address: str
    pid: int


def listening_ports(pid: int, ports: Collection[int] | None = None) -> list[ListeningPort]:
    """Return where `pid` or something below it listens, by IPv4 or IPv6: everywhere, or on one of `ports`.

    In the network namespace of `pid`. Takes milliseconds where there are thousands of sockets: call it in a thread.
    """
    sockets = _listening_sockets(pid, ports)
    found: list[ListeningPort] = []
    for stat in processes.tree(pid) if sockets else ():
        for link in _open_files(stat.pid):
            if (socket := sockets.pop(link, None)) is not None:
                found.append(ListeningPort(*socket, stat.pid))
        if not sockets:
            break
    return found


def _listening_sockets(pid: int, ports: Collection[int] | None) -> dict[str, tuple[int, str]]:
    """Return port and address of each socket that listens, by the name that it has in /proc/PID/fd."""
    sockets = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for address, number, inode in _LISTENING.findall(Path(f"/proc/{pid}/net/{name}").read_bytes()):
                port = int(number, 16)
                if ports is None or port in ports:
                    sockets[f"socket:[{inode.decode()}]"] = (port, _address(address))
    return sockets


def _address(digits: bytes) -> str:
    """Return an address that the kernel shows as 32-bit words in the byte order of the machine."""
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    return str(ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words)))


def _open_files(pid: int) -> list[str]:
    links = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return links
