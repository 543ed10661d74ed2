"""Durations and sizes: what is read, what is refused, and that what is written can be read again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.units import LONGEST_DURATION, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0.0),
        (5, 5.0),
        (2.5, 2.5),
        ("0", 0.0),
        ("30", 30.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("1h2m3s4ms", 3723.004),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("100ns", 1e-7),
        (" 5s ", 5.0),
        (LONGEST_DURATION, LONGEST_DURATION),
    ],
)
def test_durations_that_are_read(written: object, seconds: float) -> None:
    """A number is seconds, a text is Go's form."""
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    ["", "s", "5x", "5 m", "1h 30m", "-5s", "5d", "1,5s", "1e3", "nan", "inf", "5s!", "5S", "\u0665s"],
)
def test_durations_in_another_form_are_refused(written: str) -> None:
    """The message quotes what was written and shows the right forms."""
    with pytest.raises(ValueError, match="1h30m") as error:
        parse_duration(written)
    assert repr(written) in str(error.value)


@pytest.mark.parametrize("written", ["1" * 65, "1s" * 33, "1h" * 1_000_000, " " * 65, "1" * 1_000_000 + "."])
def test_texts_beyond_64_characters_are_refused(written: str) -> None:
    """However long they are: they are not parsed, nor quoted."""
    for parse in (parse_duration, parse_size):
        with pytest.raises(ValueError, match=f"not a text of {len(written)} characters"):
            parse(written)


@pytest.mark.parametrize("written", [None, True, False, [], {}, b"5s"])
def test_durations_of_another_type_are_refused(written: object) -> None:
    """What is neither number nor text is no duration; a truth value is no number."""
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(written)


@pytest.mark.parametrize(
    "written",
    [-1, -0.001, float("inf"), float("nan"), LONGEST_DURATION * 1.01, "100000h", "9" * 60, 10**400, 10**5000],
    ids=["negative", "small", "inf", "nan", "over ten years", "hours", "digits", "huge number", "larger number"],
)
def test_durations_outside_of_the_range_are_refused(written: object) -> None:
    """Negative ones and those over ten years are mistakes, however large the number."""
    with pytest.raises(ValueError, match="must be between 0 and ten years"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (1, "1s"),
        (5.5, "5.5s"),
        (60, "1m"),
        (90, "1m30s"),
        (3600, "1h"),
        (5400, "1h30m"),
        (3661, "1h1m1s"),
        (86400, "24h"),
        (90900.0000225, "25h15m0.000022s"),
        (60.0000000001, "1m"),
        (123456.789, "34h17m36.789s"),
    ],
)
def test_durations_are_written_for_people(seconds: float, written: str) -> None:
    """Units that are zero are left out."""
    assert format_duration(seconds) == written


@settings(max_examples=300, deadline=None)
@given(st.floats(0, LONGEST_DURATION))
def test_a_written_duration_can_be_read(seconds: float) -> None:
    """`parse_duration` reads all that `format_duration` writes, to six digits."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("1k", 1024),
        ("1K", 1024),
        ("16MiB", 16 * 2**20),
        ("16mib", 16 * 2**20),
        ("5MB", 5 * 10**6),
        ("5M", 5 * 2**20),
        ("2GB", 2 * 10**9),
        ("1G", 2**30),
        ("1GiB", 2**30),
        ("1.5KiB", 1536),
        (" 2 MiB ", 2 * 2**20),
    ],
)
def test_sizes_that_are_read(written: object, size: int) -> None:
    """Units of ten end in B alone, units of two are KiB, MiB, GiB or one letter."""
    assert parse_size(written) == size


@pytest.mark.parametrize(
    "written", ["", "MiB", "5x", "5TB", "-1", "-1MiB", "1..5M", "1 2", "0x10", None, True, 1.5, [], b"5"]
)
def test_sizes_in_another_form_are_refused(written: object) -> None:
    """The message quotes what was written and shows the right forms."""
    with pytest.raises(ValueError, match="16MiB") as error:
        parse_size(written)
    assert repr(written) in str(error.value)


def test_negative_sizes_are_refused() -> None:
    """A number can be negative, a size cannot."""
    with pytest.raises(ValueError, match="must not be negative"):
        parse_size(-1)


def test_a_size_of_absurdly_many_digits_is_a_size_or_an_error_with_a_message() -> None:
    """No number of digits leads to anything but a size or `ValueError`."""
    with pytest.raises(ValueError, match="must"):
        parse_size("9" * 400 + "GiB")


@pytest.mark.parametrize(
    ("size", "written"),
    [(0, "0B"), (1, "1B"), (1000, "1000B"), (1024, "1KiB"), (1536, "1536B"), (2**20, "1MiB"), (3 * 2**30, "3GiB")],
)
def test_sizes_are_written_for_people(size: int, written: str) -> None:
    """In the largest unit that divides them."""
    assert format_size(size) == written


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**50))
def test_a_written_size_can_be_read(size: int) -> None:
    """`parse_size` reads all that `format_size` writes, to the byte."""
    assert parse_size(format_size(size)) == size
