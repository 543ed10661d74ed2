"""The emulated terminal: what control functions do to it, and that nothing breaks it."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.output.picture import picture
from shelld_py.output.screen import APPLICATION_CURSOR, BRACKETED_PASTE, Screen


def _screen(data: str | bytes, rows: int = 4, cols: int = 10) -> Screen:
    screen = Screen(rows, cols)
    screen.feed(data if isinstance(data, bytes) else data.encode())
    return screen


@pytest.mark.parametrize(("data", "texts"), [
    ("one\ntwo", ["one", "two", "", ""]),
    ("1\n2\n3\n4\n5", ["2", "3", "4", "5"]),
    ("0123456789ab", ["0123456789", "ab", "", ""]),
    ("\x1b[?7l0123456789ab", ["012345678b", "", "", ""]),
    ("a\tb", ["a       b", "", "", ""]),
    ("你好", ["你好", "", "", ""]),
    ("12345678你好", ["12345678你", "好", "", ""]),
    ("你好\ra", ["a 好", "", "", ""]),
    ("你好\x1b[2Gb", [" b好", "", "", ""]),
    ("123456789你", ["123456789", "你", "", ""]),
    ("e\u0301\u0301x", ["e\u0301\u0301x", "", "", ""]),
    ("a\u200db", ["a\u200db", "", "", ""]),
    ("main\x1b[?1049h\x1b[Hfull", ["full", "", "", ""]),
    ("main\x1b[?1049h\x1b[Hfull\x1b[?1049l!", ["main!", "", "", ""]),
    ("a\nb\nc\nd\x1b[2;3r\x1b[3;1H\nx", ["a", "c", "x", "d"]),
    ("a\nb\nc\nd\x1b[2;3r\x1b[2;1H\x1bMx", ["a", "x", "b", "d"]),
    ("a\nb\nc\nd\x1b[2;3r\x1b[?6h\x1b[1;1Hx\x1b[9;1Hy", ["a", "x", "y", "d"]),
    ("a\nb\nc\x1b[1;1H\x1b[Lx", ["x", "a", "b", "c"]),
    ("a\nb\nc\x1b[1;1H\x1b[2M", ["c", "", "", ""]),
    ("abcdef\r\x1b[2@", ["  abcdef", "", "", ""]),
    ("abcdef\r\x1b[2P", ["cdef", "", "", ""]),
    ("abcdef\r\x1b[2X", ["  cdef", "", "", ""]),
    ("abc\x1b[4h\rx", ["xabc", "", "", ""]),
    ("abcdef\x1b[3D\x1b[K", ["abc", "", "", ""]),
    ("abc\ndef\x1b[1;2H\x1b[J", ["a", "", "", ""]),
    ("\x1b(0lqk\x1b(Bq", ["┌─┐q", "", "", ""]),
    ("\x1b)0\x0eq\x0fq", ["─q", "", "", ""]),
    ("ab\x1b[3b", ["abbbb", "", "", ""]),
    ("\x1b7ab\x1b8c", ["cb", "", "", ""]),
    ("\x1bP1$r0m\x1b\\\x1b_x\x1b\\a", ["a", "", "", ""]),
    ("\x1b[>4;2m\x1b[?4ma\x1b[ q", ["a", "", "", ""]),
    ("a\x1b[12\x18b", ["ab", "", "", ""]),
    ("a\nb\nc\x1b[S", ["b", "c", "", ""]),
    ("a\x1b[T", ["", "a", "", ""]),
])  # fmt: skip
def test_control_functions(data: str, texts: list[str]) -> None:
    """Each does what a terminal does, also where it comes byte by byte."""
    assert _screen(data).texts == texts
    screen = Screen(4, 10)
    for byte in data.encode():
        screen.feed(bytes([byte]))
    assert screen.texts == texts


def test_modes_title_and_cursor() -> None:
    """What keys depend on is known, and what a person sees besides the text."""
    screen = _screen("\x1b[?1h\x1b[?2004h\x1b[?25l\x1b]0;a title\x07\x1b[2;3H")
    assert {APPLICATION_CURSOR, BRACKETED_PASTE} <= screen.mode
    assert (screen.title, screen.cursor.hidden, screen.cursor.y, screen.cursor.x) == ("a title", True, 1, 2)
    screen.feed(b"\x1bc")
    assert screen.mode.isdisjoint({APPLICATION_CURSOR, BRACKETED_PASTE})
    assert not screen.cursor.hidden


def test_another_size() -> None:
    """Rows go at the bottom as long as they are empty, then at the top; new ones come at the bottom."""
    screen = _screen("a\nb\nc")
    screen.resize(2, 10)
    assert (screen.texts, screen.cursor.y) == (["b", "c"], 1)
    screen.resize(5, 20)
    screen.feed(b"\n0123456789ab")
    assert screen.texts == ["b", "c", "0123456789ab", "", ""]
    screen = _screen("a")
    screen.resize(2, 1)
    assert screen.texts == ["a", ""]


_PARTS = st.lists(
    st.one_of(
        st.binary(max_size=8),
        st.builds(
            lambda private, numbers, final: f"\x1b[{private}{numbers}{final}".encode(),
            st.sampled_from(["", "?", ">", "!"]),
            st.text("0123456789;:", max_size=8),
            st.text([chr(code) for code in range(0x40, 0x7F)], min_size=1, max_size=1),
        ),
        st.sampled_from(
            [b"\x1b]0;", b"\x1bP", b"\x1b\\", b"\x1b(0", b"\x1b#8", b"\x1b7", b"\x1b8", "你".encode(), b"\n"]
        ),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(_PARTS, st.integers(1, 6), st.integers(1, 12), st.integers(1, 6), st.integers(1, 12))
def test_it_is_total(parts: list[bytes], rows: int, cols: int, later_rows: int, later_cols: int) -> None:
    """Whatever is written, the screen keeps its size, its cursor stays on it, and what follows is still shown."""
    screen = Screen(rows, cols)
    for part in parts:
        screen.feed(part)
    screen.resize(later_rows, later_cols)
    screen.feed(b"".join(parts))
    assert (len(screen.rows), len(screen.texts)) == (screen.lines, screen.lines) == (later_rows, later_rows)
    assert 0 <= screen.cursor.y < later_rows
    assert 0 <= screen.cursor.x <= later_cols
    ET.fromstring(picture(screen))
    screen.feed(b"\x18\x1b\\\x1bcx")
    assert screen.texts[0] == "x"


@pytest.mark.parametrize(
    "endless", [b"\x1b]0;" + b"x" * 300_000, b"\x1b[" + b"1" * 300_000, b"e" + "\u0301".encode() * 100_000]
)
def test_nothing_endless_is_held(endless: bytes) -> None:
    """A sequence, title or cell of any length takes little memory, and ends where it would."""
    screen = Screen(4, 10)
    for at in range(0, len(endless), 2048):
        screen.feed(endless[at : at + 2048])
    screen.feed(b"\x07\x1bmm\x1bcz")
    assert screen.texts[0] == "z"
    assert len(screen._begun) <= 4096


def test_picture() -> None:
    """The picture has the text with its colours, bold and reverse, and draws the cursor."""
    screen = _screen("\x1b[1;31m<red>\x1b[0;7mrev\x1b[38;5;21mX\x1b[38:2::1:2:3mY")
    drawn = picture(screen)
    texts = {node.text: node.attrib for node in ET.fromstring(drawn) if node.text}
    assert texts["<red>"]["font-weight"] == "bold"
    assert texts["<red>"]["fill"] == "#cd3131"
    assert texts["rev"]["fill"] == "#181818"
    assert "#0000ff" in drawn
    assert "#010203" in drawn
    assert drawn.count("<rect") == 3


def test_a_picture_has_each_character_in_its_columns() -> None:
    """Blanks count, also where a browser would make one of several; a wide character is as wide as its two columns."""
    drawn = picture(_screen("a   b \u6f22x\r\n\u6f22\u6f22"))
    texts = [(node.text, node.attrib) for node in ET.fromstring(drawn) if node.text]
    placed = [(text, round(float(at["x"]) / 8.4), round(float(at["textLength"]) / 8.4)) for text, at in texts]
    assert placed == [
        ("a\xa0\xa0\xa0b", 0, 5), ("\u6f22", 6, 2), ("x", 8, 1), ("\u6f22", 0, 2), ("\u6f22", 2, 2),
    ]  # fmt: skip
