"""A regular file that is there, as a change or a read finds it: its status, its hash, its text.

Works on a `Location`. What may be read is the policy's to say; what is done with the file is not known here.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Self

from shelld_py.errors import FileNotFound, NotText
from shelld_py.files.paths import AllowedDirectories, Location
from shelld_py.files.policy import ReadPolicy, TextCheck
from shelld_py.files.storage import FileIdentity, Fingerprint, chunks_of, etag_of, open_regular, read_all
from shelld_py.files.text_file import Text, content_etag


class OpenFile:
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
        return Fingerprint(self.etag, stat.S_IMODE(self.status.st_mode))

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

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
