"""Work that blocks, off the event loop: in a thread, alone on a file, or in a process of its own.

What a thread works on, descriptors and locks, must not be closed or released under it: the number of a closed
descriptor is soon that of another file. So a cancellation takes effect when the work is done. What can last for hours
(a hash of terabytes of holes) looks now and then whether it was cancelled: before it has changed anything, or when all
is done but the answer.

A thread cannot be stopped, and Python's `re` holds the interpreter's lock for as long as it takes. So what the pattern
of a stranger can hold up is done in a process, which can be killed: the call is pickled, a fresh interpreter does it,
and what it returns or raises is pickled back. A fork would copy the locks of this process in whatever state they are,
and the pools of the standard library import the caller's main module again. A `HelperProcess` is one that is asked more
than once. Knows nothing of what the work is.
"""

import asyncio
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from typing import Self, TypeVar, cast

import msgspec

from shelld_py.errors import Overloaded
from shelld_py.helpers import helper_command
from shelld_py.linux.syscalls import die_with_parent
from shelld_py.linux.threads import ThreadPool
from shelld_py.linux.users import User

T = TypeVar("T")

_MOST_THREADS = 40
"""A file system that does not answer holds up one for each operation, and with all of them all other operations."""


_thread = threading.local()


class Stopped(Exception):
    """The work of this thread was cancelled before it had changed anything, or when only the answer was left."""


def check_stopped() -> None:
    """Raise `Stopped` where the work that this thread does was cancelled."""
    cancelled: threading.Event | None = getattr(_thread, "cancelled", None)
    if cancelled and cancelled.is_set():
        raise Stopped


class Threads:
    """The threads in which files are worked on. They end when this is no more."""

    def __init__(self, user: User | None = None) -> None:
        """Start none yet. With `user` they use files as they would; where that cannot be, no work is done."""
        self._pool = ThreadPool(_MOST_THREADS, "files", user.use_files if user else None)

    async def run(self, work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
        """Return what `work` returns, or raise what it raises.

        A cancellation waits for its end; `stop` is called before, for work that can be told to end early.
        """
        cancelled = threading.Event()

        def stoppable() -> T:
            _thread.cancelled = cancelled
            try:
                return work()
            finally:
                _thread.cancelled = None

        thread = asyncio.get_running_loop().run_in_executor(self._pool, stoppable)
        cancellation: asyncio.CancelledError | None = None
        while not thread.done():
            try:
                await asyncio.wait([thread])
            except asyncio.CancelledError as error:
                cancellation = error
                cancelled.set()
                stop()
        if cancellation is not None:
            thread.exception()
            raise cancellation
        return thread.result()


class HelperProcess:
    """A helper that answers each line of JSON with another, seen from the daemon. `start` it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._killed = False
        self.asked = 0
        """How often it was asked."""

    @classmethod
    async def start(cls, name: str, *, longest_answer: int) -> Self:
        """Start the helper of this name; its answers have so many bytes at the most. Raises `OSError`."""
        return cls(
            await asyncio.create_subprocess_exec(*helper_command(name), stdin=PIPE, stdout=PIPE, limit=longest_answer)
        )

    @property
    def running(self) -> bool:
        """Whether it has not ended yet; it may have been killed."""
        return self._process.returncode is None

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.running and not self._killed

    async def ask(self, order: object) -> object:
        """Return its answer. Raises `OSError` or `ValueError` where it gives none."""
        assert self._process.stdin
        assert self._process.stdout
        self.asked += 1
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()
        # A ValueError for an answer that is cut off, too: it has died.
        return msgspec.json.decode(await self._process.stdout.readline())

    def kill(self) -> None:
        """End it. It is not waited for: a file system that does not answer holds up its end as well."""
        self._killed = True
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def ended(self) -> None:
        """Return when it has ended."""
        await self._process.wait()


class NamedLocks:
    """A lock for each name that is in use at the moment, first come, first served; of one event loop."""

    def __init__(self) -> None:
        """Start without any."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def hold(self, *names: str) -> AsyncIterator[None]:
        """Hold the locks of all `names`, taken in sorted order, so that two holders never wait for each other."""
        async with contextlib.AsyncExitStack() as stack:
            for name in sorted(set(names)):
                await stack.enter_async_context(self._hold_one(name))
            yield

    @contextlib.asynccontextmanager
    async def _hold_one(self, name: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._locks[name], self._users[name]


async def call_in_process(work: Callable[[], T], user: User | None = None) -> T:
    """Return what `work` returns, or raise what it raises; all three must be picklable. With `user` it is done as them.

    Raises `Overloaded` where no process can be started, `subprocess.CalledProcessError` where a signal has ended the
    process: its status is the negative number. It starts in some 100 ms, and is killed when the caller is cancelled,
    or dies.
    """
    try:
        process = await asyncio.create_subprocess_exec(*helper_command("call"), stdin=PIPE, stdout=PIPE)
    except BlockingIOError:  # EAGAIN: there are as many as there may be (fork(2))
        raise Overloaded("No process can be started just now: try again later.") from None
    try:
        answer, _ = await process.communicate(pickle.dumps((os.getpid(), user, work)))
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, "the process that does the work")
    result, error = pickle.loads(answer)
    if error is not None:
        raise error
    return cast("T", result)


def serve() -> None:
    """Do the call that is on standard input, and write its outcome to standard output: the process's side."""
    die_with_parent()
    caller, user, work = pickle.load(sys.stdin.buffer)
    if user:  # not before: what is imported may be where they cannot read it
        user.become()
    if os.getppid() != caller:  # it died while we started, before it could take us with it
        return
    outcome: tuple[object, Exception | None]
    try:
        outcome = (work(), None)
    except Exception as error:
        outcome = (None, error)
    sys.stdout.buffer.write(pickle.dumps(outcome))
