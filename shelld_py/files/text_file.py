"""Operations on the text of a file: decoding, lines, insertion and replacement.

Pure functions on text; whoever calls them does the reading and writing. A line ends in LF, and the CR before
an LF belongs to the line ending. What the edited text does not say, the file decides: its line endings, its
byte-order mark and its missing last newline stay.
"""

import codecs
import hashlib
from dataclasses import dataclass
from typing import Self

from shelld_py.errors import InvalidRequest, LineOutOfRange, NotText
from shelld_py.files.policy import ReadPolicy, TextCheck

BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Text:
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


@dataclass(frozen=True)
class Replacement:
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


@dataclass(frozen=True)
class LinesRead:
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
    parts = data.split(b"\n", endings)
    return len(data) - len(parts[-1]) if len(parts) > endings else len(data)
