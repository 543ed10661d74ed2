"""Lines, line endings, byte-order marks, diffs, nearest texts: the pure part of file operations."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.config import FileSettings, SecurityMode
from shelld_py.errors import FileTooLarge, LineOutOfRange, NotText
from shelld_py.files.policy import ReadPolicy, TextCheck, extensions
from shelld_py.files.text_file import (
    LineReader,
    Replacement,
    Text,
    count_lines,
    fitting_replacement,
    inserted,
    line_spans,
    unified_diff,
)
from shelld_py.files.why_not_found import nearest_text

TEXTS = st.text(alphabet="ab\n\r\u00e4\U0001f600", max_size=40)
POLICY = ReadPolicy.from_settings(FileSettings())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("notes.txt", {"txt"}),
        ("NOTES.TXT", {"txt"}),
        ("archive.tar.gz", {"gz", "tar.gz"}),
        (".env", {"env"}),
        (".env.local", {"local", "env.local"}),
        ("Makefile", {"makefile"}),
        ("program.exe.", {"exe"}),
        ("program.exe ", {"exe"}),
    ],
)
def test_extensions_of_unusual_names(name: str, expected: set[str]) -> None:
    """Case does not count, dot files and files without a dot have an extension too."""
    assert extensions(name) == expected


@pytest.mark.parametrize(
    ("mode", "name", "allowed"),
    [
        ("strict", "a.py", True),
        ("strict", "Makefile", True),
        ("strict", ".env", True),
        ("strict", "a.unknown", False),
        ("strict", "LICENSE", False),
        ("permissive", "a.unknown", True),
        ("permissive", "a.ExE", False),
        ("permissive", "a.txt.dll", False),
        ("permissive", "a.exe.txt", True),
        ("unrestricted", "a.exe", True),
    ],
)
def test_names_that_each_mode_allows(mode: str, name: str, *, allowed: bool) -> None:
    """Strict allows what is listed, permissive what is not blocked, unrestricted everything."""
    policy = ReadPolicy.from_settings(FileSettings(security_mode=SecurityMode(mode)))
    assert policy.allows_name(name) is allowed


@given(st.binary(max_size=40), st.integers(1, 7))
def test_text_check_in_pieces_agrees_with_a_check_of_the_whole(data: bytes, size: int) -> None:
    """However the bytes are cut, text is what decodes as UTF-8 and has no NUL."""
    try:
        expected = None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        expected = None
    check = TextCheck("file")
    try:
        pieces = [check.feed(data[start : start + size]) for start in range(0, len(data), size)]
        got: str | None = "".join(pieces) + check.feed(b"", final=True)
    except NotText:
        got = None
    assert got == expected


@pytest.mark.parametrize(
    ("data", "offset"), [(b"ab\0c", 2), (b"abc\xff", 3), ("ä".encode() + b"\xc3", 2), (b"\xc3" + b"a", 0)]
)
def test_text_check_names_the_byte(data: bytes, offset: int) -> None:
    """The refusal says where the text ends, also when a character is cut in two."""
    with pytest.raises(NotText) as caught:
        _check_bytewise(data)
    assert caught.value.extra["offset"] == offset


def _check_bytewise(data: bytes) -> None:
    check = TextCheck("file")
    for byte in data:
        check.feed(bytes([byte]))
    check.feed(b"", final=True)


@given(TEXTS, st.integers(1, 6), st.integers(-1, 8), st.integers(1, 9))
def test_line_reader_agrees_with_slicing(text: str, first: int, last: int, size: int) -> None:
    """A range read from pieces is the slice of the list of lines."""
    data = text.encode()
    lines = line_spans(text)
    try:
        reader = LineReader((first, last), POLICY, "file")
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
        got = reader.finish()
    except LineOutOfRange:
        end = len(lines) if last == -1 else last
        assert (last != -1 and last < first) or end > len(lines) or first > max(len(lines), 1)
        return
    end = len(lines) if last == -1 else last
    assert got.content == "".join(lines[first - 1 : end])
    assert got.total_lines == len(lines) == count_lines(text)


def test_line_reader_refuses_a_part_that_is_too_large() -> None:
    """Memory for the part is bounded by the limit on file sizes."""
    reader = LineReader((2, -1), ReadPolicy.from_settings(FileSettings(max_file_size=10)), "file")
    reader.feed(b"x" * 100 + b"\n")
    reader.feed(b"0123456789")
    with pytest.raises(FileTooLarge):
        reader.feed(b"0")


@pytest.mark.parametrize(
    ("body", "content", "line", "expected"),
    [
        ("", "a", 0, "a"),
        ("b\n", "a", 0, "a\nb\n"),
        ("b\n", "a\n", 0, "a\nb\n"),
        ("a\nc\n", "b", 1, "a\nb\nc\n"),
        ("a", "b", 1, "a\nb"),
        ("a\n", "b\n", 1, "a\nb\n"),
        ("a\r\nc\r\n", "b", 1, "a\r\nb\r\nc\r\n"),
        ("a\r\nd", "b\nc", 1, "a\r\nb\r\nc\r\nd"),
        ("a", "", 1, "a"),
    ],
)
def test_insertion_adds_breaks_only_between_neighbours(body: str, content: str, line: int, expected: str) -> None:
    """Inserted text gets the file's line endings, and breaks where it would run into other text."""
    assert inserted(body, content, line, "file") == expected


@pytest.mark.parametrize("line", [-1, 3])
def test_insertion_outside_of_the_lines_is_refused(line: int) -> None:
    """The error says how many lines there are."""
    with pytest.raises(LineOutOfRange, match="from 0 to 2"):
        inserted("a\nb", "x", line, "file")


def test_replacement_takes_over_crlf() -> None:
    """Text written with LF is found in a file with CRLF, and the new text gets CRLF."""
    fitting = fitting_replacement("a\r\nb\r\nc\r\n", "a\nb", "x\ny")
    assert (fitting.old, fitting.new, fitting.count) == ("a\r\nb", "x\r\ny", 1)


def test_replacement_finds_either_line_ending_in_a_file_with_both() -> None:
    """What is put in ends its lines as what it replaces did."""
    body = "a\nb\r\nc\r\nd\n"
    assert fitting_replacement(body, "b\nc\n", "x\ny\n") == Replacement("b\r\nc\r\n", "x\r\ny\r\n", 1)
    assert fitting_replacement("a\r\nb\nc\n", "b\r\nc", "x\r\ny") == Replacement("b\nc", "x\ny", 1)


def test_replacement_takes_over_lf() -> None:
    """Text written with CRLF is found in a file with LF."""
    fitting = fitting_replacement("a\nb\n", "a\r\nb", "x\r\ny")
    assert (fitting.old, fitting.new, fitting.count) == ("a\nb", "x\ny", 1)


@pytest.mark.parametrize(
    ("old", "content", "expected"),
    [
        (b"\xef\xbb\xbfa\n", "b\n", b"\xef\xbb\xbfb\n"),
        (b"\xef\xbb\xbfa\n", "\ufeffb\n", b"\xef\xbb\xbfb\n"),
        (b"a\r\nb\r\n", "c\nd", b"c\r\nd"),
        (b"a\r\nb\n", "c\nd", b"c\nd"),
        (b"a\r\n", "c\r\nd\n", b"c\r\nd\n"),
    ],
)
def test_update_keeps_mark_and_line_endings(old: bytes, content: str, expected: bytes) -> None:
    """What the new content leaves open is as it was; what it says itself counts."""
    assert Text.from_bytes(old, "file").updated(content).to_bytes("file") == expected


@settings(max_examples=50, deadline=None)
@given(TEXTS, TEXTS)
def test_diffs_can_be_applied(tmp_path_factory: pytest.TempPathFactory, old: str, new: str) -> None:
    """Git turns the old text into the new one by the diff."""
    diff = unified_diff(old, new, "file")
    assert bool(diff) == (old != new)
    if diff:
        file = tmp_path_factory.mktemp("diff") / "file"
        file.write_bytes(old.encode())
        command = ["git", "apply", "-p1", "--whitespace=nowarn"]
        subprocess.run(command, cwd=file.parent, input=diff.encode(), check=True)
        assert file.read_bytes().decode() == new


def test_diff_of_a_large_text_shows_the_place() -> None:
    """The hunk's line numbers count from the beginning of the file."""
    lines = [f"line {number}\n" for number in range(1, 50_001)]
    changed = lines.copy()
    changed[29_999] = "another\n"
    diff = unified_diff("".join(lines), "".join(changed), "file")
    assert "@@ -29997,7 +29997,7 @@\n" in diff
    assert "-line 30000\n+another\n" in diff


def test_long_diff_is_cut_and_says_so() -> None:
    """The beginning of the diff stands, and its last line says that there is more."""
    old = "".join(f"line {number}\n" for number in range(50_000))
    diff = unified_diff(old, old.replace("line", "row"), "file")
    assert diff.endswith("[the diff is longer and was cut here]\n")
    assert len(diff) < 30_000
    assert "-line 0\n" in diff


def test_nearest_text_sees_through_white_space() -> None:
    """A wrong indentation is the most frequent mistake."""
    near = nearest_text("def a():\n    one()\n    two()\n", "  one()\n  two()")
    assert near is not None
    assert (near.first_line, near.last_line, near.same_but_white_space) == (2, 3, True)


def test_nearest_text_finds_the_block_with_most_equal_lines() -> None:
    """One changed line does not hide the block."""
    near = nearest_text("a = 1\n" * 5 + "first line\nsecond lime\nthird line\n", "first line\nsecond line\nthird line")
    assert near is not None
    assert (near.first_line, near.last_line) == (6, 8)


def test_nearest_text_finds_a_misspelt_line() -> None:
    """Without any equal line, likeness decides."""
    near = nearest_text("alpha\nfoo = compute_totals(items)\nomega\n", "foo = compute_total(item)")
    assert near is not None
    assert near.text == "foo = compute_totals(items)"


def test_nearest_text_admits_that_there_is_none() -> None:
    """Something far-fetched would only mislead."""
    assert nearest_text("alpha\nbeta\n", "qqqqqqqqqqqqqqqqqq") is None
