"""What the system's refusals mean for whoever asked: from `OSError` to the project's errors.

One table and one function; everything else in `files` lets errors of the system pass through to it.
"""

import errno

from shelld_py.errors import (
    FileAlreadyExists,
    FileNotFound,
    FileOperationFailed,
    InvalidRequest,
    NoSpace,
    NotADirectory,
    NotAFile,
    PermissionDenied,
    ShelldError,
)

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


def meaning(error: OSError, path: str) -> ShelldError:
    """Return the error to answer with when the system refuses an operation on `path`."""
    kind, sentence = _MEANINGS.get(error.errno or 0, (FileOperationFailed, f"failed: {error.strerror or error}"))
    return kind(f"{path} {sentence}.", path=path)


def directory_needed(path: str) -> NotADirectory:
    """Return the error for a path that leads to a file where a directory is needed."""
    return NotADirectory(f"{path} is a file, not a directory.", path=path)
