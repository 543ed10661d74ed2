"""Containment: whatever a path is made of, it ends in an allowed directory or is refused."""

import contextlib
import ctypes
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shelld_py.errors import (
    FileNotFound,
    InvalidRequest,
    NotAFile,
    NotFound,
    PathNotAllowed,
    PermissionDenied,
)
from shelld_py.files import (
    CreateRequest,
    DeleteRequest,
    FindRequest,
    HistoryRequest,
    InsertRequest,
    MoveRequest,
    ReadRequest,
    ReplaceRequest,
    SearchRequest,
    UndoRequest,
    UpdateRequest,
    ViewRequest,
)
from shelld_py.files.paths import AllowedDirectories, DirectoryOpener
from tests.daemons import LONG

from .conftest import Desk, DeskMaker

_RENAME_EXCHANGE = 2
"""renameat2(2): both names change places at once."""


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def directories(tmp_path: Path, opener: DirectoryOpener) -> AllowedDirectories:
    """Two allowed directories, `work` and `data`, and `outside` with a secret."""
    for name in ("work/sub/deep", "data", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/sub/file").write_text("inside")
    (tmp_path / "outside/secret").write_text("secret")
    return AllowedDirectories(str(tmp_path / "work"), [str(tmp_path / "work"), str(tmp_path / "data")], opener)


INSIDE = [
    ("file", "work/file"),
    ("./sub//file", "work/sub/file"),
    ("sub/deep/../file", "work/sub/file"),
    ("sub/../../work/sub/file", "work/sub/file"),
    ("../data/file", "data/file"),
    ("link-to-file", "work/sub/file"),
    ("link-to-sub/file", "work/sub/file"),
    ("absolute-link/file", "work/sub/file"),
    ("link-to-data/file", "data/file"),
    ("chain/file", "work/sub/file"),
    ("link-to-deep/../file", "work/sub/file"),
    ("dangling", "work/nowhere"),
    ("../outside/link-back/file", "work/sub/file"),
]

OUTSIDE = [
    "/etc/passwd",
    "../outside/secret",
    "sub/../../outside/secret",
    "link-out/secret",
    "link-to-secret",
    "relative-out/secret",
    "../../../../../../../../etc/passwd",
    "/proc/self/root/etc/passwd",
    "link-to-proc/etc/passwd",
    "/proc/self/cwd/secret",
    "/dev/zero",
    "../work-but-longer/file",
    "../outside/link-back/../../outside/secret",
]


def _make_links(top: Path) -> None:
    work = top / "work"
    (work / "link-to-file").symlink_to("sub/file")
    (work / "link-to-sub").symlink_to("sub")
    (work / "link-to-deep").symlink_to("sub/deep")
    (work / "absolute-link").symlink_to(work / "sub")
    (work / "link-to-data").symlink_to(top / "data")
    (work / "chain").symlink_to("link-to-sub")
    (work / "dangling").symlink_to("nowhere")
    (work / "link-out").symlink_to(top / "outside")
    (work / "link-to-secret").symlink_to(top / "outside/secret")
    (work / "relative-out").symlink_to("../outside")
    (work / "link-to-proc").symlink_to("/proc/self/root")
    (work / "loop").symlink_to("loop")
    (top / "outside/link-back").symlink_to(top / "work/sub")
    (top / "work-but-longer").mkdir()


@pytest.mark.parametrize(("path", "expected"), INSIDE)
def test_paths_that_stay_inside_are_resolved(
    directories: AllowedDirectories, tmp_path: Path, path: str, expected: str
) -> None:
    """Links and `..` are followed as long as they end in an allowed directory."""
    _make_links(tmp_path)
    before = _open_descriptors()
    with directories.locate(path) as location:
        assert location.path == str(tmp_path / expected)
        assert os.fstat(location.directory).st_ino == (tmp_path / expected).parent.stat().st_ino
    assert _open_descriptors() == before


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_lead_outside_are_refused(directories: AllowedDirectories, tmp_path: Path, path: str) -> None:
    """The refusal names the allowed directories, and is the same whether the file exists or not."""
    _make_links(tmp_path)
    before = _open_descriptors()
    for follow_last in (True, False):
        with pytest.raises(PathNotAllowed) as caught:
            directories.locate(path, follow_last=follow_last)
        assert str(tmp_path / "data") in caught.value.detail
    assert _open_descriptors() == before


@pytest.mark.parametrize("path", ["", "a\0b", "sub/", "sub/..", ".", "x" * 5000, "a\ud800"])
def test_text_that_is_no_path_of_a_file_is_refused(directories: AllowedDirectories, path: str) -> None:
    """Such requests are malformed."""
    with pytest.raises(InvalidRequest):
        directories.locate(path)


def test_link_to_itself_ends(directories: AllowedDirectories, tmp_path: Path) -> None:
    """A loop of links is an error, not a loop."""
    _make_links(tmp_path)
    with pytest.raises(FileNotFound, match="too many levels"):
        directories.locate("loop")


def test_missing_directory_names_the_nearest(directories: AllowedDirectories) -> None:
    """A misspelt directory is easier to mend with the right name at hand."""
    with pytest.raises(FileNotFound) as caught:
        directories.locate("subb/file")
    assert "sub" in caught.value.detail
    nearest = caught.value.extra["nearest"]
    assert isinstance(nearest, list)
    assert nearest[0].endswith("/work/sub")


def test_missing_parents_are_made_and_can_be_removed(directories: AllowedDirectories, tmp_path: Path) -> None:
    """The place remembers what was made for it."""
    with directories.locate("new/deeper/file", make_parents=True) as location:
        assert (tmp_path / "work/new/deeper").is_dir()
        directories.remove_empty(location.made)
    assert not (tmp_path / "work/new").exists()


def test_allowed_directory_that_became_a_link_is_not_followed(directories: AllowedDirectories, tmp_path: Path) -> None:
    """The allowed directories are those of the start."""
    (tmp_path / "data").rmdir()
    (tmp_path / "data").symlink_to(tmp_path / "outside")
    with pytest.raises(NotFound):
        directories.locate(str(tmp_path / "data/secret"))


def test_root_directory_can_be_allowed(opener: DirectoryOpener, tmp_path: Path) -> None:
    """Allowing everything is a configuration too."""
    (tmp_path / "file").write_text("x")
    with AllowedDirectories(str(tmp_path), ["/"], opener).locate("file") as location:
        assert location.path == str(tmp_path / "file")


def test_every_operation_refuses_paths_outside(make_desk: DeskMaker, opener: DirectoryOpener) -> None:
    """No operation reads, changes or lists anything outside, by path or by link."""
    desk = make_desk(directory_opener=opener)
    secret = desk.outside / "secret.txt"
    secret.write_text("secret\n")
    (desk.root / "inside.txt").write_text("inside\n")
    (desk.root / "link.txt").symlink_to(secret)
    (desk.root / "directory").symlink_to(desk.outside)
    service = desk.service
    for path in (str(secret), "link.txt", "directory/secret.txt", "../outside/secret.txt"):
        attempts = [
            service.perform(ReadRequest(path=path)),
            service.perform(CreateRequest(path=path, content="x")),
            service.perform(UpdateRequest(path=path, content="x")),
            service.perform(InsertRequest(path=path, content="x", line=0)),
            service.perform(ReplaceRequest(path=path, old_string="secret", new_string="x")),
            service.perform(DeleteRequest(path=path)),
            service.perform(MoveRequest(source_path=path, destination_path="stolen.txt")),
            service.perform(MoveRequest(source_path="inside.txt", destination_path=path, overwrite=True)),
            service.perform(UndoRequest(path=path, force=True)),
            service.perform(HistoryRequest(path=path)),
            service.perform(SearchRequest(pattern="secret", path=path)),
            service.read_raw(path),
            service.write_raw(path, _no_chunks()),
        ]
        for attempt in attempts:
            with pytest.raises(PathNotAllowed):
                desk.do(attempt)
    for request in (ViewRequest(path="directory"), ViewRequest(path="..")):
        with pytest.raises(PathNotAllowed):
            desk.do(service.perform(request))
    with pytest.raises(PathNotAllowed):
        desk.do(service.perform(FindRequest(pattern="*", path="directory")))
    assert secret.read_text() == "secret\n"
    assert os.listdir(desk.outside) == ["secret.txt"]


async def _no_chunks() -> AsyncIterator[bytes]:
    yield b"x"


def test_writes_never_go_through_a_hard_link(desk: Desk) -> None:
    """A hard link to a file outside gets a file of its own when it is changed."""
    secret = desk.outside / "secret.txt"
    secret.write_text("secret\n")
    os.link(secret, desk.root / "hard.txt")
    desk.do(desk.service.perform(UpdateRequest(path="hard.txt", content="changed\n")))
    assert secret.read_text() == "secret\n"
    assert (desk.root / "hard.txt").read_text() == "changed\n"


def test_no_operation_waits_for_what_is_no_regular_file(desk: Desk) -> None:
    """Fifos, sockets, devices and directories are refused at once, and named for what they are."""
    os.mkfifo(desk.root / "fifo.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(desk.root / "socket.txt"))
    (desk.root / "directory.txt").mkdir()
    kinds = {"fifo.txt": "a fifo", "socket.txt": "a socket", "directory.txt": "a directory"}
    with contextlib.suppress(PermissionError):
        os.mknod(desk.root / "zero.txt", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        kinds["zero.txt"] = "a character device"
    service = desk.service
    for path, kind in kinds.items():
        for attempt in (
            service.perform(ReadRequest(path=path)),
            service.perform(ReadRequest(path=path, view_range=(1, 2))),
            service.perform(UpdateRequest(path=path, content="x")),
            service.perform(DeleteRequest(path=path)),
            service.perform(MoveRequest(source_path=path, destination_path="moved.txt")),
            service.read_raw(path),
            service.write_raw(path, _no_chunks()),
        ):
            with pytest.raises(NotAFile, match=kind):
                desk.do(attempt)
    found = desk.do(service.perform(SearchRequest(pattern="x")))
    assert found.matches == ()


def test_unreadable_file_is_refused_with_a_reason(desk: Desk) -> None:
    """What nobody has permission to read is not read, whoever the daemon is: as text, or as bytes."""
    file = desk.root / "locked.txt"
    file.write_text("x")
    file.chmod(0o200)
    with pytest.raises(PermissionDenied):
        desk.do(desk.service.perform(ReadRequest(path="locked.txt")))
    with pytest.raises(PermissionDenied):
        desk.do(desk.service.read_raw("locked.txt"))


def test_directory_swapped_for_a_link_leads_nowhere(make_desk: DeskMaker, opener: DirectoryOpener) -> None:
    """While something swaps a directory for a link to the outside, operations stay inside or fail."""
    desk = make_desk(directory_opener=opener, max_events_per_file=2)
    real, bait = desk.root / "dir", desk.root / "bait"
    real.mkdir()
    (real / "file.txt").write_text("inside\n")
    (desk.outside / "file.txt").write_text("secret\n")
    bait.symlink_to(desk.outside)
    swapping = threading.Event()
    swapping.set()

    def swap() -> None:
        libc = ctypes.CDLL(None)
        while swapping.is_set():
            assert libc.renameat2(-100, bytes(real), -100, bytes(bait), _RENAME_EXCHANGE) == 0

    swapper = threading.Thread(target=swap)
    swapper.start()
    outcomes = {"done": 0, "refused": 0}
    try:
        for round_ in range(400 if LONG else 60):
            service = desk.service
            content = f"inside {round_}\n"
            for attempt in (
                service.perform(ReadRequest(path="dir/file.txt")),
                service.perform(UpdateRequest(path="dir/file.txt", content=content)),
                service.perform(CreateRequest(path=f"dir/new{round_}.txt", content=content)),
            ):
                try:
                    result = desk.do(attempt)
                    assert "secret" not in getattr(result, "content", "")
                    assert "secret" not in getattr(result, "diff", "")
                    outcomes["done"] += 1
                except (PathNotAllowed, FileNotFound):
                    outcomes["refused"] += 1
    finally:
        swapping.clear()
        swapper.join()
    assert (desk.outside / "file.txt").read_text() == "secret\n"
    assert os.listdir(desk.outside) == ["file.txt"]
    assert outcomes["done"]
