"""What has happened to the files below some directories between two looks: before a command, and after it.

The looks are taken by a process of their own (`Looks`, this program again). A thread would hold the interpreter for
milliseconds at a time, a hundred thousand files take memory that is to be given back, and a process can be stopped
where a file system does not answer. It is kept for a while, since starting it takes longer than most looks.

What a look sees of a file is its times of change, its inode and its size; no content is read. Directories are not told
of, symbolic links are files that are not followed, and what cannot be read or vanishes meanwhile is passed over.

What is below the line runs in that process: it has no event loop, and knows no run.
"""

import asyncio
import contextlib
import errno
import json
import os
import stat
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from shelld_py.files.blocking import HelperProcess
from shelld_py.files.globs import IgnoreRules
from shelld_py.files.paths import DirectoryOpener, beneath, best_directory_opener, displayable, readable
from shelld_py.files.storage import ignore_text
from shelld_py.linux.descriptors import Descriptor
from shelld_py.linux.syscalls import die_with_parent
from shelld_py.linux.users import User
from shelld_py.models import ChangeKind, FileChanges

_LONGEST_LOOK: Final = 20.0
"""Seconds: so much is a command held up at the most. 200,000 files take a tenth of it, on a busy machine more."""
_HURRIED: Final = 1.0
"""Seconds that a second look has where the shell is to end."""
_KILL_TIMEOUT: Final = 1.0
"""Seconds in which a process that is killed has ended, but where a file system holds it up."""
_KEPT_FOR: Final = 60.0
"""Seconds that an idle process is kept for the next run."""
_MOST_AT_ONCE: Final = 8
"""Runs that are looked after at the same time: each holds what was seen before it, some 40 MB for the most files."""
_MOST_FILES: Final = 200_000
_MOST_CHANGES: Final = 1_000
_MOST_BYTES: Final = 256 * 1024
"""Of the paths of all changes together: so much is encoded within a millisecond."""
_LONGEST_ANSWER: Final = 4 * 1024 * 1024
_GIT: Final = ".git"
_KERNEL: Final = ("/proc", "/sys", "/dev")
"""Where there are no files, and no end of them."""
_CLOCK_TICK: Final = 0.02
"""Seconds: twice the longest tick of the clock that files are dated by (jiffies of 100 Hz)."""
_SEEN: Final = struct.Struct("=QQQq")
"""What is remembered of a file: mtime, ctime (nanoseconds, the lower 64 bits), inode, size."""
_LOWER: Final = (1 << 64) - 1
"""Times are cut to it: tmpfs knows years by the billion."""


class _Failed(Exception):
    """There is no look, and why: a sentence."""


class Looks:
    """Takes looks at the files below `directories`, but for what lies in `private`, the daemon's own."""

    def __init__(
        self,
        directories: Sequence[str],
        private: Sequence[str],
        *,
        most_files: int = _MOST_FILES,
        longest: float = _LONGEST_LOOK,
        user: User | None = None,
    ) -> None:
        """Start nothing yet. One look sees at most `most_files`, and takes at most `longest` seconds.

        With `user` it sees what they can.
        """
        self._user = user
        self.longest = longest
        self._most_files = most_files
        self._directories = directories
        self._private = private
        self._idle: HelperProcess | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._busy = 0
        self._helpers: set[HelperProcess] = set()
        """Those that may not have ended."""

    async def compare(self, *, everything: bool) -> "Comparison":
        """Look, and return what will look again; with `everything` at `.git` and at ignored files, too.

        It never fails: why there was no look, its result says.
        """
        comparison = Comparison(self, everything=everything)
        await comparison.begin()
        return comparison

    def let_go(self) -> None:
        """End the process that is kept."""
        if self._expiry:
            self._expiry.cancel()
        if self._idle:
            self._idle.kill()
        self._idle = self._expiry = None

    async def aclose(self) -> None:
        """End all processes, and wait for their end, but not for ever: they may hang in a file system."""
        self.let_go()
        for helper in self._helpers:
            helper.kill()
        if self._helpers:
            ends = [asyncio.ensure_future(helper.ended()) for helper in self._helpers]
            _, pending = await asyncio.wait(ends, timeout=_KILL_TIMEOUT)
            for end in pending:
                end.cancel()

    async def take(self) -> HelperProcess:
        """Return a process that is free. Raises `_Failed`."""
        if self._busy >= _MOST_AT_ONCE:
            raise _Failed(f"The files of {_MOST_AT_ONCE} other runs are being looked after.")
        self._busy += 1
        self._helpers = {helper for helper in self._helpers if helper.running}
        helper, self._idle = self._idle, None
        if helper and helper.alive:
            return helper
        try:
            helper = await HelperProcess.start("changes", longest_answer=_LONGEST_ANSWER)
        except BaseException as error:
            self._busy -= 1
            if isinstance(error, OSError):
                raise _Failed(f"The process that looks at files cannot be started: {error.strerror}.") from None
            raise
        self._helpers.add(helper)
        return helper

    def give_back(self, helper: HelperProcess) -> None:
        """Keep a process for the next run, if it can begin anew, having looked twice, and none is kept."""
        self._busy -= 1
        if self._idle or not helper.alive or helper.asked % 2:
            helper.kill()
            return
        self._idle = helper
        if self._expiry:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(_KEPT_FOR, self.let_go)

    def order(self, *, everything: bool) -> dict[str, object]:
        """Return what a process is told of where to look."""
        return {
            "directories": self._directories,
            "private": self._private,
            "most": self._most_files,
            "everything": everything,
            "user": self._user and msgspec.structs.asdict(self._user),
        }


class Comparison:
    """Two looks at the files, for one run. `begin`, and `end` or `close` it."""

    def __init__(self, looks: Looks, *, everything: bool) -> None:
        self._looks = looks
        self._everything = everything
        self._helper: HelperProcess | None = None
        self._result = FileChanges(changes=None)
        self._ending: asyncio.Task[None] | None = None
        self._hurried = False

    async def begin(self) -> None:
        """Take the first look."""
        await self._look("before")

    def end(self) -> None:
        """Begin with the second look: the run is over."""
        self._ending = asyncio.get_running_loop().create_task(self._end())
        if self._hurried:
            self.hurry()

    async def changes(self) -> FileChanges:
        """Return what has happened between the looks, when the second one is done."""
        if self._ending:
            await asyncio.wait([self._ending])
        return self._result

    def hurry(self) -> None:
        """Have the second look done in a second, or not at all."""
        self._hurried = True
        if self._ending:
            asyncio.get_running_loop().call_later(_HURRIED, self._give_up)

    def _give_up(self) -> None:
        if self._helper:  # else it has looked, and may look for another run by now
            self._helper.kill()

    def close(self) -> None:
        """The run has never begun: nothing is to be looked at."""
        if self._helper:
            self._helper.kill()
        self._let_go()

    def _let_go(self) -> None:
        helper, self._helper = self._helper, None
        if helper:
            self._looks.give_back(helper)

    async def _end(self) -> None:
        if self._helper:
            answer = await self._look("after")
            self._let_go()
            if answer is not None:
                self._result = msgspec.convert(answer, FileChanges)

    async def _look(self, when: str) -> object:
        """Have the process look, and return its answer; None where it gives none, and the result says why."""
        try:
            self._helper = self._helper or await self._looks.take()
            return await self._answer(self._helper, when)
        except _Failed as failure:
            self._result = FileChanges(changes=None, error=str(failure))
            self.close()
            return None
        except BaseException:
            self.close()
            raise

    async def _answer(self, helper: HelperProcess, when: str) -> object:
        """Return the answer of the process. Raises `_Failed`."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._looks.longest):
                answer = await helper.ask(self._looks.order(everything=self._everything))
        except TimeoutError:
            raise _Failed(f"The look {when} the command took longer than {self._looks.longest:g} s.") from None
        except (OSError, ValueError):
            if self._hurried:
                seconds = f"{time.monotonic() - began:.1f} s"
                raise _Failed(
                    f"The shell was ended, and the look {when} the command given up after {seconds}."
                ) from None
            raise _Failed(
                f"The process that looks at files has ended before the look {when} the command did."
            ) from None
        if isinstance(answer, dict) and (error := answer.get("error")):
            raise _Failed(str(error))
        return answer


# --- in the process that looks ----------------------------------------------------------------------------------------


def serve() -> None:
    """Answer orders on standard input in turn: look, and look again and tell what has changed."""
    daemon = os.getppid()
    die_with_parent()
    if os.getppid() != daemon:
        return
    before: _Look | None = None
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if order["user"] and not os.geteuid():  # not before all is imported: it may be where they cannot read it
            User(**order["user"]).become()
        answer: object = {}
        private = frozenset((*order["private"], *_KERNEL))
        look = _Look(order["directories"], private, most=order["most"], everything=order["everything"])
        try:
            look.take()
            if before:
                answer = before.changes(look)
            else:
                look.wait_for_clock()
        except _Failed as failure:
            answer = {"error": str(failure)}
        before = None if before else look
        del look  # what was seen is not kept for longer than it is needed
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


_Names = dict[str, bytes]
"""What was seen of the files of a directory, packed."""


class _Look:
    """What is seen at one moment: for each directory, its files."""

    def __init__(self, roots: Sequence[str], private: frozenset[str], *, most: int, everything: bool) -> None:
        self.seen: dict[str, _Names] = {}
        self._opener: DirectoryOpener = best_directory_opener()
        self._roots = [root for root in roots if not any(beneath(root, other) for other in roots if other != root)]
        self._private = private
        self._everything = everything
        self._most = self._left = most
        self._newest = 0

    def take(self) -> None:
        """Look. Raises `_Failed` where there are too many files."""
        for root in self._roots:
            with contextlib.suppress(OSError), _opened_root(root) as top:  # it is not there, or may not be entered
                self._walk(root, top)

    def wait_for_clock(self) -> None:
        """Return when what is written from now on has another time than all that was seen.

        Files are dated by a clock that stands still for milliseconds, in which a second change of the same size would
        not show.
        """
        while 0 <= time.time_ns() - self._newest < _CLOCK_TICK * 1e9:
            time.sleep(_CLOCK_TICK / 10)

    def changes(self, now: "_Look") -> dict[str, object]:
        """Return what has happened since, in the order of the paths."""
        found: list[tuple[str, ChangeKind, int]] = []
        for directory, names in now.seen.items():
            known = self.seen.get(directory, {})
            for name, seen in names.items():
                before = known.pop(name, None)
                if before != seen:
                    kind = ChangeKind.MODIFIED if before else ChangeKind.CREATED
                    found.append((f"{directory}/{name}", kind, _SEEN.unpack(seen)[3]))
        for directory, names in self.seen.items():
            for name in self._gone(directory, names) if names else ():
                found.append((f"{directory}/{name}", ChangeKind.DELETED, _SEEN.unpack(names[name])[3]))
        found.sort()
        told: list[dict[str, object]] = []
        left = _MOST_BYTES
        for path, kind, size in found[:_MOST_CHANGES]:
            shown = displayable(path)
            left -= len(shown.encode())
            if left < 0:
                break
            told.append({"path": shown, "kind": kind, "size": size})
        return {"changes": told, "truncated": len(told) < len(found)}

    def _gone(self, directory: str, names: _Names) -> Iterator[str]:
        """Yield those of `names` that are not there any more. Others are ignored now, or cannot be seen."""
        root = max((root for root in self._roots if beneath(directory, root)), key=len)
        try:
            with _opened_root(root) as top:
                below = directory[len(root.rstrip("/")) :].split("/")
                opened = self._opener(top, [name for name in below if name])
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # a link has come in its place
                yield from names
            return
        with opened:
            for name in names:
                try:
                    if stat.S_ISDIR(os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode):
                        yield name
                except FileNotFoundError:
                    yield name
                except OSError:
                    continue

    def _walk(self, root: str, top: int) -> None:
        pending = [("", IgnoreRules())]
        while pending:
            path, rules = pending.pop()
            directory = f"{root.rstrip('/')}/{path}".rstrip("/")
            with contextlib.suppress(OSError):  # gone, swapped for a link, or not to be read
                with self._opener(top, path.split("/") if path else []) as opened:
                    listing = readable(opened)
                with listing:
                    pending += self._list(directory, path, listing, rules)

    def _list(
        self, directory: str, path: str, descriptor: int, rules: IgnoreRules
    ) -> Iterator[tuple[str, IgnoreRules]]:
        """Take what is in a directory; yield the directories in it, each with the rules that hold there."""
        if not self._everything:
            rules = rules.extended(path, ignore_text(descriptor))
        above = f"{path}/" if path else ""
        names: _Names = {}
        self.seen[directory] = names
        with os.scandir(descriptor) as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    raise _Failed(f"There are more than {self._most:,} files and directories to look at.")
                name = entry.name
                is_directory = entry.is_dir(follow_symlinks=False)
                if not self._everything and (name == _GIT or rules.ignore(above + name, directory=is_directory)):
                    continue
                if is_directory:
                    if f"{directory}/{name}" not in self._private:
                        yield above + name, rules
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                self._newest = max(self._newest, status.st_ctime_ns)
                times = status.st_mtime_ns & _LOWER, status.st_ctime_ns & _LOWER
                names[name] = _SEEN.pack(*times, status.st_ino, status.st_size)


def _opened_root(root: str) -> Descriptor:
    return Descriptor(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
