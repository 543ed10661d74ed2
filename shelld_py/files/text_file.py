"""Operations on the text of a file: decoding, lines, insertion and replacement.

Pure functions on text; whoever calls them does the reading and writing. A line ends in LF, and the CR before
an LF belongs to the line ending. What the edited text does not say, the file decides: its line endings, its
byte-order mark and its missing last newline stay.

Diffs are quick on large texts, and cut when they are long. difflib's time grows with the square of what differs, so it
only ever sees the part between the first and the last difference, and of that no more than a window. Equal beginnings
and ends are found by comparing blocks, and then halves of the first block that differs.
"""

import codecs
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Self

from msgspec import Struct

from shelld_py.errors import InvalidRequest, LineOutOfRange, NotText
from shelld_py.files.policy import ReadPolicy, TextCheck

BYTE_ORDER_MARK = "\ufeff"
_CONTEXT = 3
_BLOCK = 1 << 16
"""Characters that are compared at once: a slice of them is copied quickly and compared at memory speed."""
_WINDOW = 600
"""Lines of each text that difflib compares."""
_MOST_PAIRS = 10_000
"""Pairs of equal lines that difflib compares; of more, those that are often there count only beside others."""
_MOST_LINES = 300
_MOST_CHARACTERS = 20_000


class Text(Struct, frozen=True):
    """The text of a file: its body, and whether a byte-order mark stands before it."""

    body: str
    marked: bool = False

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Self:
        """Return the text that `data` is. Raises `NotText`."""
        return cls.from_text(TextCheck(path).feed(data, final=True))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return `text` with its byte-order mark, if any, told apart."""
        return cls(text.removeprefix(BYTE_ORDER_MARK), text.startswith(BYTE_ORDER_MARK))

    def to_bytes(self, path: str) -> bytes:
        """Return what to write into the file `path`. Raises `NotText` for what could not be read again."""
        if "\0" in self.body:
            raise NotText(f"{path} is for text, which cannot have a NUL character.", path=path)
        try:
            data = self.body.encode()
        except UnicodeEncodeError as error:
            raise NotText(f"{path} is for text: the character {error.start} is half of a pair.", path=path) from None
        return codecs.BOM_UTF8 + data if self.marked else data

    def updated(self, content: str) -> Self:
        """Return `content` in the place of the body, with this file's mark and line endings."""
        new = type(self).from_text(content)
        return type(self)(_with_line_endings_of(self.body, new.body), self.marked or new.marked)


def content_etag(data: bytes) -> str:
    """Return the `etag` of a content: its SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def count_lines(text: str) -> int:
    """Return how many lines `text` has; what follows the last line ending counts if it is not empty."""
    return text.count("\n") + (bool(text) and not text.endswith("\n"))


def inserted(body: str, content: str, line: int, path: str) -> str:
    """Return `body` with `content` after `line`; 0 is the beginning.

    Line breaks are added where `content` would run into the text before or after it, and where the file would
    otherwise lose the last one that it has.

    Raises `LineOutOfRange`.
    """
    total = count_lines(body)
    if not 0 <= line <= total:
        detail = f"line must be from 0 to {total}, which is how many lines {path} has, not {line}."
        raise LineOutOfRange(detail, path=path, line=line, total_lines=total)
    offset = _offset_after(body, line)
    before, after = body[:offset], body[offset:]
    ending, ends = line_ending(body), before.endswith("\n")
    content = _with_line_endings_of(body, content)
    if before and not before.endswith("\n") and content:
        before += ending
    if content and not content.endswith("\n") and (after or ends):
        content += ending
    return before + content + after


class Replacement(Struct, frozen=True):
    """A replacement that fits a text: `old` occurs in it `count` times."""

    old: str
    new: str
    count: int

    @property
    def growth(self) -> int:
        """How many bytes longer it makes the text. Half a pair, which is refused later, counts as it is."""
        return self.count * (len(self.new.encode(errors="surrogatepass")) - len(self.old.encode()))


def fitting_replacement(body: str, old: str, new: str) -> Replacement:
    r"""Return how to replace `old` by `new` in `body`: as written if that occurs, else with its line endings.

    So `a\nb` is found in a file with CRLF, or in the CRLF part of one with both. The new text takes over the line
    endings of the file where they are all alike, else those of what it replaces.

    Raises `InvalidRequest` when there is nothing to replace, or nothing new.
    """
    if not old:
        raise InvalidRequest("old_string must not be empty; use insert to add text.")
    if old == new:
        raise InvalidRequest("old_string and new_string are the same: nothing would change.")
    new = _with_line_endings_of(body, new)
    if count := body.count(old):
        return Replacement(old, new, count)
    for ending in ("\n", "\r\n"):
        adapted = old.replace("\r\n", "\n").replace("\n", ending)
        if adapted != old and (count := body.count(adapted)):
            return Replacement(adapted, new.replace("\r\n", "\n").replace("\n", ending), count)
    return Replacement(old, new, 0)


def occurrence_lines(body: str, text: str, most: int) -> list[int]:
    """Return the numbers of the lines in which the first `most` occurrences of `text` begin."""
    lines: list[int] = []
    line, position = 1, 0
    start = body.find(text)
    while start >= 0 and len(lines) < most:
        line += body.count("\n", position, start)
        position = start
        lines.append(line)
        start = body.find(text, start + len(text))
    return lines


def line_ending(body: str) -> str:
    """Return CRLF when all lines end so, else LF."""
    return "\r\n" if _has_only_crlf(body) else "\n"


def line_spans(body: str) -> list[str]:
    """Return the lines of `body` with their endings. Unlike `str.splitlines`, only LF ends a line."""
    lines = [line + "\n" for line in body.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


class LinesRead(Struct, frozen=True):
    """Lines of a file, and what the whole file is."""

    content: str
    size: int
    """Bytes of `content`."""
    first: int
    last: int
    total_lines: int
    etag: str


class LineReader:
    """Picks a range of lines out of a file that is fed to it in pieces.

    All of the file passes through and is checked to be text, counted and hashed; only the lines asked for are
    kept, and those only up to `max_file_size`. So a range of a file of any size can be read.
    """

    def __init__(self, view_range: tuple[int, int], policy: ReadPolicy, path: str) -> None:
        """`view_range` is the first and the last line, both included; a last one of -1 is the end.

        Raises `LineOutOfRange` for a range that no file has.
        """
        self._first, self._last = view_range
        self._policy = policy
        self._path = path
        if self._first < 1 or (self._last < self._first and self._last != -1):
            detail = f"view_range must be [first, last] with 1 <= first <= last, or -1 as last, not {list(view_range)}."
            raise LineOutOfRange(detail, path=path, view_range=list(view_range))
        self._check = TextCheck(path)
        self._hash = hashlib.sha256()
        self._endings = 0
        self._open_line = False
        self._kept: list[bytes] = []
        self._kept_size = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises `NotText`, and `FileTooLarge` when the lines asked for are."""
        self._check.feed(data)
        self._hash.update(data)
        endings = data.count(b"\n")
        begins = self._endings + endings >= self._first - 1
        goes_on = self._last == -1 or self._endings < self._last
        if begins and goes_on:
            start = _byte_offset_after(data, self._first - 1 - self._endings)
            end = len(data) if self._last == -1 else _byte_offset_after(data, self._last - self._endings)
            self._kept.append(data[start:end])
            self._kept_size += end - start
            self._policy.check_part_size(self._kept_size, self._path)
        self._endings += endings
        self._open_line = not data.endswith(b"\n") if data else self._open_line

    def finish(self) -> LinesRead:
        """Return the lines. Raises `LineOutOfRange` when the file has fewer, and `NotText`."""
        self._check.feed(b"", final=True)
        total = self._endings + self._open_line
        last = total if self._last == -1 else self._last
        if last > total or self._first > max(total, 1):
            lines = f"{total} line{'s' * (total != 1)}"
            detail = (
                f"view_range [{self._first}, {self._last}] goes beyond {self._path}, which has {lines}; -1 is the end."
            )
            raise LineOutOfRange(detail, path=self._path, view_range=[self._first, self._last], total_lines=total)
        data = b"".join(self._kept)
        if self._first == 1:
            data = data.removeprefix(codecs.BOM_UTF8)
        return LinesRead(data.decode(), len(data), self._first, last, total, self._hash.hexdigest())


def _has_only_crlf(body: str) -> bool:
    return "\r" in body and body.count("\r\n") > 0 and body.count("\r\n") == body.count("\n")


def _with_line_endings_of(body: str, text: str) -> str:
    """Return `text` with CRLF for LF if `body` has only CRLF and `text` has no CR of its own."""
    return text.replace("\n", "\r\n") if "\r" not in text and _has_only_crlf(body) else text


def _offset_after(body: str, line: int) -> int:
    """Return where the text after the first `line` lines begins."""
    parts = body.split("\n", line)
    return len(body) - len(parts[-1]) if len(parts) > line else len(body)


def _byte_offset_after(data: bytes, endings: int) -> int:
    """Return the offset behind so many line endings in `data`; its length when there are fewer."""
    if endings <= 0:
        return 0
    parts = data.split(b"\n", min(endings, len(data)))  # no C integer holds what a caller may ask for
    return len(data) - len(parts[-1]) if len(parts) > endings else len(data)


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
    counts = Counter(new)
    repeated = sum(counts[line] for line in old) > _MOST_PAIRS
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=repeated)
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
