"""Undo: back exactly, step by step, and never over somebody else's change."""

import asyncio
import hashlib
import os
import shutil
import stat
from pathlib import Path

import pytest

from shelld_py.config import FileSettings
from shelld_py.errors import ConfigError, FileChanged, NothingToUndo, PathNotAllowed
from shelld_py.files import (
    CreateRequest,
    DeleteRequest,
    FileService,
    HistoryRequest,
    InsertRequest,
    MoveRequest,
    Operation,
    ReplaceRequest,
    UndoRequest,
    UpdateRequest,
)

from .conftest import Desk, DeskMaker


def _undo(desk: Desk, path: str, *, force: bool = False) -> Operation:
    return desk.do(desk.service.perform(UndoRequest(path=path, force=force))).undone


def test_undo_walks_back_to_the_beginning(desk: Desk) -> None:
    """Content, mode and existence at every step, down to directories that were made for the file."""
    service, file = desk.service, desk.root / "new/a.txt"
    desk.do(service.perform(CreateRequest(path="new/a.txt", content="1\n2\n")))
    desk.do(service.perform(InsertRequest(path="new/a.txt", content="3", line=2)))
    desk.do(service.perform(ReplaceRequest(path="new/a.txt", old_string="2", new_string="two")))
    result = desk.do(service.perform(DeleteRequest(path="new/a.txt")))
    assert result.undo_depth == 4
    assert _undo(desk, "new/a.txt") == "delete"
    assert file.read_text() == "1\ntwo\n3\n"
    assert _undo(desk, "new/a.txt") == "replace"
    assert file.read_text() == "1\n2\n3\n"
    assert _undo(desk, "new/a.txt") == "insert"
    assert file.read_text() == "1\n2\n"
    assert _undo(desk, "new/a.txt") == "create"
    assert not (desk.root / "new").exists()
    with pytest.raises(NothingToUndo):
        _undo(desk, "new/a.txt")
    assert os.listdir(desk.root) == []


def test_undo_of_a_deletion_brings_back_bytes_and_attributes(desk: Desk) -> None:
    """Any bytes, not only text, and into a directory that is gone by now."""
    file = desk.root / "sub/a.dat"
    file.parent.mkdir()
    file.write_bytes(b"\0\xff\r\n")
    os.setxattr(file, "user.note", b"kept")
    file.chmod(0o4701)
    desk.do(desk.service.perform(DeleteRequest(path="sub/a.dat")))
    file.parent.rmdir()
    _undo(desk, "sub/a.dat")
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"\0\xff\r\n", 0o4701)
    assert os.getxattr(file, "user.note") == b"kept"


@pytest.mark.parametrize("change", ["content", "mode", "deletion"])
def test_undo_does_not_overwrite_what_something_else_changed(desk: Desk, change: str) -> None:
    """The conflict explains itself, and `force` does it all the same."""
    file = desk.root / "a.txt"
    file.write_text("before")
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="after")))
    if change == "content":
        file.write_text("other")
    elif change == "mode":
        file.chmod(0o600)
    else:
        file.unlink()
    with pytest.raises(FileChanged, match="force"):
        _undo(desk, "a.txt")
    assert not file.exists() or file.read_text() != "before"
    _undo(desk, "a.txt", force=True)
    assert file.read_text() == "before"


@pytest.mark.parametrize("other", [b"other \xff", None], ids=["changed", "deleted"])
def test_forced_undo_can_be_undone(desk: Desk, other: bytes | None) -> None:
    """The file and its history are what they were before it, and it can be done again."""
    file = desk.root / "new/a.txt"
    desk.do(desk.service.perform(CreateRequest(path="new/a.txt", content="1")))
    desk.do(desk.service.perform(UpdateRequest(path="new/a.txt", content="2")))
    if other is None:
        file.unlink()
    else:
        file.write_bytes(other)
        file.chmod(0o600)
    for _ in range(2):
        assert _undo(desk, "new/a.txt", force=True) == "update"
        assert file.read_text() == "1"
        assert _undo(desk, "new/a.txt") == "undo"
        assert (file.read_bytes() if file.exists() else None) == other
        if other is not None:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with pytest.raises(FileChanged):
            _undo(desk, "new/a.txt")


def test_forced_undos_walk_back_and_undos_forward_again(make_desk: DeskMaker) -> None:
    """To the beginning, however long the history is, and all the way back to what something else made."""
    desk = make_desk(max_events_per_file=5)
    file = desk.root / "new/a.txt"
    desk.do(desk.service.perform(CreateRequest(path="new/a.txt", content="0")))
    for number in range(1, 5):
        desk.do(desk.service.perform(UpdateRequest(path="new/a.txt", content=str(number))))
    file.write_text("other")
    back = []
    for _ in range(5):
        _undo(desk, "new/a.txt", force=True)
        back.append(file.read_text() if file.exists() else None)
    assert back == ["3", "2", "1", "0", None]
    forward = []
    for _ in range(5):
        assert _undo(desk, "new/a.txt") == "undo"
        forward.append(file.read_text())
    assert forward == ["0", "1", "2", "3", "other"]
    desk.do(desk.service.reset())
    assert os.listdir(desk.backups) == []


def test_backups_stay_bounded_whatever_is_forced(make_desk: DeskMaker) -> None:
    """Forced undos hold the steps that they have taken back, but not without end."""
    desk = make_desk(max_events_per_file=4)
    file = desk.root / "a.txt"
    file.write_text("0")
    for number in range(40):
        desk.do(desk.service.perform(UpdateRequest(path="a.txt", content=str(number))))
        if number % 3:
            file.write_text(f"other {number}")
            _undo(desk, "a.txt", force=True)
        if number % 5 == 0:
            _undo(desk, "a.txt", force=True)
        assert len(os.listdir(desk.backups)) <= 9


def test_file_in_the_place_of_a_deleted_link_is_not_lost(desk: Desk) -> None:
    """A link cannot take its place in a way that could be undone, so it does not."""
    (desk.root / "target").write_text("1")
    (desk.root / "link").symlink_to("target")
    desk.do(desk.service.perform(DeleteRequest(path="link")))
    (desk.root / "link").write_text("mine")
    with pytest.raises(FileChanged, match="Move that file away"):
        _undo(desk, "link", force=True)
    assert (desk.root / "link").read_text() == "mine"
    (desk.root / "link").unlink()
    _undo(desk, "link")
    assert os.readlink(desk.root / "link") == "target"


def test_undo_of_a_deletion_does_not_overwrite_a_new_file(desk: Desk) -> None:
    """What was made again in the meantime is somebody's work."""
    file = desk.root / "a.txt"
    file.write_text("before")
    desk.do(desk.service.perform(DeleteRequest(path="a.txt")))
    file.write_text("made again")
    with pytest.raises(FileChanged, match="made again"):
        _undo(desk, "a.txt")
    assert file.read_text() == "made again"


def test_move_ends_the_history(desk: Desk) -> None:
    """It cannot be undone, neither under the old name nor under the new one."""
    desk.do(desk.service.perform(CreateRequest(path="a.txt", content="x")))
    desk.do(desk.service.perform(MoveRequest(source_path="a.txt", destination_path="b.txt")))
    for path in ("a.txt", "b.txt"):
        with pytest.raises(NothingToUndo):
            _undo(desk, path)


def test_only_the_newest_steps_are_kept(make_desk: DeskMaker) -> None:
    """The depth never exceeds the limit, nor do the backups."""
    desk = make_desk(max_events_per_file=3)
    depths = [desk.do(desk.service.perform(CreateRequest(path="a.txt", content="0"))).undo_depth]
    for number in range(1, 6):
        depths.append(desk.do(desk.service.perform(UpdateRequest(path="a.txt", content=str(number)))).undo_depth)
    assert depths == [1, 2, 3, 3, 3, 3]
    assert len(os.listdir(desk.backups)) == 3
    for _ in range(3):
        _undo(desk, "a.txt")
    assert (desk.root / "a.txt").read_text() == "2"
    with pytest.raises(NothingToUndo):
        _undo(desk, "a.txt")


def test_old_steps_are_forgotten(make_desk: DeskMaker) -> None:
    """After the time to live there is nothing to undo and no backup left."""
    desk = make_desk(event_ttl=10.0)
    (desk.root / "a.txt").write_text("1")
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="2")))
    desk.now = 9.0
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="3")))
    desk.now = 15.0
    _undo(desk, "a.txt")
    with pytest.raises(NothingToUndo):
        _undo(desk, "a.txt")
    assert os.listdir(desk.backups) == []


def test_old_backups_are_removed_without_being_asked_for(make_desk: DeskMaker) -> None:
    """The cleanup does it, also for files that nobody touches again."""
    desk = make_desk(event_ttl=10.0, cleanup_interval=0.01)
    (desk.root / "a.txt").write_text("1")
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="2")))
    desk.now = 11.0

    async def until_clean() -> None:
        cleaning = asyncio.ensure_future(desk.service.keep_clean())
        async with asyncio.timeout(60):
            while os.listdir(desk.backups):
                await asyncio.sleep(0)
        cleaning.cancel()

    desk.do(until_clean())
    assert os.listdir(desk.backups) == []


def test_backups_are_private_and_end_with_the_service(desk: Desk) -> None:
    """Nobody else may read them; none outlives a reset or the end."""
    (desk.root / "a.txt").write_text("1")
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="2")))
    assert stat.S_IMODE(desk.backups.stat().st_mode) == 0o700
    (backup,) = desk.backups.iterdir()
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    desk.do(desk.service.reset())
    assert os.listdir(desk.backups) == []
    with pytest.raises(NothingToUndo):
        _undo(desk, "a.txt")
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="3")))
    desk.do(desk.service.aclose())
    assert os.listdir(desk.backups) == []


def test_changes_go_on_without_the_backup_directory(desk: Desk) -> None:
    """A command can remove it; what cannot be undone then says so."""
    (desk.root / "a.txt").write_text("1")
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="2")))
    shutil.rmtree(desk.backups)
    changed = desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="3")))
    assert (changed.undo, changed.undo_depth) == (False, 0)
    assert changed.undo_reason == "no copy can be kept in files.backup_directory: No such file or directory"
    assert (desk.root / "a.txt").read_text() == "3"


def test_undo_waits_for_nothing_in_the_place_of_a_backup(desk: Desk) -> None:
    """A command can put a fifo there, or a link to another file."""
    (desk.root / "secret").write_text("x")
    for number, put in enumerate((os.mkfifo, os.mkdir, lambda path: path.symlink_to(desk.root / "secret"))):
        (desk.root / f"{number}.txt").write_text("1")
        desk.do(desk.service.perform(UpdateRequest(path=f"{number}.txt", content="2")))
        (backup,) = (path for path in desk.backups.iterdir() if path.is_file() and not path.is_symlink())
        backup.unlink()
        put(backup)
        with pytest.raises(NothingToUndo, match="no longer kept"):
            _undo(desk, f"{number}.txt")
        assert (desk.root / f"{number}.txt").read_text() == "2"
    for path in desk.backups.iterdir():
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_leftovers_of_a_killed_service_are_removed_at_the_start(desk: Desk, make_desk: DeskMaker) -> None:
    """Nobody can undo them any more."""
    (desk.root / "a.txt").write_text("1")
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="2")))
    assert os.listdir(desk.backups)
    make_desk()
    assert os.listdir(desk.backups) == []


def test_backup_directory_with_other_things_is_refused(tmp_path: Path) -> None:
    """An existing directory that others can see into is not taken over."""
    (tmp_path / "mine").write_text("x")
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="backup_directory"):
        FileService(
            FileSettings(),
            base_directory=str(tmp_path),
            allowed_directories=[str(tmp_path)],
            backup_directory=str(tmp_path),
        )
    assert (tmp_path / "mine").exists()


def _kept(desk: Desk, path: str = ".") -> list[tuple[str, str, str]]:
    """Name, operation and diff of the changes that are listed."""
    listed = desk.do(desk.service.perform(HistoryRequest(path=path, limit=100)))
    assert (listed.truncated, listed.total) == (False, len(listed.changes))
    return [(os.path.relpath(each.path, desk.root), each.operation, each.diff) for each in listed.changes]


def test_what_can_be_undone_is_listed(desk: Desk) -> None:
    """The newest first, with what each made of its file, for a file, for a directory, for all; an undo takes it off."""
    service = desk.service
    made = desk.do(service.perform(CreateRequest(path="new/a.txt", content="1\n")))
    updated = desk.do(service.perform(UpdateRequest(path="new/a.txt", content="2\n")))
    other = desk.do(service.perform(CreateRequest(path="b.txt", content="b\n")))
    a = [("new/a.txt", "update", updated.diff), ("new/a.txt", "create", made.diff)]
    b = [("b.txt", "create", other.diff)]
    assert "-1\n+2\n" in updated.diff
    assert (_kept(desk), _kept(desk, "new"), _kept(desk, "new/a.txt"), _kept(desk, "b.txt")) == (b + a, a, a, b)
    assert _kept(desk, "new/a.tx") == []
    first = desk.do(service.perform(HistoryRequest(limit=1)))
    assert (first.path, first.truncated, first.total) == (str(desk.root), True, 3)
    assert (first.changes[0].size, first.changes[0].etag) == (2, other.etag)
    assert first.changes[0].changed_at.endswith("Z")
    _undo(desk, "new/a.txt")
    assert _kept(desk, "new") == a[1:]


def test_changes_are_listed_when_the_file_is_gone_and_its_directory_too(desk: Desk) -> None:
    """A deletion is the change that a person would look for; a link on the way counts as what it leads to."""
    (desk.root / "sub").mkdir()
    (desk.root / "link").symlink_to("sub")
    desk.do(desk.service.perform(CreateRequest(path="link/a.txt", content="1\n")))
    deleted = desk.do(desk.service.perform(DeleteRequest(path="sub/a.txt")))
    expected = ("sub/a.txt", "delete", deleted.diff)
    for path in ("link/a.txt", "sub/a.txt", "sub", "link"):
        assert _kept(desk, path)[0] == expected
    (desk.root / "sub").rmdir()
    for path in ("sub/a.txt", "./sub/a.txt", "sub"):
        assert _kept(desk, path)[0] == expected
    last = desk.do(desk.service.perform(HistoryRequest(path="sub"))).changes[0]
    assert (last.size, last.etag) == (0, None)


def test_changes_are_listed_when_an_allowed_directory_is_gone(desk: Desk) -> None:
    """However it is named, and whatever has taken its place."""
    desk.do(desk.service.perform(CreateRequest(path="sub/a.txt", content="1\n")))
    expected = _kept(desk)
    shutil.rmtree(desk.root / "sub")
    assert [_kept(desk, path) for path in ("sub/", "sub/..", "sub/../sub/")] == [expected] * 3
    (desk.root / "sub").write_text("")
    assert [_kept(desk, path) for path in ("sub", "sub/", "sub/a.txt")] == [expected] * 3
    shutil.rmtree(desk.root)
    assert [_kept(desk, path) for path in (".", str(desk.root), f"{desk.root}/", "sub/a.txt")] == [expected] * 4
    with pytest.raises(PathNotAllowed):
        _kept(desk, str(desk.outside))


def test_diffs_of_what_nobody_may_read_are_not_listed(desk: Desk) -> None:
    """As long as the file is there: the change itself is listed all the same."""
    desk.do(desk.service.perform(CreateRequest(path="a.txt", content="1\n")))
    before = _kept(desk)
    (desk.root / "a.txt").chmod(0)
    assert _kept(desk) == [("a.txt", "create", "")]
    (desk.root / "a.txt").chmod(0o400)
    assert _kept(desk) == before


def test_undo_does_not_read_again_what_it_has_restored(make_desk: DeskMaker) -> None:
    """It is copied and hashed before it is there; a cancellation could not end a hash after that in time."""
    size = 8 << 20
    desk = make_desk(max_file_size=size // 2)
    (desk.root / "a.bin").write_bytes(bytes(size))
    desk.do(desk.service.perform(DeleteRequest(path="a.bin")))
    before = _bytes_read()
    undone = desk.do(desk.service.perform(UndoRequest(path="a.bin")))
    assert _bytes_read() - before < 2.5 * size
    assert (undone.size, undone.etag) == (size, hashlib.sha256(bytes(size)).hexdigest())


def _bytes_read() -> int:
    """Return how many bytes this process has read or copied, proc_pid_io(5)."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_forced_undo_is_listed_in_the_place_of_what_it_has_taken_back(desk: Desk) -> None:
    """And where it is undone itself, that is there again, with its diff."""
    desk.do(desk.service.perform(CreateRequest(path="a.txt", content="1\n")))
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="2\n")))
    before = _kept(desk)
    (desk.root / "a.txt").write_text("3\n")
    _undo(desk, "a.txt", force=True)
    undone, *others = _kept(desk)
    assert (undone[1], others) == ("undo", before[1:])
    assert "-3\n+1\n" in undone[2]
    _undo(desk, "a.txt")
    assert _kept(desk) == before


def test_diffs_are_kept_of_the_newest_changes_only(desk: Desk) -> None:
    """However many files are changed, what their diffs take is bounded; the changes themselves stay listed."""
    lines = "".join(f"{'x' * 90}{number}\n" for number in range(200))
    for number in range(240):
        desk.do(desk.service.perform(CreateRequest(path=f"{number}.txt", content=lines)))
    kept = desk.do(desk.service.perform(HistoryRequest(limit=100)))
    assert kept.total == 240
    assert all(change.diff for change in kept.changes)
    assert [bool(_kept(desk, f"{number}.txt")[0][2]) for number in (0, 239)] == [False, True]
