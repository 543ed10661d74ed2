"""Looks for lines that match, in a process of its own: the inner side of line_search.py.

A regular expression of a caller can take for ever, and holds the interpreter's lock meanwhile. Here it can: the
kernel ends this process when one piece of output takes more than `CPU_SECONDS` seconds of CPU time (SIGVTALRM of
setitimer(2), whose default action needs no help of the interpreter).

Imported by a bare interpreter: only what it needs, so that it starts quickly and stays small.

The protocol, on standard input and output
    in    the patterns, as a line with a JSON array
    out   a line: null, or what is wrong with which pattern, `[index, message]`
    in    a line with a JSON object, `stream`, `size`, `gap`, `at_end`, `ended`; then `size` bytes of that stream
    out   a line: null, or the index of the pattern that was found first; and so on
"""

import json
import re
import signal
import sys
from collections.abc import Sequence
from typing import BinaryIO, Final

from shelld_py.output.text import TextRenderer

CPU_SECONDS: Final = 1.0
"""For one piece of output (64 KiB): some thousand times what an ordinary expression takes for it."""

_Pattern = re.Pattern[str]


class LineSearch:
    """Looks for the first line that one of several patterns matches, in streams of bytes that come in pieces."""

    def __init__(self, patterns: Sequence[_Pattern]) -> None:
        self._patterns = patterns
        self._renderers: dict[str, TextRenderer] = {}

    def look(self, stream: str, data: bytes, *, gap: bool, at_end: bool, ended: bool) -> int | None:
        """Return the index of the pattern that the next bytes of `stream` match, or None.

        `gap`: bytes are missing before these. `at_end`: these are the last so far, so that an unfinished line
        counts as it looks now. `ended`: nothing more will come.
        """
        renderer = self._renderers.setdefault(stream, TextRenderer())
        before = renderer.finish() + "\n" if gap and renderer.pending else ""
        text = before + renderer.feed(data)
        if ended:
            text += renderer.finish()
        elif at_end:
            text += renderer.unfinished()[0]
        return self._first(text) if text else None

    def _first(self, text: str) -> int | None:
        for line in text.removesuffix("\n").split("\n"):
            for index, pattern in enumerate(self._patterns):
                if pattern.search(line):
                    return index
        return None


def compiled(texts: Sequence[str]) -> list[_Pattern] | tuple[int, str]:
    """Return `texts` as patterns; or the index of the first that is none, and why."""
    patterns = []
    for index, text in enumerate(texts):
        try:
            patterns.append(re.compile(text))
        except (re.error, OverflowError, RecursionError) as error:
            return index, str(error)
    return patterns


def serve() -> None:
    """Answer what comes on standard input until its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer_all(sys.stdin.buffer, sys.stdout.buffer)


def answer_all(requests: BinaryIO, answers: BinaryIO) -> None:
    """Speak the protocol."""
    first = requests.readline()
    if not first:  # who started this process has changed its mind
        return
    _limit_time()
    patterns = compiled(json.loads(first))
    if isinstance(patterns, tuple):
        _answer(answers, patterns)
        return
    _answer(answers, None)
    search = LineSearch(patterns)
    while line := requests.readline():
        piece = json.loads(line)
        data = requests.read(piece.pop("size"))
        _limit_time()
        _answer(answers, search.look(data=data, **piece))


def _limit_time() -> None:
    """Have this process ended when what follows takes too long."""
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)


def _answer(answers: BinaryIO, value: object) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    answers.write(json.dumps(value).encode() + b"\n")
    answers.flush()
