"""Looking for lines in a stream that comes in pieces: the side that runs in a process of its own."""

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shelld_py.output.line_search_process import LineSearch, answer_all, compiled
from shelld_py.output.text import render

PATTERNS = ["^$", "^ab", "b.$", "é", "x$", "a a"]
PIECES = st.lists(st.text(alphabet="abé \n\r", max_size=6).map(str.encode), max_size=8)


def search(*patterns: str) -> LineSearch:
    """Return a search for `patterns`."""
    return LineSearch([re.compile(pattern) for pattern in patterns])


def in_whole_lines(data: bytes) -> int | None:
    """Return what a search finds that has all of the text before it."""
    text = render(data)
    for line in text.removesuffix("\n").split("\n") if text else []:
        for index, pattern in enumerate(PATTERNS):
            if re.search(pattern, line):
                return index
    return None


@given(pieces=PIECES, cut=st.integers(0, 5))
def test_pieces_are_searched_as_the_whole(pieces: list[bytes], cut: int) -> None:
    """However a stream is cut, inside of characters and lines too, the same is found as in the whole of it."""
    data = b"".join(pieces)
    parts = [part for piece in pieces for part in (piece[:cut], piece[cut:])]
    found = None
    lines = search(*PATTERNS)
    for part in parts:
        found = lines.look("stdout", part, gap=False, at_end=False, ended=False)
        if found is not None:
            break
    else:
        found = lines.look("stdout", b"", gap=False, at_end=True, ended=True)
    assert found == in_whole_lines(data)


def test_unfinished_line_counts_at_the_end_alone() -> None:
    """In the middle of what is read at once, a cut line is not taken for a line."""
    lines = search("^rea$")
    assert lines.look("stdout", b"rea", gap=False, at_end=False, ended=False) is None
    assert lines.look("stdout", b"", gap=False, at_end=True, ended=False) == 0


def test_gap_ends_a_line() -> None:
    """What is before a gap and what is behind it are not one line, but lines they are."""
    lines = search("onetwo", "^one$", "^two$")
    assert lines.look("stdout", b"one", gap=False, at_end=False, ended=False) is None
    assert lines.look("stdout", b"two\n", gap=True, at_end=True, ended=False) == 1


def test_streams_are_apart() -> None:
    """The unfinished line of one stream is not continued by the other."""
    lines = search("ab")
    assert lines.look("stdout", b"a", gap=False, at_end=True, ended=False) is None
    assert lines.look("stderr", b"b", gap=False, at_end=True, ended=False) is None
    assert lines.look("stdout", b"b", gap=False, at_end=True, ended=False) == 0


@pytest.mark.parametrize(("texts", "index"), [(["a", "("], 1), (["a{99999999999}"], 0), (["(" * 9999 + ")" * 9999], 0)])
def test_what_is_no_pattern(texts: list[str], index: int) -> None:
    """The first text that is no regular expression is told, with the reason."""
    refused = compiled(texts)
    assert isinstance(refused, tuple)
    assert refused[0] == index
    assert refused[1]


def test_protocol() -> None:
    """Patterns, then pieces; an answer for each; and no harm where the other side goes away at once."""
    piece = {"stream": "stdout", "gap": False, "at_end": True, "ended": False}
    asked = json.dumps(["x", "y"]) + "\n"
    for data in ("a\n", "y\n"):
        asked += json.dumps({**piece, "size": len(data)}) + "\n" + data
    answers = io.BytesIO()
    answer_all(io.BytesIO(asked.encode()), answers)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [None, None, 1]
    answers = io.BytesIO()
    answer_all(io.BytesIO(b""), answers)
    assert answers.getvalue() == b""
