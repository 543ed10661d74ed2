"""Regular expressions of a caller, matched against lines of output without ever holding up the event loop.

They are matched in a process of their own (line_search_process.py), which is handed the output piece by piece and
answers each piece before it gets the next: so neither a hostile expression nor a gigabyte of output costs the daemon
time or memory.
"""

import asyncio
import contextlib
import json
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Self

from shelld_py.errors import InvalidRequest, PatternTooSlow
from shelld_py.helpers import helper_command
from shelld_py.output.line_search_process import CPU_SECONDS


class LineMatcher:
    """The process that looks for lines. `start` it, and `aclose` it in any case."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, patterns: Sequence[str]) -> Self:
        """Start to look for lines that one of `patterns` matches anywhere (`re.search`).

        Raises `InvalidRequest` for one that is no regular expression, `PatternTooSlow` where they take too long
        to compile.
        """
        matcher = cls(await asyncio.create_subprocess_exec(*helper_command("lines"), stdin=PIPE, stdout=PIPE))
        try:
            refused = await matcher._ask(json.dumps(list(patterns)).encode() + b"\n")
            if isinstance(refused, list):
                index, message = refused
                raise InvalidRequest(f"{patterns[index]!r} is not a regular expression of Python's re: {message}.")
        except BaseException:
            await matcher.aclose()
            raise
        return matcher

    async def look(self, stream: str, data: bytes, *, gap: bool, at_end: bool, ended: bool) -> int | None:
        """Return the index of the pattern that the next bytes of `stream` match: see `LineSearch.look`.

        Raises `PatternTooSlow`.
        """
        piece = {"stream": stream, "size": len(data), "gap": gap, "at_end": at_end, "ended": ended}
        found = await self._ask(json.dumps(piece).encode() + b"\n" + data)
        return found if isinstance(found, int) else None

    async def aclose(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _ask(self, request: bytes) -> object:
        requests, answers = self._process.stdin, self._process.stdout
        assert requests
        assert answers
        with contextlib.suppress(ConnectionError):
            requests.write(request)
            await requests.drain()
        answer = await answers.readline()
        if answer:
            return json.loads(answer)
        if (status := await self._process.wait()) == -signal.SIGVTALRM:
            detail = (
                f"The regular expression took more than {CPU_SECONDS:g} s on one piece of output; use a simpler one."
            )
            raise PatternTooSlow(detail)
        raise RuntimeError(f"the process that matches lines has ended with status {status}")
