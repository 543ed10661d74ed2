"""Unified diffs that are quick on large texts and cut when they are long. Pure functions on text.

difflib's time grows with the square of what differs, so it only ever sees the part between the first and the
last difference, and of that no more than a window. Equal beginnings and ends are found by comparing blocks, and
then halves of the first block that differs.
"""

import difflib
from collections.abc import Iterator

from shelld_py.files.text_file import line_spans

_CONTEXT = 3
_BLOCK = 1 << 16
"""Characters that are compared at once: a slice of them is copied quickly and compared at memory speed."""
_WINDOW = 600
"""Lines of each text that difflib compares."""
_MOST_LINES = 300
_MOST_CHARACTERS = 20_000


def unified_diff(old: str | None, new: str | None, path: str) -> str:
    """Return what changed from `old` to `new`; None stands for no file.

    Long diffs are cut, and then end in a line in brackets that says so.
    """
    header = f"--- {'/dev/null' if old is None else 'a/' + path}\n+++ {'/dev/null' if new is None else 'b/' + path}\n"
    old, new = old or "", new or ""
    if old == new:
        return ""
    first, old_end, new_end = _changed_part(old, new)
    offset = old.count("\n", 0, first)
    old_lines, old_left = _window(old, first, old_end)
    new_lines, new_left = _window(new, first, new_end)
    hunks = list(_hunks(old_lines, new_lines, offset, windowed=bool(old_left or new_left)))
    return header + _cut("".join(hunks), more=bool(old_left or new_left))


def _changed_part(old: str, new: str) -> tuple[int, int, int]:
    """Return the offset where the first differing line begins, and where the last one ends in each text.

    Both are widened by the lines of context.
    """
    same = _common_length(old, new)
    first = old.rfind("\n", 0, same) + 1
    most = min(len(old), len(new)) - first
    tail = _common_tail(old, new, most)
    old_end = _line_end(old, len(old) - tail)
    new_end = len(new) - (len(old) - old_end)
    for _ in range(_CONTEXT):
        first = old.rfind("\n", 0, max(first - 1, 0)) + 1
        following = _line_end(old, old_end)
        old_end, new_end = following, new_end + following - old_end
    return first, old_end, new_end


def _line_end(text: str, offset: int) -> int:
    """Return the offset behind the line ending at or after `offset`."""
    return text.find("\n", offset) + 1 or len(text)


def _common_length(old: str, new: str) -> int:
    """Return how many characters at the beginning are equal."""
    most = min(len(old), len(new))
    same = 0
    while same < most and old[same : same + _BLOCK] == new[same : same + _BLOCK]:
        same += _BLOCK
    low, high = min(same, most), min(same + _BLOCK, most)
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_tail(old: str, new: str, most: int) -> int:
    """Return how many characters at the end are equal, at most `most`."""
    old_end, new_end = len(old), len(new)
    same = 0
    while same + _BLOCK <= most and (
        old[old_end - same - _BLOCK : old_end - same] == new[new_end - same - _BLOCK : new_end - same]
    ):
        same += _BLOCK
    low, high = same, min(same + _BLOCK, most)
    while low < high:
        middle = (low + high + 1) // 2
        if old[old_end - middle : old_end - low] == new[new_end - middle : new_end - low]:
            low = middle
        else:
            high = middle - 1
    return low


def _window(text: str, start: int, end: int) -> tuple[list[str], bool]:
    """Return the first lines from `start` to `end`, and whether there are more than the window holds."""
    parts = text[start:end].split("\n", _WINDOW)
    if len(parts) > _WINDOW and parts[-1]:
        return [part + "\n" for part in parts[:_WINDOW]], True
    return line_spans("\n".join(parts)), False


def _hunks(old: list[str], new: list[str], offset: int, *, windowed: bool) -> Iterator[str]:
    """Yield the hunks of a unified diff. Where the texts go on behind the window, its edge is no difference."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    groups = list(matcher.get_grouped_opcodes(_CONTEXT))
    if windowed and len(groups) > 1:
        groups.pop()
    for group in groups:
        first, last = group[0], group[-1]
        spans = _span(first[1] + offset, last[2] + offset), _span(first[3] + offset, last[4] + offset)
        yield f"@@ -{spans[0]} +{spans[1]} @@\n"
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                yield from (_marked(" ", line) for line in old[old_start:old_end])
                continue
            yield from (_marked("-", line) for line in old[old_start:old_end])
            yield from (_marked("+", line) for line in new[new_start:new_end])


def _span(start: int, end: int) -> str:
    """Return a range as unified diffs write it: `first,count`, the line before for an empty one."""
    count = end - start
    if count == 1:
        return str(start + 1)
    return f"{start + (count > 0)},{count}"


def _marked(mark: str, line: str) -> str:
    return mark + line if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _cut(diff: str, *, more: bool) -> str:
    lines = diff.split("\n", _MOST_LINES)
    shown = "\n".join(lines[:_MOST_LINES])[:_MOST_CHARACTERS]
    if len(shown) >= len(diff.removesuffix("\n")) and not more:
        return diff
    return shown.removesuffix("\n") + "\n[the diff is longer and was cut here]\n"
