"""The text of a file that is most like a text that was not found in it.

Pure functions. For each failed replacement there is someone who must find out why: mostly white space, a line
that has changed since, or a word misremembered. So the lines are first compared without regard to white space,
then by which of them are equal, and at last by likeness, in which case does not count.
"""

import difflib
from collections import Counter
from dataclasses import dataclass

_MOST_LINES_SHOWN = 30
_MOST_WIDTH = 300
"""Characters of a line that are shown."""
_LIKENESS_CHARACTERS = 2_000_000
"""How much text is compared by likeness, which is slow: about a second for this much in the worst case."""
_LEAST_LIKENESS = 0.5
_MOST_VOTES = 1_000_000
"""Pairs of equal lines that are counted."""


@dataclass(frozen=True)
class NearestText:
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
    matcher.set_seq2(target.strip().casefold()[:_MOST_WIDTH])
    best, best_index, budget = _LEAST_LIKENESS, None, _LIKENESS_CHARACTERS
    for index, line in enumerate(lines):
        budget -= len(line) + 1
        if budget < 0:
            break
        matcher.set_seq1(line.strip().casefold()[:_MOST_WIDTH])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, best_index = ratio, index
    return None if best_index is None else max(best_index - offset, 0)
