"""JSON of any size without holding up other threads: no call into C looks at more than 64 KiB.

A parser in C keeps the interpreter for as long as it takes: seconds for 16 MiB of small values. What makes a large
document in earnest is long strings (a file's content, a command). So these are taken out and decoded piece by piece,
and what is left, with a mark in the place of each, is parsed as a whole; that has a bound. A document of many small
values is refused. To be called in a thread, whose Python code gives way to others every few milliseconds.

Linear in the document. Knows nothing of HTTP.
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterable
from typing import Any, Final

import msgspec

MOST_BESIDES: Final = 64 * 1024
"""Bytes besides long strings. The dearest there are (`[],[],`) take 4 ms, on one core at rest."""

LONG: Final = 1024
"""Bytes from which on a string is long. So a document of long strings alone has 2,000 of them at the most."""

_PIECE: Final = 64 * 1024
_MANY: Final = 1024 * 1024
"""Bytes from which on pieces are joined in a thread: what comes from nowhere takes the kernel a millisecond for each.
`bytes.join` lets go of the interpreter from here on."""
_QUOTE: Final = ord('"')
_CHARACTERS: Final = rb"""[^"\\]*+ (?:
        \\ (?:
            u [dD][89abAB][0-9a-fA-F]{2} \\ u [dD][c-fC-F][0-9a-fA-F]{2}                         # a pair of surrogates
            | u [dD][89abAB][0-9a-fA-F]{2} (?= [^\\] | \\ [^u] | \\ u (?: [^dD] | [dD][^c-fC-F]))  # one alone
            | u (?! [dD][89abAB]) [0-9a-fA-F]{4}
            | [^u]
        )
        [^"\\]*+
    )*+"""
"""Whole characters of a string. Where it ends, the string does, or the piece, or the document is malformed. It is
compiled when it is first used."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")

# msgspec's own way with numbers such as 1.5e300 takes 50 µs for each.
_decoder: Final = msgspec.json.Decoder(float_hook=float)


class TooManyValues(ValueError):
    """There is more besides long strings than `MOST_BESIDES`."""

    def __init__(self) -> None:
        super().__init__(
            f"The JSON of the body has more than {MOST_BESIDES} bytes besides strings of over {LONG} bytes. "
            "Send less, or what is large as one string."
        )


async def joined(pieces: AsyncIterable[bytes]) -> bytes:
    """Return the pieces of a document as one."""
    came = [piece async for piece in pieces]
    return await asyncio.to_thread(b"".join, came) if sum(map(len, came)) >= _MANY else b"".join(came)


def decoded(document: bytes) -> Any:
    """Return what `document` says. Raises `TooManyValues`, other `ValueError`s for what is no JSON, `RecursionError`.

    Lone surrogates stand for bytes that are not UTF-8 (PEP 383), as in answers.
    """
    if len(document) <= MOST_BESIDES:
        return _read(document)
    rest, mark, strings = taken_apart(document)
    texts = ["".join(_read(b'"%b"' % document[start:end]) for start, end in pieces) for pieces in strings]
    return _put_together(_read(rest), mark, texts)


def taken_apart(document: bytes) -> tuple[bytes, str, list[list[tuple[int, int]]]]:
    """Return the document with marks for its long strings, the mark, and where the pieces of each of them lie.

    The mark in the place of a string is followed by its number. Nobody outside can know it beforehand.
    """
    mark = secrets.token_hex(8)
    rest: list[bytes] = []
    strings: list[list[tuple[int, int]]] = []
    size = start = 0
    while size <= MOST_BESIDES and (quote := document.find(b'"', start)) >= 0:
        pieces = _pieces(document, quote + 1)
        end = pieces[-1][1] + 1
        if end - quote > LONG:
            between = document[start : min(quote, start + MOST_BESIDES + 1)] + f'"{mark}{len(strings)}"'.encode()
            strings.append(pieces)
        else:
            between = document[start : min(quote, start + MOST_BESIDES + 1)] + document[quote:end]
        rest.append(between)
        size += len(between)
        start = end
    rest.append(document[start : start + MOST_BESIDES + 1])
    if size + len(rest[-1]) > MOST_BESIDES:
        raise TooManyValues
    return b"".join(rest), mark, strings


def _pieces(document: bytes, start: int) -> list[tuple[int, int]]:
    """Return where the pieces of the string lie that begins at `start`, behind its quote; characters stay whole."""
    pieces = []
    characters = re.compile(_CHARACTERS, re.VERBOSE)
    while True:
        end = characters.match(document, start, start + _PIECE).end()  # type: ignore[union-attr]  # it matches nothing, too
        last = end < len(document) and document[end] == _QUOTE
        if not last and end > start:
            while end > start and end < len(document) and document[end] & 0xC0 == 0x80:  # within a character of UTF-8
                end -= 1
        if not last and end == start:
            raise msgspec.DecodeError("a string is malformed or has no end")
        pieces.append((start, end))
        if last:
            return pieces
        start = end


def _read(piece: bytes) -> Any:
    try:
        return _decoder.decode(piece)
    except msgspec.DecodeError:
        if not _SURROGATE.search(piece):
            raise
    return json.loads(piece, parse_constant=_refuse_constant)  # slower, but it takes lone surrogates


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _put_together(value: Any, mark: str, texts: list[str]) -> Any:
    if isinstance(value, str):
        return texts[int(value.removeprefix(mark))] if value.startswith(mark) else value
    if isinstance(value, dict):
        return {_put_together(name, mark, texts): _put_together(item, mark, texts) for name, item in value.items()}
    if isinstance(value, list):
        return [_put_together(item, mark, texts) for item in value]
    return value
