"""Patterns for paths: the globs of requests, and the rules of .gitignore (gitignore(5)). Pure functions.

`*` and `?` stop at slashes, `**` as a whole component does not, `[a-z]`, `[!a-z]` and `[[:alpha:]]` are sets, and in
requests `{a,b}` are alternatives.

A glob becomes a regular expression, and since anybody may write one, one that cannot be made to try out for long. The
alternatives are written out first, within bounds. Then what follows a star is taken where it first occurs, for good
(an atomic group): the next star passes over whatever a later place could have spared. A star stops at slashes, so that
holds within a component; a double star takes the whole run of components up to the next double star in the same way.
"""

import re
import warnings
from collections.abc import Iterable
from functools import cached_property
from typing import Final, Self

from msgspec import Struct

from shelld_py.errors import InvalidRequest

_LONGEST: Final = 1024
"""Characters of a glob."""
_MOST_ALTERNATIVES: Final = 500
"""Globs that one with braces may stand for."""
_MOST_CHARACTERS: Final = 50_000
"""Of all globs of a request, written out, or of the lines of a .gitignore: they are compiled within two seconds."""
_MOST_RULES: Final = 10_000
"""Lines of a .gitignore that count."""
_MOST_AT_ONCE: Final = 500
"""Rules that are made one expression: it is compiled in the time of all of them once more."""


class Globs(Struct, frozen=True):
    """Several globs of a request, of which one must match."""

    _patterns: tuple[re.Pattern[str], ...]

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Self:
        """Return the globs that `texts` are. One without a slash matches names at any depth.

        Raises `InvalidRequest` for one that is none, and where they are too many.
        """
        patterns: list[re.Pattern[str]] = []
        left = _MOST_CHARACTERS
        for text in texts:
            try:
                globs = _written_out(text)
                left -= sum(map(len, globs))
                if left < 0:
                    detail = f"The globs have more than {_MOST_CHARACTERS} characters, with their braces written out."
                    raise InvalidRequest(detail)
                patterns += map(_compiled, globs)
            except re.error as error:
                raise InvalidRequest(f"{text[:100]!r} is not a glob: {error}.") from None
        return cls(tuple(patterns))

    def match(self, path: str) -> bool:
        """Return whether a glob matches `path`, which is relative and without a slash at its end."""
        return any(pattern.fullmatch(path) for pattern in self._patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)


class IgnoreRules(Struct, frozen=True):
    """The rules of all .gitignore files from the top down to a directory, the strongest last."""

    _files: tuple["_IgnoreFile", ...] = ()

    def extended(self, directory: str, text: str) -> Self:
        """Return these rules and those of the .gitignore `text` in `directory`, relative to the top."""
        prefix = f"{directory}/" if directory else ""
        lines = text.split("\n", _MOST_RULES)[:_MOST_RULES]
        rules: list[_Rule] = []
        left = _MOST_CHARACTERS
        for line in lines:
            if line.startswith("#"):
                continue
            left -= min(len(line), _LONGEST)
            if left < 0:
                break
            if rule := _ignore_rule(line.removesuffix("\r")):
                rules.append(rule)
        return type(self)((*self._files, _IgnoreFile(prefix, tuple(rules)))) if rules else self

    def ignore(self, path: str, *, directory: bool) -> bool:
        """Return whether `path`, relative to the top, is to be ignored: the last rule that matches decides.

        What lies in an ignored directory is ignored whatever the rules say; to that the caller sees.
        """
        for file in reversed(self._files):
            if path.startswith(file.prefix):
                rest = path[len(file.prefix) :]
                name = rest[rest.rfind("/") + 1 :]
                if file.may_match(rest, name) and (rule := file.deciding(rest, name, directory=directory)):
                    return not rule.negated
        return False


class _Rule(Struct, frozen=True):
    pattern: re.Pattern[str]
    negated: bool
    directories_only: bool
    of_names: bool
    """Whether it is about the last component alone: it has no slash."""

    def match(self, path: str, name: str) -> bool:
        return self.pattern.fullmatch(name if self.of_names else path) is not None


class _IgnoreFile(Struct, frozen=True, dict=True):
    """The rules of one .gitignore, of what is below `prefix`."""

    prefix: str
    rules: tuple[_Rule, ...]

    def may_match(self, path: str, name: str) -> bool:
        """Return False where no rule matches: to look for all of them at once takes a tenth of one after the other."""
        names, paths = self._at_once
        return any(some.fullmatch(name) for some in names) or any(some.fullmatch(path) for some in paths)

    def deciding(self, path: str, name: str, *, directory: bool) -> _Rule | None:
        """Return the last rule that matches."""
        for rule in reversed(self.rules):
            if (directory or not rule.directories_only) and rule.match(path, name):
                return rule
        return None

    @cached_property
    def _at_once(self) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
        """Expressions that are many rules each: for those of names, and for all others."""
        return _any_of(self.rules, of_names=True), _any_of(self.rules, of_names=False)


def _any_of(rules: Iterable[_Rule], *, of_names: bool) -> list[re.Pattern[str]]:
    parts = [f"(?:{rule.pattern.pattern})" for rule in rules if rule.of_names is of_names]
    starts = range(0, len(parts), _MOST_AT_ONCE)
    return [re.compile("|".join(parts[start : start + _MOST_AT_ONCE]), re.DOTALL) for start in starts]


def _written_out(text: str) -> list[str]:
    """Return the globs without braces that a request's glob stands for. Raises `re.error` where they are too many."""
    if len(text) > _LONGEST:
        raise InvalidRequest(f"A glob has at most {_LONGEST} characters, not {len(text)}: {text[:100]!r}...")
    glob = text.removeprefix("./").strip("/")
    if not glob or "\0" in glob:
        raise InvalidRequest(f"{text!r} is not a glob; write one such as *.py or src/**/*.py.")
    anywhere = "" if "/" in text.removeprefix("./").rstrip("/") else "**/"
    return [anywhere + alternative for alternative in _alternatives(glob)]


def _ignore_rule(line: str) -> _Rule | None:
    text = line.rstrip(" ")
    if len(text) < len(line) and (len(text) - len(text.rstrip("\\"))) % 2:
        text += " "  # the first of the blanks is escaped
    negated = text.startswith("!")
    text = text.removeprefix("!")
    if not text.strip("/") or text.startswith("#") or len(text) > _LONGEST:
        return None
    directories_only = text.endswith("/")
    path = text.removesuffix("/")
    try:
        pattern = _compiled(path.removeprefix("/"), open_sets=False)
    except re.error:
        return None
    return _Rule(pattern, negated, directories_only, of_names="/" not in path)


def _compiled(glob: str, *, open_sets: bool = True) -> re.Pattern[str]:
    """Return the regular expression that `glob`, without braces, stands for.

    A set that is not closed means its bracket, or with `open_sets` false nothing. Raises `re.error`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what `re` may read differently one day, such as `--` in a set
        return re.compile(_translated(glob, open_sets=open_sets), re.DOTALL)


def _alternatives(glob: str) -> list[str]:
    """Return the globs that one with braces stands for. Raises `re.error` where they are too many.

    A brace that is never closed means itself, and so do a comma and a closing brace outside of braces.
    """
    closed, pending = {}, []
    for at, character in _unescaped(glob):
        if character == "{":
            pending.append(at)
        elif character == "}" and pending:
            closed[pending.pop()] = at
    if not closed:
        return [glob]
    # For each open brace, the whole glob first: its finished alternatives, and those in the making.
    levels: list[tuple[list[str], list[str]]] = [([], [""])]
    ends = set(closed.values())
    start = 0
    for at, character in _unescaped(glob):
        opens, divides, closes = at in closed, character == "," and len(levels) > 1, at in ends
        if not (opens or divides or closes):
            continue
        finished, current = levels[-1]
        current[:] = [text + glob[start:at] for text in current]
        start = at + 1
        if opens:
            levels.append(([], [""]))
            continue
        finished += current
        if divides:
            current[:] = [""]
        else:
            levels.pop()
            outer = levels[-1][1]
            if len(outer) * len(finished) > _MOST_ALTERNATIVES:
                raise re.error(f"its braces stand for more than {_MOST_ALTERNATIVES} alternatives")
            outer[:] = [text + alternative for text in outer for alternative in finished]
    return [text + glob[start:] for text in levels[0][1]]


def _unescaped(glob: str) -> Iterable[tuple[int, str]]:
    """Yield the characters that mean something in braces, each with its place: not those behind a backslash."""
    return ((found.start(), found[0]) for found in _BRACES.finditer(glob) if len(found[0]) == 1)


_BRACES = re.compile(r"\\.|\[[!^]?(?:\\.|[^\\])(?:\[:\w+:\]|\\.|[^\]\\])*\]|[{},]", re.DOTALL)
_TOKEN = re.compile(r"(?P<middle>/\*\*/)|(?P<start>\*\*/)|(?P<end>/\*\*$)|(?P<all>\*\*$)")
_SET = re.compile(r"\[([!^]?)((?:\[:\w+:\]|\\.|[^\\])(?:\[:\w+:\]|\\.|[^\]\\])*)\]", re.DOTALL)
_MEMBER = re.compile(r"\[:(\w+):\]|\\(.)|[\[\]^&~|]", re.DOTALL)
_CLASSES: Final = {
    "alnum": "A-Za-z0-9",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


def _translated(glob: str, *, open_sets: bool) -> str:
    """Return the regular expression that `glob`, without braces, stands for."""
    runs: list[str] = []
    """What stands before each double star, and at last what stands behind the last one."""
    stars: list[str] = [""]
    """The run in the making: what stands before each single star, and at last what stands behind the last one."""

    def run() -> str:
        first, *others = stars
        stars[:] = [""]
        fixed = [f"(?>[^/]*?{segment})" for segment in others[:-1]]
        return first + "".join(fixed) + (f"[^/]*{others[-1]}" if others else "")

    position = 0
    while position < len(glob):
        token = _TOKEN.match(glob, position)
        if token and (glob[position] == "/" or position == 0 or glob[position - 1] == "/"):
            position = token.end()
            if token.lastgroup == "all":
                return _joined([*runs, run()], ".*")
            if token.lastgroup in ("middle", "end"):
                stars[-1] += "/"
            if token.lastgroup == "end":
                return _joined([*runs, run()], ".*")
            runs.append(run())
            continue
        character = glob[position]
        position += 1
        if character == "*":
            while glob.startswith("*", position):
                position += 1
            stars.append("")
        elif character == "?":
            stars[-1] += "[^/]"
        elif character == "[" and (found := _SET.match(glob, position - 1)):
            stars[-1] += f"(?!/)[{'^' if found[1] else ''}{_MEMBER.sub(_member, found[2])}]"
            position = found.end()
        elif character == "[" and not open_sets:
            raise re.error("the set is not closed")
        elif character == "\\" and position < len(glob):
            stars[-1] += re.escape(glob[position])
            position += 1
        else:
            stars[-1] += re.escape(character)
    return _joined([*runs, run()], "")


def _joined(runs: list[str], end: str) -> str:
    """Return runs of components with any number of others between them, and then `end`.

    All but the first, which stands at the beginning, and the last, which stands at the end, stand where they first do.
    """
    first, *others = runs
    if not others:
        return first + end
    fixed = [f"(?>(?:.*?/)??{run})" for run in others[:-1]]
    last = f"(?:.*/)?{others[-1]}" if not end else f"(?>(?:.*?/)??{others[-1]})"
    return first + "".join(fixed) + last + end


def _member(found: re.Match[str]) -> str:
    """Return a part of a set as `re` writes it."""
    if found[1]:
        if found[1] not in _CLASSES:
            raise re.error(f"there is no class [:{found[1]}:]")
        return _CLASSES[found[1]]
    return re.escape(found[2] or found[0])
