"""The changes of a file, one function each: check, keep a backup, write, remember the step.

Synchronous, on a `Location` that nobody else works on meanwhile: whoever calls holds the file's lock. All or
nothing: until the one system call that publishes the change, nothing has happened, and every error says so by
leaving the old file as it was.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Self

from shelld_py.errors import (
    FileAlreadyExists,
    FileChanged,
    FileNotFound,
    InvalidRequest,
    NothingToUndo,
    NotText,
    PreconditionFailed,
    ReplacementCountMismatch,
    TextNotFound,
)
from shelld_py.files.diff import unified_diff
from shelld_py.files.history import Backup, Fingerprint, History, LinkBackup, Step
from shelld_py.files.kernel import rename_without_replacing
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
    UndoRequest,
    UndoResult,
    UpdateRequest,
)
from shelld_py.files.nearest import nearest_text
from shelld_py.files.paths import AllowedDirectories, Location, displayable
from shelld_py.files.policy import ReadPolicy, TextCheck
from shelld_py.files.storage import (
    Attributes,
    FileIdentity,
    NewFile,
    check_regular,
    check_same,
    check_writable,
    chunks_of,
    etag_of,
    open_regular,
    read_all,
    status_of,
    sync_directory,
)
from shelld_py.files.text_file import (
    Text,
    content_etag,
    fitting_replacement,
    inserted,
    occurrence_lines,
)

_LINES_TOLD = 20
"""Line numbers that an error lists."""


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
            self._etag = etag_of(self.descriptor)
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
                raise _precondition_failed(location.path, "if_none_match is *, but the file exists", None)
            detail = f"{location.path} exists already; use update to replace its content."
            raise FileAlreadyExists(detail, path=location.path)
        _check_preconditions(request, None, location.path)
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
                raise _text_not_found(old.body, request.old_string, location.path)
            expected = request.expected_replacements
            if expected is not None and fitting.count != expected:
                lines = occurrence_lines(old.body, fitting.old, _LINES_TOLD)
                shown = ", ".join(map(str, lines)) + (", ..." if fitting.count > len(lines) else "")
                detail = (
                    f"old_string occurs {fitting.count} times in {location.path} (in lines {shown}), not {expected} as "
                    f"expected_replacements says. Nothing was changed; give more of the text around the right one."
                )
                raise ReplacementCountMismatch(detail, path=location.path, replacements=fitting.count, lines=lines)
            new = Text(old.body.replace(fitting.old, fitting.new), old.marked)
            result = self._write_text(location, Operation.REPLACE, old, new, file)
            return ReplaceResult(
                path=result.path,
                operation=result.operation,
                size=result.size,
                etag=result.etag,
                undo_depth=result.undo_depth,
                diff=result.diff,
                replacements=fitting.count,
            )

    def delete(self, location: Location, request: DeleteRequest) -> ChangeResult:
        """Delete a regular file, or a symbolic link to one or to nothing.

        Raises `FileNotFound`, `NotAFile`, `PreconditionFailed`.
        """
        target = _link_target(location)
        diff = ""
        before: Backup | LinkBackup
        if target is not None:
            with self._open_through(location) as linked:
                _check_preconditions(request, linked, location.path)
            before = LinkBackup(target)
            os.unlink(location.name, dir_fd=location.directory)
        else:
            with self._open(location) as file:
                _check_preconditions(request, file, location.path)
                text = file.text_or_none(self._policy)
                diff = "" if text is None else self._diff(text, None, location)
                before = self._history.save(file.descriptor)
                with self._discarding(before):
                    check_same(location.directory, location.name, file.identity, location.path)
                    os.unlink(location.name, dir_fd=location.directory)
        sync_directory(location.directory)
        self._history.add(location.path, Operation.DELETE, before, None)
        return self._result(location, Operation.DELETE, 0, None, diff)

    def move(self, source: Location, destination: Location, request: MoveRequest) -> MoveResult:
        """Give a regular file, or a symbolic link to one, another name.

        Raises `FileNotFound`, `NotAFile`, `FileAlreadyExists`, `PreconditionFailed`, `PermissionDenied` when the
        file that would be overwritten is read-only.
        """
        if source.path == destination.path:
            raise InvalidRequest(f"source_path and destination_path are the same: {source.path}.")
        replaced = status_of(destination.directory, destination.name)
        with self._open_through(source) as file:
            if file is None and _link_target(source) is None:
                raise self._directories.missing(source)
            _check_preconditions(request, file, source.path, destination_exists=replaced is not None)
            if replaced is not None:
                if not request.overwrite:
                    detail = f"{destination.path} exists already; set overwrite to replace it."
                    raise FileAlreadyExists(detail, path=destination.path)
                check_regular(replaced, destination.path)
                check_writable(destination.directory, destination.name, replaced, destination.path)
            etag = file.etag if file else None
            size = file.status.st_size if file else 0
            _rename(source, destination, replaced, file)
        sync_directory(source.directory)
        sync_directory(destination.directory)
        self._history.forget(source.path)
        self._history.forget(destination.path)
        return MoveResult(
            path=displayable(destination.path),
            operation=Operation.MOVE,
            size=size,
            etag=etag,
            undo_depth=0,
            diff=f"rename from {self._shown(source)}\nrename to {self._shown(destination)}\n",
            source_path=displayable(source.path),
            destination_path=displayable(destination.path),
        )

    def undo(self, location: Location, request: UndoRequest) -> UndoResult:
        """Take back the last change that is kept.

        Raises `NothingToUndo`, `FileChanged` if the file is not what that change left and `force` is not set.
        """
        step = self._history.last(location.path)
        if step is None:
            raise NothingToUndo(f"No change of {location.path} is kept that could be undone.", path=location.path)
        with self._open_if_there(location) as file:
            if not request.force:
                _check_unchanged(step, file, location.path)
            _check_preconditions(request, file, location.path)
            old = file.text_or_none(self._policy) if file else None
            self._restore(location, step, file)
        sync_directory(location.directory)
        self._history.drop(location.path, step)
        if step.before is None:
            self._directories.remove_empty(step.made)
            return self._undone(location, step, None, self._diff(old, None, location) if old is not None else "")
        with self._open_through(location) as restored:
            new = restored.text_or_none(self._policy) if restored else None
            comparable = new is not None and (old is not None or file is None)
            return self._undone(location, step, restored, self._diff(old, new, location) if comparable else "")

    def write(self, location: Location, new: NewFile, request: ChangeRequest) -> ChangeResult:
        """Publish a file whose content, text or not, was written before. Raises `PreconditionFailed`."""
        with self._open_if_there(location) as file:
            _check_preconditions(request, file, location.path)
            if file:
                check_writable(location.directory, location.name, file.status, location.path)
            diff = self._raw_diff(location, file, new)
            return self._publish(location, Operation.WRITE, new, file, diff)

    def _open(self, location: Location) -> OpenFile:
        try:
            return OpenFile(location)
        except FileNotFoundError:
            raise self._directories.missing(location) from None

    @contextlib.contextmanager
    def _open_if_there(self, location: Location) -> Iterator[OpenFile | None]:
        try:
            file = OpenFile(location)
        except FileNotFoundError:
            yield None
            return
        with file:
            yield file

    @contextlib.contextmanager
    def _open_through(self, location: Location) -> Iterator[OpenFile | None]:
        """Open the file that `location` is or, as a link, leads to; None where there is none."""
        try:
            target = self._directories.locate(location.path)
        except FileNotFound:
            yield None
            return
        with target, self._open_if_there(target) as file:
            yield file

    def _editable(self, file: OpenFile, location: Location, request: ChangeRequest) -> Text:
        """Return the text of a file that may be read and written."""
        text = file.text(self._policy)
        _check_preconditions(request, file, location.path)
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
        before = self._history.save(file.descriptor) if file else None
        with self._discarding(before):
            attributes = Attributes.of(file.descriptor) if file else None
            mode = new.publish(location.name, attributes, file.identity if file else None, location.path)
        self._history.add(location.path, operation, before, Fingerprint(new.etag, mode), location.made)
        return self._result(location, operation, new.size, new.etag, diff)

    @contextlib.contextmanager
    def _discarding(self, backup: Backup | None) -> Iterator[None]:
        """Discard the backup for a change that fails."""
        try:
            yield
        except BaseException:
            self._history.discard(backup)
            raise

    def _restore(self, location: Location, step: Step, file: OpenFile | None) -> None:
        """Make the file what it was before `step`; `file` is what is there now."""
        if isinstance(step.before, Backup):
            try:
                source = self._history.open(step.before)
            except FileNotFoundError:
                detail = f"The last change of {location.path} is no longer kept."
                raise NothingToUndo(detail, path=location.path) from None
            try:
                with NewFile(location.directory) as new:
                    for data in chunks_of(source):
                        new.write(data)
                    new.publish(location.name, step.before.attributes, file.identity if file else None, location.path)
            finally:
                os.close(source)
            return
        if file:
            check_same(location.directory, location.name, file.identity, location.path)
            os.unlink(location.name, dir_fd=location.directory)
        if isinstance(step.before, LinkBackup):
            os.symlink(step.before.target, location.name, dir_fd=location.directory)

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
        return unified_diff(old, new, self._shown(location))

    def _shown(self, location: Location) -> str:
        return displayable(self._directories.shown(location.path)).lstrip("/")

    def _undone(self, location: Location, step: Step, file: OpenFile | None, diff: str) -> UndoResult:
        return UndoResult(
            path=displayable(location.path),
            operation=Operation.UNDO,
            size=file.status.st_size if file else 0,
            etag=file.etag if file else None,
            undo_depth=self._history.depth(location.path),
            diff=diff,
            undone=step.operation,
        )

    def _result(self, location: Location, operation: Operation, size: int, etag: str | None, diff: str) -> ChangeResult:
        return ChangeResult(
            path=displayable(location.path),
            operation=operation,
            size=size,
            etag=etag,
            undo_depth=self._history.depth(location.path),
            diff=diff,
        )


def _check_preconditions(
    request: ChangeRequest, file: OpenFile | None, path: str, *, destination_exists: bool | None = None
) -> None:
    """Raise `PreconditionFailed` unless `file`, None for no file, is what the request asks for.

    `if_none_match` is about the destination where there is one.
    """
    exists = file is not None if destination_exists is None else destination_exists
    if request.if_none_match and exists:
        raise _precondition_failed(path, "if_none_match is *, but the file exists", file.etag if file else None)
    wanted = request.if_match
    if wanted is None:
        return
    if file is None:
        raise _precondition_failed(path, "if_match is given, but there is no file", None)
    if wanted != "*" and wanted.removeprefix("W/").strip('"') != file.etag:
        raise _precondition_failed(path, f"if_match is {wanted}, but the etag is {file.etag}", file.etag)


def _precondition_failed(path: str, reason: str, etag: str | None) -> PreconditionFailed:
    detail = f"{path} is not as expected: {reason}. Nothing was changed; read the file again."
    return PreconditionFailed(detail, path=path, etag=etag)


def _check_unchanged(step: Step, file: OpenFile | None, path: str) -> None:
    """Raise `FileChanged` unless the file is what `step` left."""
    now = file.fingerprint if file else None
    if now == step.after:
        return
    if now is None:
        what = "was deleted"
    elif step.after is None:
        what = "was made again"
    elif now.etag != step.after.etag:
        what = "got another content"
    else:
        what = f"got another mode ({now.mode:04o} for {step.after.mode:04o})"
    detail = (
        f"{path} {what} by something else since the last {step.operation.value} here; undoing that would lose this. "
        f"Set force to do it all the same."
    )
    raise FileChanged(detail, path=path)


def _link_target(location: Location) -> str | None:
    try:
        return os.readlink(location.name, dir_fd=location.directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def _rename(source: Location, destination: Location, replaced: os.stat_result | None, file: OpenFile | None) -> None:
    """Rename `source`, or copy and delete it where the destination is on another file system."""
    names = (source.directory, source.name, destination.directory, destination.name)
    try:
        if replaced is None:
            rename_without_replacing(*names)
            return
        os.rename(source.name, destination.name, src_dir_fd=source.directory, dst_dir_fd=destination.directory)
    except OSError as error:
        if error.errno != errno.EXDEV or file is None or _link_target(source) is not None:
            raise
        os.lseek(file.descriptor, 0, os.SEEK_SET)
        identity = FileIdentity.from_status(replaced) if replaced else None
        with NewFile(destination.directory) as new:
            for data in chunks_of(file.descriptor):
                new.write(data)
            check_same(source.directory, source.name, file.identity, source.path)
            new.publish(destination.name, Attributes.of(file.descriptor), identity, destination.path)
    with contextlib.suppress(FileNotFoundError):  # rename(2) leaves both names of one file as they are
        os.unlink(source.name, dir_fd=source.directory)


def _text_not_found(body: str, wanted: str, path: str) -> TextNotFound:
    near = nearest_text(body, wanted)
    if near is None:
        detail = f"old_string was not found in {path}, nor anything like it. Nothing was changed; read the file again."
        return TextNotFound(detail, path=path, nearest=None)
    one = near.first_line == near.last_line
    lines = f"line {near.first_line}" if one else f"lines {near.first_line} to {near.last_line}"
    hint = " It differs in white space only." if near.same_but_white_space else ""
    nearest = {"first_line": near.first_line, "last_line": near.last_line, "text": near.text}
    detail = f"old_string was not found in {path}. The nearest text is in {lines}.{hint}\n{near.numbered()}"
    return TextNotFound(detail, path=path, nearest=nearest)
