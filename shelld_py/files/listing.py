"""The listing of a directory, several levels deep, quick for a hundred thousand names.

Works on an open directory. Only the names that are shown are looked at closely; the others are counted.
"""

import heapq
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from shelld_py.files.models import Entry, FileType
from shelld_py.files.paths import displayable, open_by_walk
from shelld_py.models import utc_timestamp

MOST_ENTRIES = 1000
"""Entries of a listing that are shown."""
_MOST_COUNTED = 1_000_000
"""Entries after which no deeper level is counted."""


@dataclass(frozen=True)
class Listing:
    """The first entries by name, and how many there are in all."""

    entries: tuple[Entry, ...]
    total: int


def listing_of(directory: int, *, depth: int, hidden: bool) -> Listing:
    """Return the content of an open directory, `depth` levels of it; names with a dot first only if `hidden`.

    Raises `OSError` when the directory itself cannot be read; deeper ones that cannot are shown empty.
    """
    names: list[str] = []
    listed = _names(directory, "", hidden=hidden)
    for level in range(depth):
        directories = []
        for name, is_directory in listed:
            names.append(name)
            if is_directory and level + 1 < depth:
                directories.append(name)
        if not directories or len(names) >= _MOST_COUNTED:
            break
        listed = _names_below(directory, directories, hidden=hidden)
    shown = heapq.nsmallest(MOST_ENTRIES, names)
    entries = tuple(entry for name in shown if (entry := _entry(directory, name)))
    return Listing(entries, len(names))


def _names_below(directory: int, paths: list[str], *, hidden: bool) -> Iterator[tuple[str, bool]]:
    for path in paths:
        try:
            descriptor = open_by_walk(directory, path.split("/"))
        except OSError:
            continue
        try:
            yield from _names(descriptor, path + "/", hidden=hidden)
        except OSError:
            continue
        finally:
            os.close(descriptor)


def _names(directory: int, prefix: str, *, hidden: bool) -> Iterator[tuple[str, bool]]:
    """Yield the names in a directory with `prefix`, and whether each is a directory."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if hidden or not entry.name.startswith("."):
                    yield prefix + entry.name, entry.is_dir(follow_symlinks=False)
    finally:
        os.close(descriptor)


def _entry(directory: int, path: str) -> Entry | None:
    """Return the entry `path` below the directory, None when it has just gone."""
    *parents, name = path.split("/")
    try:
        parent = open_by_walk(directory, parents)
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(parent)
    except OSError:
        return None
    return Entry(
        name=displayable(path),
        type=_file_type(status.st_mode),
        size=status.st_size,
        modified_at=utc_timestamp(status.st_mtime),
    )


def _file_type(mode: int) -> FileType:
    if stat.S_ISDIR(mode):
        return FileType.DIRECTORY
    if stat.S_ISREG(mode):
        return FileType.FILE
    return FileType.SYMLINK if stat.S_ISLNK(mode) else FileType.OTHER
