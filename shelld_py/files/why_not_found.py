"""Why a replacement did not fit, in the words of the refusal. Pure functions on text.

Whoever wrote the text to be replaced did so from memory or from a copy, and the usual slips are few: other white
space, other line endings, a look-alike character, escapes that were not resolved, or the edit was made before. So
the refusal shows the nearest text with its line numbers, and the first character that differs, by name. To find that
text, the lines are first compared without regard to white space, then by which of them are equal, and at last by
likeness, in which case does not count.
"""

import difflib
import unicodedata
from collections import Counter

from msgspec import Struct

from shelld_py.errors import ReplacementCountMismatch, TextNotFound
from shelld_py.files.text_file import Replacement, occurrence_lines

_LINES_TOLD = 20
"""Line numbers that an error lists."""
_TELLING = 8
"""Characters of a text whose presence in a file can hardly be chance."""
_MOST_SHOWN = 20_000
"""Characters of the nearest text that are shown."""
_MOST_COMPARED = 10_000
"""Characters of a line in which the first difference is looked for."""
_MOST_LINES_SHOWN = 30
_MOST_WIDTH = 300
"""Characters of a line that are shown."""
_LIKENESS_CHARACTERS = 2_000_000
"""How much text is looked through for what is like another."""
_MOST_PAIRS = 5_000_000
"""Pairs of characters that are compared by likeness, which is slow: a second for lines with the same two letters."""
_LEAST_LIKENESS = 0.5
_MOST_VOTES = 1_000_000
"""Pairs of equal lines that are counted."""
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", '\\"': '"', "\\'": "'"}
_NAMES = {"\t": "a tab", " ": "a space", "\r": "a carriage return (the line ends in CRLF)", "": "the end of the line"}


class NearestText(Struct, frozen=True):
    """Lines of a file, numbered from 1, both ends included."""

    first_line: int
    last_line: int
    text: str
    same_but_white_space: bool

    def numbered(self) -> str:
        """Return the lines with their numbers before them, long ones cut."""
        lines = self.text.split("\n")
        numbered = enumerate(lines[:_MOST_LINES_SHOWN], self.first_line)
        shown = [f"{number}: {line[:_MOST_WIDTH]}" for number, line in numbered]
        return "\n".join([*shown, "..."] if len(lines) > _MOST_LINES_SHOWN else shown)


def text_not_found(body: str, old: str, new: str, path: str) -> TextNotFound:
    """Return the error for `old`, to be replaced by `new`, that does not occur in `body`."""
    hints = _hints(body, old, new)
    near = nearest_text(body, old)
    if near is None:
        advice = hints or ["Read the file again."]
        detail = " ".join([f"old_string was not found in {path}, nor anything like it. Nothing was changed.", *advice])
        return TextNotFound(detail, path=path, nearest=None)
    one = near.first_line == near.last_line
    lines = f"line {near.first_line}" if one else f"lines {near.first_line} to {near.last_line}"
    sentences = [f"old_string was not found in {path}. Nothing was changed. The nearest text is in {lines}."]
    if near.same_but_white_space:
        sentences.append("It differs in white space only.")
    sentences += [*_first_difference(body, old, near), *hints]
    nearest = {"first_line": near.first_line, "last_line": near.last_line, "text": near.text[:_MOST_SHOWN]}
    return TextNotFound(" ".join(sentences) + "\n" + near.numbered(), path=path, nearest=nearest)


def unexpected_count(body: str, found: Replacement, expected: int, path: str) -> ReplacementCountMismatch:
    """Return the error for a text that occurs more or less often than `expected`."""
    lines = occurrence_lines(body, found.old, _LINES_TOLD)
    shown = ", ".join(map(str, lines)) + (", ..." if found.count > len(lines) else "")
    times = "once" if found.count == 1 else f"{found.count} times"
    advice = "give more of the text around the right one" if found.count > expected else "look at the others"
    detail = (
        f"old_string occurs {times} in {path} (in line{'s' * (len(lines) > 1)} {shown}), not {expected} as "
        f"expected_replacements says. Nothing was changed; {advice}."
    )
    return ReplacementCountMismatch(detail, path=path, replacements=found.count, lines=lines)


def _hints(body: str, old: str, new: str) -> list[str]:
    """Return what may have gone wrong, other than white space."""
    hints = []
    body = body.replace("\r\n", "\n")
    resolved = old
    for escape, character in _ESCAPES.items():
        resolved = resolved.replace(escape, character)
    if resolved != old and resolved in body:
        hints.append("It occurs with its escapes resolved: send line breaks, tabs and quotes without the backslash.")
    new = new.replace("\r\n", "\n")
    if len(new.strip()) >= _TELLING and new in body:
        (line,) = occurrence_lines(body, new, 1)
        hints.append(f"new_string is there already, in line {line}: this may have been done before.")
    return hints


def _first_difference(body: str, old: str, near: NearestText) -> list[str]:
    """Return a sentence about the first character that differs between `old` and the nearest text, if there is one."""
    lines = body.split("\n")[near.first_line - 1 : near.last_line]
    sought = old.strip("\n").split("\n")
    if len(lines) != len(sought):
        return []
    for index, (line, wanted) in enumerate(zip(lines, sought, strict=True)):
        shift = _shift(line, wanted) if index == 0 else 0
        last = index == len(lines) - 1
        column = next(
            (at for at, pair in enumerate(_pairs(line[shift:], wanted, last=last)) if pair[0] != pair[1]), None
        )
        if column is None:
            continue
        there, here = line[shift + column : shift + column + 1], wanted[column : column + 1]
        place = f"line {near.first_line + index}, column {shift + column + 1}"
        return [f"The first difference is in {place}: the file has {_named(there)}, old_string has {_named(here)}."]
    return []


def _pairs(line: str, wanted: str, *, last: bool) -> list[tuple[str, str]]:
    """Return the characters that stand against each other; the last line need not be whole."""
    length = min(len(wanted) if last else max(len(line), len(wanted)), _MOST_COMPARED)
    return [(line[at : at + 1], wanted[at : at + 1]) for at in range(length)]


def _shift(line: str, wanted: str) -> int:
    """Return where in its line the first line of the wanted text begins; it need not be whole."""
    matcher = difflib.SequenceMatcher(None, line[:2000], wanted[:2000], autojunk=False)
    match = matcher.find_longest_match()
    return max(0, match.a - match.b)


def _named(character: str) -> str:
    if character in _NAMES:
        return _NAMES[character]
    if character.isascii() and character.isprintable():
        return repr(character)
    name = unicodedata.name(character, f"U+{ord(character):04X}")
    return f"'{character}' ({name})" if character.isprintable() else name


def nearest_text(body: str, wanted: str) -> NearestText | None:
    """Return the lines of `body` most like `wanted`, None when nothing is like it."""
    lines = body.replace("\r\n", "\n").removesuffix("\n").split("\n")
    sought = wanted.replace("\r\n", "\n").strip("\n").split("\n")
    squeezed = [_squeezed(line) for line in lines]
    pattern = [_squeezed(line) for line in sought]
    start = _same_but_white_space(squeezed, pattern)
    exact = start is not None
    if start is None:
        start = _most_equal_lines(squeezed, pattern)
    if start is None:
        start = _most_alike(lines, sought)
    if start is None:
        return None
    start = max(0, min(start, len(lines) - len(sought)))
    end = min(len(lines), start + len(sought))
    return NearestText(start + 1, end, "\n".join(lines[start:end]), exact)


def _squeezed(line: str) -> str:
    return "".join(line.split())


def _same_but_white_space(lines: list[str], pattern: list[str]) -> int | None:
    """Return where `pattern` stands in `lines`; the first and the last line may be parts of theirs."""
    if not any(pattern):
        return None
    joined = "\n".join(lines)
    at = joined.find("\n".join(pattern))
    return joined.count("\n", 0, at) if at >= 0 else None


def _most_equal_lines(lines: list[str], pattern: list[str]) -> int | None:
    """Return the start at which most lines of `pattern` equal theirs, weighed by length."""
    places: dict[str, list[int]] = {line: [] for line in pattern if len(line) > 2}
    for index, line in enumerate(lines):
        if line in places:
            places[line].append(index)
    votes: Counter[int] = Counter()
    most = max(1, min(1000, _MOST_VOTES // len(pattern)))
    for offset, line in enumerate(pattern):
        for index in places.get(line, ())[:most]:
            votes[index - offset] += len(line)
    if not votes:
        return None
    start, weight = max(votes.items(), key=lambda item: (item[1], -item[0]))
    return max(start, 0) if weight * 4 >= sum(map(len, pattern)) else None


def _most_alike(lines: list[str], sought: list[str]) -> int | None:
    """Return the start at which the longest line of `sought` is most like a line of the file."""
    offset, target = max(enumerate(sought), key=lambda item: len(item[1].strip()))
    matcher = difflib.SequenceMatcher(autojunk=False)
    target = target.strip().casefold()[:_MOST_WIDTH]
    matcher.set_seq2(target)
    best, best_index, budget, pairs = _LEAST_LIKENESS, None, _LIKENESS_CHARACTERS, _MOST_PAIRS
    for index, line in enumerate(lines):
        budget -= len(line) + 1
        if budget < 0 or pairs < 0:
            break
        candidate = line.strip().casefold()[:_MOST_WIDTH]
        matcher.set_seq1(candidate)
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best:
            pairs -= len(candidate) * len(target)
            if (ratio := matcher.ratio()) > best:
                best, best_index = ratio, index
    return None if best_index is None else max(best_index - offset, 0)
