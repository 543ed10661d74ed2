"""Which directory a path leads to, and proof that it lies in an allowed one.

This file alone turns text into descriptors. Everything after it works on a descriptor of the parent
directory and a plain name, so nothing that happens to the path in the meantime can lead it elsewhere. It
never looks at the content of files and knows nothing of operations.

How a path is resolved
----------------------

String prefixes and `realpath` leave a window: between the check and the use a directory can be swapped for
a symbolic link. So each step is taken on a descriptor: from an allowed directory downwards, every component
is opened relative to the one before with `O_NOFOLLOW`. What is open cannot be swapped any more.

A symbolic link on the way is not followed by the kernel but read, and put in the path's text in its place;
then the resolution starts again with the new text, from an allowed directory. A link out of the allowed
directories thus ends like a path to the same place: refused. `..` steps back along the names walked so far;
above the allowed directory it continues on the text, as a link does.

Text outside of the allowed directories is only ever rewritten (`/home/me/link/x` to `/srv/project/x`), never
opened. Whatever a race makes of that text, what counts is the descent from the allowed directory.

The common path has no links and no `..`. Where the kernel has openat2(2), it is opened in a single call that
refuses links (`RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`); if that fails for any reason, the walk decides. Both
are tested against each other.

Not guaranteed: a directory that something moves out of the allowed ones while an operation has it open is
still the directory of that operation. And a hard link *is* the file: nobody can tell where else it has names.
Writes never go through one, since they put a new file in the place of the name.
"""

import contextlib
import difflib
import errno
import itertools
import os
import posixpath
from collections.abc import Callable, Iterable, Sequence

from shelld_py.errors import FileNotFound, InvalidRequest, NotADirectory, NotAFile, PathNotAllowed
from shelld_py.linux.descriptors import Descriptor, DescriptorHolder
from shelld_py.linux.syscalls import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    has_openat2,
    is_on_proc,
    openat2,
)
from shelld_py.linux.users import uses_files_as

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAXIMUM_LINKS = 40
"""As many as the kernel follows in one path (path_resolution(7))."""
_MAXIMUM_PATH = 4096
"""Bytes of a path: PATH_MAX of Linux, limits.h."""
_NAMES_COMPARED = 5_000
"""Names of a directory that are looked at for the nearest ones."""

DirectoryOpener = Callable[[int, Sequence[str]], Descriptor]
"""Opens the directory that plain names lead to from a descriptor; raises `OSError` at any symbolic link."""


def open_by_walk(directory: int, names: Sequence[str]) -> Descriptor:
    """Open `names` one after the other, each with `O_NOFOLLOW`: works on every kernel.

    Returns a descriptor with `O_PATH`. Raises `OSError`; for a symbolic link it is `ENOTDIR` (open(2): with
    `O_DIRECTORY`, a link that is not followed is not a directory).
    """
    current = os.open(".", _DIRECTORY, dir_fd=directory)
    for name in names:
        with Descriptor(current):
            current = os.open(name, _DIRECTORY, dir_fd=current)
    return _checked(current)


def open_by_openat2(directory: int, names: Sequence[str]) -> Descriptor:
    """Open `names` in one system call that refuses symbolic links and everything outside of `directory`.

    Returns a descriptor with `O_PATH`. Raises `OSError`; for a symbolic link it is `ELOOP`.
    """
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
    return _checked(openat2(directory, "/".join(names) or ".", _DIRECTORY, resolve))


def _checked(descriptor: int) -> Descriptor:
    """Return an open directory; one of /proc is refused to a thread that uses files as another user (see users.py)."""
    if uses_files_as() and is_on_proc(descriptor):
        os.close(descriptor)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return Descriptor(descriptor)


def beneath(path: str, root: str) -> bool:
    """Whether `path` is `root`, or below it; both are absolute and plain."""
    return (path + "/").startswith(root.rstrip("/") + "/")


def readable(directory: int) -> Descriptor:
    """Open a directory anew to list or sync it, which `O_PATH` does not allow. Raises `OSError`."""
    return Descriptor(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory))


def best_directory_opener() -> DirectoryOpener:
    """Return openat2's where the kernel has it, else the walk."""
    return open_by_openat2 if has_openat2() else open_by_walk


class Location(DescriptorHolder):
    """A place for a file: the open parent directory, and a plain name in it that may or may not exist.

    `path` is the real absolute path, without links. `made` are the directories that were made on the way.
    """

    def __init__(self, directory: int, name: str, path: str, made: tuple[str, ...] = ()) -> None:
        """Take over the descriptor `directory`."""
        self.descriptor = directory
        self.name = name
        self.path = path
        self.made = made

    @property
    def directory(self) -> int:
        """The descriptor of the directory."""
        return self.descriptor

    def link(self) -> str | None:
        """Return what the name says as a symbolic link; None where it is something else or nothing."""
        return _link_target(self.directory, self.name)


class AllowedDirectories:
    """The directories that operations may work in, and the resolution of paths against them."""

    def __init__(self, base: str, allowed: Iterable[str], opener: DirectoryOpener) -> None:
        """Take the directories by their real paths of now; they need not exist yet.

        Relative paths start at `base`. That an allowed directory's own path becomes a link later does not
        move it: such a directory can no longer be opened.
        """
        self.base = posixpath.join("/", base)
        self.roots = tuple(dict.fromkeys(os.path.realpath(path) for path in allowed))
        self._opener = opener

    def locate(self, path: str, *, follow_last: bool = True, make_parents: bool = False) -> Location:
        """Return where the file `path` is or would be.

        With `follow_last` a symbolic link at the end is followed. Without, the link itself is meant, yet what
        it leads to must be allowed too. With `make_parents` missing directories are made.

        Raises `InvalidRequest` for text that is no path of a file, `PathNotAllowed`, `FileNotFound` for a
        missing parent directory, `NotAFile` for an allowed directory itself, `OSError` where the system fails.
        """
        text = self._absolute(path)
        if path.endswith("/") or posixpath.basename(path) in (".", ".."):
            raise InvalidRequest(f"{path!r} must end in the name of a file.")
        if not follow_last:
            with contextlib.suppress(FileNotFound):
                self.locate(path).close()
        made: list[str] = []
        try:
            for _ in range(_MAXIMUM_LINKS):
                outcome = self._descend(text, follow_last=follow_last, made=made if make_parents else None)
                if isinstance(outcome, Location):
                    return outcome
                text = outcome
            raise FileNotFound(f"{path} has too many levels of symbolic links.", path=path)
        except BaseException:
            self.remove_empty(made)
            raise

    def locate_inside(self, path: str) -> Location:
        """Return a place in the directory `path`, which is made where it is missing; its name means nothing.

        Raises as `locate`, and `NotADirectory`.
        """
        self._absolute(path)
        try:
            return self.locate(posixpath.join(path, "name"), make_parents=True)
        except NotADirectoryError:
            raise NotADirectory(f"{path} is or leads through a file, not a directory.", path=path) from None

    def open_directory(self, path: str) -> tuple[Descriptor, str]:
        """Return a descriptor (with `O_PATH`) of the directory `path` and its real path.

        Raises as `locate`; `NotADirectoryError` when it is something else.
        """
        text = self._absolute(path)
        for _ in range(_MAXIMUM_LINKS):
            root, parts = self._split(text)
            outcome = self._enter(root, parts, made=None)
            if not isinstance(outcome, str):
                return outcome
            text = outcome
        raise FileNotFound(f"{path} has too many levels of symbolic links.", path=path)

    def named(self, path: str) -> str:
        """Return the real path of a file or a directory, which may be gone, and the directory that it was in too.

        Raises `InvalidRequest`, `PathNotAllowed`, `OSError` where the system fails.
        """
        # What is gone may be an allowed directory, or on the way to a `..` at the end; a file may be in its place.
        with contextlib.suppress(FileNotFound, NotAFile, InvalidRequest, NotADirectoryError):
            try:
                directory, real = self.open_directory(path)
            except (FileNotFound, NotADirectoryError):
                with self.locate(path.rstrip("/")) as location:
                    return location.path
            os.close(directory)
            return real
        root, parts = self._split(posixpath.normpath(self._absolute(path)))
        return _path_of(root, parts)

    def shown(self, path: str) -> str:
        """Return a real path as a diff names it: relative to the base where it lies beneath it, without a slash."""
        base = os.path.realpath(self.base)
        shown = posixpath.relpath(path, base) if path.startswith(base.rstrip("/") + "/") else path
        return displayable(shown).lstrip("/")

    def remove_empty(self, directories: Sequence[str]) -> None:
        """Remove those of `directories`, parents first in the list, that are empty."""
        for directory in reversed(directories):
            with contextlib.suppress(OSError, FileNotFound, PathNotAllowed), self.locate(directory) as location:
                os.rmdir(location.name, dir_fd=location.directory)

    def missing(self, location: Location) -> FileNotFound:
        """Return the error for a file that is not there, with the nearest names of its directory."""
        return _not_found(location.path, location.directory, location.name)

    def _absolute(self, path: str) -> str:
        if not path or "\0" in path:
            raise InvalidRequest("path must be the path of a file: not empty, and without NUL.")
        if path == "~" or path.startswith("~/"):
            detail = f"{path} is not a path here, for ~ is not expanded; name the home directory, or write ./{path}."
            raise InvalidRequest(detail)
        text = posixpath.join(self.base, path)
        try:
            length = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidRequest("path must be valid Unicode.") from None
        if length >= _MAXIMUM_PATH:
            raise InvalidRequest(f"path must be shorter than {_MAXIMUM_PATH} bytes, not {length}.")
        return text

    def _split(self, text: str) -> tuple[str, list[str]]:
        """Return the allowed directory that `text` goes through, and the components after it.

        Only text is handled here; see the top of the file.
        """
        links = 0
        pending = _components(text)
        walked: list[str] = []
        while True:
            here = "/" + "/".join(walked)
            if here in self.roots:
                return here, pending
            if not pending or links > _MAXIMUM_LINKS:
                raise self._refused(text)
            part, *pending = pending
            if part == "..":
                del walked[-1:]
                continue
            target = self._link_outside(posixpath.join(here, part))
            if target is None:
                walked.append(part)
            else:
                links += 1
                pending = _components(posixpath.join(here, target)) + pending
                walked = []

    def _link_outside(self, path: str) -> str | None:
        """Return what the link `path` says; None for anything else, and on the way to an allowed directory."""
        if any((root + "/").startswith(path + "/") for root in self.roots):
            return None
        try:
            return os.readlink(path)
        except OSError:
            return None

    def _descend(self, text: str, *, follow_last: bool, made: list[str] | None) -> Location | str:
        """Return the location that `text` leads to, or the text to go on with after a link."""
        root, parts = self._split(text)
        if not parts:
            raise NotAFile(f"{root} is a directory, not a file.", path=root)
        *parents, name = parts
        outcome = self._enter(root, parents, made)
        if isinstance(outcome, str):
            return posixpath.join(outcome, name)
        directory, path = outcome
        if name == "..":
            os.close(directory)
            raise NotAFile(f"{text} is a directory, not a file.", path=text)
        location = Location(directory, name, posixpath.join(path, name), tuple(made or ()))
        target = _link_target(directory, name) if follow_last else None
        if target is None:
            return location
        location.close()
        return posixpath.join(path, target)

    def _enter(self, root: str, parts: Sequence[str], made: list[str] | None) -> tuple[Descriptor, str] | str:
        """Return the directory that `parts` lead to from `root` and its real path, or text to go on with."""
        if ".." not in parts:
            with contextlib.suppress(OSError):
                return self._open(root, parts), _path_of(root, parts)
        walked: list[str] = []
        current = self._open_root(root)
        try:
            for index, part in enumerate(parts):
                rest = parts[index + 1 :]
                if part == "..":
                    if not walked:
                        return posixpath.join(posixpath.dirname(root), *rest)
                    walked.pop()
                    following = self._open(root, walked)
                else:
                    target = _link_target(current, part)
                    if target is not None:
                        return posixpath.join(root, *walked, target, *rest)
                    following = self._step(current, part, _path_of(root, [*walked, part]), made)
                    walked.append(part)
                os.close(current)
                current = following
            result, current = current, Descriptor(-1)
            return result, _path_of(root, walked)
        finally:
            if current >= 0:
                os.close(current)

    def _step(self, directory: int, name: str, path: str, made: list[str] | None) -> Descriptor:
        """Open the directory `name` in `directory`, or make it where `made` says to."""
        try:
            return self._opener(directory, (name,))
        except FileNotFoundError:
            if made is None:
                raise _not_found(path, directory, name) from None
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=directory)
            made.append(path)
        return self._opener(directory, (name,))

    def _open(self, root: str, names: Sequence[str]) -> Descriptor:
        with self._open_root(root) as start:
            return self._opener(start, names) if names else Descriptor(os.dup(start))

    def _open_root(self, root: str) -> Descriptor:
        """Open an allowed directory by its real path, which must not have become a link."""
        with Descriptor(os.open("/", _DIRECTORY)) as start:
            try:
                return self._opener(start, _components(root))
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    detail = f"The allowed directory {root} does not exist, or is no longer the directory that it was."
                    raise FileNotFound(detail, path=root) from None
                raise

    def _refused(self, path: str) -> PathNotAllowed:
        allowed = list(self.roots)
        detail = f"{path} is outside of the allowed directories: {', '.join(allowed)}."
        return PathNotAllowed(detail, path=path, allowed_directories=allowed)


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of `names` that are most like `name`, the nearest first; case hardly counts."""
    folded: dict[str, str] = {}
    for candidate in names:
        folded.setdefault(candidate.casefold(), candidate)
    return [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.5)]


def displayable(path: str) -> str:
    """Return a path of the file system as text that can travel; bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(path).decode(errors="replace")


def _path_of(root: str, names: Sequence[str]) -> str:
    """Return the path of plain `names` below `root`; of two thousand of them ten times quicker than `join`."""
    return "/".join([root.rstrip("/"), *names]) if names else root


def _components(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _link_target(directory: int, name: str) -> str | None:
    """Return what the symbolic link `name` says, None when it is something else or nothing."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _not_found(path: str, directory: int, name: str) -> FileNotFound:
    """Return the error for `name` missing from `directory`; it names what is there and much like it."""
    near: list[str] = []
    with contextlib.suppress(OSError), readable(directory) as listing, os.scandir(listing) as entries:
        near = nearest_names(name, (entry.name for entry in itertools.islice(entries, _NAMES_COMPARED)))
    parent = posixpath.dirname(path)
    hint = f" In {parent} there is: {', '.join(near)}." if near else ""
    paths = [posixpath.join(parent, item) for item in near]
    return FileNotFound(f"{path} does not exist.{hint}", path=path, nearest=paths)
