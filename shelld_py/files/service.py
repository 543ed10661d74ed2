"""The operations on files, as the rest of the daemon calls them.

This file puts the rooms together: it finds the place (`paths`), takes the file's lock, has the work done in a thread
or, for searches, in a process of its own (`blocking`), and turns errors of the system into the project's (`open_file`).
What there is to do says the table in `operations`. It knows nothing of HTTP.

Reads take no lock: every write puts a whole file in the place of another, so what a read has open is whole.
"""

import asyncio
import contextlib
import functools
import os
import posixpath
import signal
import subprocess
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from shelld_py.config import FileSettings
from shelld_py.errors import FileOperationFailed, FileTooLarge, Overloaded, SearchTooSlow
from shelld_py.files.blocking import NamedLocks, Threads, call_in_process
from shelld_py.files.changes import Changes
from shelld_py.files.globs import Globs
from shelld_py.files.history import History
from shelld_py.files.models import (
    ArchiveFormat,
    ArchiveResult,
    ByteRange,
    ChangeRequest,
    ChangeResult,
    FileRequest,
    MoveRequest,
    MoveResult,
    Result,
)
from shelld_py.files.open_file import meaning
from shelld_py.files.operations import OPERATIONS, Access, Rooms
from shelld_py.files.paths import AllowedDirectories, DirectoryOpener, Location, best_directory_opener
from shelld_py.files.policy import ReadPolicy
from shelld_py.files.reading import RawFile, ReadOperations
from shelld_py.files.search import SearchScope, Tree
from shelld_py.files.storage import NewFile
from shelld_py.files.undoing import Undoing
from shelld_py.linux.descriptors import Descriptor
from shelld_py.linux.users import User, own_files
from shelld_py.units import format_size

if TYPE_CHECKING:
    from shelld_py.files.packing import Archive

T = TypeVar("T")
_PASSED_OVER = 1 << 20
"""Bytes behind the end of an archive that are read for the connection's sake: most writers fill up a last record."""
_INPUT: Final = "The standard input"
_SEARCHES_AT_ONCE = 4
"""Processes that search at the same time; others wait for their turn."""
_SEARCH_CPU_TIME: Final = 3.0
"""Seconds that a pattern may take for one file: an ordinary one takes half a second for 10 MiB."""


class FileService:
    """Files in the allowed directories. Use it as an async context manager, or call `aclose` at the end."""

    def __init__(
        self,
        settings: FileSettings,
        *,
        base_directory: str,
        allowed_directories: Iterable[str],
        backup_directory: str,
        clock: Callable[[], float] = time.monotonic,
        ripgrep: str | None = "rg",
        search_timeout: float = 30.0,
        directory_opener: DirectoryOpener | None = None,
        user: User | None = None,
    ) -> None:
        """Take the settings, and the directories that they leave open.

        `clock` gives seconds for the age of undo steps. `ripgrep` is the program that speeds up searches, by name
        or path; without it they only take longer. `search_timeout` is in seconds. `directory_opener` opens
        directories; the default is the best that the kernel has. With `user` all is done as they could do it, but for
        the backups, which stay the daemon's own.

        Raises `ConfigError` when `backup_directory` cannot be a private directory.
        """
        self._opener = opener = directory_opener or best_directory_opener()
        self._directories = directories = AllowedDirectories(base_directory, allowed_directories, opener)
        policy = ReadPolicy.from_settings(settings)
        self._history = History(
            backup_directory,
            ttl=settings.event_ttl,
            max_events=settings.max_events_per_file,
            clock=clock,
            links=user is None,
        )
        self._user = user
        self._threads = Threads(user)
        self._rooms = Rooms(
            reading=ReadOperations(directories, policy, self._threads),
            changes=Changes(directories, policy, self._history),
            undoing=Undoing(directories, policy, self._history),
            scope=SearchScope(directories.base, directories.roots, policy, ripgrep, _SEARCH_CPU_TIME),
        )
        self._settings = settings
        self._locks = NamedLocks()
        self._cleanup_interval = settings.cleanup_interval
        self._search_timeout = search_timeout
        self._searches = asyncio.Semaphore(_SEARCHES_AT_ONCE)
        self.on_change: list[Callable[[ChangeResult | ArchiveResult, str], None]] = []
        """Called with each change, and by whom it was made."""

    @property
    def allowed_directories(self) -> tuple[str, ...]:
        """The real paths of the allowed directories."""
        return self._directories.roots

    async def perform(self, request: FileRequest[Result], *, by: str = "files") -> Result:
        """Do what `request` asks for and return what it is to give: of a `ReadRequest` a `ReadResult`.

        `by` is told to whoever wants to know of changes.
        Raises what the operation's entry in `operations.py` says.
        """
        operation = OPERATIONS[type(request)]
        work = operation.work(self._rooms)
        wanted: Any = request
        result: object
        match operation.access:
            case Access.LOOK:
                result = await self._on_disk(wanted.path, functools.partial(work, wanted))
            case Access.SEARCH:
                result = await self._in_process(functools.partial(work, wanted))
            case Access.MOVE:
                result = await self._move(wanted)
            case access:
                located = self._locate(
                    wanted.path, follow_last=access is not Access.ENTRY, make_parents=access is Access.NEW
                )
                async with self._holding(await located) as location:
                    result = await self._on_disk(location.path, functools.partial(work, location, wanted))
        if isinstance(result, ChangeResult):
            self._changed(result, by)
        return cast("Result", result)

    async def read_raw(self, path: str, byte_range: ByteRange | None = None) -> RawFile:
        """Open any regular file to read its bytes; the caller closes it.

        Raises `FileNotFound`, `NotAFile`, `PathNotAllowed`, `RangeNotSatisfiable`.
        """
        return await self._on_disk(path, functools.partial(self._rooms.reading.open_raw, path, byte_range))

    @contextlib.asynccontextmanager
    async def descriptor(self, path: str) -> AsyncIterator[int]:
        """Give a descriptor of any regular file, to be read by a process. Raises what `read_raw` does."""
        with await self._on_disk(path, functools.partial(self._rooms.reading.open_descriptor, path)) as opened:
            yield opened.descriptor

    @contextlib.asynccontextmanager
    async def spooled(self, chunks: AsyncIterable[bytes], directory: str) -> AsyncIterator[tuple[int, str]]:
        """Write what `chunks` yields to a file in `directory` that is gone with its last descriptor.

        Gives a descriptor to read it, and its SHA-256. Raises `NoSpace`.
        """
        with (
            Descriptor(os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as opened,
            await self._on_disk(_INPUT, functools.partial(_own_file, opened)) as new,
        ):
            async for data in chunks:
                await self._on_disk(_INPUT, functools.partial(new.write, data))
            os.fchmod(new.descriptor, 0o444)  # it may be opened anew by another user, as /dev/stdin
            reading = Descriptor(os.open(f"/proc/self/fd/{new.descriptor}", os.O_RDONLY | os.O_CLOEXEC))
            digest = new.etag
        with reading:
            yield reading, digest

    async def write_raw(
        self,
        path: str,
        chunks: AsyncIterable[bytes],
        preconditions: ChangeRequest[ChangeResult] | None = None,
        *,
        max_size: int = 0,
    ) -> ChangeResult:
        """Make a file of any content, or replace it, making missing parents. If `chunks` fails, nothing changes.

        `max_size` is in bytes, 0 for no limit. Raises `FileTooLarge`, `PreconditionFailed`, `NotAFile`.
        """
        location = await self._locate(path, make_parents=True)
        async with self._cleaning_up(location):
            new = await self._on_disk(path, functools.partial(NewFile, location.directory))
            with new:
                async for data in chunks:
                    if max_size and new.size + len(data) > max_size:
                        detail = f"The content for {path} has more than {format_size(max_size)}. Nothing was changed."
                        raise FileTooLarge(detail, path=path, limit=max_size)
                    await self._on_disk(path, functools.partial(new.write, data))
                async with self._locks.hold(location.path):
                    wanted: ChangeRequest[ChangeResult] = preconditions or ChangeRequest()
                    work = functools.partial(self._rooms.changes.write, location, new, wanted)
                    result = await self._on_disk(location.path, work)
        self._changed(result, "files")
        return result

    async def read_archive(
        self, path: str, form: ArchiveFormat, *, exclude: Sequence[str] = (), ignored: bool = True
    ) -> "Archive":
        """Open a directory, or a file, to read an archive of it; the caller closes it.

        What `exclude` (globs) matches is left out, and with `ignored` false what .gitignore files name. Raises
        `InvalidRequest` for a bad glob, `FileNotFound`, `PathNotAllowed`.
        """
        from shelld_py.files.packing import Archive  # with the libraries of two formats, which a start does without

        globs = await self._threads.run(functools.partial(Globs.from_texts, exclude))
        tree = await self._on_disk(path, functools.partial(Tree, self._rooms.scope, path))
        return Archive(tree, form, globs, self._threads, name=posixpath.basename(tree.path), ignored=ignored)

    async def write_archive(
        self, path: str, form: ArchiveFormat, chunks: AsyncIterable[bytes], *, overwrite: bool = True
    ) -> ArchiveResult:
        """Unpack an archive below the directory `path`, which is made where it is missing.

        Not all or nothing: an error says what was unpacked before. Raises `BadArchive`, `FileTooLarge`,
        `NotADirectory`, and unless `overwrite` `FileAlreadyExists` before anything is replaced.
        """
        from shelld_py.files.archive_formats import Unpacker
        from shelld_py.files.unpacking import Destination, Limits

        limits = Limits(self._settings.max_archive_size, self._settings.max_archive_entries)
        location = await self._on_disk(path, functools.partial(self._directories.locate_inside, path))
        async with self._cleaning_up(location):
            destination = Destination(location, self._opener, limits, self._history.forget, overwrite=overwrite)
            unpacker = Unpacker(form, destination)
            try:
                wanted, passed_over = True, 0
                async for data in chunks:
                    if wanted:
                        wanted = await self._on_disk(path, functools.partial(unpacker.feed, data), unpacker.stop)
                    elif (passed_over := passed_over + len(data)) > _PASSED_OVER:
                        break
                result = await self._on_disk(path, unpacker.finish, unpacker.stop)
            finally:
                destination.close()
        self._changed(result, "files")
        return result

    async def keep_clean(self) -> None:
        """Forget undo steps that are too old, every `cleanup_interval` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._cleanup_interval)
            with contextlib.suppress(Overloaded):  # there is a next time
                await self._threads.run(self._history.expire)

    async def reset(self) -> None:
        """Forget the undo history of all files, and remove all backups."""
        await self._threads.run(self._history.clear)

    async def aclose(self) -> None:
        """Leave no backups behind, unless no thread can be had: the next start removes them."""
        with contextlib.suppress(Overloaded):
            await self.reset()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _changed(self, change: ChangeResult | ArchiveResult, by: str) -> None:
        for tell in self.on_change:
            tell(change, by)

    async def _move(self, request: MoveRequest) -> MoveResult:
        with await self._locate(request.source_path, follow_last=False) as source:
            destination = await self._locate(request.destination_path, make_parents=True)
            async with self._holding(destination, source.path):
                work = functools.partial(self._rooms.changes.move, source, destination, request)
                return await self._on_disk(destination.path, work)

    async def _locate(self, path: str, *, follow_last: bool = True, make_parents: bool = False) -> Location:
        locate = functools.partial(self._directories.locate, path, follow_last=follow_last, make_parents=make_parents)
        return await self._on_disk(path, locate)

    @contextlib.asynccontextmanager
    async def _holding(self, location: Location, *others: str) -> AsyncIterator[Location]:
        """Give a place to work that is alone there."""
        async with self._cleaning_up(location), self._locks.hold(location.path, *others):
            yield location

    @contextlib.asynccontextmanager
    async def _cleaning_up(self, location: Location) -> AsyncIterator[None]:
        """Close a place at the end, and after a failure remove the directories that were made for it."""
        with location:
            try:
                yield
            except BaseException:
                if location.made:
                    await self._threads.run(functools.partial(self._directories.remove_empty, location.made))
                raise

    async def _in_process(self, work: Callable[[], T]) -> T:
        """Do a search in a process of its own, which is killed when it takes too long or is not waited for."""
        try:
            async with self._searches, asyncio.timeout(self._search_timeout):
                return await call_in_process(work, self._user)
        except TimeoutError:
            detail = f"The search took longer than {self._search_timeout:g} seconds; try a simpler pattern."
            raise SearchTooSlow(detail) from None
        except subprocess.CalledProcessError as error:
            if error.returncode == -signal.SIGKILL:  # of `user`, or for want of memory
                raise FileOperationFailed("The search was killed.") from None
            if error.returncode != -signal.SIGVTALRM:
                raise
            detail = f"The pattern took more than {_SEARCH_CPU_TIME:g} s of CPU time for one file; try a simpler one."
            raise SearchTooSlow(detail) from None

    async def _on_disk(self, path: str, work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
        """Do blocking work in a thread, see `Threads.run`; what the system refuses there is about `path`."""
        try:
            return await self._threads.run(work, stop)
        except OSError as error:
            raise meaning(error, path) from error


def _own_file(directory: int) -> NewFile:
    """Return a new file of the daemon's own, in a directory that is closed to those whom its threads use files as."""
    with own_files():
        return NewFile(directory)
