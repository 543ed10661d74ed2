"""On which TCP ports does a tree of processes listen? Read from the kernel, at the moment it is asked for.

sock_diag(7) lists the sockets that listen in our own network namespace with their inodes, and /proc/PID/net/tcp and
tcp6 (proc(5)) do in any other, or where there is no sock_diag: they take a hundred times as long, for the kernel goes
through all connections there can be. /proc/PID/fd shows which process holds such a socket open. There is nothing that
tells when this changes: who wants to wait has to look again.
"""

import contextlib
import ipaddress
import os
import re
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from shelld_py.linux import processes

_LISTENING = re.compile(rb"^ *\d+: ([0-9A-F]+):([0-9A-F]{4}) [0-9A-F]+:0000 0A(?: +\S+){5} +(\d+)", re.MULTILINE)

_SOCK_DIAG: Final = 4
"""The protocol of netlink(7); Python has no name for it."""
_SOCK_DIAG_BY_FAMILY, _NLMSG_ERROR, _NLMSG_DONE = 20, 2, 3
_REQUEST_DUMP: Final = 0x301
_LISTEN: Final = 1 << 10
_HEADER: Final = struct.Struct("=IHHII")
_QUESTION: Final = struct.Struct("=BBBxI48x")
"""Family, protocol, what to add, states; then which socket: all."""
_ANSWER: Final = struct.Struct("=BBBB2s2s16s16x4x8xIIIII")
"""Family, state, timer, retransmissions; port and address, those of the peer, interface, cookie; expiry, two queues,
user, inode (linux/inet_diag.h)."""
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
    found: Iterable[tuple[int, str, int]] | None = None
    with contextlib.suppress(OSError):
        if pid == "self" or os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            found = list(_diagnosed())
    return {
        f"socket:[{inode}]": (port, address)
        for port, address, inode in (_listed(pid) if found is None else found)
        if ports is None or port in ports
    }


def _diagnosed() -> Iterator[tuple[int, str, int]]:
    """Yield port, address and inode of what listens in our network namespace. Raises `OSError` without sock_diag."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        for family, size in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
            question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, _LISTEN)
            header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, family, 0)
            kernel.send(header + question)
            for body in _messages(kernel):
                _, _, _, _, port, _, address, *_, inode = _ANSWER.unpack_from(body)
                yield int.from_bytes(port), str(ipaddress.ip_address(address[:size])), inode


def _messages(kernel: socket.socket) -> Iterator[bytes]:
    """Yield what the kernel answers to one question, to its end. Raises `OSError`."""
    while True:
        data = kernel.recv(1 << 16)
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                raise OSError(-int.from_bytes(data[16:20], sys.byteorder, signed=True), "sock_diag")
            yield data[_HEADER.size : length]
            data = data[(length + 3) & ~3 :]


def _listed(pid: int | str) -> Iterator[tuple[int, str, int]]:
    """Yield likewise what listens in the network namespace of a process."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for address, number, inode in _LISTENING.findall(Path(f"/proc/{pid}/net/{name}").read_bytes()):
                yield int(number, 16), _address(address), int(inode)


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
