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
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from shelld_py.linux import processes

_LISTENING = re.compile(rb"^ *\d+: ([0-9A-F]+):([0-9A-F]{4}) [0-9A-F]+:0000 0A(?: +\S+){5} +(\d+)", re.MULTILINE)

_BOUND_FOR: Final = {
    "127.0.0.1": (("127.0.0.1", "::ffff:127.0.0.1"), ("0.0.0.0", "::ffff:0.0.0.0", "::")),  # noqa: S104
    "::1": (("::1",), ("::",)),
}
"""To which addresses a socket is bound that gets the connections to one: the kernel prefers the first ones."""


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


def loopback_sockets(port: int, roots: Iterable[int]) -> dict[str, frozenset[str]]:
    """Return the loopback addresses where a connection to `port` reaches a process of the trees below `roots` alone.

    In this process's own network namespace, the only one that it connects in. With each address stand the sockets that
    get its connections, one or (SO_REUSEPORT) several. Call it in a thread.
    """
    listening = [(name, ipaddress.ip_address(found[1])) for name, found in _listening_sockets("self", {port}).items()]
    reached = {}
    for address, groups in _BOUND_FOR.items():
        for group in groups:
            bound = {ipaddress.ip_address(each) for each in group}
            if sockets := frozenset(name for name, at in listening if at in bound):
                reached[address] = sockets
                break
    strange = {name for sockets in reached.values() for name in sockets}
    for root in roots if strange else ():
        for stat in processes.tree(root):
            strange.difference_update(_open_files(stat.pid))
            if not strange:
                return reached
    return {address: sockets for address, sockets in reached.items() if not sockets & strange}


def _listening_sockets(pid: int | str, ports: Collection[int] | None) -> dict[str, tuple[int, str]]:
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
