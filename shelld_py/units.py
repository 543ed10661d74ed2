"""Durations and sizes as people write them.

Inside the program a duration is a `float` of seconds and a size an `int` of bytes. Text is turned into
them once, at the edge, by the functions of this file. No I/O, no state.
"""

import re
from typing import Final

MEBIBYTE: Final = 1024 * 1024
"""Bytes of the megabytes in settings and answers (`memory_mb`)."""

_DURATION_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_DURATION_PART = re.compile(rf"({_NUMBER})({'|'.join(_DURATION_UNITS)})")
_PLAIN_NUMBER = re.compile(_NUMBER)

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "k": 2**10,
    "kib": 2**10,
    "m": 2**20,
    "mib": 2**20,
    "g": 2**30,
    "gib": 2**30,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")

_LARGEST_SIZE = 2**62
_LONGEST_QUOTED = 128
"""Bits of a number that a complaint quotes."""
LONGEST_DURATION = 10 * 365 * 24 * 3600.0
"""Ten years, in seconds: longer durations are taken for mistakes (and overflow timers)."""

LONGEST_TEXT = 64
"""Characters that the text of a duration or a size may have: more is no number that anybody has written."""
DURATION_PATTERN = rf"^\s*(?:{_NUMBER}|(?:{_NUMBER}(?:{'|'.join(_DURATION_UNITS)}))+)\s*$"
"""What the text of a duration looks like, as a regular expression of ECMA-262."""
DURATION_FORMS = "a duration such as '500ms', '30s', '5m' or '1h30m', or a number of seconds"
SIZE_FORMS = "a size such as '512KiB', '16MiB' or '2GB', or a number of bytes"


def parse_duration(value: object) -> float:
    """Return the seconds that `value` stands for.

    Takes a number of seconds, or text: a number of seconds, or Go's form of numbers with units
    (`1h30m`, `500ms`, `1.5h`; see Go's `time.ParseDuration`).

    Raises `ValueError` with a message that shows the right forms.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(max(-1, min(value, LONGEST_DURATION + 1)))
    elif isinstance(value, str):
        seconds = _duration_from_text(value if len(value) > LONGEST_TEXT else value.strip())
    else:
        raise ValueError(f"must be {DURATION_FORMS}, not {value!r}")
    if not 0 <= seconds <= LONGEST_DURATION:
        raise ValueError("must be between 0 and ten years" + _quoted(value))
    return seconds


def _quoted(value: object) -> str:
    """Return what follows a complaint about `value`; nothing for a number of which the digits would fill a page."""
    return "" if isinstance(value, int) and value.bit_length() > _LONGEST_QUOTED else f", not {value!r}"


def _duration_from_text(text: str) -> float:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"must be {DURATION_FORMS}, not a text of {len(text)} characters")
    if _PLAIN_NUMBER.fullmatch(text):
        return float(text)
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"must be {DURATION_FORMS}, not {text!r}")
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Return `seconds` in the form that `parse_duration` reads: `1h30m`, `5s`, `250ms`."""
    if seconds == 0:
        return "0s"
    if seconds < 1:
        return f"{seconds * 1000:.6f}".rstrip("0").rstrip(".") + "ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "")
    written = f"{rest:.6f}".rstrip("0").rstrip(".")
    return text + (f"{written}s" if written != "0" or not text else "")


def parse_size(value: object) -> int:
    """Return the bytes that `value` stands for: a number, or text with a unit (`16MiB`, `1kB`, `1G`).

    Units of ten end in B alone (kB, MB, GB); units of two are KiB, MiB, GiB, or K, M, G.

    Raises `ValueError` with a message that shows the right forms.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise ValueError(f"must be {SIZE_FORMS}, not a text of {len(value)} characters")
        match = _SIZE.fullmatch(value.strip())
        unit = _SIZE_UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(f"must be {SIZE_FORMS}, not {value!r}")
        size = int(min(float(match[1]) * unit, 2.0 * _LARGEST_SIZE))
    else:
        raise ValueError(f"must be {SIZE_FORMS}, not {value!r}")
    if size < 0:
        raise ValueError("must not be negative" + _quoted(value))
    if size > _LARGEST_SIZE:
        raise ValueError(f"must be at most {format_size(_LARGEST_SIZE)}")
    return size


def format_size(size: int) -> str:
    """Return `size` in the form that `parse_size` reads, in the largest unit that fits: `16MiB`."""
    for unit in ("GiB", "MiB", "KiB"):
        factor = _SIZE_UNITS[unit.lower()]
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"
