r"""Rendering: what a person would read of what a program wrote to a terminal."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.output.text import (
    LINE_LIMIT,
    WIDTH_LIMIT,
    RawDecoder,
    TextRenderer,
    character_boundary,
    plain_split,
    render,
)

FRAGMENTS = [
    b"a", b"bc", b"\n", b"\r\n", b"\r", b"\x08", b" ", b"\t", b"\x07", b"\x00",
    b"\x1b[31m", b"\x1b[0;1;4m", b"\x1b[K", b"\x1b[1K", b"\x1b[2K", b"\x1b[2C", b"\x1b[D", b"\x1b[3G", b"\x1b[2J",
    b"\x1b[?25l",
    b"\x1b]0;title\x07", b"\x1b]8;;http://x\x1b\\", b"\x1bPq#0\x1b\\", b"\x1bPone\ntwo\x1b\\", b"\x1b_apc\x1b\\",
    b"\x1b(B", b"\x1b7", b"\x1b",
    b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b\\", b"\x18",
    "ä".encode(), "€".encode(), "😀".encode(), b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80", b"\xff",
]  # fmt: skip
OUTPUTS = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=4), max_size=25).map(b"".join)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Return `data` in parts that are cut at `places`."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(b"", "", id="nothing"),
        pytest.param(b"plain\n", "plain\n", id="plain"),
        pytest.param(b"no end", "no end", id="no line feed"),
        pytest.param(b"one\r\ntwo\r\n", "one\ntwo\n", id="CR LF"),
        pytest.param(b"one\r\r\n", "one\n", id="CR CR LF"),
        pytest.param(b"a\n\n\nb", "a\n\n\nb", id="empty lines"),
        pytest.param(b"\tx\x07\x0b\x0c\x00y", "\tx\x07\x0b\x0c\x00y", id="other controls stay"),
        pytest.param(b"\x1b[31mred\x1b[0m", "red", id="colours"),
        pytest.param(b"\x1b[38;2;1;2;3mx\x1b[m", "x", id="true colour"),
        pytest.param(b"\x1b[?1049h\x1b[2J\x1b[10;5Hx", "x", id="full screen"),
        pytest.param(b"\x1b[?2004hx\x1b[?2004l", "x", id="bracketed paste"),
        pytest.param(b"a\x1b[2Ab", "ab", id="movements between lines are removed"),
        pytest.param(b"\x1b]0;a title\x07x", "x", id="OSC with BEL"),
        pytest.param(b"\x1b]0;a title\x1b\\x", "x", id="OSC with ST"),
        pytest.param(b"\x1b]8;;http://e/\x1b\\link\x1b]8;;\x1b\\", "link", id="hyperlink"),
        pytest.param(b"\x1bPq#0;2;0\nmore\x1b\\x", "x", id="DCS over lines"),
        pytest.param(b"\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\x", "x", id="APC, PM, SOS"),
        pytest.param(b"\x1b(Bx\x1b)0y\x1b%Gz", "xyz", id="character sets"),
        pytest.param(b"\x1b7x\x1b8\x1b=\x1b>\x1bcy", "xy", id="two-byte escapes"),
        pytest.param(b"10%\r50%\r100%\n", "100%\n", id="progress"),
        pytest.param(b"abcdef\rXY\n", "XYcdef\n", id="CR overwrites"),
        pytest.param(b"abcdef\r\x1b[KXY\n", "XY\n", id="CR and erase"),
        pytest.param(b"abcdef\x1b[2K\rXY\n", "XY\n", id="erase all of the line"),
        pytest.param(b"abc\r\x1b[1CX\n", "aXc\n", id="forward"),
        pytest.param(b"abc\x1b[2DX\n", "aXc\n", id="backward"),
        pytest.param(b"abc\x1b[2GX\n", "aXc\n", id="column"),
        pytest.param(b"abcd\x1b[2D\x1b[1KX\n", "  Xd\n", id="erase from the beginning"),
        pytest.param(b"a\x1b[3Cb", "a   b", id="forward over nothing"),
        pytest.param(b"abc\x08\x08X\n", "aXc\n", id="backspaces"),
        pytest.param(b"\x08\x08a", "a", id="backspace at the margin"),
        pytest.param(b"a\x08a b\x08b\n", "a b\n", id="overstrike of man"),
        pytest.param(b"abc\r", "abc", id="CR at the end"),
        pytest.param(b"one\r\ntwo\rTWO\r\n", "one\nTWO\n", id="a CR does not reach the line above"),
        pytest.param("äöü€😀".encode(), "äöü€😀", id="UTF-8"),
        pytest.param("äbc\rX".encode(), "Xbc", id="CR counts characters"),
        pytest.param(b"a\xffb", "a\ufffdb", id="invalid byte"),
        pytest.param(b"a\xe2\x82", "a\ufffd", id="incomplete character"),
        pytest.param(b"\xed\xa0\x80", "\ufffd\ufffd\ufffd", id="encoded surrogate"),
        pytest.param(b"x\x1b", "x", id="lone escape"),
        pytest.param(b"x\x1b[3", "x", id="incomplete CSI"),
        pytest.param(b"x\x1b]0;ti", "x", id="incomplete OSC"),
        pytest.param(b"\x1b]0;never closed\nnext\n", "\nnext\n", id="an OSC ends with its line"),
        pytest.param(b"\x1b[99999999999999Cx", " " * WIDTH_LIMIT + "x", id="a movement too far"),
        pytest.param(b"\x1b[99999999999999Gx", " " * (WIDTH_LIMIT - 1) + "x", id="a column too far"),
        pytest.param(b"\x1b[0000000000000003Cx", "   x", id="leading zeros"),
        pytest.param(b"a\x1b[" + b"9" * 5000 + b"Db", "b", id="a parameter of 5,000 digits"),
        pytest.param(b"x" * 2000 + b"\r\x1b[1500Cy", "x" * 1500 + "y" + "x" * 499, id="a movement within a long text"),
        pytest.param(b"a\x1b\x1bMb", "ab", id="ESC before an escape"),
        pytest.param(b"\x1b[1ma\x1b[0m\x1b[3;4Hb\x1b[K", "ab", id="colours among other escapes"),
        pytest.param(b"\xe2\x1b[m\x82\xac", "\ufffd\ufffd\ufffd", id="bytes around a colour make no character"),
        pytest.param(b"\x1bPone\ntwo\x1b[31mthree\n", "one\ntwothree\n", id="a control string that is broken off"),
        pytest.param(b"abc\x1b[5D\x1b[1Kx\n", "xbc\n", id="erase at the margin"),
        pytest.param(b"abc\r\x1b[Kx\x08y", "y", id="erase, then backspace"),
        pytest.param(b"abcdef\rXYZ\r1\n", "1YZdef\n", id="CR, ever shorter"),
        pytest.param(b"a\x08\x08\x08bcd\x08\x08X", "bXd", id="runs of backspaces"),
        pytest.param(b"one\x1b[Kx\x1b[2Ky\n", "    y\n", id="erasing all leaves the column"),
    ],
)
def test_rendering(data: bytes, text: str) -> None:
    """A line reads as it last looked, without anything that is invisible."""
    assert render(data) == text


@settings(max_examples=400, deadline=None)
@given(OUTPUTS, st.lists(st.integers(0, 400), max_size=8))
def test_rendering_does_not_depend_on_how_bytes_are_cut(data: bytes, places: list[int]) -> None:
    """Whatever the feeds, the text is that of one feed."""
    renderer = TextRenderer()
    text = "".join(renderer.feed(part) for part in cut(data, places))
    assert text + renderer.finish() == render(data)


@settings(max_examples=100, deadline=None)
@given(OUTPUTS)
def test_rendering_byte_by_byte(data: bytes) -> None:
    """One byte a feed is the finest cut there is."""
    renderer = TextRenderer()
    text = "".join(renderer.feed(data[at : at + 1]) for at in range(len(data)))
    assert text + renderer.finish() == render(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"a" * (LINE_LIMIT + 5000) + b"\rb\n", id="a long line that is drawn over"),
        pytest.param(b"\r50%" * LINE_LIMIT + b"\n", id="a progress bar that goes on and on"),
        pytest.param("😀".encode() * LINE_LIMIT + b"\n", id="a long line of long characters"),
        pytest.param(b"\x1bPq" + b"#0;2;0;0;0\n" * LINE_LIMIT + b"\x1b\\x\n", id="a large sixel image"),
        pytest.param(b"\x1b]1337;File=:" + b"QUJD" * LINE_LIMIT + b"\x07x\n", id="a large inline image"),
        pytest.param(b"x" * (LINE_LIMIT - 2) + b"\x1b[31my" + b"z" * LINE_LIMIT + b"\n", id="an escape at the limit"),
    ],
)
@pytest.mark.parametrize("size", [4096, 65536, 262144])
def test_rendering_of_long_lines_does_not_depend_on_the_cuts(data: bytes, size: int) -> None:
    """Lines and control strings beyond `LINE_LIMIT` read the same in reads of any size, too."""
    renderer = TextRenderer()
    text = "".join(renderer.feed(data[at : at + size]) for at in range(0, len(data), size)) + renderer.finish()
    whole = render(data)
    assert (len(text), text[:80], text[-80:]) == (len(whole), whole[:80], whole[-80:])
    assert text == whole


@settings(max_examples=200, deadline=None)
@given(OUTPUTS)
def test_the_unfinished_line_is_shown_without_what_means_nothing_yet(data: bytes) -> None:
    """`unfinished` gives the text of the pending bytes without the incomplete end, and changes nothing."""
    renderer = TextRenderer()
    before = renderer.feed(data)
    pending = data[len(data) - renderer.pending :]
    text, meaningless = renderer.unfinished()
    assert 0 <= meaningless <= renderer.pending
    assert text == render(pending[: len(pending) - meaningless])
    assert before + renderer.finish() == render(data)
    assert renderer.pending == 0


@settings(max_examples=200, deadline=None)
@given(OUTPUTS)
def test_a_text_can_be_cut_at_what_is_not_pending(data: bytes) -> None:
    """The text before `pending` and the text after it, rendered apart, are the text of all."""
    renderer = TextRenderer()
    before = renderer.feed(data)
    assert before + render(data[len(data) - renderer.pending :]) == render(data)


@pytest.mark.parametrize(
    ("data", "meaningless"),
    [
        (b"Name: ", 0),
        ("Größe".encode()[:3], 1),
        (b"x\x1b", 1),
        (b"x\x1b[3", 3),
        (b"x\x1b[31m", 0),
        (b"x\x1b]0;ti", 6),
        ("€".encode()[:2], 2),
        ("😀".encode()[:3], 3),
    ],
)
def test_what_means_nothing_yet(data: bytes, meaningless: int) -> None:
    """An incomplete character or escape sequence at the end of a prompt is not part of it."""
    renderer = TextRenderer()
    renderer.feed(data)
    assert renderer.unfinished()[1] == meaningless


def test_memory_is_bounded_without_line_feeds() -> None:
    """A line without end is broken, so that no more than `LINE_LIMIT` bytes are pending."""
    renderer = TextRenderer()
    text = ""
    for _ in range(100):
        text += renderer.feed(b"0123456789" * 1000)
        assert renderer.pending <= LINE_LIMIT
    assert text + renderer.finish() == "0123456789" * 100_000


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=12))
def test_a_character_boundary_splits_no_character(data: bytes) -> None:
    """What lies before the boundary and what lies behind decode, joined, like all of it."""
    boundary = character_boundary(data)
    assert len(data) - 3 <= boundary <= len(data)
    apart = data[:boundary].decode("utf-8", "replace") + data[boundary:].decode("utf-8", "replace")
    assert apart == data.decode("utf-8", "replace")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=8), st.integers(0, 3))
def test_an_incomplete_character_lies_behind_the_boundary(text: str, missing: int) -> None:
    """Bytes that begin a character are not before the boundary."""
    data = text.encode("utf-8", "ignore") + "😀".encode()[: 4 - missing]
    assert character_boundary(data) == len(data) - (4 - missing if missing else 0)


@settings(max_examples=300, deadline=None)
@given(OUTPUTS.map(lambda data: data.replace(b"\n", b"") + b"\n"), st.integers(1, 12))
def test_a_plain_line_can_be_split(line: bytes, size: int) -> None:
    """Parts of a line that does not redraw itself render, joined, to its text."""
    parts, rest = [], line
    while rest and (length := plain_split(rest, size)):
        parts.append(rest[:length])
        rest = rest[length:]
    if not parts:
        assert any(mark in line for mark in (b"\r", b"\x08", b"\x1b"))
    else:
        assert "".join(map(render, [*parts, rest])) == render(line)


@settings(max_examples=200, deadline=None)
@given(OUTPUTS, st.lists(st.integers(0, 400), max_size=8), st.sampled_from(["replace", "surrogateescape"]))
def test_raw_bytes_decode_the_same_however_they_are_cut(data: bytes, places: list[int], errors: str) -> None:
    """Nothing is removed, and what is held back is at most an incomplete character."""
    decoder = RawDecoder(errors)
    text = ""
    for part in cut(data, places):
        text += decoder.feed(part)
        assert decoder.pending < 4
        assert decoder.unfinished() == ("", decoder.pending)
    assert text + decoder.finish() == data.decode("utf-8", errors)
