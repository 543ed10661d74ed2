"""A function call in a process of its own, for work that may have to be stopped.

A thread cannot be stopped, and Python's `re` holds the interpreter's lock for as long as it takes. So the call is
pickled, a fresh interpreter does it, and what it returns or raises is pickled back. A fork would copy the locks of
this process in whatever state they are, and the pools of the standard library import the caller's main module again.
Knows nothing of what is called.
"""

import pickle
import sys
from collections.abc import Callable
from typing import TypeVar, cast

import anyio

from shelld_py.linux.syscalls import die_with_parent

T = TypeVar("T")

_PROGRAM = (
    "import pickle, sys; "
    "sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from shelld_py.files.isolation import answer_call; "
    "answer_call()"
)


async def call_in_process(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises; all three must be picklable.

    The process starts in some 100 ms, and is killed when the caller is cancelled, or dies.
    """
    call = pickle.dumps(sys.path) + pickle.dumps(work)
    done = await anyio.run_process([sys.executable, "-I", "-c", _PROGRAM], input=call, stderr=None)
    result, error = pickle.loads(done.stdout)
    if error is not None:
        raise error
    return cast("T", result)


def answer_call() -> None:
    """Do the call that is on standard input, and write its outcome to standard output: the process's side."""
    die_with_parent()
    work = pickle.load(sys.stdin.buffer)
    outcome: tuple[object, Exception | None]
    try:
        outcome = (work(), None)
    except Exception as error:
        outcome = (None, error)
    sys.stdout.buffer.write(pickle.dumps(outcome))
