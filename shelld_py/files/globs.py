"""Patterns for paths: the globs of requests, and the rules of .gitignore (gitignore(5)). Pure functions.

A glob becomes a regular expression. `*` and `?` stop at slashes, `**` as a whole component does not, `[a-z]` and
`[!a-z]` are sets, and in requests `{a,b}` are alternatives.
"""

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from shelld_py.errors import InvalidRequest


@dataclass(frozen=True)
class Globs:
    """Several globs of a request, of which one must match."""

    _patterns: tuple[re.Pattern[str], ...]

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Self:
        """Return the globs that `texts` are. One without a slash matches names at any depth.

        Raises `InvalidRequest` for one that is none.
        """
        return cls(tuple(_request_pattern(text) for text in texts))

    def match(self, path: str) -> bool:
        """Return whether a glob matches `path`, which is relative and without a slash at its end."""
        return any(pattern.fullmatch(path) for pattern in self._patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)


@dataclass(frozen=True)
class IgnoreRules:
    """The rules of all .gitignore files from the top down to a directory, the strongest last."""

    _rules: tuple["_Rule", ...] = ()

    def extended(self, directory: str, text: str) -> Self:
        """Return these rules and those of the .gitignore `text` in `directory`, relative to the top."""
        prefix = f"{directory}/" if directory else ""
        rules = tuple(rule for line in text.splitlines() if (rule := _ignore_rule(prefix, line)))
        return type(self)(self._rules + rules)

    def ignore(self, path: str, *, directory: bool) -> bool:
        """Return whether `path`, relative to the top, is to be ignored: the last rule that matches decides.

        What lies in an ignored directory is ignored whatever the rules say; to that the caller sees.
        """
        for rule in reversed(self._rules):
            if (directory or not rule.directories_only) and rule.match(path):
                return not rule.negated
        return False


@dataclass(frozen=True)
class _Rule:
    prefix: str
    pattern: re.Pattern[str]
    negated: bool
    directories_only: bool

    def match(self, path: str) -> bool:
        return path.startswith(self.prefix) and self.pattern.fullmatch(path, len(self.prefix)) is not None


def _request_pattern(text: str) -> re.Pattern[str]:
    glob = text.removeprefix("./").strip("/")
    if not glob or "\0" in glob:
        raise InvalidRequest(f"{text!r} is not a glob; write one such as *.py or src/**/*.py.")
    anywhere = "" if "/" in text.removeprefix("./").rstrip("/") else "(?:.*/)?"
    try:
        return _compiled(anywhere + _translated(glob, alternatives=True))
    except re.error as error:
        raise InvalidRequest(f"{text!r} is not a glob: {error}.") from None


def _ignore_rule(prefix: str, line: str) -> _Rule | None:
    text = re.sub(r"(?<!\\) +$", "", line)
    negated = text.startswith("!")
    text = text.removeprefix("!")
    if not text.strip("/") or text.startswith("#"):
        return None
    directories_only = text.endswith("/")
    path = text.removesuffix("/")
    glob = path.removeprefix("/")
    anywhere = "" if "/" in path else "(?:.*/)?"
    try:
        pattern = _compiled(anywhere + _translated(glob, alternatives=False))
    except re.error:
        return None
    return _Rule(prefix, pattern, negated, directories_only)


def _compiled(expression: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what `re` may read differently one day, such as `--` in a set
        return re.compile(expression, re.DOTALL)


def _translated(glob: str, *, alternatives: bool) -> str:
    """Return the regular expression that `glob` stands for."""
    parts: list[str] = []
    position, depth = 0, 0
    while position < len(glob):
        character = glob[position]
        token = _TOKEN.match(glob, position)
        if token and _is_component(glob, token):
            parts.append(_DOUBLE_STAR[token.lastgroup or ""])
            position = token.end()
            continue
        position += 1
        if character == "*":
            while glob.startswith("*", position):
                position += 1
            parts.append("[^/]*")
        elif character == "?":
            parts.append("[^/]")
        elif character == "[" and (found := _SET.match(glob, position)):
            inverse = "^" if found[1] else ""
            parts.append(f"(?!/)[{inverse}{_escaped_set(found[2])}]")
            position = found.end()
        elif character == "[" and not alternatives:
            raise re.error("the set is not closed")
        elif character == "\\" and position < len(glob):
            parts.append(re.escape(glob[position]))
            position += 1
        elif alternatives and character == "{" and "}" in glob[position:]:
            parts.append("(?:")
            depth += 1
        elif depth and character in ",}":
            parts.append("|" if character == "," else ")")
            depth -= character == "}"
        else:
            parts.append(re.escape(character))
    return "".join(parts) + ")" * depth


_TOKEN = re.compile(r"(?P<middle>/\*\*/)|(?P<start>\*\*/)|(?P<end>/\*\*$)|(?P<all>\*\*$)")
_DOUBLE_STAR = {"middle": "/(?:.*/)?", "start": "(?:.*/)?", "end": "/.*", "all": ".*"}
_SET = re.compile(r"([!^]?)((?:\\.|[^\\])(?:\\.|[^\]\\])*)\]", re.DOTALL)


def _is_component(glob: str, token: re.Match[str]) -> bool:
    """Return whether a double star that begins with its stars stands at the beginning of a component."""
    return glob[token.start()] == "/" or token.start() == 0 or glob[token.start() - 1] == "/"


def _escaped_set(content: str) -> str:
    return re.sub(r"\\(.)|[\[\]^&~|]", lambda found: re.escape(found[1] or found[0]), content, flags=re.DOTALL)
