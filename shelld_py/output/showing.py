"""A run's result with its output filled in: what an answer shows of a run, whoever asks.

Knows results and logs; nothing of HTTP, tools, or who waits.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from shelld_py.config import OutputSettings
from shelld_py.models import OutputFormat, RunResult, Stream
from shelld_py.output.excerpt import Cut, Excerpt, excerpt
from shelld_py.output.log import OutputLog
from shelld_py.output.text import INLINE

LARGE: Final = 1024 * 1024
"""Bytes beyond which all of an output is sent piece by piece."""

LogOf = Callable[[Stream], OutputLog | None]
WhereToRead = Callable[[str, Stream], str]


@dataclass(frozen=True, slots=True)
class OutputChoice:
    """How the output is wanted: its form, and how much of it."""

    form: OutputFormat
    cut: Cut

    @classmethod
    def of(cls, form: OutputFormat, maximum: int | None, settings: OutputSettings) -> "OutputChoice":
        """Return the choice for somebody who asks for `maximum` characters, or for none in particular."""
        begin, end = settings.begin_size, settings.end_size
        limit = settings.max_size if maximum is None else maximum
        if maximum is None and begin + end <= limit:
            return cls(form, Cut(limit, begin, end))
        return cls(form, Cut.scaled(limit, begin, end))


async def with_output(result: RunResult, log_of: LogOf, choice: OutputChoice, where: WhereToRead) -> RunResult:
    """Return `result` with the part of its output that is wanted, and the true sizes.

    `where` says how all of a stream can be read, by run id: the mark in a cut output tells it.
    """
    sizes = {Stream.STDOUT: result.original_stdout_size, Stream.STDERR: result.original_stderr_size}
    logs = {stream: log for stream in sizes if (log := log_of(stream))}
    ends = {stream: log.size for stream, log in logs.items()}
    shown = dict.fromkeys(sizes, Excerpt("", False, 0))
    for stream, log in logs.items():
        shown[stream] = await _excerpt(log, sizes[stream], ends[stream], choice, where(result.run_id, stream))
    return msgspec.structs.replace(
        result,
        stdout=shown[Stream.STDOUT].text,
        stderr=shown[Stream.STDERR].text,
        truncated=any(part.truncated for part in shown.values()),
        original_stdout_size=shown[Stream.STDOUT].size,
        original_stderr_size=shown[Stream.STDERR].size,
    )


async def _excerpt(log: OutputLog, size: int, end: int, choice: OutputChoice, where: str) -> Excerpt:
    mark = f"... [{{}} characters omitted; the full output: {where}] ..."
    if end > INLINE:
        return await asyncio.to_thread(excerpt, log, size, choice.form, choice.cut, mark, end)
    return excerpt(log, size, choice.form, choice.cut, mark, end)
