"""Is a program waiting for what would be typed into its terminal? Read from the kernel, not guessed from output.

/proc/PID/syscall (proc(5)) says in which system call a sleeping thread is, with its arguments. A thread that
sleeps in a read of the terminal waits for input, whatever it printed before. One that sleeps in poll, select
or epoll waits for input if the terminal is among the descriptors that it named (for poll and select these are
read from the memory of the process, for epoll from its fdinfo), and either the terminal is in the mode for
single keys (an editor, a pager, a line editor) or nothing else is waited for.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from shelld_py.linux import processes

_CALLS: Final = {
    "x86_64": {
        0: "read",
        19: "readv",
        7: "poll",
        271: "poll",
        23: "select",
        270: "select",
        232: "epoll",
        281: "epoll",
        441: "epoll",
    },
    "aarch64": {63: "read", 65: "readv", 73: "poll", 72: "select", 22: "epoll", 441: "epoll"},
}.get(os.uname().machine, {})
_MOST_POLLED: Final = 256
_POLLIN: Final = 0x0001 | 0x0040


class _Call(Struct, frozen=True):
    name: str
    arguments: tuple[int, ...]


def blocked_read(pid: int, *, least: int = 1) -> int | None:
    """Return the descriptor that the main thread of `pid` is blocked reading, with room for `least` bytes, or None."""
    call = _call(pid, pid)
    return call.arguments[0] if call and call.name == "read" and call.arguments[2] >= least else None


def waits_for_terminal(group: int, members: Iterator[int], device: int, *, line_mode: bool) -> bool:
    """Return whether one of the processes `members` of the foreground `group` waits for terminal input.

    `device` is the terminal's device number, `line_mode` whether it hands over lines rather than keys. False
    as soon as one of them is seen at work.
    """
    waiting = False
    for pid in members:
        stat = processes.process_stat(pid)
        if stat is None or not stat.alive or stat.group != group:
            continue
        if stat.state in "RD":
            return False
        waiting = waiting or _process_waits(pid, device, line_mode=line_mode)
    return waiting


def _process_waits(pid: int, device: int, *, line_mode: bool) -> bool:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            call = _call(pid, int(thread))
            if call is None:
                continue
            if call.name in ("read", "readv"):
                if _is_terminal(pid, call.arguments[0], device):
                    return True
                continue
            polled = [_is_terminal(pid, descriptor, device) for descriptor in _polled(pid, call)]
            if any(polled) and (not line_mode or all(polled)):
                return True
    return False


def _call(pid: int, thread: int) -> _Call | None:
    """Return the system call that a sleeping thread is in."""
    try:
        with open(f"/proc/{pid}/task/{thread}/syscall", "rb", buffering=0) as file:
            words = file.read(256).split()
    except OSError:
        return None
    if len(words) < 7 or not (name := _CALLS.get(int(words[0]))):
        return None
    return _Call(name, tuple(int(word, 16) for word in words[1:7]))


def _is_terminal(pid: int, descriptor: int, device: int) -> bool:
    """Whether `descriptor` of `pid` is the terminal, under its own name or as /dev/tty."""
    try:
        if os.stat(f"/proc/{pid}/fd/{descriptor}").st_rdev == device:
            return True
        return os.readlink(f"/proc/{pid}/fd/{descriptor}") == "/dev/tty"
    except OSError:
        return False


def _polled(pid: int, call: _Call) -> list[int]:
    """Return the descriptors whose readability a poll, select or epoll waits for."""
    if call.name == "epoll":
        return _epolled(pid, call.arguments[0])
    if call.name == "poll":
        address, count = call.arguments[0], min(call.arguments[1], _MOST_POLLED)
        entries = struct.iter_unpack("ihh", _memory(pid, address, 8 * count))
        return [descriptor for descriptor, events, _ in entries if descriptor >= 0 and events & _POLLIN]
    count, address = min(call.arguments[0], 1024), call.arguments[1]
    if not address:
        return []
    bits = int.from_bytes(_memory(pid, address, 8 * ((count + 63) // 64)), "little")
    return [descriptor for descriptor in range(count) if bits >> descriptor & 1]


def _memory(pid: int, address: int, size: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, address)
    return b""


def _epolled(pid: int, descriptor: int) -> list[int]:
    """Read the `tfd:` lines of an epoll descriptor: proc(5), /proc/PID/fdinfo."""
    found: list[int] = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/fdinfo/{descriptor}", "rb", buffering=0) as file:
        for line in file.read(65536).splitlines():
            words = line.split()
            if words[:1] == [b"tfd:"] and int(words[3], 16) & _POLLIN:
                found.append(int(words[1]))
    return found
