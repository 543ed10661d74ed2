"""What is sent while it is read, from a file or a directory of this machine. Knows nothing of requests."""

from pathlib import Path
from typing import BinaryIO, Final

_PIECE: Final = 256 * 1024


class Upload:
    """What is read from a file while it is sent, each time from where that was at first."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.repeatable = file.seekable()
        self._start = file.tell() if self.repeatable else 0

    def rewind(self) -> None:
        """Begin again."""
        if self.repeatable:
            self._file.seek(self._start)

    def read(self) -> bytes:
        """Return the next piece, empty at the end."""
        return self._file.read(_PIECE)

    def close(self) -> None:
        """Give up what was opened for this: nothing, for the file is somebody else's."""


class LocalPath(Upload):
    """A file of this machine, or a directory as a tar, which is packed when it is sent, into a file without a name."""

    repeatable = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: BinaryIO | None = None

    def rewind(self) -> None:
        """Begin again. Raises `OSError`."""
        if self._opened:
            self._opened.seek(0)
        elif self._path.is_dir():
            import tarfile
            import tempfile

            self._opened = tempfile.TemporaryFile()  # noqa: SIM115
            with tarfile.open(fileobj=self._opened, mode="w") as tar:
                tar.add(self._path.resolve(), arcname=".")  # of a link, what it leads to
            self._opened.seek(0)
        else:
            self._opened = self._path.open("rb")

    def read(self) -> bytes:
        """Return the next piece, empty at the end."""
        assert self._opened is not None
        return self._opened.read(_PIECE)

    def close(self) -> None:
        """Close what was opened."""
        if self._opened:
            self._opened.close()
            self._opened = None
