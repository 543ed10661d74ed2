"""Files as the kernel has them: opening without hanging, writing without a moment of half a file.

Works on the descriptor of a directory and a plain name in it (`paths.py` makes sure of the directory) and never
follows a symbolic link. Knows nothing of text, policy or history. Errors are those of the system.

How a file is written
---------------------

The new content goes into a new file that has no name (`O_TMPFILE`, open(2)) in the same directory. It gets the
mode, the owner and the extended attributes of the old one and is synced to disk. Only then it takes the old one's
name, by rename(2), which is atomic, and the directory is synced. A crash before leaves the old file, a crash
after the new one, and a file without a name vanishes by itself. rename(2) needs a name to start from, so for the
blink of an eye there is a second, hidden one; a crash right there leaves it behind, and the old file whole.

Where the file system has no `O_TMPFILE`, the new file has the hidden name from the start, and until it is whole
nobody but its owner may open it.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from typing import Self

from msgspec import Struct

from shelld_py.errors import FileChanged, NotAFile, ShelldError
from shelld_py.files.blocking import check_stopped
from shelld_py.files.paths import readable
from shelld_py.linux.descriptors import Descriptor, DescriptorHolder
from shelld_py.linux.syscalls import rename_without_replacing
from shelld_py.units import MEBIBYTE

CHUNK = 1 << 20
"""Bytes read at once."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the kernel says where the disk, the quota or the limit on file sizes is exhausted."""

_IGNORE_FILE = ".gitignore"
_FICLONE = 0x40049409
"""ioctl_ficlone(2); Python has a name for it from 3.14 on."""
_COPIED_AT_ONCE = 1 << 24
"""Bytes that one sendfile(2) copies, inside the kernel and thus faster than by reading and writing."""
_ZEROS = bytes(CHUNK)

_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""What open(2) may answer where the file system or the kernel does not know `O_TMPFILE`."""
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a fifo"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


class Attributes(Struct, frozen=True):
    """What a file has beside its content and its name."""

    mode: int
    uid: int
    gid: int
    extended: tuple[tuple[str, bytes], ...]

    @classmethod
    def of(cls, descriptor: int) -> Self:
        """Return those of an open file."""
        status = os.fstat(descriptor)
        extended: list[tuple[str, bytes]] = []
        with contextlib.suppress(OSError):
            for name in os.listxattr(descriptor):
                with contextlib.suppress(OSError):
                    extended.append((name, os.getxattr(descriptor, name)))
        return cls(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, tuple(extended))

    def apply(self, descriptor: int) -> None:
        """Give them to an open file: the mode always, owner, group and extended ones as far as allowed.

        Only root may give files away (chown(2)). The mode comes after the owner, for chown clears set-uid bits,
        and without those bits if the owner could not be kept.
        """
        mode = self.mode
        status = os.fstat(descriptor)
        if (status.st_uid, status.st_gid) != (self.uid, self.gid):
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, -1, self.gid)
            try:
                os.fchown(descriptor, self.uid, -1)
            except PermissionError:
                mode &= ~(stat.S_ISUID | stat.S_ISGID)
        for name, value in self.extended:
            with contextlib.suppress(OSError):
                os.setxattr(descriptor, name, value)
        os.fchmod(descriptor, mode)


class Fingerprint(Struct, frozen=True):
    """What a file is after a change: its content's `etag` and size, and its mode."""

    etag: str
    size: int
    mode: int


class FileIdentity(Struct, frozen=True):
    """What tells whether a name still stands for the same file with the same content."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def from_status(cls, status: os.stat_result) -> Self:
        """Return the identity that `status` shows."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def status_of(directory: int, name: str) -> os.stat_result | None:
    """Return the status of `name`, of a symbolic link itself, or None when there is no such name."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def check_regular(status: os.stat_result, path: str) -> None:
    """Raise `NotAFile` unless `status` is that of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        kind = next((kind for test, kind in _KINDS if test(status.st_mode)), "something else")
        raise NotAFile(f"{path} is {kind}, not a regular file.", path=path)


def open_regular(directory: int, name: str, path: str) -> Descriptor:
    """Open the regular file `name` for reading and return its descriptor.

    Never waits: what is no regular file is not opened, and if one takes its place in that moment, `O_NONBLOCK`
    opens it without waiting for a peer (fifo(7)) and the second look refuses it.

    Raises `FileNotFoundError`, `NotAFile`, `PermissionError`.
    """
    check_regular(os.stat(name, dir_fd=directory, follow_symlinks=False), path)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = Descriptor(os.open(name, flags, dir_fd=directory))
    try:
        check_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def ignore_text(directory: int) -> str:
    """Return what the .gitignore in `directory` says, up to a mebibyte; nothing where none can be read."""
    try:
        with open_regular(directory, _IGNORE_FILE, _IGNORE_FILE) as descriptor:
            return os.read(descriptor, MEBIBYTE).decode(errors="replace")
    except (OSError, ShelldError):
        return ""


def chunks_of(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the content of an open file from its position on, `size` bytes at most.

    There is always a size, for an end can move away: of a file that grows, or of one that the kernel makes up.
    """
    while size > 0 and (data := os.read(descriptor, min(size, CHUNK))):
        check_stopped()
        yield data
        size -= len(data)


def read_all(descriptor: int, size: int) -> bytes:
    """Return the next `size` bytes of an open file, or what there is of them.

    What something else appends meanwhile is not read: a part of it could end in the middle of a character.
    """
    data = os.read(descriptor, size)
    return data if len(data) == size else b"".join((data, *chunks_of(descriptor, size - len(data))))


def etag_of(descriptor: int, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of an open file."""
    digest = hashlib.sha256()
    os.lseek(descriptor, 0, os.SEEK_SET)
    for data in chunks_of(descriptor, size):
        digest.update(data)
    return digest.hexdigest()


def clone(source: int, target: int) -> bool:
    """Let `target`, an empty file, share the blocks of `source`; return whether the file system can do that."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def copy_content(source: int, target: int, size: int) -> None:
    """Copy the first `size` bytes of an open file into an empty one; holes stay holes. Raises `OSError`."""
    for start, end in _extents(source, size):
        os.lseek(target, start, os.SEEK_SET)
        at = start
        while at < end and (sent := os.sendfile(target, source, at, min(end - at, _COPIED_AT_ONCE))):
            at += sent
            check_stopped()
    os.ftruncate(target, size)


def _extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield from where to where an open file has data below `size`; all of it where nobody knows."""
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole from here on
                return
            start, end = position, size
        if start < size:
            yield start, min(end, size)
        position = end


def check_same(directory: int, name: str, identity: FileIdentity, path: str) -> None:
    """Raise `FileChanged` unless the name still stands for the file that was looked at."""
    status = status_of(directory, name)
    if status is None or FileIdentity.from_status(status) != identity:
        detail = f"Something else changed {path} at the same moment. Nothing was done; read it again."
        raise FileChanged(detail, path=path)


class NewFile(DescriptorHolder):
    """A file in the making, which nobody sees until it is published."""

    _name: str | None = None

    def __init__(self, directory: int) -> None:
        """Make it in `directory`, whose descriptor must stay open. Raises `OSError`."""
        self._directory = directory
        self.size = 0
        self._digest = hashlib.sha256()
        self.descriptor = self._open()

    @property
    def etag(self) -> str:
        """The SHA-256 of what was written so far."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        """Append `data`. Raises `OSError`: `ENOSPC`, `EDQUOT`, `EFBIG` for a full disk, quota or limit."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]
        self._digest.update(data)
        self.size += len(data)

    def copy(self, source: int, size: int) -> None:
        """Take over the first `size` bytes of an open file; this one must be empty. Holes stay holes.

        The blocks are shared where the file system can do that. Raises as `write`.
        """
        if not clone(source, self.descriptor):
            copy_content(source, self.descriptor, size)
        for start, end in _extents(source, size):
            self._skip(start - self.size)
            os.lseek(source, start, os.SEEK_SET)
            for data in chunks_of(source, end - start):
                self._digest.update(data)
                self.size += len(data)
        self._skip(size - self.size)
        os.ftruncate(self.descriptor, size)

    def _skip(self, hole: int) -> None:
        """Count `hole` zero bytes."""
        self.size += hole
        while hole > 0:
            check_stopped()
            self._digest.update(memoryview(_ZEROS)[:hole])
            hole -= CHUNK

    def publish(
        self,
        name: str,
        attributes: Attributes | None,
        replaced: FileIdentity | None,
        path: str,
        *,
        sync: bool = True,
    ) -> int:
        """Give the file its name, and return its mode.

        `replaced` is the file that may lose the name, None where the name must be free. Without `sync`, a crash of the
        machine may lose what was written.

        Raises `FileChanged` when the name stands for another file by now, `FileExistsError` when it is not free.
        """
        if attributes:
            attributes.apply(self.descriptor)
        elif self._name is not None:
            os.fchmod(self.descriptor, self._default_mode())
        if sync:
            os.fsync(self.descriptor)
        if replaced is None:
            self._take_free(name)
        else:
            self._replace(name, replaced, path)
        if sync:
            sync_directory(self._directory)
        return stat.S_IMODE(os.fstat(self.descriptor).st_mode)

    def close(self) -> None:
        """Close the file; without having been published it is gone. May be called twice."""
        if self._name is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)
            self._name = None
        super().close()

    def _open(self) -> int:
        if os.path.isdir("/proc/self/fd"):  # link(2) reaches a file without a name only through there
            try:
                return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666, dir_fd=self._directory)
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
        self._name, descriptor = self._make_hidden(0o600)  # what it will hold may be nobody else's to read
        return descriptor

    def _make_hidden(self, mode: int) -> tuple[str, int]:
        name = _hidden_name()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return name, os.open(name, flags, mode, dir_fd=self._directory)

    def _default_mode(self) -> int:
        """Return the mode that a new file gets here: by the umask, or by the directory's default list (acl(5))."""
        name, descriptor = self._make_hidden(0o666)
        with Descriptor(descriptor):
            os.unlink(name, dir_fd=self._directory)
            return stat.S_IMODE(os.fstat(descriptor).st_mode)

    def _take_free(self, name: str) -> None:
        if self._name is None:
            self._link(name)
        else:
            rename_without_replacing(self._directory, self._name, self._directory, name)
            self._name = None

    def _replace(self, name: str, replaced: FileIdentity, path: str) -> None:
        if self._name is None:
            hidden = _hidden_name()
            self._link(hidden)
            self._name = hidden
        check_same(self._directory, name, replaced, path)
        os.rename(self._name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._name = None

    def _link(self, name: str) -> None:
        os.link(f"/proc/self/fd/{self.descriptor}", name, dst_dir_fd=self._directory, follow_symlinks=True)


def place_link(directory: int, name: str, make: Callable[[str], None], *, replace: bool) -> None:
    """Give a link that `make` makes its name in one step, also where it replaces what has the name.

    Raises `FileExistsError` unless `replace`.
    """
    hidden = _hidden_name()
    make(hidden)
    try:
        if replace:
            os.rename(hidden, name, src_dir_fd=directory, dst_dir_fd=directory)
        else:
            rename_without_replacing(directory, hidden, directory, name)
    except BaseException:
        os.unlink(hidden, dir_fd=directory)
        raise
    with contextlib.suppress(FileNotFoundError):  # rename(2) leaves both names of one file as they are
        os.unlink(hidden, dir_fd=directory)


def sync_directory(directory: int) -> None:
    """Make names that were made or removed last through a crash of the machine.

    As far as the directory can be read and the file system has a notion of it.
    """
    with contextlib.suppress(OSError), readable(directory) as descriptor:
        os.fsync(descriptor)


def _hidden_name() -> str:
    return f".{secrets.token_hex(8)}.tmp"
