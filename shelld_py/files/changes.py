"""The changes of a file, one function each: check, keep a backup, write, remember the step.

Synchronous, on a `Location` that nobody else works on meanwhile: whoever calls holds the file's lock. All or
nothing: until the one system call that publishes the change, nothing has happened, and every error says so by
leaving the old file as it was.
"""

import contextlib
import errno
import os
from typing import Any

import msgspec

from shelld_py.errors import FileAlreadyExists, InvalidRequest, NotText, PermissionDenied
from shelld_py.files.history import Backup, History, LinkBackup, NoBackup
from shelld_py.files.models import (
    ChangeRequest,
    ChangeResult,
    CreateRequest,
    DeleteRequest,
    InsertRequest,
    MoveRequest,
    MoveResult,
    Operation,
    ReplaceRequest,
    ReplaceResult,
    UpdateRequest,
)
from shelld_py.files.open_file import (
    OpenFile,
    check_preconditions,
    check_writable,
    open_if_there,
    open_through,
    precondition_failed,
)
from shelld_py.files.paths import AllowedDirectories, Location, displayable
from shelld_py.files.policy import ReadPolicy
from shelld_py.files.storage import (
    Attributes,
    FileIdentity,
    Fingerprint,
    NewFile,
    check_regular,
    check_same,
    place_link,
    read_all,
    status_of,
    sync_directory,
)
from shelld_py.files.text_file import Text, fitting_replacement, inserted, unified_diff
from shelld_py.files.why_not_found import text_not_found, unexpected_count
from shelld_py.linux.syscalls import rename_without_replacing


class Changes:
    """The operations that change files."""

    def __init__(self, directories: AllowedDirectories, policy: ReadPolicy, history: History) -> None:
        """Change files in `directories`; show only what `policy` lets be read; remember in `history`."""
        self._directories = directories
        self._policy = policy
        self._history = history

    def create(self, location: Location, request: CreateRequest) -> ChangeResult:
        """Make a file. Raises `FileAlreadyExists`, `PreconditionFailed`, `NotText`, `FileTooLarge`."""
        status = status_of(location.directory, location.name)
        if status is not None:
            if request.if_none_match:
                raise precondition_failed(location.path, "if_none_match is *, but the file exists", None)
            detail = f"{location.path} exists already; use update to replace its content."
            raise FileAlreadyExists(detail, path=location.path)
        check_preconditions(request, None, location.path)
        text = Text.from_text(request.content)
        data = text.to_bytes(location.path)
        return self._write(location, Operation.CREATE, data, None, self._diff(None, text.body, location))

    def update(self, location: Location, request: UpdateRequest) -> ChangeResult:
        """Replace the whole content. Raises `FileNotFound`, `PreconditionFailed`, and what forbids reading."""
        with self._open(location) as file:
            old = self._editable(file, location, request)
            new = old.updated(request.content)
            return self._write_text(location, Operation.UPDATE, old, new, file)

    def insert(self, location: Location, request: InsertRequest) -> ChangeResult:
        """Put text after a line. Raises `LineOutOfRange`, and as `update`."""
        with self._open(location) as file:
            old = self._editable(file, location, request)
            new = Text(inserted(old.body, request.content, request.line, location.path), old.marked)
            return self._write_text(location, Operation.INSERT, old, new, file)

    def replace(self, location: Location, request: ReplaceRequest) -> ReplaceResult:
        """Replace text wherever it occurs. Raises `TextNotFound`, `ReplacementCountMismatch`, and as `update`."""
        with self._open(location) as file:
            old = self._editable(file, location, request)
            fitting = fitting_replacement(old.body, request.old_string, request.new_string)
            if not fitting.count:
                raise text_not_found(old.body, request.old_string, request.new_string, location.path)
            expected = request.expected_replacements
            if expected is not None and fitting.count != expected:
                raise unexpected_count(old.body, fitting, expected, location.path)
            self._policy.check_new_size(file.status.st_size + fitting.growth, location.path)  # before it is built
            new = Text(old.body.replace(fitting.old, fitting.new), old.marked)
            result = self._write_text(location, Operation.REPLACE, old, new, file)
            return ReplaceResult(**msgspec.structs.asdict(result), replacements=fitting.count)

    def delete(self, location: Location, request: DeleteRequest) -> ChangeResult:
        """Delete a regular file, or a symbolic link to one or to nothing.

        Raises `FileNotFound`, `NotAFile`, `PreconditionFailed`.
        """
        target = location.link()
        diff = ""
        before: Backup | LinkBackup | NoBackup
        if target is not None:
            with open_through(self._directories, location) as linked:
                check_preconditions(request, linked, location.path)
            before = LinkBackup(target)
            os.unlink(location.name, dir_fd=location.directory)
        else:
            with self._open(location) as file:
                check_preconditions(request, file, location.path)
                text = file.text_or_none(self._policy)
                diff = "" if text is None else self._diff(text, None, location)
                before = self._history.save(file)
                with self._history.discarding(before):
                    check_same(location.directory, location.name, file.identity, location.path)
                    os.unlink(location.name, dir_fd=location.directory)
        sync_directory(location.directory)
        self._history.add(location.path, Operation.DELETE, before, None)
        return self._result(location, Operation.DELETE, 0, None, diff, before)

    def move(self, source: Location, destination: Location, request: MoveRequest) -> MoveResult:
        """Give a regular file, or a symbolic link to one, another name.

        Raises `FileNotFound`, `NotAFile`, `FileAlreadyExists`, `PreconditionFailed`, `PermissionDenied` when the
        file that would be overwritten is read-only.
        """
        if source.path == destination.path:
            raise InvalidRequest(f"source_path and destination_path are the same: {source.path}.")
        replaced = status_of(destination.directory, destination.name)
        with open_through(self._directories, source) as file:
            if file is None and source.link() is None:
                raise self._directories.missing(source)
            check_preconditions(request, file, source.path, destination_exists=replaced is not None)
            if replaced is not None:
                if not request.overwrite:
                    detail = f"{destination.path} exists already; set overwrite to replace it."
                    raise FileAlreadyExists(detail, path=destination.path)
                check_regular(replaced, destination.path)
                if file is not None and _is_same(file, replaced):
                    _check_other_name(source, destination, file)
                check_writable(destination.directory, destination.name, replaced, destination.path)
            etag = file.etag if file else None
            size = file.status.st_size if file else 0
            _rename(source, destination, replaced, file)
        sync_directory(source.directory)
        sync_directory(destination.directory)
        self._history.forget(source.path)
        self._history.forget(destination.path)
        old, new = self._directories.shown(source.path), self._directories.shown(destination.path)
        return MoveResult(
            path=displayable(destination.path),
            operation=Operation.MOVE,
            size=size,
            etag=etag,
            undo_depth=0,
            diff=f"rename from {old}\nrename to {new}\n",
            source_path=displayable(source.path),
            destination_path=displayable(destination.path),
        )

    def write(self, location: Location, new: NewFile, request: ChangeRequest[Any]) -> ChangeResult:
        """Publish a file whose content, text or not, was written before. Raises `PreconditionFailed`."""
        with open_if_there(location) as file:
            check_preconditions(request, file, location.path)
            if file:
                check_writable(location.directory, location.name, file.status, location.path)
            diff = self._raw_diff(location, file, new)
            return self._publish(location, Operation.WRITE, new, file, diff)

    def _open(self, location: Location) -> OpenFile:
        try:
            return OpenFile(location)
        except FileNotFoundError:
            raise self._directories.missing(location) from None

    def _editable(self, file: OpenFile, location: Location, request: ChangeRequest[Any]) -> Text:
        """Return the text of a file that may be read and written."""
        text = file.text(self._policy)
        check_preconditions(request, file, location.path)
        check_writable(location.directory, location.name, file.status, location.path)
        return text

    def _write_text(
        self, location: Location, operation: Operation, old: Text, new: Text, file: OpenFile
    ) -> ChangeResult:
        data = new.to_bytes(location.path)
        return self._write(location, operation, data, file, self._diff(old.body, new.body, location))

    def _write(
        self, location: Location, operation: Operation, data: bytes, file: OpenFile | None, diff: str
    ) -> ChangeResult:
        self._policy.check_new_size(len(data), location.path)
        with NewFile(location.directory) as new:
            new.write(data)
            return self._publish(location, operation, new, file, diff)

    def _publish(
        self, location: Location, operation: Operation, new: NewFile, file: OpenFile | None, diff: str
    ) -> ChangeResult:
        """Put `new` in the place of `file`, and remember the step."""
        before = self._history.save(file) if file else None
        with self._history.discarding(before):
            attributes = Attributes.of(file.descriptor) if file else None
            mode = new.publish(location.name, attributes, file.identity if file else None, location.path)
        self._history.add(location.path, operation, before, Fingerprint(new.etag, new.size, mode), location.made)
        return self._result(location, operation, new.size, new.etag, diff, before)

    def _raw_diff(self, location: Location, file: OpenFile | None, new: NewFile) -> str:
        if not self._policy.fits(new.size) or (file and not self._policy.fits(file.status.st_size)):
            return ""
        if not self._policy.allows_name(location.name):
            return ""
        os.lseek(new.descriptor, 0, os.SEEK_SET)
        try:
            text = Text.from_bytes(read_all(new.descriptor, new.size), location.path).body
        except NotText:
            return ""
        old = file.text_or_none(self._policy) if file else None
        return "" if file and old is None else self._diff(old, text, location)

    def _diff(self, old: str | None, new: str | None, location: Location) -> str:
        return unified_diff(old, new, self._directories.shown(location.path))

    def _result(
        self,
        location: Location,
        operation: Operation,
        size: int,
        etag: str | None,
        diff: str,
        before: Backup | LinkBackup | NoBackup | None,
    ) -> ChangeResult:
        self._history.describe(location.path, diff)
        return ChangeResult(
            path=displayable(location.path),
            operation=operation,
            size=size,
            etag=etag,
            undo_depth=self._history.depth(location.path),
            diff=diff,
            undo=not isinstance(before, NoBackup),
            undo_reason=before.reason if isinstance(before, NoBackup) else None,
        )


def _rename(source: Location, destination: Location, replaced: os.stat_result | None, file: OpenFile | None) -> None:
    """Rename `source`, or copy and delete it where the destination is on another file system."""
    names = (source.directory, source.name, destination.directory, destination.name)
    try:
        if replaced is None:
            rename_without_replacing(*names)
            return
        os.rename(source.name, destination.name, src_dir_fd=source.directory, dst_dir_fd=destination.directory)
        if file is not None and _is_same(file, replaced):  # rename(2) leaves both names of one file as they are
            os.unlink(source.name, dir_fd=source.directory)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _move_across(source, destination, replaced, file)


def _move_across(
    source: Location, destination: Location, replaced: os.stat_result | None, file: OpenFile | None
) -> None:
    """Copy `source` to another file system and delete it."""
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=source.directory, effective_ids=True):
        detail = f"{source.path} cannot be moved: its directory, or its file system, is read-only."
        raise PermissionDenied(detail, path=source.path)
    target = source.link()
    if target is not None:

        def make(name: str) -> None:
            os.symlink(target, name, dir_fd=destination.directory)

        place_link(destination.directory, destination.name, make, replace=replaced is not None)
    else:
        assert file is not None
        with NewFile(destination.directory) as new:
            new.copy(file.descriptor, file.status.st_size)
            check_same(source.directory, source.name, file.identity, source.path)
            identity = FileIdentity.from_status(replaced) if replaced else None
            new.publish(destination.name, Attributes.of(file.descriptor), identity, destination.path)
    try:
        with contextlib.suppress(FileNotFoundError):  # something else has removed it meanwhile
            os.unlink(source.name, dir_fd=source.directory)
    except OSError as error:
        if replaced is None:
            os.unlink(destination.name, dir_fd=destination.directory)
            raise
        detail = f"{source.path} is at {destination.path} now, but could not be removed: {error.strerror}."
        raise PermissionDenied(detail, path=source.path) from None


def _check_other_name(source: Location, destination: Location, file: OpenFile) -> None:
    """Raise `InvalidRequest` unless `file` would still have a name when it loses that of `source`."""
    if source.link() is not None:
        detail = f"{source.path} is a symbolic link to {destination.path}: it would replace its own target."
        raise InvalidRequest(detail)
    # One directory can have two paths (a bind mount), and one name two spellings (a file system that folds case).
    directories = os.stat(source.directory), os.stat(destination.directory)
    same_name = source.name == destination.name and os.path.samestat(*directories)
    if same_name or file.status.st_nlink == 1:
        raise InvalidRequest(f"{source.path} and {destination.path} are the same file, which has no other name.")


def _is_same(file: OpenFile, status: os.stat_result) -> bool:
    return (file.identity.device, file.identity.inode) == (status.st_dev, status.st_ino)
