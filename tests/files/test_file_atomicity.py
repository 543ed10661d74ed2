"""Crashes and full disks, for real: a change is made whole or not at all."""

import asyncio
import contextlib
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shelld_py.config import FileSettings
from shelld_py.errors import FileChanged, InvalidRequest, NoSpace, NothingToUndo, PermissionDenied
from shelld_py.files import (
    CreateRequest,
    DeleteRequest,
    FileService,
    MoveRequest,
    ReplaceRequest,
    UndoRequest,
    UpdateRequest,
)
from shelld_py.files.storage import FileIdentity, NewFile
from shelld_py.files.text_file import content_etag
from tests.daemons import LONG

from .conftest import Desk

_WRITER = """
import asyncio, sys
from shelld_py.config import FileSettings
from shelld_py.files import FileService, UpdateRequest

async def main(root, backups):
    service = FileService(
        FileSettings(), base_directory=root, allowed_directories=[root], backup_directory=backups
    )
    print("ready", flush=True)
    while True:
        for letter in "ab":
            await service.perform(UpdateRequest(path="a.txt", content=letter * 1_000_000))

asyncio.run(main(*sys.argv[1:]))
"""

_WITHOUT_ROOM = """
import asyncio, resource, sys
from shelld_py.config import FileSettings
from shelld_py.errors import NoSpace
from shelld_py.files import CreateRequest, FileService, UpdateRequest

async def main(root, backups):
    service = FileService(
        FileSettings(), base_directory=root, allowed_directories=[root], backup_directory=backups
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for request in (
        UpdateRequest(path="a.txt", content="x" * 200_000),
        CreateRequest(path="new/b.txt", content="x" * 200_000),
    ):
        try:
            await service.perform(request)
        except NoSpace as error:
            print(error.detail)

asyncio.run(main(*sys.argv[1:]))
"""


def test_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Killed at random moments, it never leaves half a file, and next to nothing else."""
    root, backups = tmp_path / "work", tmp_path / "backups"
    root.mkdir()
    file = root / "a.txt"
    file.write_text("a" * 1_000_000)
    seen = set()
    for _ in range(40 if LONG else 5):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(root), str(backups)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        changes = _changes_of(file)
        for _ in range(random.randint(1, 3)):
            next(changes)
        deadline = time.perf_counter() + random.uniform(0, 0.01)
        while time.perf_counter() < deadline:
            continue
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        content = file.read_bytes()
        assert len(content) == 1_000_000
        assert content in (b"a" * 1_000_000, b"b" * 1_000_000)
        seen.add(content[:1])
        leftovers = [entry for entry in root.iterdir() if entry != file]
        assert all(entry.name.startswith(".") and entry.stat().st_size == 1_000_000 for entry in leftovers)
    assert seen


def _changes_of(file: Path) -> Iterator[int]:
    """Yield each inode that the name gets, within a deadline."""
    last = file.stat().st_ino
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        current = file.stat().st_ino
        if current != last:
            last = current
            yield current
    raise AssertionError("the writer does not write")


def test_limit_on_file_sizes_changes_nothing(tmp_path: Path) -> None:
    """A write beyond RLIMIT_FSIZE fails with a clear error and leaves no trace."""
    root, backups = tmp_path / "work", tmp_path / "backups"
    root.mkdir()
    (root / "a.txt").write_text("old")
    command = [sys.executable, "-c", _WITHOUT_ROOM, str(root), str(backups)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("would exceed the system's limit on file sizes") == 2
    assert os.listdir(root) == ["a.txt"]
    assert (root / "a.txt").read_text() == "old"
    assert os.listdir(backups) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("cannot mount a file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_changes_nothing(small_disk: Path, tmp_path: Path) -> None:
    """Where the new content has no room, nothing has happened."""

    async def work(root: Path, backups: Path) -> None:
        async with FileService(
            FileSettings(), base_directory=str(root), allowed_directories=[str(root)], backup_directory=str(backups)
        ) as service:
            file = root / "a.txt"
            file.write_text("old " * 150_000)
            with pytest.raises(NoSpace):
                await service.perform(UpdateRequest(path="a.txt", content="x" * 900_000))
            with pytest.raises(NoSpace):
                await service.perform(CreateRequest(path="new/b.txt", content="x" * 900_000))
            with pytest.raises(NoSpace):
                await service.perform(ReplaceRequest(path="a.txt", old_string="old", new_string="new"))
            assert file.read_text() == "old " * 150_000
            assert os.listdir(root) == ["a.txt"]
            assert os.listdir(backups) == []

    asyncio.run(work(small_disk, tmp_path / "backups"))


@pytest.mark.parametrize("full", ["work", "backups", "both"])
def test_change_without_room_for_a_copy_is_made_and_says_so(small_disk: Path, tmp_path: Path, full: str) -> None:
    """The one thing to do on a full disk is to delete: that is done, gives room, and cannot be undone."""

    async def work(root: Path, backups: Path) -> None:
        async with FileService(
            FileSettings(), base_directory=str(root), allowed_directories=[str(root)], backup_directory=str(backups)
        ) as service:
            file = root / "a.txt"
            await service.perform(CreateRequest(path="a.txt", content="x"))
            _fill(small_disk / "filler" if full == "backups" else file)
            if full == "backups":
                file.write_bytes(b"x" * 900_000)
            result = await service.perform(DeleteRequest(path="a.txt"))
            if full == "work":
                assert (result.undo, result.undo_reason, result.undo_depth) == (True, None, 2)
            else:
                assert (result.undo, result.undo_depth) == (False, 0)
                assert "no room for a copy" in (result.undo_reason or "")
                assert os.listdir(backups) == []
                with pytest.raises(NothingToUndo):
                    await service.perform(UndoRequest(path="a.txt"))
            assert os.listdir(root) == (["backups"] if full == "both" else [])
            if full != "backups":
                assert shutil.disk_usage(small_disk).free > 900_000

    root = tmp_path / "roomy" if full == "backups" else small_disk
    root.mkdir(exist_ok=True)
    asyncio.run(work(root, tmp_path / "backups" if full == "work" else small_disk / "backups"))


def _fill(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(b"x" * 10_000):
            pass


def test_sparse_file_is_kept_with_its_holes(desk: Desk) -> None:
    """A hundred gigabytes of nothing are deleted at once and take no room, where a real copy is needed as well."""
    for name, linked in (("alone", False), ("linked", True)):
        file = desk.root / name
        file.touch()
        os.truncate(file, 100 << 30)
        with file.open("r+b") as opened:
            opened.seek(50 << 30)
            opened.write(b"island")
        if linked:
            os.link(file, desk.root / "other")
        assert desk.do(desk.service.perform(DeleteRequest(path=name))).undo
    assert len(os.listdir(desk.backups)) == 2
    for backup in desk.backups.iterdir():
        assert (backup.stat().st_size, backup.stat().st_blocks < 1000) == (100 << 30, True)
        with backup.open("rb") as opened:
            opened.seek(50 << 30)
            assert opened.read(6) == b"island"


def test_undo_brings_the_holes_back(desk: Desk) -> None:
    """As with the bytes, which are hashed on the way."""
    file = desk.root / "a.bin"
    content = b"begin" + bytes(30_000_000) + b"end" + bytes(5_000_000)
    with file.open("wb") as opened:
        opened.write(b"begin")
        opened.seek(30_000_005)
        opened.write(b"end")
        opened.truncate(len(content))
    desk.do(desk.service.perform(DeleteRequest(path="a.bin")))
    assert desk.do(desk.service.perform(UndoRequest(path="a.bin"))).etag == content_etag(content)
    assert file.read_bytes() == content
    assert file.stat().st_blocks * 512 < 1_000_000


def test_kept_content_is_safe_from_who_has_the_file_open(desk: Desk) -> None:
    """A writer, another name, a mapping: what they write after a change is not in what an undo brings back."""
    file = desk.root / "a.txt"
    file.write_text("before")
    with file.open("r+b") as writer, mmap.mmap(writer.fileno(), 6) as mapping:
        desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="after")))
        writer.write(b"writer")
        writer.flush()
        mapping[:3] = b"map"
    desk.do(desk.service.perform(UndoRequest(path="a.txt")))
    assert file.read_text() == "before"
    os.link(file, desk.root / "b.txt")
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="after")))
    (desk.root / "b.txt").write_text("other")
    desk.do(desk.service.perform(UndoRequest(path="a.txt")))
    assert (file.read_text(), (desk.root / "b.txt").read_text()) == ("before", "other")


def test_kept_content_costs_no_copy(desk: Desk) -> None:
    """On the same file system the old file itself is kept, by a second name."""
    file = desk.root / "a.txt"
    file.write_text("before")
    inode = file.stat().st_ino
    desk.do(desk.service.perform(UpdateRequest(path="a.txt", content="after")))
    (backup,) = desk.backups.iterdir()
    assert (backup.stat().st_ino, backup.stat().st_nlink) == (inode, 1)


def _move(tmp_path: Path, source: str, destination: str) -> None:
    """Move a file, where the allowed directories are two, `work` and `disk`."""

    async def work() -> None:
        async with FileService(
            FileSettings(),
            base_directory=str(tmp_path / "work"),
            allowed_directories=[str(tmp_path / "work"), str(tmp_path / "disk")],
            backup_directory=str(tmp_path / "backups"),
        ) as service:
            await service.perform(MoveRequest(source_path=source, destination_path=destination, overwrite=True))

    asyncio.run(work())


def test_move_to_another_file_system_is_a_move(small_disk: Path, tmp_path: Path) -> None:
    """rename(2) cannot do it; content and mode come along all the same, and links are links."""
    root = tmp_path / "work"
    root.mkdir()
    (root / "a.txt").write_text("x")
    (root / "a.txt").chmod(0o750)
    _move(tmp_path, "a.txt", f"{small_disk}/sub/b.txt")
    assert os.listdir(root) == []
    assert (small_disk / "sub/b.txt").read_text() == "x"
    assert (small_disk / "sub/b.txt").stat().st_mode & 0o777 == 0o750
    for _ in range(2):  # the second one replaces what it leads to
        (root / "link").symlink_to(f"{small_disk}/sub/b.txt")
        _move(tmp_path, "link", f"{small_disk}/link")
        assert os.listdir(root) == []
        assert os.readlink(small_disk / "link") == f"{small_disk}/sub/b.txt"
        (small_disk / "link").unlink()
        (small_disk / "link").write_text("old")


def test_move_of_what_cannot_be_removed_changes_nothing(small_disk: Path, tmp_path: Path) -> None:
    """On a read-only file system: what it would replace is there still."""
    root = tmp_path / "work"
    root.mkdir()
    (root / "b.txt").write_text("kept")
    (small_disk / "a.txt").write_text("x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for name in ("b.txt", "new/c.txt"):
        with pytest.raises(PermissionDenied, match="read-only"):
            _move(tmp_path, f"{small_disk}/a.txt", name)
    assert os.listdir(root) == ["b.txt"]
    assert (root / "b.txt").read_text() == "kept"


def test_file_is_not_moved_onto_itself_by_another_path(small_disk: Path, tmp_path: Path) -> None:
    """A directory can be mounted at two places: to delete the source would be to delete the file."""
    root = tmp_path / "work"
    root.mkdir()
    (root / "a.txt").write_text("kept")
    (root / "b.txt").hardlink_to(root / "a.txt")
    subprocess.run(["mount", "--bind", str(root), str(small_disk)], check=True)
    try:
        with pytest.raises(InvalidRequest, match="the same file"):
            _move(tmp_path, "a.txt", f"{small_disk}/a.txt")
        (root / "b.txt").unlink()
        with pytest.raises(InvalidRequest, match="the same file"):
            _move(tmp_path, "a.txt", f"{small_disk}/a.txt")
    finally:
        subprocess.run(["umount", str(small_disk)], check=True)
    assert (root / "a.txt").read_text() == "kept"


def test_broken_upload_leaves_the_old_file(desk: Desk) -> None:
    """When the bytes stop coming, what came is dropped, with the directories made for it."""
    (desk.root / "a.dat").write_bytes(b"old")

    async def chunks() -> AsyncIterator[bytes]:
        yield b"new"
        raise ConnectionResetError

    for path in ("a.dat", "new/b.dat"):
        with pytest.raises(ConnectionResetError):
            desk.do(desk.service.write_raw(path, chunks()))
    assert os.listdir(desk.root) == ["a.dat"]
    assert (desk.root / "a.dat").read_bytes() == b"old"


def test_change_at_the_same_moment_is_not_lost(desk: Desk) -> None:
    """What something else writes between the look at the file and the rename makes the rename fail."""
    file = desk.root / "a.txt"
    file.write_text("old")
    directory = os.open(desk.root, os.O_RDONLY)
    seen = FileIdentity.from_status(file.stat())
    with NewFile(directory) as new:
        new.write(b"new")
        file.write_text("other")
        with pytest.raises(FileChanged):
            new.publish("a.txt", None, seen, str(file))
    os.close(directory)
    assert file.read_text() == "other"
    assert os.listdir(desk.root) == ["a.txt"]


def test_file_systems_without_unnamed_files_do_as_well(desk: Desk) -> None:
    """A process without /proc cannot name an unnamed file, and uses a hidden name from the start."""
    if os.geteuid() != 0:
        pytest.skip("only root can change the root directory")
    (desk.root / "a.txt").write_text("old")
    child = os.fork()
    if not child:
        os.chdir(desk.root)
        directory = os.open(desk.root, os.O_RDONLY)
        os.chroot(desk.root)
        identity = FileIdentity.from_status(os.stat("a.txt", dir_fd=directory))
        with NewFile(directory) as new:
            new.write(b"new")
            new.publish("a.txt", None, identity, "a.txt")
        with NewFile(directory) as new:
            new.write(b"more")
            assert [os.stat(name).st_mode & 0o777 for name in os.listdir() if name != "a.txt"] == [0o600]
            new.publish("b.txt", None, None, "b.txt")
        with NewFile(directory) as new:
            new.write(b"dropped")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert {file.name: file.read_text() for file in desk.root.iterdir()} == {"a.txt": "new", "b.txt": "more"}
    (desk.root / "c.txt").touch()
    assert (desk.root / "b.txt").stat().st_mode == (desk.root / "c.txt").stat().st_mode


def test_cancelled_changes_are_whole_and_leave_nothing_locked(desk: Desk) -> None:
    """However a task is cancelled, its thread ends before the file is unlocked and closed."""
    file = desk.root / "a.txt"
    file.write_text("0" * 100_000)

    async def change(number: int) -> None:
        await desk.service.perform(UpdateRequest(path="a.txt", content=str(number % 10) * 100_000))
        await desk.service.perform(CreateRequest(path=f"sub/{number}.txt", content="x"))

    async def work() -> None:
        for number in range(60):
            task = asyncio.ensure_future(change(number))
            other = asyncio.ensure_future(change(number + 1000))
            for _ in range(number % 20):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task, other])
            assert not other.exception()
            content = file.read_text()
            assert len(content) == 100_000
            assert len(set(content)) == 1

    desk.do(work())
    names = os.listdir(desk.root / "sub")
    assert {f"{number + 1000}.txt" for number in range(60)} <= set(names)
    assert not [name for name in names if name.startswith(".")]


def test_no_descriptors_are_left_open(desk: Desk) -> None:
    """After many operations, done and refused, as many are open as before."""

    async def round_() -> None:
        await desk.service.perform(CreateRequest(path="sub/a.txt", content="x"))
        await desk.service.perform(UpdateRequest(path="sub/a.txt", content="y"))
        with pytest.raises(NotImplementedError):
            await desk.service.write_raw("sub/a.txt", _failing())
        await desk.service.perform(UndoRequest(path="sub/a.txt"))
        await desk.service.perform(UndoRequest(path="sub/a.txt"))

    desk.do(round_())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        desk.do(round_())
    assert len(os.listdir("/proc/self/fd")) == before
    assert before < resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def _failing() -> AsyncIterator[bytes]:
    yield b"x"
    raise NotImplementedError
