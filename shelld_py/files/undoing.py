"""Undo: making a file what it was before its last change, without losing what something else has done to it since.

Synchronous, on a `Location` that nobody else works on meanwhile, as in `changes.py`. What could be undone is listed
without one: it is what the history remembers, whatever has become of the files.

An undo forgets the step that it takes back. It refuses to run over what something else changed in between; with
`force` it does, but then it is a change like any other: what it overwrites becomes a step (`Operation.UNDO`), and
that step holds the steps it has taken back. So a plain undo after a forced one makes both the file and its history
what they were, and another forced one goes on backwards: it takes back the newest step that is no forced undo.
"""

import os

from shelld_py.errors import FileChanged, FileNotFound, NotAFile, NothingToUndo, PathNotAllowed, PermissionDenied
from shelld_py.files.history import Backup, History, LinkBackup, NoBackup, Step
from shelld_py.files.models import HistoryRequest, HistoryResult, KeptChange, Operation, UndoRequest, UndoResult
from shelld_py.files.open_file import OpenFile, check_preconditions, check_readable, open_if_there, open_through
from shelld_py.files.paths import AllowedDirectories, Location, displayable
from shelld_py.files.policy import ReadPolicy
from shelld_py.files.storage import Fingerprint, NewFile, check_same, status_of, sync_directory
from shelld_py.files.text_file import unified_diff
from shelld_py.models import utc_timestamp


class Undoing:
    """The operations that take changes back, and tell which can be."""

    def __init__(self, directories: AllowedDirectories, policy: ReadPolicy, history: History) -> None:
        """Take back what `history` remembers of files in `directories`; show only what `policy` lets be read."""
        self._directories = directories
        self._policy = policy
        self._history = history

    def undo(self, location: Location, request: UndoRequest) -> UndoResult:
        """Take back the last change that is kept.

        Raises `NothingToUndo`, `FileChanged` if the file is not what that change left and `force` is not set.
        """
        taken = self._history.last(location.path, past_undos=request.force)
        if not taken:
            raise NothingToUndo(f"No change of {location.path} is kept that could be undone.", path=location.path)
        step = taken[0]
        with open_if_there(location) as file:
            changed = (file.fingerprint if file else None) != taken[-1].after
            if changed and not request.force:
                raise _changed_by_others(taken[-1], file, location.path)
            check_preconditions(request, file, location.path)
            runs_over = changed or len(taken) > 1
            if runs_over and isinstance(step.before, LinkBackup):
                raise _in_the_way_of_a_link(location.path)
            old = file.text_or_none(self._policy) if file else None
            kept = self._history.save(file) if file and runs_over else None
            with self._history.discarding(kept):
                after = self._restore(location, step, file)
        sync_directory(location.directory)
        if runs_over:
            self._history.fold(location.path, taken, kept, after, location.made)
        else:
            self._history.take_back(location.path, step)
        if step.before is None:
            self._directories.remove_empty(step.made)
            diff = self._diff(old, None, location) if old is not None else ""
            result = self._result(location, step, None, diff, kept)
        else:
            with open_through(self._directories, location) as restored:
                new = restored.text_or_none(self._policy) if restored else None
                comparable = new is not None and (old is not None or file is None)
                diff = self._diff(old, new, location) if comparable else ""
                now = after or (restored.fingerprint if restored else None)  # of a link, what it leads to
                result = self._result(location, step, now, diff, kept)
        if runs_over:
            self._history.describe(location.path, diff)
        return result

    def history(self, request: HistoryRequest) -> HistoryResult:
        """Return the changes that can be undone, of a file or of all below a directory; either may be gone."""
        path = self._directories.named(request.path)
        kept = self._history.changes(path)
        return HistoryResult(
            path=displayable(path),
            changes=tuple(
                KeptChange(
                    path=displayable(changed),
                    operation=step.operation,
                    changed_at=utc_timestamp(step.changed_at),
                    size=step.after.size if step.after else 0,
                    etag=step.after.etag if step.after else None,
                    diff=diff if diff and self._may_show(changed) else "",
                )
                for changed, step, diff in kept[: request.limit]
            ),
            truncated=len(kept) > request.limit,
            total=len(kept),
        )

    def _may_show(self, path: str) -> bool:
        """Return whether a diff of a file may be shown: it is gone, or has a read bit."""
        try:
            with self._directories.locate(path) as location:
                if status := status_of(location.directory, location.name):
                    check_readable(status, path)
        except (FileNotFound, NotADirectoryError):
            return True
        except (PathNotAllowed, NotAFile, PermissionDenied, OSError):
            return False
        return True

    def _restore(self, location: Location, step: Step, file: OpenFile | None) -> Fingerprint | None:
        """Make the file what it was before `step`; `file` is what is there now. Returns what is there then."""
        if isinstance(step.before, Backup):
            return self._restore_content(location, step.before, file)
        if file:
            check_same(location.directory, location.name, file.identity, location.path)
            os.unlink(location.name, dir_fd=location.directory)
        if isinstance(step.before, LinkBackup):
            os.symlink(step.before.target, location.name, dir_fd=location.directory)
        return None

    def _restore_content(self, location: Location, backup: Backup, file: OpenFile | None) -> Fingerprint:
        try:
            source = self._history.open(backup)
        except FileNotFoundError:
            detail = f"The last change of {location.path} is no longer kept."
            raise NothingToUndo(detail, path=location.path) from None
        with source, NewFile(location.directory) as new:
            new.copy(source, os.fstat(source).st_size)
            identity = file.identity if file else None
            mode = new.publish(location.name, backup.attributes, identity, location.path)
            return Fingerprint(new.etag, new.size, mode)

    def _diff(self, old: str | None, new: str | None, location: Location) -> str:
        return unified_diff(old, new, self._directories.shown(location.path))

    def _result(
        self, location: Location, step: Step, now: Fingerprint | None, diff: str, kept: Backup | NoBackup | None
    ) -> UndoResult:
        return UndoResult(
            path=displayable(location.path),
            operation=Operation.UNDO,
            size=now.size if now else 0,
            etag=now.etag if now else None,
            undo_depth=self._history.depth(location.path),
            diff=diff,
            undone=step.operation,
            undo=not isinstance(kept, NoBackup),
            undo_reason=kept.reason if isinstance(kept, NoBackup) else None,
        )


def _changed_by_others(step: Step, file: OpenFile | None, path: str) -> FileChanged:
    """Return the error for a file that is not what `step` left."""
    if file is None:
        what = "was deleted"
    elif step.after is None:
        what = "was made again"
    elif file.etag != step.after.etag:
        what = "got another content"
    else:
        what = f"got another mode ({file.fingerprint.mode:04o} for {step.after.mode:04o})"
    detail = (
        f"{path} {what} by something else since the last {step.operation.value} here. Nothing was changed. Set force "
        f"to undo that {step.operation.value} all the same; what is there now is kept, and another undo brings it back."
    )
    return FileChanged(detail, path=path)


def _in_the_way_of_a_link(path: str) -> FileChanged:
    detail = (
        f"{path} was a symbolic link, and something else made a file in its place, which could not be brought back. "
        f"Move that file away first."
    )
    return FileChanged(detail, path=path)
