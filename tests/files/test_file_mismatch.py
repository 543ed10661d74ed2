"""A replacement that does not fit: the refusal says what is the matter."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shelld_py.files.text_file import Replacement
from shelld_py.files.why_not_found import text_not_found, unexpected_count

_BODY = "import os\n\ndef main():\n\tprint('it\u2019s')\n    return 1\n\nif x:\n    y = 1  \n    z = 2\n"


@pytest.mark.parametrize(
    ("old", "difference"),
    [
        ("def main():\n    print(", "line 4, column 1: the file has a tab, old_string has a space"),
        ("    return  1", "line 5, column 12: the file has '1', old_string has a space"),
        ("    return\xa01", "line 5, column 11: the file has a space, old_string has NO-BREAK SPACE"),
        ("if x:\n    y = 1\n    z = 2", "line 8, column 10: the file has a space, old_string has the end of the line"),
        (
            "print('it's')",
            "line 4, column 11: the file has '\u2019' (RIGHT SINGLE QUOTATION MARK), old_string has \"'\"",
        ),
        ("return 1;", "line 5, column 13: the file has the end of the line, old_string has ';'"),
        ("def mian():\n", "line 3, column 6: the file has 'a', old_string has 'i'"),
    ],
)
def test_first_difference_is_named(old: str, difference: str) -> None:
    """By line and column, and by name where the eye would not see it."""
    assert f"The first difference is in {difference}." in text_not_found(_BODY, old, "", "a.py").detail


def test_line_endings_are_named() -> None:
    """Of a file that has both, where the text fits neither part."""
    detail = text_not_found("a\r\nb\nc\n", "a\nb\r\nc", "", "a.txt").detail
    assert "differs in white space only" in detail
    assert "line 1, column 2: the file has a carriage return" in detail


def test_escapes_that_were_not_resolved_are_seen() -> None:
    """A line break that was escaped once too often."""
    assert "escapes resolved" in text_not_found(_BODY, "return 1\\n\\nif x:", "", "a.py").detail
    assert "escapes" not in text_not_found(_BODY, "return 1\\nabsent", "", "a.py").detail


def test_edit_that_was_made_before_is_seen() -> None:
    """A repeat after a lost answer finds its own work."""
    detail = text_not_found(_BODY, "    return 0\n", "    return 1\n", "a.py").detail
    assert "new_string is there already, in line 5" in detail
    assert "already" not in text_not_found(_BODY, "absent text", "z", "a.py").detail


def test_nearest_text_comes_with_its_lines() -> None:
    """To read for people, and as data."""
    error = text_not_found(_BODY, "if x:\n    y = 2", "", "a.py")
    assert error.detail.endswith("\n7: if x:\n8:     y = 1  ")
    assert error.extra["nearest"] == {"first_line": 7, "last_line": 8, "text": "if x:\n    y = 1  "}


@given(st.text("ab \t\r\n\\n\u2019", max_size=40), st.text("ab \t\r\n\\n'", min_size=1, max_size=20))
def test_difference_is_where_it_is_said_to_be(body: str, old: str) -> None:
    """Whatever the texts are, the named place holds the named character, and is no part of what was sought."""
    detail = text_not_found(body, old, "", "a.txt").detail
    found = re.search(r"is in line (\d+), column (\d+): the file has '(.)',", detail)
    if found:
        assert body.split("\n")[int(found[1]) - 1][int(found[2]) - 1] == found[3]


def test_unexpected_count_says_where() -> None:
    """And what to do in either case."""
    more = unexpected_count("a\nb\na\n", Replacement("a", "", 2), 1, "a.txt")
    assert (more.extra["lines"], "more of the text" in more.detail) == ([1, 3], True)
    assert (
        "occurs once in a.txt (in line 1), not 2" in unexpected_count("a\n", Replacement("a", "", 1), 2, "a.txt").detail
    )
