"""A listening socket that outlives its daemon: nobody but the next daemon gets the port of one that has crashed.

Where shells run as another user, a process of theirs may outlive the daemon. Would it listen at the daemon's port then,
the owner of the key would send it there. So a helper of the daemon's user holds the same socket. It takes no
connection: who connects waits, and is served by the next daemon, which asks for the socket by a name in the data
directory. Knows nothing of who listens.

What is below the line runs in the helper: it lives until the daemon ends it, or until the next one has the socket.
"""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import time
from typing import Any, Final

from shelld_py.helpers import helper_command

_NAME: Final = "port"
_TIMEOUT: Final = 2.0
"""Seconds that a helper has to see that its daemon has ended: it is told at once."""
_PAUSE: Final = 0.01


class HeldPort:
    """The socket `listener`, held by a helper, too. The next daemon gets it by `taken(directory)`."""

    def __init__(self, listener: socket.socket, directory: str) -> None:
        """Start the helper; `directory` is one that nobody else can enter. Raises `OSError`."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._helper = subprocess.Popen(
                helper_command("port"), stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env={}, cwd="/"
            )
        socket.send_fds(ours, [os.fsencode(directory)], [listener.fileno()])
        self._daemon = ours
        """Open as long as this process lives."""

    def release(self) -> None:
        """End the helper, at an orderly end: the port is anybody's."""
        self._helper.kill()
        self._helper.wait()
        self._daemon.close()


def taken(directory: str, address: tuple[Any, ...], *, wait: bool) -> socket.socket | None:
    """Return the socket that a helper holds for a daemon that has crashed; None where there is none.

    It must listen at `address` (host and port first; port 0 is any), else it is given up. With `wait`, an address in
    use is taken for that of a daemon that has only just crashed.
    """
    deadline = time.monotonic() + (_TIMEOUT if wait else 0)
    while True:
        listener = _given(directory)
        if listener:
            host, port = listener.getsockname()[:2]
            if host == address[0] and address[1] in (0, port):
                return listener
            listener.close()
        if listener or not _in_use(address) or time.monotonic() > deadline:
            return None
        time.sleep(_PAUSE)


def _given(directory: str) -> socket.socket | None:
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_TIMEOUT)
            asking.connect(f"/proc/self/fd/{place}/{_NAME}")  # a path of any length would not fit into an address
            _, descriptors, _, _ = socket.recv_fds(asking, 1, 1)
            os.unlink(_NAME, dir_fd=place)
    except OSError:  # there is none, or it has ended
        return None
    finally:
        os.close(place)
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def _in_use(address: tuple[Any, ...]) -> bool:
    family = socket.AF_INET6 if ":" in str(address[0]) else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(address)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


# --- in the helper ----------------------------------------------------------------------------------------------------


def serve() -> None:
    """Hold the socket that comes on standard input; when the daemon has ended, give it to who asks for it."""
    for number in signal.valid_signals():  # what ends the daemon does not end this: it must outlive it
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=0) as daemon:
        directory, descriptors, _, _ = socket.recv_fds(daemon, 4096, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            return
        os.chdir(directory)
        daemon.recv(1)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_NAME)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(_NAME)
        door.listen(1)
        asking, _ = door.accept()
        with asking:
            socket.send_fds(asking, [b"\0"], descriptors)
