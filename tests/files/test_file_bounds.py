"""What would cost without end, on purpose or not: sizes, patterns, depths, files that the kernel makes up."""

import asyncio
import os
import tracemalloc
from pathlib import Path

import httpx
import pytest

from shelld_py.config import FileSettings
from shelld_py.errors import FileTooLarge, InvalidRequest, NotAFile, SearchTooSlow, ShelldError
from shelld_py.files import CreateRequest, ReplaceRequest, SearchRequest
from shelld_py.files.blocking import Threads
from shelld_py.files.globs import Globs, IgnoreRules
from shelld_py.files.open_file import OpenFile
from shelld_py.files.paths import Location
from shelld_py.files.policy import ReadPolicy
from shelld_py.files.reading import RawFile
from shelld_py.files.search import SearchScope, limited
from shelld_py.files.text_file import content_etag, unified_diff
from shelld_py.files.why_not_found import nearest_text
from shelld_py.linux.removal import remove_tree
from tests.daemons import KEY, running_daemon

from .conftest import Desk, DeskMaker


def test_size_of_a_replacement_is_known_before_it_is_built(make_desk: DeskMaker) -> None:
    """One small request does not take the memory of what it would have made."""
    desk = make_desk(max_file_size=100_000)
    (desk.root / "a.txt").write_text("a" * 50_000)
    tracemalloc.start()
    try:
        with pytest.raises(FileTooLarge, match="would have 200000000 bytes"):
            desk.do(desk.service.perform(ReplaceRequest(path="a.txt", old_string="a", new_string="b" * 4_000)))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("old", "new", "size"), [("ä", "aa", 6), ("ä", "ö", 6), ("\n", "", 4)])
def test_size_of_a_replacement_is_in_bytes(make_desk: DeskMaker, old: str, new: str, size: int) -> None:
    """Of UTF-8, not of characters."""
    desk = make_desk(max_file_size=6)
    (desk.root / "a.txt").write_text("ää\n\n")
    assert desk.do(desk.service.perform(ReplaceRequest(path="a.txt", old_string=old, new_string=new))).size == size


def test_hash_of_a_growing_file_is_that_of_what_is_delivered(desk: Desk) -> None:
    """It ends where the file ended when it was opened."""
    file = desk.root / "a.log"
    file.write_bytes(b"one\n")
    with Location(os.open(desk.root, os.O_PATH), "a.log", str(file)) as location, OpenFile(location) as opened:
        with file.open("ab") as writer:
            writer.write(b"two\n")
        assert opened.etag == content_etag(b"one\n")


def test_files_that_the_kernel_makes_up_are_delivered_as_they_come(tmp_path: Path) -> None:
    """Without a length that would be a lie; what cannot be read is the caller's mistake, not the daemon's."""
    with running_daemon(tmp_path, files__allowed_directories='["/proc", "/sys"]') as daemon:

        def get(path: str, **headers: str) -> httpx.Response:
            return daemon.client.get("/files/raw", params={"path": path}, headers=headers)

        for path in ("/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"):
            answer = get(path, Range="bytes=0-1")
            assert (answer.status_code, answer.content) == (200, Path(path).read_bytes())
            assert "content-length" not in answer.headers
            assert "etag" not in answer.headers
            assert answer.headers["accept-ranges"] == "none"
        assert get(f"/proc/{daemon.process.pid}/mem").status_code in (403, 415)
        with daemon.client.stream("GET", "/files/raw", params={"path": "/proc/self/pagemap"}) as answer:
            assert answer.status_code == 200
            assert len(next(answer.iter_raw(8))) == 8
        answer = daemon.client.head("/files/raw", params={"path": "/proc/self/pagemap"}, headers={"X-Shell-Key": KEY})
        assert (answer.status_code, answer.headers.get("content-length")) == (200, None)


def test_small_and_empty_files_keep_their_length(desk: Desk) -> None:
    """Also where they have no blocks of their own."""

    async def size(path: str) -> int | None:
        with await desk.service.read_raw(path) as file:
            return file.size

    (desk.root / "empty").touch()
    (desk.root / "hole").touch()
    os.truncate(desk.root / "hole", 1_000_000)
    assert [desk.do(size(name)) for name in ("empty", "hole")] == [0, 1_000_000]


@pytest.mark.parametrize(
    "glob",
    ["{" * 5_000, "{" * 5_000 + "}" * 5_000, "{a," * 300 + "b" + "}" * 300, "{a,b}" * 100, "[" * 5_000, "*a" * 5_000],
)
def test_monstrous_globs_are_refused(glob: str) -> None:
    """At once, and in few words."""
    with pytest.raises(InvalidRequest) as refusal:
        Globs.from_texts([glob])
    assert len(refusal.value.detail) < 300


def test_braces_that_stand_for_too_much_are_refused() -> None:
    """The bound is in the words."""
    with pytest.raises(InvalidRequest, match="more than 500 alternatives"):
        Globs.from_texts(["{a,b}" * 10])
    with pytest.raises(InvalidRequest, match="at most 1024 characters, not 3000"):
        Globs.from_texts(["{" * 3_000])


def test_globs_have_a_bound_in_all() -> None:
    """Many long ones, with alternatives: to compile them would take minutes."""
    assert Globs.from_texts([f"*.{number}" for number in range(300)])
    with pytest.raises(InvalidRequest, match="more than 50000 characters"):
        Globs.from_texts(["{a,b}" * 8 + "x" * 900] * 20)


def test_rules_of_a_gitignore_have_a_bound_in_all() -> None:
    """A mebibyte of them would take a minute to compile. Comments cost nothing, so they do not count."""
    lines = ["first", *["# " + "c" * 1000] * 100, *["x" * 1000] * 49, "last", "x" * 1000, "none"]
    rules = IgnoreRules().extended("", "\n".join(lines))
    assert [name for name in ("first", "last", "none") if rules.ignore(name, directory=False)] == ["first", "last"]


def test_many_rules_are_heeded_in_their_order() -> None:
    """More than are one expression; the last that matches decides."""
    rules = IgnoreRules().extended("", "\n".join(["a7", *(f"a{n}\nb/a{n}" for n in range(900)), "!a7", "c/"]))
    ignored = [path for path in ("a0", "a7", "x/a899", "b/a8", "a900", "c") if rules.ignore(path, directory=False)]
    assert ignored == ["a0", "x/a899", "b/a8"]


@pytest.mark.parametrize(
    "glob", ["*a" * 30 + "b", "**/a" * 100 + "/b", "**/*a*a*a*a" * 50 + "b", "?" * 500 + "*" + "?*" * 200, "*" * 999]
)
def test_globs_do_not_try_out(glob: str) -> None:
    """What would take a backtracking engine longer than the world is answered."""
    for path in ("a" * 4_000, "a/" * 2_000 + "c", "a" * 250 + "/" + "a" * 250):
        assert Globs.from_texts([glob]).match(path) in (True, False)
        assert IgnoreRules().extended("", glob).ignore(path, directory=False) in (True, False)


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*a*b", "xaxbxb", True),
        ("*a*b", "xbxa", False),
        ("**/a*b/**/c", "x/ab/a/ab/x/c", True),
        ("**/a*b", "ax/ab", True),
        ("**/a*b/c", "a/b/c/ab/c", True),
        ("*ab", "aab", True),
        ("*a?c*", "abac", False),
        ("*a?c*", "abacabc", True),
        ("x/**/y/**/z", "x/y/z", True),
        ("x/**/y/**/z", "x/z/y", False),
        ("a{,b{c,d}}e", "abde", True),
        ("a{,b{c,d}}e", "ae", True),
        ("a{,b{c,d}}e", "abe", False),
        ("{a,b}{1,2}", "b1", True),
        (r"\{a,b}", "{a,b}", True),
        ("[{,]x", ",x", True),
        ("[[:digit:][:upper:]]", "7", True),
        ("[[:digit:]]*.py", "1a.py", True),
        ("[![:space:]]", "a", True),
        ("[![:space:]]", " ", False),
        ("[[:alpha:]-]", "-", True),
        ("[[:punct:]]", "[", True),
    ],
)
def test_globs_mean_what_they_say(glob: str, path: str, *, matches: bool) -> None:
    """Stars that could match in several places, nested alternatives, and the classes of POSIX."""
    assert Globs.from_texts([glob]).match(path) is matches


def test_class_that_does_not_exist_is_told() -> None:
    """It is no set of letters."""
    with pytest.raises(InvalidRequest, match=r"no class \[:letter:\]"):
        Globs.from_texts(["[[:letter:]]"])


@pytest.mark.parametrize(
    ("line", "path", "ignored"),
    [
        (" " * 4_000_000, "a", False),
        ("x" + " " * 4_000_000, "x", True),
        ("\\" * 100_000 + " " * 100_000, "x", False),
        ("a\\ ", "a ", True),
        ("a\\\\ ", "a\\", True),
        ("a\r", "a", True),
        ("[[:digit:]]", "7", True),
    ],
    ids=["blanks", "blanks behind", "backslashes", "escaped", "escaped backslash", "crlf", "class"],
)
def test_ignore_lines_are_read_once(line: str, path: str, *, ignored: bool) -> None:
    """However long they are; blanks at the end do not count unless the first is escaped."""
    assert IgnoreRules().extended("", line).ignore(path, directory=False) is ignored


def test_path_of_two_thousand_components_comes_and_goes(desk: Desk) -> None:
    """Made, and removed with all that is in it by whoever cleans up."""
    path = "d/" * 1_900 + "a.txt"
    made = desk.do(desk.service.perform(CreateRequest(path=path, content="x")))
    (desk.root / "d" / "link").symlink_to(desk.outside)
    (desk.outside / "kept").touch()
    with pytest.raises(ShelldError, match="shorter than 4096 bytes"):
        desk.do(desk.service.perform(CreateRequest(path="d/" * 2_100 + "a.txt", content="x")))
    remove_tree(str(desk.root / "d"))
    assert (os.listdir(desk.root), os.listdir(desk.outside)) == ([], ["kept"])
    assert made.path.endswith("/d/a.txt")


def test_nearest_text_of_many_equal_lines_is_found() -> None:
    """Where each line is like each other, what is compared stays bounded."""
    body, wanted = "aaaa\n" * 300_000, "aaaa\n" * 30_000 + "bbbb\n" + "aaaa\n" * 30_000
    near = nearest_text(body, wanted)
    assert near is not None
    assert near.last_line - near.first_line == 60_000


def test_matches_have_a_bound_in_all(make_desk: DeskMaker) -> None:
    """A hundred lines of context for each of thousands of lines would be a gigabyte."""
    desk = make_desk()
    (desk.root / "a.txt").write_text(("x" * 999 + "\n") * 200)
    (desk.root / "b.txt").write_text("x\n")
    found = desk.do(desk.service.perform(SearchRequest(pattern="x", context=100, limit=10_000)))
    assert found.truncated
    assert len(found.matches) < 50
    assert all(match.path.endswith("a.txt") for match in found.matches)


def test_pattern_that_takes_too_much_memory_is_stopped(tmp_path: Path) -> None:
    """Python's `re` notes each place in a long line that it could go back to."""
    policy = ReadPolicy.from_settings(FileSettings())
    scope = SearchScope(str(tmp_path), (str(tmp_path),), policy, None, cpu_time=60.0)
    with pytest.raises(SearchTooSlow, match="too much memory"), limited(scope, "text"):
        bytearray(400 << 20)
    assert len(bytearray(400 << 20)) == 400 << 20


def test_nearest_text_is_not_sought_among_lines_like_each_other_without_end() -> None:
    """Each takes milliseconds to compare; the one that fits best, but for its case, is too far behind."""
    near = nearest_text("\n".join(["ab" * 150] * 300 + ["BA" * 150]), "ba" * 150)
    assert near is not None
    assert near.first_line == 1
    near = nearest_text("\n".join(["ab" * 150] * 20 + ["BA" * 150]), "ba" * 150)
    assert near is not None
    assert near.first_line == 21


def test_lines_that_are_everywhere_are_no_common_ground_of_a_diff() -> None:
    """To find the best of all ways to pair them takes half a minute."""
    new = "".join(f"a\nb{number}\n" for number in range(300))
    assert unified_diff("a\n" * 600, new, "x").count("\n a\n") <= 1
    assert unified_diff("a\n" * 30, new, "x").count("\n a\n") == 30


def test_unreadable_pseudo_file_is_no_fault() -> None:
    """A caller who may read everything asks for memory at address zero."""
    directory = os.open("/proc/self", os.O_PATH)
    refused = pytest.raises(NotAFile, match="not a stored file")
    with Location(directory, "mem", "/proc/self/mem") as location, OpenFile(location) as opened, refused:
        RawFile(opened, "/proc/self/mem", None, Threads(), hashed=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the kernel's messages")
def test_a_pseudo_file_that_has_nothing_more_ends() -> None:
    """Of the kernel's messages those that are there are read; there is no end of a file behind them."""
    directory = os.open("/proc", os.O_PATH)

    async def read() -> None:
        with Location(directory, "kmsg", "/proc/kmsg") as location, OpenFile(location) as opened:
            try:
                file = RawFile(opened, "/proc/kmsg", None, Threads(), hashed=False)
            except (NotAFile, PermissionError):  # somebody has read them all, or the container hides them
                return
            with file:
                assert all([piece async for piece in file.chunks()])

    asyncio.run(read())
