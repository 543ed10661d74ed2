"""Which files may be read: rules on names, content, sizes and tokens, and the words of each refusal.

Pure rules: what they judge is handed to them, and they never open a file.
"""

import codecs
from typing import Self

from msgspec import Struct

from shelld_py.config import FileSettings, SecurityMode
from shelld_py.errors import ExtensionRefused, FileTooLarge, NotText, TooManyTokens
from shelld_py.units import format_size

BYTES_PER_TOKEN = 4
"""What a token of English or of program text takes on average, by the rule of thumb of tokenizer makers."""


class ReadPolicy(Struct, frozen=True):
    """The limits on what may be read. A limit of 0 is none."""

    mode: SecurityMode
    allowed_extensions: frozenset[str]
    blocked_extensions: frozenset[str]
    max_file_size: int
    max_token_count: int

    @classmethod
    def from_settings(cls, settings: FileSettings) -> Self:
        """Return the policy that the settings of `[files]` describe."""
        return cls(
            mode=settings.security_mode,
            allowed_extensions=frozenset(settings.allowed_extensions),
            blocked_extensions=frozenset(settings.blocked_extensions),
            max_file_size=settings.max_file_size,
            max_token_count=settings.max_token_count,
        )

    def allows_name(self, name: str) -> bool:
        """Return whether a file of this name may be read."""
        if self.mode is SecurityMode.UNRESTRICTED:
            return True
        suffixes = extensions(name)
        if self.mode is SecurityMode.STRICT:
            return bool(suffixes & self.allowed_extensions) and not suffixes & self.blocked_extensions
        return not suffixes & self.blocked_extensions

    def check_name(self, name: str, path: str) -> None:
        """Raise `ExtensionRefused` unless a file of this name may be read."""
        if self.allows_name(name):
            return
        members = {"path": path, "security_mode": self.mode.value}
        if self.mode is SecurityMode.STRICT:
            allowed = sorted(self.allowed_extensions)
            detail = (
                f"{path} may not be read: files.security_mode is strict, which allows only the extensions in "
                f"files.allowed_extensions ({', '.join(allowed)})."
            )
            raise ExtensionRefused(detail, allowed_extensions=allowed, **members)
        blocked = sorted(self.blocked_extensions)
        detail = (
            f"{path} may not be read: files.security_mode is permissive, which allows all extensions but those in "
            f"files.blocked_extensions ({', '.join(blocked)})."
        )
        raise ExtensionRefused(detail, blocked_extensions=blocked, **members)

    def fits(self, size: int) -> bool:
        """Return whether `size` bytes are within `max_file_size`."""
        return not self.max_file_size or size <= self.max_file_size

    def check_size(self, size: int, path: str) -> None:
        """Raise `FileTooLarge` when a whole file of `size` bytes is too large to handle."""
        if not self.fits(size):
            detail = (
                f"{path} has {size} bytes; files.max_file_size is {format_size(self.max_file_size)}. "
                f"Read a part with view_range; edit it by a command."
            )
            raise FileTooLarge(detail, path=path, size=size, limit=self.max_file_size)

    def check_part_size(self, size: int, path: str) -> None:
        """Raise `FileTooLarge` when the lines asked for, `size` bytes or more, are too many."""
        if not self.fits(size):
            detail = (
                f"The lines asked for have more than {format_size(self.max_file_size)}, which is files.max_file_size. "
                f"Ask for fewer lines of {path}."
            )
            raise FileTooLarge(detail, path=path, size=size, limit=self.max_file_size)

    def check_new_size(self, size: int, path: str) -> None:
        """Raise `FileTooLarge` when a change would make the file too large to be read or edited again."""
        if not self.fits(size):
            limit = format_size(self.max_file_size)
            detail = f"{path} would have {size} bytes; files.max_file_size is {limit}. It is unchanged."
            raise FileTooLarge(detail, path=path, size=size, limit=self.max_file_size)

    def check_tokens(self, content: str, size: int, first: int, path: str) -> None:
        """Raise `TooManyTokens` when `content`, `size` bytes from line `first` on, has too many.

        The error says up to which line it would do.
        """
        tokens = estimated_tokens(size)
        if not self.max_token_count or tokens <= self.max_token_count:
            return
        enough = content.encode()[: self.max_token_count * BYTES_PER_TOKEN].count(b"\n")
        advice = (
            f"Lines {first} to {first + enough - 1} would fit: ask for them with view_range."
            if enough
            else f"Line {first} alone is too long."
        )
        detail = (
            f"The part of {path} that is asked for has about {tokens} tokens; "
            f"files.max_token_count is {self.max_token_count}. {advice}"
        )
        raise TooManyTokens(detail, path=path, tokens=tokens, limit=self.max_token_count)


def extensions(name: str) -> frozenset[str]:
    """Return all that counts as the extension of a file name, in lower case.

    `archive.tar.gz` has `gz` and `tar.gz`, `.env` has `env`, and `Makefile`, which has no dot, `makefile`.
    """
    words = name.lower().rstrip(". ").split(".")
    if len(words) == 1:
        return frozenset(words)
    return frozenset(".".join(words[index:]) for index in range(1, len(words)))


def estimated_tokens(size: int) -> int:
    """Return about how many tokens `size` bytes of text are, rounded up."""
    return -(-size // BYTES_PER_TOKEN)


class TextCheck:
    """Checks that bytes are text, valid UTF-8 without NUL, as they come: over all of them, not a sample."""

    def __init__(self, path: str) -> None:
        """`path` is for the words of the refusal."""
        self._path = path
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """Return the text of the next bytes; a character that is cut in two comes with its second half.

        Raises `NotText`, which says at which byte the text ends.
        """
        nul = data.find(0)
        if nul >= 0:
            raise self._refusal("has a NUL byte", self._offset + nul)
        held = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            raise self._refusal("is not valid UTF-8", self._offset - held + error.start) from None
        self._offset += len(data)
        return text

    def _refusal(self, fault: str, offset: int) -> NotText:
        return NotText(f"{self._path} is not a text file: it {fault} at byte {offset}.", path=self._path, offset=offset)
