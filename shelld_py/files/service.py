"""The operations on files, as the rest of the daemon calls them.

One asynchronous method for each. This file puts the rooms together: it finds the place (`paths`), takes the file's
lock (`locks`), has the work done in a thread (`changes`, `listing`, `text_file`) or, for searches, in a process of
its own (`search`), and turns errors of the system into the project's (`faults`). It knows nothing of HTTP.

Reads take no lock: every write puts a whole file in the place of another, so what a read has open is whole.
"""

import contextlib
import functools
import os
import posixpath
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Self, TypeVar

import anyio

from shelld_py.config import FileSettings
from shelld_py.errors import FileTooLarge, SearchTooSlow
from shelld_py.files.changes import Changes
from shelld_py.files.faults import directory_needed, meaning
from shelld_py.files.history import History
from shelld_py.files.isolation import call_in_process
from shelld_py.files.listing import listing_of
from shelld_py.files.locks import KeyedLocks
from shelld_py.files.models import (
    ByteRange,
    ChangeRequest,
    ChangeResult,
    CreateRequest,
    DeleteRequest,
    FileType,
    FindRequest,
    FindResult,
    InsertRequest,
    MoveRequest,
    MoveResult,
    ReadRequest,
    ReadResult,
    ReplaceRequest,
    ReplaceResult,
    SearchRequest,
    SearchResult,
    UndoRequest,
    UndoResult,
    UpdateRequest,
    ViewRequest,
    ViewResult,
)
from shelld_py.files.open_file import OpenFile
from shelld_py.files.paths import AllowedDirectories, DirectoryOpener, Location, best_directory_opener, displayable
from shelld_py.files.policy import ReadPolicy
from shelld_py.files.raw import RawFile
from shelld_py.files.search import SearchScope, find, search
from shelld_py.files.storage import NewFile, chunks_of
from shelld_py.files.text_file import LineReader, count_lines
from shelld_py.files.threads import in_thread
from shelld_py.files.undoing import Undoing
from shelld_py.units import format_size

T = TypeVar("T")
_SEARCHES_AT_ONCE = 4
"""Processes that search at the same time; others wait for their turn."""


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
    ) -> None:
        """Take the settings, and the directories that they leave open.

        `clock` gives seconds for the age of undo steps. `ripgrep` is the program that speeds up searches, by name
        or path; without it they only take longer. `search_timeout` is in seconds. `directory_opener` opens
        directories; the default is the best that the kernel has.

        Raises `ConfigError` when `backup_directory` cannot be a private directory.
        """
        self._directories = AllowedDirectories(
            base_directory, allowed_directories, directory_opener or best_directory_opener()
        )
        self._policy = ReadPolicy.from_settings(settings)
        self._history = History(
            backup_directory, ttl=settings.event_ttl, max_events=settings.max_events_per_file, clock=clock
        )
        self._changes = Changes(self._directories, self._policy, self._history)
        self._undoing = Undoing(self._directories, self._policy, self._history)
        self._locks = KeyedLocks()
        self._cleanup_interval = settings.cleanup_interval
        self._search_timeout = search_timeout
        self._searches = anyio.Semaphore(_SEARCHES_AT_ONCE)
        self._scope = SearchScope(self._directories.base, self._directories.roots, self._policy, ripgrep)

    @property
    def allowed_directories(self) -> tuple[str, ...]:
        """The real paths of the allowed directories."""
        return self._directories.roots

    async def view(self, request: ViewRequest) -> ViewResult:
        """List a directory. Raises `FileNotFound`, `NotADirectory`, `PathNotAllowed`."""
        return await _on_disk(request.path, functools.partial(self._view, request))

    async def read(self, request: ReadRequest) -> ReadResult:
        """Read a text file, or lines of it.

        Raises, in this order: `PathNotAllowed`; `FileNotFound`, `NotAFile`; `ExtensionRefused`; `NotText`;
        `FileTooLarge`; `LineOutOfRange`; `TooManyTokens`.
        """
        return await _on_disk(request.path, functools.partial(self._read, request))

    async def create(self, request: CreateRequest) -> ChangeResult:
        """Make a file and its missing parents. Raises `FileAlreadyExists`."""
        async with self._exclusive(request.path, make_parents=True) as location:
            return await _on_disk(location.path, functools.partial(self._changes.create, location, request))

    async def delete(self, request: DeleteRequest) -> ChangeResult:
        """Delete a file. Of a symbolic link, the link. Raises `FileNotFound`, `NotAFile`."""
        async with self._exclusive(request.path, follow_last=False) as location:
            return await _on_disk(location.path, functools.partial(self._changes.delete, location, request))

    async def move(self, request: MoveRequest) -> MoveResult:
        """Move a file, making missing parents. Ends the undo history of both names.

        Raises `FileNotFound`, `NotAFile`, `FileAlreadyExists`.
        """
        source = await self._locate(request.source_path, follow_last=False)
        with source:
            destination = await self._locate(request.destination_path, make_parents=True)
            async with self._holding(destination, source.path):
                work = functools.partial(self._changes.move, source, destination, request)
                return await _on_disk(destination.path, work)

    async def update(self, request: UpdateRequest) -> ChangeResult:
        """Replace the whole content of a file. Raises `FileNotFound`, and what `read` raises."""
        async with self._exclusive(request.path) as location:
            return await _on_disk(location.path, functools.partial(self._changes.update, location, request))

    async def insert(self, request: InsertRequest) -> ChangeResult:
        """Put text after a line. Raises `LineOutOfRange`, and what `read` raises."""
        async with self._exclusive(request.path) as location:
            return await _on_disk(location.path, functools.partial(self._changes.insert, location, request))

    async def replace(self, request: ReplaceRequest) -> ReplaceResult:
        """Replace text wherever it occurs. Raises `TextNotFound`, `ReplacementCountMismatch`, and as `read`."""
        async with self._exclusive(request.path) as location:
            return await _on_disk(location.path, functools.partial(self._changes.replace, location, request))

    async def undo(self, request: UndoRequest) -> UndoResult:
        """Take back the last change of a file. Raises `NothingToUndo`, `FileChanged`."""
        async with self._exclusive(request.path, make_parents=True) as location:
            return await _on_disk(location.path, functools.partial(self._undoing.undo, location, request))

    async def search(self, request: SearchRequest) -> SearchResult:
        """Search in files. Raises `InvalidRequest` for a bad pattern, `SearchTooSlow`, `FileNotFound`."""
        return await self._in_process(functools.partial(search, self._scope, request))

    async def find(self, request: FindRequest) -> FindResult:
        """Find files by name, newest first. Raises as `search`."""
        return await self._in_process(functools.partial(find, self._scope, request))

    async def read_raw(self, path: str, byte_range: ByteRange | None = None) -> RawFile:
        """Open any regular file to read its bytes; the caller closes it.

        Raises `FileNotFound`, `NotAFile`, `PathNotAllowed`, `RangeNotSatisfiable`.
        """
        return await _on_disk(path, functools.partial(self._open_raw, path, byte_range))

    async def write_raw(
        self,
        path: str,
        chunks: AsyncIterable[bytes],
        preconditions: ChangeRequest | None = None,
        *,
        max_size: int = 0,
    ) -> ChangeResult:
        """Make a file of any content, or replace it, making missing parents. If `chunks` fails, nothing changes.

        `max_size` is in bytes, 0 for no limit. Raises `FileTooLarge`, `PreconditionFailed`, `NotAFile`.
        """
        location = await self._locate(path, make_parents=True)
        async with self._cleaning_up(location):
            new = await _on_disk(path, functools.partial(NewFile, location.directory))
            with new:
                async for data in chunks:
                    if max_size and new.size + len(data) > max_size:
                        detail = f"The content for {path} has more than {format_size(max_size)}. Nothing was changed."
                        raise FileTooLarge(detail, path=path, limit=max_size)
                    await _on_disk(path, functools.partial(new.write, data))
                async with self._locks.hold(location.path):
                    work = functools.partial(self._changes.write, location, new, preconditions or ChangeRequest())
                    return await _on_disk(location.path, work)

    async def keep_clean(self) -> None:
        """Forget undo steps that are too old, every `cleanup_interval` seconds, until cancelled."""
        while True:
            await anyio.sleep(self._cleanup_interval)
            await in_thread(self._history.expire)

    async def reset(self) -> None:
        """Forget the undo history of all files, and remove all backups."""
        await in_thread(self._history.clear)

    async def aclose(self) -> None:
        """Leave no backups behind."""
        with anyio.CancelScope(shield=True):
            await self.reset()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _locate(self, path: str, *, follow_last: bool = True, make_parents: bool = False) -> Location:
        locate = self._directories.locate
        return await _on_disk(path, functools.partial(locate, path, follow_last=follow_last, make_parents=make_parents))

    @contextlib.asynccontextmanager
    async def _exclusive(
        self, path: str, *, follow_last: bool = True, make_parents: bool = False
    ) -> AsyncIterator[Location]:
        """Give the place of a file for work that is alone there."""
        location = await self._locate(path, follow_last=follow_last, make_parents=make_parents)
        async with self._holding(location):
            yield location

    @contextlib.asynccontextmanager
    async def _holding(self, location: Location, *others: str) -> AsyncIterator[None]:
        async with self._cleaning_up(location), self._locks.hold(location.path, *others):
            yield

    @contextlib.asynccontextmanager
    async def _cleaning_up(self, location: Location) -> AsyncIterator[None]:
        """Close a place at the end, and after a failure remove the directories that were made for it."""
        with location:
            try:
                yield
            except BaseException:
                self._directories.remove_empty(location.made)
                raise

    async def _in_process(self, work: Callable[[], T]) -> T:
        """Do a search in a process of its own, which is killed when it takes too long or is not waited for."""
        try:
            async with self._searches:
                with anyio.fail_after(self._search_timeout):
                    return await call_in_process(work)
        except TimeoutError:
            detail = f"The search took longer than {self._search_timeout:g} seconds; try a simpler pattern."
            raise SearchTooSlow(detail) from None

    def _view(self, request: ViewRequest) -> ViewResult:
        try:
            directory, path = self._directories.open_directory(request.path)
        except NotADirectoryError:
            raise directory_needed(posixpath.join(self._directories.base, request.path)) from None
        try:
            listing = listing_of(directory, depth=request.depth, hidden=request.hidden)
        finally:
            os.close(directory)
        return ViewResult(
            path=displayable(path),
            directories=tuple(entry.name for entry in listing.entries if entry.type is FileType.DIRECTORY),
            files=tuple(entry.name for entry in listing.entries if entry.type is not FileType.DIRECTORY),
            entries=listing.entries,
            truncated=listing.total > len(listing.entries),
            total_entries=listing.total,
        )

    def _read(self, request: ReadRequest) -> ReadResult:
        with self._open(request.path) as (location, file):
            if request.view_range is None:
                body = file.text(self._policy).body
                lines = count_lines(body)
                part, part_size, view_range = body, file.status.st_size, (1, lines)
                etag = file.etag
            else:
                self._policy.check_name(location.name, location.path)
                reader = LineReader(request.view_range, self._policy, location.path)
                for data in chunks_of(file.descriptor, file.status.st_size):
                    reader.feed(data)
                read = reader.finish()
                part, part_size, view_range = read.content, read.size, (read.first, read.last)
                lines, etag = read.total_lines, read.etag
            self._policy.check_tokens(part, part_size, view_range[0], location.path)
            return ReadResult(
                path=displayable(location.path),
                content=part,
                total_lines=lines,
                view_range=view_range,
                size=file.status.st_size,
                etag=etag,
            )

    def _open_raw(self, path: str, byte_range: ByteRange | None) -> RawFile:
        with self._open(path) as (location, file):
            hashed = self._policy.fits(file.status.st_size)
            return RawFile(file, displayable(location.path), byte_range, hashed=hashed)

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[tuple[Location, OpenFile]]:
        with self._directories.locate(path) as location:
            try:
                file = OpenFile(location)
            except FileNotFoundError:
                raise self._directories.missing(location) from None
            with file:
                yield location, file


async def _on_disk(path: str, work: Callable[[], T]) -> T:
    """Do blocking work in a thread; what the system refuses there is about `path`."""
    try:
        return await in_thread(work)
    except OSError as error:
        raise meaning(error, path) from error
