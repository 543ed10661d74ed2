"""The operations on text files: answers, refusals, and what is kept."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from shelld_py.errors import (
    ExtensionRefused,
    FileAlreadyExists,
    FileNotFound,
    FileTooLarge,
    InvalidRequest,
    LineOutOfRange,
    NotADirectory,
    NotAFile,
    NotText,
    PermissionDenied,
    PreconditionFailed,
    ReplacementCountMismatch,
    TextNotFound,
    TooManyTokens,
)
from shelld_py.files import (
    CreateRequest,
    DeleteRequest,
    FileType,
    InsertRequest,
    MoveRequest,
    ReadRequest,
    ReplaceRequest,
    UndoRequest,
    UpdateRequest,
    ViewRequest,
)
from shelld_py.files.text_file import content_etag
from tests.daemons import LONG

from .conftest import Desk, DeskMaker


def test_view_lists_a_directory_by_name(desk: Desk) -> None:
    """Directories and files apart, entries together, hidden ones only when asked for."""
    (desk.root / "sub").mkdir()
    (desk.root / "b.txt").write_text("12")
    (desk.root / "a.txt").write_text("1")
    (desk.root / ".hidden").write_text("")
    (desk.root / "link").symlink_to("a.txt")
    result = desk.do(desk.service.perform(ViewRequest(path=".")))
    assert result.path == str(desk.root)
    assert (result.directories, result.files) == (("sub",), ("a.txt", "b.txt", "link"))
    assert [(entry.name, entry.type) for entry in result.entries] == [
        ("a.txt", FileType.FILE),
        ("b.txt", FileType.FILE),
        ("link", FileType.SYMLINK),
        ("sub", FileType.DIRECTORY),
    ]
    assert result.entries[1].size == 2
    assert (result.truncated, result.total_entries) == (False, 4)
    assert ".hidden" in desk.do(desk.service.perform(ViewRequest(path=".", hidden=True))).files


def test_view_goes_as_deep_as_asked(desk: Desk) -> None:
    """Deeper names are relative to the directory; links to directories are not entered."""
    (desk.root / "a/b/c").mkdir(parents=True)
    (desk.root / "a/loop").symlink_to(desk.root)
    result = desk.do(desk.service.perform(ViewRequest(path=".", depth=2)))
    assert [entry.name for entry in result.entries] == ["a", "a/b", "a/loop"]


def test_view_of_very_many_entries_is_cut(desk: Desk) -> None:
    """The answer says how many there are."""
    count = 100_000 if LONG else 10_000
    for number in range(count):
        os.mknod(f"{desk.root}/{number:06}")
    result = desk.do(desk.service.perform(ViewRequest(path=".")))
    assert (result.truncated, result.total_entries, len(result.entries)) == (True, count, 1000)
    assert result.files[:2] == ("000000", "000001")


def test_view_of_a_file_or_of_nothing_is_refused(desk: Desk) -> None:
    """A file has no entries."""
    (desk.root / "a.txt").write_text("")
    with pytest.raises(NotADirectory):
        desk.do(desk.service.perform(ViewRequest(path="a.txt")))
    with pytest.raises(FileNotFound):
        desk.do(desk.service.perform(ViewRequest(path="missing")))


def test_names_that_are_no_utf8_can_be_shown(desk: Desk) -> None:
    """They travel with replacement characters."""
    os.close(os.open(bytes(desk.root) + b"/\xff.txt", os.O_CREAT | os.O_WRONLY))
    assert desk.do(desk.service.perform(ViewRequest(path="."))).files == ("\ufffd.txt",)


def test_read_answers_content_and_measures(desk: Desk) -> None:
    """The etag is the hash of all bytes, the mark is not part of the content."""
    data = b"\xef\xbb\xbfa\r\nb"
    (desk.root / "a.txt").write_bytes(data)
    result = desk.do(desk.service.perform(ReadRequest(path="a.txt")))
    assert (result.content, result.total_lines, result.view_range, result.size) == ("a\r\nb", 2, (1, 2), 5 + 2)
    assert result.etag == content_etag(data)
    part = desk.do(desk.service.perform(ReadRequest(path="a.txt", view_range=(1, 1))))
    assert (part.content, part.etag, part.size) == ("a\r\n", result.etag, result.size)


@pytest.mark.parametrize("view_range", [(0, 1), (2, 1), (1, 4), (4, -1), (1, -2)])
def test_read_of_lines_that_are_not_there_is_refused(desk: Desk, view_range: tuple[int, int]) -> None:
    """A range must lie in the file."""
    (desk.root / "a.txt").write_text("1\n2\n3\n")
    with pytest.raises(LineOutOfRange):
        desk.do(desk.service.perform(ReadRequest(path="a.txt", view_range=view_range)))


def test_empty_file_can_be_read(desk: Desk) -> None:
    """With a range to the end, too."""
    (desk.root / "a.txt").write_text("")
    assert desk.do(desk.service.perform(ReadRequest(path="a.txt"))).total_lines == 0
    assert desk.do(desk.service.perform(ReadRequest(path="a.txt", view_range=(1, -1)))).content == ""


def test_read_checks_in_the_order_of_the_contract(make_desk: DeskMaker) -> None:
    """Existence, extension, text, size, tokens: the first that fails is told."""
    desk = make_desk(max_file_size=100, max_token_count=10)
    big = "0123456789\n" * 20
    for name, content in (
        ("a.exe", b"\0" * 1000),
        ("binary.txt", b"\0" * 1000),
        ("late.txt", b"a" * 60 + b"\xff" + b"a" * 20),
        ("big.txt", big.encode()),
        ("long.txt", b"0123456789\n" * 8),
    ):
        (desk.root / name).write_bytes(content)
    expected = {
        "missing.exe": FileNotFound,
        "a.exe": ExtensionRefused,
        "binary.txt": NotText,
        "late.txt": NotText,
        "big.txt": FileTooLarge,
        "long.txt": TooManyTokens,
    }
    for path, kind in expected.items():
        with pytest.raises(kind):
            desk.do(desk.service.perform(ReadRequest(path=path)))
    assert desk.do(desk.service.perform(ReadRequest(path="big.txt", view_range=(19, 20)))).total_lines == 20
    with pytest.raises(FileTooLarge):
        desk.do(desk.service.perform(ReadRequest(path="big.txt", view_range=(2, -1))))
    with pytest.raises(TooManyTokens, match="Lines 2 to 4 would fit"):
        desk.do(desk.service.perform(ReadRequest(path="big.txt", view_range=(2, 8))))


def test_missing_file_names_the_nearest(desk: Desk) -> None:
    """So that a misspelt name needs no listing."""
    (desk.root / "README.md").write_text("")
    with pytest.raises(FileNotFound, match=r"README\.md"):
        desk.do(desk.service.perform(ReadRequest(path="readme.txt")))


def test_create_makes_file_and_parents(desk: Desk) -> None:
    """The mode follows the umask, the diff shows all of it."""
    result = desk.do(desk.service.perform(CreateRequest(path="a/b/c.txt", content="x\n")))
    file = desk.root / "a/b/c.txt"
    assert file.read_text() == "x\n"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask
    assert (result.path, result.operation, result.size, result.undo_depth) == (str(file), "create", 2, 1)
    assert result.diff == "--- /dev/null\n+++ b/a/b/c.txt\n@@ -0,0 +1 @@\n+x\n"


def test_create_does_not_replace(desk: Desk) -> None:
    """An existing file, directory or link stays; nothing is left behind by the refusal."""
    (desk.root / "a.txt").write_text("old")
    (desk.root / "b").mkdir()
    for path in ("a.txt", "b"):
        with pytest.raises(FileAlreadyExists):
            desk.do(desk.service.perform(CreateRequest(path=path, content="x")))
    with pytest.raises(PreconditionFailed):
        desk.do(desk.service.perform(CreateRequest(path="a.txt", content="x", if_none_match="*")))
    with pytest.raises(NotText):
        desk.do(desk.service.perform(CreateRequest(path="new/c.txt", content="a\0")))
    assert sorted(os.listdir(desk.root)) == ["a.txt", "b"]
    assert (desk.root / "a.txt").read_text() == "old"


def test_create_through_a_dangling_link_makes_its_target(desk: Desk) -> None:
    """A link is followed, not replaced."""
    (desk.root / "link.txt").symlink_to("target.txt")
    desk.do(desk.service.perform(CreateRequest(path="link.txt", content="x")))
    assert (desk.root / "link.txt").is_symlink()
    assert (desk.root / "target.txt").read_text() == "x"


def test_changes_keep_mode_owner_and_extended_attributes(desk: Desk) -> None:
    """The new file in the old one's place has all that the old one had."""
    file = desk.root / "a.sh"
    file.write_text("one\n")
    os.setxattr(file, "user.note", b"kept")
    if os.geteuid() == 0:
        os.chown(file, 1234, 2345)
    file.chmod(0o4751)
    before = file.stat()
    desk.do(desk.service.perform(UpdateRequest(path="a.sh", content="two\n")))
    desk.do(desk.service.perform(InsertRequest(path="a.sh", content="three", line=1)))
    desk.do(desk.service.perform(ReplaceRequest(path="a.sh", old_string="two", new_string="2")))
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert os.getxattr(file, "user.note") == b"kept"
    assert file.read_text() == "2\nthree\n"


def test_changes_follow_links_inside(desk: Desk) -> None:
    """The link stays a link, the target changes."""
    (desk.root / "target.txt").write_text("old")
    (desk.root / "link.txt").symlink_to("target.txt")
    result = desk.do(desk.service.perform(UpdateRequest(path="link.txt", content="new")))
    assert result.path == str(desk.root / "target.txt")
    assert (desk.root / "link.txt").is_symlink()
    assert (desk.root / "target.txt").read_text() == "new"


def test_read_only_file_is_not_changed(desk: Desk) -> None:
    """Not even for root: the mode is a statement."""
    file = desk.root / "a.txt"
    file.write_text("old\n")
    file.chmod(0o444)
    for attempt in (
        desk.service.perform(UpdateRequest(path="a.txt", content="x")),
        desk.service.perform(InsertRequest(path="a.txt", content="x", line=0)),
        desk.service.perform(ReplaceRequest(path="a.txt", old_string="old", new_string="x")),
    ):
        with pytest.raises(PermissionDenied, match="read-only"):
            desk.do(attempt)
    assert file.read_text() == "old\n"


def test_update_needs_a_text_file(desk: Desk) -> None:
    """A missing file is not made, a binary one not overwritten."""
    (desk.root / "a.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(FileNotFound):
        desk.do(desk.service.perform(UpdateRequest(path="b.txt", content="x")))
    with pytest.raises(NotText):
        desk.do(desk.service.perform(UpdateRequest(path="a.png", content="x")))


def test_content_over_the_limit_is_refused(make_desk: DeskMaker) -> None:
    """What could not be read again is not written."""
    desk = make_desk(max_file_size=10)
    with pytest.raises(FileTooLarge):
        desk.do(desk.service.perform(CreateRequest(path="a/b.txt", content="x" * 11)))
    assert os.listdir(desk.root) == []


def test_replace_counts_and_checks(desk: Desk) -> None:
    """Every occurrence is replaced, unless another number is expected."""
    file = desk.root / "a.txt"
    file.write_text("x = 1\ny = 2\nx = 1\n")
    with pytest.raises(ReplacementCountMismatch, match=r"2 times .* lines 1, 3"):
        desk.do(
            desk.service.perform(
                ReplaceRequest(path="a.txt", old_string="x = 1", new_string="z", expected_replacements=1)
            )
        )
    result = desk.do(desk.service.perform(ReplaceRequest(path="a.txt", old_string="x = 1", new_string="z")))
    assert (result.replacements, file.read_text()) == (2, "z\ny = 2\nz\n")


def test_failed_replace_shows_the_nearest_text(desk: Desk) -> None:
    """With its line numbers, and nothing changed."""
    (desk.root / "a.py").write_text("def one():\n    return 1\n\ndef two():\n    return 2\n")
    request = ReplaceRequest(path="a.py", old_string="def two():\n  return 2", new_string="x")
    with pytest.raises(TextNotFound, match=r"lines 4 to 5.*white space.*\n4: def two\(\):\n5:     return 2") as caught:
        desk.do(desk.service.perform(request))
    assert caught.value.status == 422
    assert caught.value.extra["nearest"] == {"first_line": 4, "last_line": 5, "text": "def two():\n    return 2"}


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("a", "a")])
def test_replace_of_nothing_is_malformed(desk: Desk, old: str, new: str) -> None:
    """There must be something to find, and something to change."""
    (desk.root / "a.txt").write_text("a")
    with pytest.raises(InvalidRequest):
        desk.do(desk.service.perform(ReplaceRequest(path="a.txt", old_string=old, new_string=new)))


def test_delete_takes_files_only(desk: Desk) -> None:
    """A directory stays."""
    (desk.root / "sub").mkdir()
    (desk.root / "a.txt").write_text("x\n")
    with pytest.raises(NotAFile):
        desk.do(desk.service.perform(DeleteRequest(path="sub")))
    with pytest.raises(FileNotFound):
        desk.do(desk.service.perform(DeleteRequest(path="b.txt")))
    result = desk.do(desk.service.perform(DeleteRequest(path="a.txt")))
    assert (result.size, result.etag) == (0, None)
    assert result.diff == "--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    assert not (desk.root / "a.txt").exists()


def test_delete_of_a_link_removes_the_link(desk: Desk) -> None:
    """As rm(1) does; undo makes it again."""
    (desk.root / "target.txt").write_text("x")
    link = desk.root / "link.txt"
    link.symlink_to("target.txt")
    desk.do(desk.service.perform(DeleteRequest(path="link.txt")))
    assert not link.is_symlink()
    assert (desk.root / "target.txt").exists()
    desk.do(desk.service.perform(UndoRequest(path="link.txt")))
    assert os.readlink(link) == "target.txt"


def test_diffs_do_not_show_what_may_not_be_read(desk: Desk) -> None:
    """Deleting a file is no way around the policy on reads."""
    (desk.root / "a.bin").write_text("secret\n")
    assert "secret" not in desk.do(desk.service.perform(DeleteRequest(path="a.bin"))).diff


def test_move_takes_a_file_along_with_its_attributes(desk: Desk) -> None:
    """Parents of the destination are made, the history of the source ends."""
    desk.do(desk.service.perform(CreateRequest(path="a.txt", content="x")))
    (desk.root / "a.txt").chmod(0o640)
    result = desk.do(desk.service.perform(MoveRequest(source_path="a.txt", destination_path="sub/b.txt")))
    moved = desk.root / "sub/b.txt"
    assert (moved.read_text(), stat.S_IMODE(moved.stat().st_mode)) == ("x", 0o640)
    assert not (desk.root / "a.txt").exists()
    assert (result.path, result.etag, result.undo_depth) == (str(moved), content_etag(b"x"), 0)


def test_move_overwrites_only_when_told(desk: Desk) -> None:
    """And then a regular, writable file only."""
    for name in ("a.txt", "b.txt"):
        (desk.root / name).write_text(name)
    (desk.root / "sub").mkdir()
    service = desk.service
    with pytest.raises(FileAlreadyExists):
        desk.do(service.perform(MoveRequest(source_path="a.txt", destination_path="b.txt")))
    with pytest.raises(NotAFile):
        desk.do(service.perform(MoveRequest(source_path="a.txt", destination_path="sub", overwrite=True)))
    with pytest.raises(InvalidRequest):
        desk.do(service.perform(MoveRequest(source_path="a.txt", destination_path="sub/")))
    with pytest.raises(InvalidRequest):
        desk.do(service.perform(MoveRequest(source_path="a.txt", destination_path="./a.txt")))
    with pytest.raises(FileNotFound):
        desk.do(service.perform(MoveRequest(source_path="c.txt", destination_path="new/d.txt")))
    assert sorted(os.listdir(desk.root)) == ["a.txt", "b.txt", "sub"]
    desk.do(service.perform(MoveRequest(source_path="a.txt", destination_path="b.txt", overwrite=True)))
    assert (desk.root / "b.txt").read_text() == "a.txt"


def test_move_between_two_names_of_one_file_ends_with_one_name(desk: Desk) -> None:
    """rename(2) alone would do nothing."""
    (desk.root / "a.txt").write_text("x")
    os.link(desk.root / "a.txt", desk.root / "b.txt")
    desk.do(desk.service.perform(MoveRequest(source_path="a.txt", destination_path="b.txt", overwrite=True)))
    assert os.listdir(desk.root) == ["b.txt"]


def test_link_is_not_moved_onto_its_own_target(desk: Desk) -> None:
    """It would lead to itself then, and the target's content be lost."""
    (desk.root / "a.txt").write_text("kept")
    (desk.root / "link").symlink_to("a.txt")
    with pytest.raises(InvalidRequest, match="own target"):
        desk.do(desk.service.perform(MoveRequest(source_path="link", destination_path="a.txt", overwrite=True)))
    assert (desk.root / "a.txt").read_text() == "kept"


def test_preconditions_guard_every_change(desk: Desk) -> None:
    """With an etag of another content nothing happens; with the right one it does."""
    file = desk.root / "a.txt"
    file.write_text("old")
    stale, right = content_etag(b"stale"), content_etag(b"old")
    service = desk.service
    desk.do(service.perform(UpdateRequest(path="a.txt", content="older", if_match="*")))
    desk.do(service.perform(UpdateRequest(path="a.txt", content="old")))
    for attempt in (
        service.perform(UpdateRequest(path="a.txt", content="x", if_match=stale)),
        service.perform(UpdateRequest(path="a.txt", content="x", if_none_match="*")),
        service.perform(InsertRequest(path="a.txt", content="x", line=0, if_match=stale)),
        service.perform(ReplaceRequest(path="a.txt", old_string="old", new_string="x", if_match=stale)),
        service.perform(DeleteRequest(path="a.txt", if_match=stale)),
        service.perform(MoveRequest(source_path="a.txt", destination_path="b.txt", if_match=stale)),
        service.perform(UndoRequest(path="a.txt", if_match=stale)),
        service.perform(CreateRequest(path="c.txt", content="x", if_match=stale)),
    ):
        with pytest.raises(PreconditionFailed) as caught:
            desk.do(attempt)
        assert caught.value.extra["etag"] in (right, None)
    assert file.read_text() == "old"
    assert os.listdir(desk.root) == ["a.txt"]
    desk.do(service.perform(UpdateRequest(path="a.txt", content="new", if_match=f'"{right}"')))
    assert file.read_text() == "new"


def test_concurrent_changes_of_one_file_are_all_made(desk: Desk) -> None:
    """They wait for each other, so none is lost; the event loop goes on meanwhile."""
    (desk.root / "a.txt").write_text("")

    async def insert_all() -> None:
        requests = [InsertRequest(path="a.txt", content=f"{number}\n", line=0) for number in range(50)]
        await asyncio.gather(*map(desk.service.perform, requests))

    desk.do(insert_all())
    assert sorted((desk.root / "a.txt").read_text().split()) == sorted(map(str, range(50)))


def test_concurrent_changes_of_different_files_are_all_made(desk: Desk) -> None:
    """In parallel, more of them than there are threads."""

    async def create_all() -> None:
        requests = [CreateRequest(path=f"sub/{number}.txt", content="x") for number in range(100)]
        await asyncio.gather(*map(desk.service.perform, requests))

    desk.do(create_all())
    assert len(os.listdir(desk.root / "sub")) == 100


def test_file_over_the_limit_is_read_in_part_without_loading_it(make_desk: DeskMaker) -> None:
    """A hundred megabytes pass by, a line is kept."""
    desk = make_desk(max_file_size=1000)
    with Path(desk.root / "a.log").open("w") as file:
        file.writelines(("x" * 99 + "\n") * 1000 for _ in range(100))
        file.write("the end\n")
    result = desk.do(desk.service.perform(ReadRequest(path="a.log", view_range=(100_001, -1))))
    assert (result.content, result.total_lines) == ("the end\n", 100_001)
