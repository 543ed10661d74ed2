"""Archives on their way out: tar, tar.gz and zip of a directory or a file, made as they are read.

A generator of bytes: nothing is held but a piece, and of a zip file its own directory. Entries come in a stable order,
parents before what they hold, names sorted; the same tree gives the same bytes. Symbolic links are stored as links and
never followed. In a tar so are further names of a file; in a zip, which knows no such links, each is a file. Sockets,
fifos and devices are left out. What vanishes meanwhile is left out, too; a file that grows or shrinks under the reader
has the size that it began with, filled up with zeros. What may not be read ends it: an archive that lacks something
does not look whole.
"""

import functools
import os
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import AsyncIterator, Generator, Iterator
from typing import IO, Final, Self, cast

from shelld_py.files.blocking import Threads
from shelld_py.files.globs import Globs
from shelld_py.files.models import ArchiveFormat
from shelld_py.files.open_file import meaning
from shelld_py.files.paths import displayable
from shelld_py.files.search import Tree, TreeEntry
from shelld_py.files.storage import CHUNK, chunks_of

PIECE: Final = 256 << 10
"""Bytes that are made at once."""
_OLDEST: Final = 315532800
"""1 January 1980, before which zip files know no time."""
_NEWEST: Final = 4354819198


class Archive:
    """An archive of what a path leads to, to be read once; close it in any case. `name` is one for a file of it."""

    def __init__(
        self, tree: Tree, form: ArchiveFormat, exclude: Globs, threads: Threads, *, name: str, ignored: bool
    ) -> None:
        """Take over `tree`; make it in `threads`."""
        self._tree = tree
        self._threads = threads
        self._pieces = _packed(tree, tree.entries(exclude, ignored=ignored), form)
        self.name = f"{displayable(name) or 'root'}.{form}"

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield its bytes. Raises what stands for what the system refuses."""
        try:
            while data := await self._threads.run(functools.partial(next, self._pieces, b"")):
                yield data
        except OSError as error:
            raise meaning(error, self._tree.path) from error

    def close(self) -> None:
        """Close what is open. May be called twice."""
        self._pieces.close()
        self._tree.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _packed(tree: Tree, entries: Iterator[TreeEntry], form: ArchiveFormat) -> Generator[bytes, None, None]:
    """Yield the archive of `entries` of `tree` in pieces of some `PIECE` bytes. Raises `OSError`."""
    pieces = _zip(tree, entries) if form is ArchiveFormat.ZIP else _tar(tree, entries)
    collected: list[bytes] = []
    size = 0
    for data in _compressed(pieces) if form is ArchiveFormat.TAR_GZ else pieces:
        collected.append(data)
        size += len(data)
        if size >= PIECE:
            yield b"".join(collected)
            collected, size = [], 0
    yield b"".join(collected)


def _compressed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    compressor = zlib.compressobj(6, zlib.DEFLATED, 31)  # the header that zlib writes has no time and no name
    for data in pieces:
        yield compressor.compress(data)
    yield compressor.flush()


def _tar(tree: Tree, entries: Iterator[TreeEntry]) -> Iterator[bytes]:
    names: dict[tuple[int, int], str] = {}
    """The first name of each file that has several."""
    for entry in entries:
        status = entry.status
        info = tarfile.TarInfo(entry.path)
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            yield _header(info, status)
        elif stat.S_ISLNK(status.st_mode):
            info.type = tarfile.SYMTYPE
            if (target := tree.link(entry.path)) is not None:
                info.linkname = target
                yield _header(info, status)
        elif stat.S_ISREG(status.st_mode):
            several = status.st_nlink > 1
            if several and (status.st_dev, status.st_ino) in names:
                info.type = tarfile.LNKTYPE
                info.linkname = names[status.st_dev, status.st_ino]
                yield _header(info, status)
                continue
            descriptor = tree.open(entry.path)
            if descriptor is None:
                continue
            with descriptor:
                status = os.fstat(descriptor)
                if several:
                    names[status.st_dev, status.st_ino] = entry.path
                info.size = status.st_size
                yield _header(info, status)
                yield from _content(descriptor, status.st_size)
                yield bytes(-status.st_size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(info: tarfile.TarInfo, status: os.stat_result) -> bytes:
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = int(status.st_mtime)
    info.uid, info.gid = status.st_uid, status.st_gid
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _zip(tree: Tree, entries: Iterator[TreeEntry]) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(cast("IO[bytes]", sink), "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in entries:
            status = entry.status
            info = zipfile.ZipInfo(displayable(entry.path), _dos_time(status.st_mtime))
            info.create_system = 3  # Unix: the upper half of the attributes is the mode
            info.external_attr = (status.st_mode & 0xFFFF) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            if stat.S_ISDIR(status.st_mode):
                info.filename += "/"
                info.external_attr |= 0x10
                info.compress_type = zipfile.ZIP_STORED
                archive.writestr(info, b"")
            elif stat.S_ISLNK(status.st_mode):
                if (target := tree.link(entry.path)) is not None:
                    archive.writestr(info, os.fsencode(target))
            elif stat.S_ISREG(status.st_mode) and (descriptor := tree.open(entry.path)) is not None:
                with descriptor:
                    size = os.fstat(descriptor).st_size
                    with archive.open(info, "w", force_zip64=size >= zipfile.ZIP64_LIMIT) as file:
                        for data in _content(descriptor, size):
                            file.write(data)
                            yield sink.taken()
            yield sink.taken()
    yield sink.taken()


class _Sink:
    """What a zip file is written to: it can neither be read nor sought in."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def taken(self) -> bytes:
        """Return what was written since the last time."""
        data, self._data = bytes(self._data), bytearray()
        return data


def _dos_time(seconds: float) -> tuple[int, int, int, int, int, int]:
    return time.gmtime(min(max(int(seconds), _OLDEST), _NEWEST))[:6]


def _content(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield `size` bytes of an open file, zeros where it has fewer."""
    for data in chunks_of(descriptor, size):
        size -= len(data)
        yield data
    while size:
        data = bytes(min(size, CHUNK))
        size -= len(data)
        yield data
