"""A picture of a screen, as SVG. Knows cells and nothing of where they come from."""

import re
from collections.abc import Iterator
from html import escape
from itertools import groupby, pairwise
from typing import Final

from pyte.modes import DECSCNM
from pyte.screens import Char

from shelld_py.output.screen import Screen

_WIDTH: Final = 8.4
_HEIGHT: Final = 17
_BASELINE: Final = 13
_FOREGROUND, _BACKGROUND = "d8d8d8", "181818"
_NAMES: Final = ("black", "red", "green", "brown", "blue", "magenta", "cyan", "white")
_DARK: Final = ("000000", "cd3131", "0dbc79", "e5e510", "2472c8", "bc3fbc", "11a8cd", "e5e5e5")
_BRIGHT: Final = ("666666", "f14c4c", "23d18b", "f5f543", "3b8eea", "d670d6", "29b8db", "ffffff")
_FONT: Final = 'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" xml:space="preserve"'
_REPLACEMENT: Final = "\ufffd"
_COLOURS: Final = {
    **dict(zip(_NAMES, _DARK, strict=True)),
    **{f"bright{name}": colour for name, colour in zip(_NAMES, _BRIGHT, strict=True)},
    "bfightmagenta": _BRIGHT[5],  # as pyte writes it
}
_BLANKS: Final = re.compile("^ +| {2,}| +$")
_NOT_IN_XML: Final = re.compile("[\ufffe\uffff]")


def picture(screen: Screen) -> str:
    """Return the screen as an SVG document: colours, bold, italics, underlined, reverse, and the cursor."""
    width, height = round(screen.columns * _WIDTH, 1), screen.lines * _HEIGHT
    inverse = DECSCNM in screen.mode
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" font-size="14" {_FONT}>',
        f'<rect {size} fill="#{_FOREGROUND if inverse else _BACKGROUND}"/>',
    ]
    for y in range(screen.lines):
        parts.extend(_row(screen, y, inverse=inverse))
    return "".join([*parts, "</svg>\n"])


def _row(screen: Screen, y: int, *, inverse: bool) -> Iterator[str]:
    row, cursor = screen.rows[y], screen.cursor
    cells = [row[x] for x in range(screen.columns)]
    if cursor.y == y and not cursor.hidden:
        x = min(cursor.x, screen.columns - 1)
        cells[x] = cells[x]._replace(reverse=not cells[x].reverse, data=cells[x].data or " ")
    x = 0
    for style, group in groupby(cells, lambda cell: cell._replace(data="")):
        run = list(group)
        yield from _run(run, style, x, y, inverse=inverse)
        x += len(run)


def _run(cells: list[Char], style: Char, x: int, y: int, *, inverse: bool) -> Iterator[str]:
    """Draw cells of one style, which begin in column `x` of row `y`."""
    foreground, background = _colour(style.fg, _FOREGROUND), _colour(style.bg, _BACKGROUND)
    if style.reverse != inverse:
        foreground, background = background, foreground
    left, width = round(x * _WIDTH, 1), round(len(cells) * _WIDTH, 1)
    if background != (_FOREGROUND if inverse else _BACKGROUND):
        yield f'<rect x="{left}" y="{y * _HEIGHT}" width="{width}" height="{_HEIGHT}" fill="#{background}"/>'
    decoration = " ".join(
        name for name, on in (("underline", style.underscore), ("line-through", style.strikethrough)) if on
    )
    named = {
        "font-weight": "bold" if style.bold else "",
        "font-style": "italic" if style.italics else "",
        "text-decoration": decoration,
    }
    attributes = "".join(f' {name}="{value}"' for name, value in named.items() if value)
    for piece in _pieces(cells):
        start, end = piece
        if not style.underscore and not style.strikethrough:
            while start < end and cells[start].data == " ":
                start += 1
            while start < end and cells[end - 1].data == " ":
                end -= 1
        # Browsers leave blanks out, some of them in spite of xml:space: then `textLength` would stretch the rest.
        text = _BLANKS.sub(lambda blanks: "\xa0" * len(blanks[0]), "".join(cell.data for cell in cells[start:end]))
        if text:
            left, width = round((x + start) * _WIDTH, 1), round((end - start) * _WIDTH, 1)
            yield (
                f'<text x="{left}" y="{y * _HEIGHT + _BASELINE}" textLength="{width}" lengthAdjust="spacingAndGlyphs" '
                f'fill="#{foreground}"{attributes}>{escape(_NOT_IN_XML.sub(_REPLACEMENT, text))}</text>'
            )


def _pieces(cells: list[Char]) -> Iterator[tuple[int, int]]:
    """Yield what is drawn as one: a wide character alone, whose font is another one, and what lies between those."""
    start = 0
    for number, (cell, following) in enumerate(pairwise(cells)):
        if cell.data and not following.data:
            yield start, number
            yield number, number + 2
            start = number + 2
    yield start, len(cells)


def _colour(name: str, default: str) -> str:
    return default if name == "default" else _COLOURS.get(name, name)
