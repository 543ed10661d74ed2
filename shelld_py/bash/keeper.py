"""The keeper of a command with pipes: the process between the daemon and the command, the root of its tree.

It adopts what loses its parent, so that what a command leaves in the background is known after its end; it reaps,
tells of the end of the command, and where the daemon dies, it kills all that there is, which no kernel would. It does
not run a line of what commands say, and ends with the shell.

A fork of the daemon takes longer than most commands, for its memory is large. So keepers are forked by a helper, a
small process that lives as long as the daemon (`Keepers`), and forked twice: the daemon, a subreaper, adopts what the
process in between has left, and is the parent of each keeper, as it is of each bash. One is forked ahead, and starts
its command without a copy of its memory (vfork, by `subprocess`).

What is below the line runs in the helper and in keepers: it has no event loop and no thread, and knows no shell.
"""

import asyncio
import contextlib
import errno
import gc
import os
import pickle
import select
import shlex
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from shelld_py.bash.confinement import Confinement
from shelld_py.errors import ShellStartFailed
from shelld_py.helpers import helper_command
from shelld_py.linux import processes
from shelld_py.linux.orphans import adopting
from shelld_py.linux.syscalls import be_subreaper, die_with_parent
from shelld_py.linux.users import User

REPORT: Final = struct.Struct("ii")
"""What a keeper tells: what has happened, and a pid or a wait status."""
READY, STARTED, ENDED = range(3)
TEXT_DESCRIPTOR: Final = 9
_TIMEOUT: Final = 15.0
"""Seconds that a keeper has to come, as bash has."""
_CLOSING_PATIENCE: Final = 1.0
_ADOPTION_PAUSE: Final = 0.0001
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_FAULT: Final = 70
_WAKEUPS: Final = 4096
_WITH_SCRIPT: Final = 4
"""Descriptors that a keeper gets where there is a script, beside those of the standard streams."""


class Order(Struct, frozen=True):
    """A command, as its keeper starts it."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    confinement: Confinement
    user: User | None


class Keepers:
    """Where keepers come from. The helper starts with the first, and ends by `close` or with this process."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._helper: subprocess.Popen[bytes] | None = None
        self._adopting = contextlib.ExitStack()
        """Holds this process a subreaper, as long as there is a helper: else keepers would not become its children."""
        self._orders: socket.socket | None = None
        self._ahead: socket.socket | None = None
        """Of the next keeper, which may still be on its way."""

    async def new(self) -> tuple[int, socket.socket]:
        """Return the pid of a new keeper, a child of this process, and the socket that it listens and reports on.

        It is in this process's session until it gets its order. Call it on the main thread: the helper ends with
        the thread that has started it. Raises `ShellStartFailed`.
        """
        for _ in range(3):  # a command can have killed the one that is ahead, and the helper
            with contextlib.suppress(OSError):  # TimeoutError, too
                keeper, self._ahead = self._ahead or self._asked(), None
                try:
                    async with asyncio.timeout(_TIMEOUT):
                        told = await asyncio.get_running_loop().sock_recv(keeper, REPORT.size)
                    pid = REPORT.unpack(told)[1] if told else 0
                    if pid and not _ended(keeper):
                        self._ahead = self._asked()
                        return pid, keeper
                except BaseException:
                    keeper.close()
                    raise
                keeper.close()
                if pid:
                    os.waitpid(pid, 0)  # noqa: ASYNC222 (it has ended)
                else:
                    self.close()
        raise ShellStartFailed("The process that starts commands with pipes does not come up.")

    def close(self) -> None:
        """End the helper, and the keeper that is ahead; the others go on."""
        if self._orders:
            self._orders.close()
        if self._helper:
            self._helper.kill()
            self._helper.wait()
        if self._ahead:
            with self._ahead, contextlib.suppress(OSError):
                self._ahead.settimeout(_CLOSING_PATIENCE)
                told = self._ahead.recv(REPORT.size)  # it has come, or with the helper nobody is left who could
                self._ahead.close()
                if told:
                    os.waitpid(REPORT.unpack(told)[1], 0)
        self._adopting.close()
        self._ahead = self._orders = self._helper = None

    def _asked(self) -> socket.socket:
        """Return the socket of a keeper that the helper is asked for. Raises `OSError` where that has died."""
        if self._orders is None:
            self._adopting.enter_context(adopting())
            self._orders, theirs = socket.socketpair()
            with theirs:
                self._helper = subprocess.Popen(
                    helper_command("keeper"), stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env={}, cwd="/"
                )
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                socket.send_fds(self._orders, [b"\0"], [theirs.fileno()])
        except OSError:
            ours.close()
            self.close()
            raise
        return ours


def _ended(keeper: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        return not keeper.recv(1, socket.MSG_PEEK)
    return False


def give(keeper: socket.socket, order: Order, descriptors: Sequence[int]) -> None:
    """Have a keeper start a command; `descriptors` are its standard streams, and the text of a script if it has one.

    Raises `OSError` where it has died.
    """
    with open(os.memfd_create("order", os.MFD_CLOEXEC), "wb") as file:  # of any size: a socket would take a part of it
        pickle.dump(order, file)
        file.seek(0)  # for the keeper, too: the offset is shared
        socket.send_fds(keeper, [b"\0"], [file.fileno(), *descriptors])


# --- in the helper, and in keepers ------------------------------------------------------------------------------------


def serve() -> None:
    """Fork a keeper for each socket that comes on standard input: the helper's side."""
    daemon = os.getppid()
    die_with_parent()
    for number in signal.valid_signals():  # what is handled, however, is the default again for what is executed
        with contextlib.suppress(OSError):
            signal.signal(number, _pass_over)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    gc.disable()
    gc.freeze()  # what forks share stays shared
    with socket.socket(fileno=0) as orders:
        while received := _received(orders, 1):
            between = os.fork()
            if not between:
                try:
                    between = os.getpid()
                    if not os.fork():
                        orders.close()
                        _keep(daemon, between, socket.socket(fileno=received[0]))
                finally:
                    os._exit(_FAULT)
            os.close(received[0])
            os.waitpid(between, 0)


def _pass_over(number: int, frame: object) -> None:
    """Nothing that commands send to every process ends a keeper, but SIGKILL."""


def _received(source: socket.socket, most: int) -> list[int]:
    """Return the descriptors of the next message, none where there is no more."""
    return socket.recv_fds(source, 1, most, socket.MSG_CMSG_CLOEXEC)[1]


def _keep(daemon: int, parent: int, reports: socket.socket) -> None:
    """Start the command that is ordered, tell of its end, and reap until the daemon has ended or kills this process."""
    while os.getppid() == parent:
        time.sleep(_ADOPTION_PAUSE)
    die_with_parent(signal.SIGCONT)  # it does not die of it, but goes on where a daemon that was killed had stopped it
    if os.getppid() != daemon:
        return
    woken, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    reports.sendall(REPORT.pack(READY, os.getpid()))
    received = _received(reports, 5)
    os.setsid()  # from here on it is reaped by the daemon in any case
    if not received:
        return
    be_subreaper()
    with open(received.pop(0), "rb") as text:
        order: Order = pickle.load(text)
    os.chdir(order.directory)
    order.confinement.enter()
    command = _started(order, received)
    reports.sendall(REPORT.pack(STARTED, command) if command > 0 else REPORT.pack(ENDED, -command << 8))
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) not in (reports.fileno(), woken, wakeup):
                os.close(int(name))
    while True:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == command:
                    reports.sendall(REPORT.pack(ENDED, status))
        readable, _, _ = select.select([woken, reports.fileno()], [], [])
        if reports.fileno() in readable:  # the daemon has ended, for it says nothing more
            processes.kill_descendants(os.getpid())
            return
        os.read(woken, _WAKEUPS)


def _started(order: Order, descriptors: Sequence[int]) -> int:
    """Return the pid of the command, or else the negative exit status with which a shell tells what hinders it."""
    *standard, script = (*descriptors, -1) if len(descriptors) < _WITH_SCRIPT else descriptors
    if script >= 0:
        os.dup2(script, TEXT_DESCRIPTOR)
    user = order.user
    name = order.argv[0]
    try:
        command = subprocess.Popen(
            [os.fsencode(word) for word in order.argv],
            stdin=standard[0],
            stdout=standard[1],
            stderr=standard[2],
            env=order.environment,
            pass_fds=(TEXT_DESCRIPTOR,) if script >= 0 else (),
            process_group=0,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=user.groups if user else None,
        )
        command.returncode = 0  # else the object would wait for the process when it goes
        return command.pid
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        told = "command not found" if missing and "/" not in name else error.strerror
        os.write(standard[2], f"{shlex.quote(name)}: {told}\n".encode("utf-8", "surrogateescape"))
        return -(_NOT_FOUND if missing else _NOT_EXECUTABLE)
