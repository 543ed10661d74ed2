"""What the daemon and one bash share: three pipes and four memory files (memfd_create(2)).

    boot     lines that bash reads, from its start and after each interrupt
    bell     a byte for each command
    reports  what bash says of itself
    text     the commands, one after the other, each up to a NUL
    loop     the driver's script of the loop
    script   its other scripts
    scratch  what these keep

bash opens them anew by their paths, so it inherits none of these descriptors. What is said through them is
driver.py's. There are thousands of these in a daemon with many shells, so each pipe is held by one descriptor for
both ends (fifo(7): a FIFO can be opened for both on Linux).

A bash of another user may not look into /proc/DAEMON/fd. So what is shared with it are FIFOs and files with names, of
that user, in a directory of our own in memory that can be entered, but neither listed nor written to.
"""

import contextlib
import fcntl
import functools
import os
import stat
import tempfile
from typing import Final

from shelld_py.bash.driver import Paths
from shelld_py.bash.pipes import unread
from shelld_py.linux.descriptors import Descriptor
from shelld_py.linux.removal import remove_tree
from shelld_py.linux.users import User

_PIPE_READ: Final = 65536
_LARGE_TEXT: Final = 65536
_PIECE: Final = 1 << 20
_FILES: Final = ("text", "loop", "script", "scratch")
_MEMORY: Final = "/dev/shm"  # noqa: S108 (a name that cannot be guessed is made there, as everywhere)
"""A file system in memory that containers have too, also where their root is read-only (shm_overview(7))."""
_ENTER_ALONE: Final = 0o711
_PREFIX: Final = "shelld-py-"


class Channels:
    """The pipes and memory files for one bash. `close` them."""

    def __init__(self, user: User | None = None) -> None:
        """Make them for a bash of `user`, None for our own. Raises `OSError`."""
        self._user = user
        self._directory, self._lock = _directory() if user else ("", -1)
        self._made = 0
        self._text_begin = self._text_end = 0
        """The offsets behind the texts that were given back, and behind the last one."""
        self._files: dict[str, int] = {}
        self.boot_pipe = self.bell_pipe = self.reports_pipe = -1
        """bash reads lines from the first, listens at the second, and its reports come out of the third."""
        try:
            self.boot_pipe = self._pipe("boot")
            self._boot_name = os.readlink(f"/proc/self/fd/{self.boot_pipe}")
            self.bell_pipe = self._pipe("bell")
            self.reports_pipe = self._pipe("reports")
            for name in _FILES:
                self._files[name] = self.new_file(name)
        except OSError:
            self.close()
            raise

    def paths(self, *, terminal: str, shell: str) -> Paths:
        """Return where bash finds all of it."""
        return Paths(
            boot=self.path_of(self.boot_pipe),
            bell=self.path_of(self.bell_pipe),
            reports=self.path_of(self.reports_pipe),
            terminal=terminal,
            shell=shell,
            **{name: self.path_of(file) for name, file in self._files.items()},
        )

    def path_of(self, descriptor: int) -> str:
        """Return the path by which bash can open anew what `descriptor` refers to.

        For a bash of another user that is the file's name, which they must be able to use.
        """
        path = descriptor_path(descriptor)
        return os.readlink(path) if self._user else path

    def new_file(self, name: str) -> int:
        """Make a file for bash and return its descriptor; `remove` it. Raises `OSError`."""
        if self._user is None:
            return os.memfd_create(name, os.MFD_CLOEXEC)
        path = self._new_path(name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchown(descriptor, self._user.uid, self._user.gid)
        return descriptor

    def remove(self, descriptor: int) -> None:
        """Close a file that `new_file` has made; bash finds it no more."""
        if self._user:
            os.unlink(self.path_of(descriptor))
        os.close(descriptor)

    def _pipe(self, name: str) -> int:
        """Make a pipe, and return one descriptor for both of its ends."""
        if self._user is None:
            return _pipe()
        path = self._new_path(name)
        os.mkfifo(path, 0o600)
        os.chown(path, self._user.uid, self._user.gid)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def _new_path(self, name: str) -> str:
        self._made += 1
        return f"{self._directory}/{name}-{self._made}"

    def write(self, path: str, content: str) -> None:
        """Make `content` that of the memory file at `path`."""
        file = next(file for file in self._files.values() if self.path_of(file) == path)
        write_all(file, content.encode())

    def put_text(self, text: bytes) -> None:
        """Put the text of a command behind the last one, where bash will load it."""
        _write(self._files["text"], text + b"\0", self._text_end)
        self._text_end += len(text) + 1

    def place_text(self, text: bytes, pid: int, descriptor: int) -> bool:
        """Put the text where the process reads next with that descriptor; False where it leads elsewhere."""
        try:
            if not os.path.samestat(os.fstat(self._files["text"]), os.stat(f"/proc/{pid}/fd/{descriptor}")):
                return False
            with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as info:
                place = next(int(line.split()[1]) for line in info if line.startswith("pos:"))
        except (OSError, StopIteration):
            return False
        _write(self._files["text"], text + b"\0", place)
        self._text_end = place + len(text) + 1
        return True

    def rewind_text(self) -> None:
        """Begin anew: bash opens the file anew."""
        os.ftruncate(self._files["text"], 0)
        self._text_end = self._text_begin = 0

    def forget_text(self) -> None:
        """Give the memory of the texts back that bash has read, if it is much. The offsets stay what they are."""
        if self._text_end - self._text_begin > _LARGE_TEXT:
            self._text_begin = self._text_end
            os.ftruncate(self._files["text"], 0)

    def ring(self) -> None:
        """Have bash load and evaluate the text."""
        os.write(self.bell_pipe, b"\0")

    def send_lines(self, lines: bytes) -> None:
        """Send lines that bash reads when it is out of its loop."""
        os.write(self.boot_pipe, lines)

    @property
    def bell_heard(self) -> bool:
        """Whether bash has taken all that it was rung with."""
        return unread(self.bell_pipe) == 0

    @property
    def report_waits(self) -> bool:
        """Whether bash has said something that was not read yet."""
        return unread(self.reports_pipe) > 0

    def reads_boot_pipe(self, pid: int) -> bool:
        """Whether descriptor 0 of a process is the boot pipe. Its name is read: what it leads to might hang."""
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{pid}/fd/0") == self._boot_name
        return False

    def holds_bell(self, pid: int) -> bool:
        """Whether a process has the bell pipe open, at whatever number."""
        bell = os.fstat(self.bell_pipe)
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if os.path.samestat(bell, entry.stat()):
                        return True
        return False

    def take_back(self) -> None:
        """Take what bash has not read out of the bell and the boot pipe."""
        for pipe in (self.bell_pipe, self.boot_pipe):
            with contextlib.suppress(BlockingIOError):
                while os.read(pipe, _PIPE_READ):
                    pass

    def read_reports(self) -> tuple[bytes, bool]:
        """Return what has come through the pipe of reports, and whether there may be more."""
        try:
            data = os.read(self.reports_pipe, _PIPE_READ)
        except BlockingIOError:
            return b"", False
        return data, len(data) == _PIPE_READ

    def close(self) -> None:
        """Release all descriptors."""
        for descriptor in (self.boot_pipe, self.bell_pipe, self.reports_pipe, *self._files.values()):
            if descriptor >= 0:
                os.close(descriptor)
        if self._directory:
            remove_tree(self._directory)
            os.close(self._lock)


def _directory() -> tuple[str, int]:
    """Make a directory for what is shared with a bash of another user; return it, and a descriptor that locks it."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else tempfile.gettempdir()
    _remove_left(place)
    path = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    os.chmod(path, _ENTER_ALONE)  # after the lock: by its mode it is known for one that is locked, or was left
    return path, lock


@functools.cache
def _remove_left(place: str) -> None:
    """Remove, once, the directories of daemons that were killed: nobody locks them, and no other user can open them."""
    for name in os.listdir(place):
        if name.startswith(_PREFIX):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            with contextlib.suppress(OSError), Descriptor(os.open(f"{place}/{name}", flags)) as lock:
                status = os.fstat(lock)
                if (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), _ENTER_ALONE):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(f"{place}/{name}")


def _pipe() -> int:
    """Make a pipe, and return one descriptor for both of its ends."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with Descriptor(reading), Descriptor(writing):
        return os.open(descriptor_path(reading), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def descriptor_path(descriptor: int) -> str:
    """Return a path by which another process of this user can open what `descriptor` refers to."""
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def write_all(descriptor: int, data: bytes) -> None:
    """Make `data` the content of a memory file."""
    os.ftruncate(descriptor, 0)
    _write(descriptor, data)


def read_all(descriptor: int, most: int) -> bytes:
    """Return the first `most` bytes of a memory file."""
    content: list[bytes] = []
    place = 0
    while place < most and (data := os.pread(descriptor, min(most - place, _PIECE), place)):
        content.append(data)
        place += len(data)
    return b"".join(content)


def _write(descriptor: int, data: bytes, place: int = 0) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], place + written)
