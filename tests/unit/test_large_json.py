"""Large JSON: what it says is what any parser says, and no call into C is given more than a bounded piece."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shelld_py import large_json
from shelld_py.large_json import MOST_BESIDES, TooManyValues, decoded, taken_apart

PIECE = 64 * 1024


@pytest.mark.parametrize(
    "text",
    [
        "\ud83d",
        "\udc80x",
        "\ud83d\ud83d\udc80x",
        "x",
        "\\",
        '"',
        "a\nb",
        "é",
        "😀",
        "\x00",
        '\\"' * 3,
        "a" * (PIECE - 1) + "é",
        "a" * (PIECE - 2) + "😀\\",
    ],
    ids=lambda text: ascii(text[-4:]),
)
@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "as it is"])
def test_long_strings_are_what_they_were(text: str, escaped: bool) -> None:
    """Whatever character a cut falls into, in a value, an item and a name."""
    for shift in range(7):
        long = "." * shift + text * (150_000 // len(text))
        written = json.dumps({"a": long, "b": [1, long, {long: None}], "c": "short"}, ensure_ascii=escaped)
        document = written.encode("utf-8", "namereplace")  # which is the escape that JSON has, for a surrogate
        assert decoded(document) == json.loads(document)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text() | st.text().map(lambda text: text * 400),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    ),
    st.booleans(),
)
def test_any_document(value: Any, escaped: bool) -> None:
    """What is taken apart is put together again."""
    document = json.dumps([value, "x" * MOST_BESIDES], ensure_ascii=escaped).encode()
    assert decoded(document) == [value, "x" * MOST_BESIDES]


@pytest.mark.parametrize(
    "unit", ["1,", "1.5e300,", "[],", "{},", '"",', "true,", '"a":1,', "[", '{"a":', " ", '"' + "x" * 999 + '",']
)
def test_many_small_values_are_refused(unit: str) -> None:
    """Whatever they are, and before any of them is parsed."""
    with pytest.raises(TooManyValues):
        decoded(b'{"command": [' + unit.encode() * (4_000_000 // len(unit)))


@pytest.mark.parametrize("text", ["x", "\\n", "\\ud83d\\ude00", "\\\\", "é", "😀"])
def test_the_parts_are_bounded(text: str) -> None:
    """What is left besides long strings, and each piece of those: that is what calls into C are given."""
    document = b'{"content": "%b"}' % (text.encode() * (4_000_000 // len(text.encode())))
    rest, _, strings = taken_apart(document)
    assert len(rest) < 100
    assert max(end - start for start, end in strings[0]) <= PIECE
    assert len(strings[0]) <= len(document) / (PIECE - 16) + 1


@pytest.mark.parametrize(
    "end",
    ['"', '", }', "\\", "\\u12", "\\x", "\\ud83d", '\x01"}', '\xff"}', '"} x'],
    ids=ascii,
)
def test_malformed_documents(end: str) -> None:
    """What no parser takes is an error of the parser, wherever it is."""
    document = b'{"content": "' + b"x" * 100_000 + end.encode("latin-1")
    with pytest.raises(ValueError):  # noqa: PT011 - which parser says so does not matter
        decoded(document)


def test_depth_is_an_error() -> None:
    """What is nested deeply beside a long string."""
    with pytest.raises(RecursionError):
        decoded(b"[" * 30_000 + b'"' + b"x" * 100_000 + b'"')
    assert large_json.decoded(b"[" * 100 + b'"' + b"x" * 100_000 + b'"' + b"]" * 100)
