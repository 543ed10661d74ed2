"""A regular file that is there, as a change or a read finds it: its status, hash and text, and what stands in the way.

Works on a `Location`. What may be read is the policy's to say; what is done with the file is not known here. Errors of
the system pass through everything in `files` as they are, and become the project's by one table (`meaning`).
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Any

from shelld_py.errors import (
    FileAlreadyExists,
    FileNotFound,
    FileOperationFailed,
    InvalidRequest,
    NoSpace,
    NotADirectory,
    NotAFile,
    NotText,
    PermissionDenied,
    PreconditionFailed,
    ShelldError,
)
from shelld_py.files.models import ChangeRequest
from shelld_py.files.paths import AllowedDirectories, Location
from shelld_py.files.policy import ReadPolicy, TextCheck
from shelld_py.files.storage import FileIdentity, Fingerprint, chunks_of, etag_of, open_regular, read_all
from shelld_py.files.text_file import Text, content_etag
from shelld_py.linux.descriptors import DescriptorHolder

_MEANINGS: dict[int, tuple[type[ShelldError], str]] = {
    errno.ENOENT: (FileNotFound, "does not exist"),
    errno.ENOTDIR: (FileNotFound, "does not exist: a part of its path is no directory"),
    errno.ELOOP: (FileNotFound, "has a symbolic link in its path that changed at this moment; try again"),
    errno.ESTALE: (FileNotFound, "does not exist any more"),
    errno.EEXIST: (FileAlreadyExists, "exists already"),
    errno.EISDIR: (NotAFile, "is a directory, not a regular file"),
    errno.ENXIO: (NotAFile, "is a socket or a device, not a regular file"),
    errno.EACCES: (PermissionDenied, "cannot be used: the system denies permission"),
    errno.EPERM: (PermissionDenied, "cannot be used: the system does not permit it (is it immutable?)"),
    errno.EBUSY: (PermissionDenied, "cannot be changed: the system uses it"),
    errno.ETXTBSY: (PermissionDenied, "cannot be changed: the system runs it"),
    errno.EROFS: (PermissionDenied, "cannot be changed: its file system is read-only"),
    errno.ENOSPC: (NoSpace, "was not changed: no space left on the device"),
    errno.EDQUOT: (NoSpace, "was not changed: the disk quota is exhausted"),
    errno.EFBIG: (NoSpace, "was not changed: the file would exceed the system's limit on file sizes"),
    errno.ENAMETOOLONG: (InvalidRequest, "cannot be a path: a name in it is too long"),
    errno.EINVAL: (InvalidRequest, "is a name, or the operation one, that its file system does not know"),
    errno.EOPNOTSUPP: (InvalidRequest, "is on a file system that cannot do this"),
    errno.EAGAIN: (NotAFile, "has nothing to read at the moment: it is no stored file"),
    errno.ESPIPE: (NotAFile, "cannot be read from an offset: it is no stored file"),
}


class OpenFile(DescriptorHolder):
    """A regular file that is there, open for reading."""

    def __init__(self, location: Location) -> None:
        """Open it. Raises `FileNotFoundError`, `NotAFile`, `PermissionError`."""
        self.descriptor = open_regular(location.directory, location.name, location.path)
        self.status = os.fstat(self.descriptor)
        self.identity = FileIdentity.from_status(self.status)
        self._path = location.path
        self._etag: str | None = None

    @property
    def etag(self) -> str:
        """The hash of the content."""
        if self._etag is None:
            self._etag = etag_of(self.descriptor, self.status.st_size)
        return self._etag

    @property
    def fingerprint(self) -> Fingerprint:
        """What a step remembers of the file."""
        return Fingerprint(self.etag, self.status.st_size, stat.S_IMODE(self.status.st_mode))

    def text(self, policy: ReadPolicy) -> Text:
        """Return the whole text. Raises what `policy` has against it."""
        policy.check_name(os.path.basename(self._path), self._path)
        if not policy.fits(self.status.st_size):
            check = TextCheck(self._path)
            for data in chunks_of(self.descriptor, policy.max_file_size):
                check.feed(data)
            policy.check_size(self.status.st_size, self._path)
        data = read_all(self.descriptor, self.status.st_size)
        self._etag = content_etag(data)
        return Text.from_bytes(data, self._path)

    def text_or_none(self, policy: ReadPolicy) -> str | None:
        """Return the body of the text if it may be shown, None else."""
        if not policy.allows_name(os.path.basename(self._path)) or not policy.fits(self.status.st_size):
            return None
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        try:
            return Text.from_bytes(read_all(self.descriptor, self.status.st_size), self._path).body
        except NotText:
            return None


@contextlib.contextmanager
def open_if_there(location: Location) -> Iterator[OpenFile | None]:
    """Open the file at `location`; None where there is none."""
    try:
        file = OpenFile(location)
    except FileNotFoundError:
        yield None
        return
    with file:
        yield file


@contextlib.contextmanager
def open_through(directories: AllowedDirectories, location: Location) -> Iterator[OpenFile | None]:
    """Open the file that `location` is or, as a link, leads to; None where there is none."""
    try:
        target = directories.locate(location.path)
    except FileNotFound:
        yield None
        return
    with target, open_if_there(target) as file:
        yield file


def check_preconditions(
    request: ChangeRequest[Any], file: OpenFile | None, path: str, *, destination_exists: bool | None = None
) -> None:
    """Raise `PreconditionFailed` unless `file`, None for no file, is what the request asks for.

    `if_none_match` is about the destination where there is one.
    """
    exists = file is not None if destination_exists is None else destination_exists
    if request.if_none_match and exists:
        raise precondition_failed(path, "if_none_match is *, but the file exists", file.etag if file else None)
    wanted = request.if_match
    if wanted is None:
        return
    if file is None:
        raise precondition_failed(path, "if_match is given, but there is no file", None)
    if wanted != "*" and wanted.removeprefix("W/").strip('"') != file.etag:
        raise precondition_failed(path, f"if_match is {wanted}, but the etag is {file.etag}", file.etag)


def check_writable(directory: int, name: str, status: os.stat_result, path: str) -> None:
    """Raise `PermissionDenied` when the file is read-only.

    rename(2) would not ask: it needs rights on the directory alone. A file without any write bit is taken at its
    word even when root asks.
    """
    writable = status.st_mode & 0o222 and os.access(name, os.W_OK, dir_fd=directory, effective_ids=True)
    if not writable:
        detail = f"{path} is read-only (mode {stat.S_IMODE(status.st_mode):04o}). Nothing was changed; chmod it first."
        raise PermissionDenied(detail, path=path)


def check_readable(status: os.stat_result, path: str) -> None:
    """Raise `PermissionDenied` where nobody may read the file: without any read bit it is taken at its word, too."""
    if not status.st_mode & 0o444:
        detail = f"{path} may be read by nobody (mode {stat.S_IMODE(status.st_mode):04o}); chmod it first."
        raise PermissionDenied(detail, path=path)


def precondition_failed(path: str, reason: str, etag: str | None) -> PreconditionFailed:
    """Return the error for a condition that does not hold; `etag` is the present one."""
    detail = f"{path} is not as expected: {reason}. Nothing was changed; read the file again."
    return PreconditionFailed(detail, path=path, etag=etag)


def meaning(error: OSError, path: str) -> ShelldError:
    """Return the error to answer with when the system refuses an operation on `path`."""
    kind, sentence = _MEANINGS.get(error.errno or 0, (FileOperationFailed, f"failed: {error.strerror or error}"))
    return kind(f"{path} {sentence}.", path=path)


def directory_needed(path: str) -> NotADirectory:
    """Return the error for a path that leads to a file where a directory is needed."""
    return NotADirectory(f"{path} is a file, not a directory.", path=path)
