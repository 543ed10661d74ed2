"""Search in files and find them by name, below an allowed directory.

Synchronous functions on plain data, made to run in a process of their own: a regular expression can take for ever
and holds the interpreter's lock meanwhile, and only a process can be stopped. They know nothing of that process.

The answers do not depend on ripgrep. Files are listed here, on descriptors, by the rules of .gitignore, of the
request and of the read policy. ripgrep, where it is installed, only tells in which of them there is a match, so
that the others need not be read; the lines come from here, by Python's `re`, through the same containment as a read.
If ripgrep does not understand a pattern that `re` does, all files are read.
"""

import contextlib
import errno
import heapq
import os
import posixpath
import re
import resource
import signal
import stat
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from shelld_py.errors import FileNotFound, InvalidRequest, NotAFile, SearchTooSlow, ShelldError
from shelld_py.files.globs import Globs, IgnoreRules
from shelld_py.files.models import FindRequest, FindResult, FoundFile, Match, SearchRequest, SearchResult
from shelld_py.files.open_file import meaning
from shelld_py.files.paths import AllowedDirectories, beneath, best_directory_opener, displayable, readable
from shelld_py.files.policy import ReadPolicy
from shelld_py.files.storage import check_regular, ignore_text, open_regular, read_all, status_of
from shelld_py.files.text_file import Text
from shelld_py.linux.descriptors import Descriptor, DescriptorHolder
from shelld_py.linux.syscalls import die_with_parent
from shelld_py.models import utc_timestamp

_GIT = ".git"
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
"""What the kernel says of a path on which something is no longer what it was when it was listed."""
_ARGUMENTS = 2000
"""Files handed to one ripgrep. If their names exceed the kernel's limit (execve(2)), ripgrep is not used."""
_MOST_CHARACTERS = 4_000_000
"""Of all matches, with their lines of context: they are made an answer in the event loop."""
_MOST_MEMORY = 256 << 20
"""Bytes that a pattern may take for one file: `re` remembers each place that it could go back to."""
_MEMORY_OF_A_CHARACTER = 64
"""Bytes on top, for lines of one character."""
_LINE_WIDTH = 1000
"""Characters of a matching line that are shown."""
_OTHER_DIALECT = re.compile(r"\n|\\[<>]|\[\[|\[\^\[|&&|--|~~|\\u013[01]")
"""What Python's `re` and the regex crate of ripgrep both understand, but not alike."""
_OTHER_CHARACTERS = (
    r"[\x1c-\x1f\u{130}\u{131}\u{200c}\u{200d}\p{M}\p{Nl}\p{No}\p{Cn}]|[\p{Pc}--_]|[\p{Alphabetic}--\p{L}]|\r"
)
"""Characters, in ripgrep's dialect, of which the two think differently: whether they are part of a word or white
space, what they are in the other case, whether they end a line. Files that have any are read in any case: those with
CRLF too, for an end of a line that fits both engines, and all versions of ripgrep, there is not."""
_SYNTAX = re.compile(r"[][\\.+*?()|{}^$#&~-]")
"""What has to be escaped in a pattern to mean itself (regex::escape)."""


class SearchScope(Struct, frozen=True):
    """Where searches may go and what they may read: all that a process needs to know, and can be sent."""

    base: str
    allowed: tuple[str, ...]
    policy: ReadPolicy
    ripgrep: str | None
    """The program, by name or path; None when it is not to be used."""
    cpu_time: float = 0.0
    """Seconds that the pattern may take for one file, of this process; then the kernel ends it. 0: as it likes."""


def search(scope: SearchScope, request: SearchRequest) -> SearchResult:
    """Return the lines of files that match.

    Raises `InvalidRequest` for a bad pattern or glob, and what `locate` raises for the path.
    """
    with limited(scope, request.pattern):
        pattern = _compiled(request)
    include, exclude = Globs.from_texts(request.include), Globs.from_texts(request.exclude)
    with Tree(scope, request.path) as tree:
        files, skipped = [], 0
        for file in tree.files(exclude):
            if include and not include.match(file.path):
                continue
            if scope.policy.allows_name(posixpath.basename(file.path)) and scope.policy.fits(file.status.st_size):
                files.append(file.path)
            else:
                skipped += 1
        files.sort()
        matches: list[Match] = []
        truncated, left = False, _MOST_CHARACTERS
        for path in _candidates(scope, request, tree, files):
            try:
                body = tree.text(path)
            except (OSError, ShelldError):  # no text, or gone by now
                continue
            with limited(scope, body):
                for match in _matches(body, pattern, tree.full_path(path), request):
                    left -= len(match.path) + len(match.text) + sum(map(len, (*match.before, *match.after)))
                    if left < 0 or len(matches) == request.limit:
                        truncated = True
                        break
                    matches.append(match)
            if truncated:
                break
        return SearchResult(
            path=tree.path,
            matches=tuple(matches),
            truncated=truncated,
            files_searched=len(files),
            files_skipped=skipped,
        )


def find(scope: SearchScope, request: FindRequest) -> FindResult:
    """Return the files that match, newest first. Raises as `search`."""
    glob = Globs.from_texts((request.pattern,))
    with Tree(scope, request.path) as tree:
        found = [file for file in tree.files(Globs(())) if glob.match(file.path)]
        newest = heapq.nsmallest(request.limit, found, key=lambda file: (-file.status.st_mtime_ns, file.path))
        files = tuple(
            FoundFile(
                path=displayable(tree.full_path(file.path)),
                size=file.status.st_size,
                modified_at=utc_timestamp(file.status.st_mtime),
            )
            for file in newest
        )
        return FindResult(path=tree.path, files=files, truncated=len(found) > len(files), total=len(found))


class TreeEntry(Struct, frozen=True):
    """A name in a tree."""

    path: str
    """Relative to the tree."""
    status: os.stat_result


class Tree(DescriptorHolder):
    """What is below a directory, or a single file. Symbolic links are not entered."""

    def __init__(self, scope: SearchScope, path: str) -> None:
        """Open it; `close` it in any case. Raises what `locate` raises."""
        self._opener = best_directory_opener()
        self._directories = AllowedDirectories(scope.base, scope.allowed, self._opener)
        self._only: str | None = None
        try:
            try:
                self.descriptor, self.path = self._directories.open_directory(path)
            except (NotADirectoryError, FileNotFound):
                self._open_file(path)
        except OSError as error:
            raise meaning(error, path) from None

    def files(self, exclude: Globs) -> Iterator[TreeEntry]:
        """Yield the regular files that a search looks at: not what is ignored, nor what cannot be read."""
        for entry in self.entries(exclude, ignored=False, git=False, strict=False):
            if stat.S_ISREG(entry.status.st_mode):
                yield entry

    def entries(self, exclude: Globs, *, ignored: bool, git: bool = True, strict: bool = True) -> Iterator[TreeEntry]:
        """Yield all that is there but what `exclude` matches, parents before what they hold, names sorted.

        `ignored` and `git` say whether what .gitignore files name, and what `.git` holds, is among it. What vanishes
        meanwhile is left out; where `strict` is false so is what may not be read, else it raises `OSError`.
        """
        if self._only is not None:
            yield TreeEntry(self._only, os.stat(self._only, dir_fd=self.descriptor, follow_symlinks=False))
            return
        rules: IgnoreRules | None = None
        prefix = ""
        if not ignored:
            top, rules = self._inherited_rules()
            prefix = posixpath.relpath(self.path, top) + "/" if self.path != top else ""
        pending = self._below("", prefix, rules, strict=strict)
        while pending:
            entry, rules = pending.pop()
            is_directory = stat.S_ISDIR(entry.status.st_mode)
            if (rules and rules.ignore(prefix + entry.path, directory=is_directory)) or exclude.match(entry.path):
                continue
            yield entry
            if is_directory and (git or posixpath.basename(entry.path) != _GIT):
                pending += self._below(entry.path, prefix, rules, strict=strict)

    def _below(
        self, path: str, prefix: str, rules: IgnoreRules | None, *, strict: bool
    ) -> list[tuple[TreeEntry, IgnoreRules | None]]:
        """Return what is in the directory `path`, the last name first, each with the rules that hold there."""
        try:
            directory = self._opener(self.descriptor, path.split("/") if path else [])
        except OSError as error:
            if strict and error.errno not in _GONE:
                raise
            return []
        with directory:
            if rules is not None:
                rules = rules.extended((prefix + path).rstrip("/"), ignore_text(directory))
            listed = _listed(directory, strict=strict)
        listed.sort(reverse=True)
        above = f"{path}/" if path else ""
        return [(TreeEntry(above + name, status), rules) for name, status in listed]

    def open(self, path: str) -> Descriptor | None:
        """Open the regular file `path`, a path that `entries` gave; None where there is none any more."""
        try:
            return self._opened(path)
        except NotAFile:
            return None
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def link(self, path: str) -> str | None:
        """Return what the symbolic link `path` says; None where there is none any more."""
        *parents, name = path.split("/")
        try:
            with self._opener(self.descriptor, parents) as directory:
                return os.readlink(name, dir_fd=directory)
        except OSError as error:
            if error.errno in (*_GONE, errno.EINVAL):
                return None
            raise

    def text(self, path: str) -> str:
        """Return the body of the file `path`, a path that `files` gave."""
        with self._opened(path) as descriptor:
            return Text.from_bytes(read_all(descriptor, os.fstat(descriptor).st_size), path).body

    def _opened(self, path: str) -> Descriptor:
        *parents, name = path.split("/")
        with self._opener(self.descriptor, parents) as directory:
            return open_regular(directory, name, path)

    def full_path(self, path: str) -> str:
        """Return the real absolute path of `path`."""
        return posixpath.join(self.path, path)

    def _open_file(self, path: str) -> None:
        location = self._directories.locate(path)
        with location:
            status = status_of(location.directory, location.name)
            if status is None:
                raise self._directories.missing(location)
            check_regular(status, location.path)
            self._only, self.path = location.name, posixpath.dirname(location.path)
            self.descriptor = os.dup(location.directory)

    def _inherited_rules(self) -> tuple[str, IgnoreRules]:
        """Return the allowed directory above this one, and the rules from there down to it, itself apart."""
        top = max((root for root in self._directories.roots if beneath(self.path, root)), key=len)
        rules = IgnoreRules()
        parts = [part for part in posixpath.relpath(self.path, top).split("/") if part != "."]
        for depth in range(len(parts)):
            relative = "/".join(parts[:depth])
            descriptor, _ = self._directories.open_directory(posixpath.join(top, relative))
            with descriptor:
                rules = rules.extended(relative, ignore_text(descriptor))
        return top, rules


def _listed(directory: int, *, strict: bool) -> list[tuple[str, os.stat_result]]:
    """Return the names in `directory` with their status; what has just gone is left out.

    Where the directory cannot be read, this raises `OSError` if `strict`, else it has no names.
    """
    listed = []
    try:
        descriptor = readable(directory)
    except OSError:
        if strict:
            raise
        return []
    with descriptor, os.scandir(descriptor) as entries:
        for entry in entries:
            try:
                listed.append((entry.name, entry.stat(follow_symlinks=False)))
            except OSError:
                continue
    return listed


@contextlib.contextmanager
def limited(scope: SearchScope, text: str) -> Iterator[None]:
    """Bound what a pattern takes: time, of which the kernel ends this process, and memory.

    The timer is SIGVTALRM, whose default action needs no help. Raises `SearchTooSlow` for want of memory.
    """
    if not scope.cpu_time:
        yield
        return
    used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = used + _MOST_MEMORY + _MEMORY_OF_A_CHARACTER * len(text)
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, scope.cpu_time)
    try:
        yield
    except MemoryError:
        raise SearchTooSlow("The pattern took too much memory for one file; try a simpler one.") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _compiled(request: SearchRequest) -> re.Pattern[str]:
    text = re.escape(request.pattern) if request.literal else request.pattern
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(text, 0 if request.case_sensitive else re.IGNORECASE)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        detail = f"pattern is not a regular expression: {error}. Set literal to search for the text as it is."
        raise InvalidRequest(detail) from None


def _candidates(scope: SearchScope, request: SearchRequest, tree: Tree, files: Sequence[str]) -> Iterator[str]:
    """Yield those of `files`, in order, in which ripgrep finds a match; all of them where it cannot tell."""
    options = ["--no-config", "--files-with-matches", "--null", "--text", "--no-messages"]
    options.append("--case-sensitive" if request.case_sensitive else "--ignore-case")
    pattern = _SYNTAX.sub(r"\\\g<0>", request.pattern) if request.literal else request.pattern
    options += ["--regexp", pattern, "--regexp", _OTHER_CHARACTERS]
    program = scope.ripgrep
    if "\u0130" in pattern or "\u0131" in pattern or (not request.literal and _OTHER_DIALECT.search(pattern)):
        program = None
    for start in range(0, len(files), _ARGUMENTS):
        part = files[start : start + _ARGUMENTS]
        found = None
        if program is not None:
            found = _found_by_ripgrep([program, *options, "--", *part], tree.descriptor)
        if found is None:
            program = None
            yield from part
        else:
            yield from (path for path in part if path in found)


def _found_by_ripgrep(command: Sequence[str], directory: int) -> frozenset[str] | None:
    """Return the files that `command` lists, None when it fails or is not installed.

    It starts in `directory` itself, for a path can be swapped. It does not outlive this process, for a fifo in the
    place of a file would let it wait for ever.
    """

    def in_child() -> None:
        die_with_parent()
        os.fchdir(directory)

    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            preexec_fn=in_child,
        )
    except (OSError, ValueError):  # not installed, too many names; NUL in the pattern
        return None
    if done.returncode not in (0, 1):
        return None
    return frozenset(os.fsdecode(name) for name in done.stdout.split(b"\0"))


def _matches(body: str, pattern: re.Pattern[str], path: str, request: SearchRequest) -> Iterator[Match]:
    """Yield the matching lines of a file."""
    lines = body.removesuffix("\n").split("\n") if body else []
    for index, line in enumerate(lines):
        text = line.removesuffix("\r")
        found = pattern.search(text)
        if not found:
            continue
        yield Match(
            path=displayable(path),
            line=index + 1,
            column=found.start() + 1,
            text=_around(text, found.start()),
            before=_context(lines[max(0, index - request.context) : index]),
            after=_context(lines[index + 1 : index + 1 + request.context]),
        )


def _context(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(_around(line.removesuffix("\r"), 0) for line in lines)


def _around(line: str, position: int) -> str:
    """Return `line`, or the part of a long one around `position`."""
    if len(line) <= _LINE_WIDTH:
        return line
    start = max(0, min(position - _LINE_WIDTH // 4, len(line) - _LINE_WIDTH))
    end = start + _LINE_WIDTH
    return ("..." if start else "") + line[start:end] + ("..." if end < len(line) else "")
