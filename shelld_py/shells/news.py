"""Reading the output of a run that may still be going on: from a cursor on, and waiting for what is to come."""

import asyncio
from typing import Final

from shelld_py.models import OutputFormat
from shelld_py.output.log import OutputLog
from shelld_py.output.reading import Reading, Unfinished, read_output
from shelld_py.output.text import INLINE
from shelld_py.shells.run import Run

DEFAULT_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of a log that a read by cursor gives unless it asks for less or more."""


async def read_run(
    run: Run | None,
    log: OutputLog,
    cursor: int | None,
    *,
    limit: int = DEFAULT_LIMIT,
    form: OutputFormat = OutputFormat.TEXT,
    wait: float = 0.0,
    for_input: bool = False,
) -> Reading:
    """Read about `limit` bytes of `log`; where nothing new is there, wait up to `wait` seconds for output or the end.

    Without a cursor the read gives the unfinished line as it looks now, too. `run` is None where only the files of
    one are left. With `for_input` there is no waiting for a command that waits for input.
    """
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        running = run is not None and run.running
        if not running:
            unfinished = Unfinished.END
        elif cursor is None:
            unfinished = Unfinished.SHOW
        else:
            unfinished = Unfinished.TAKE if run and run.awaiting_input else Unfinished.HOLD
        seen = log.size
        if min(limit, seen - (cursor or 0)) > INLINE:
            reading = await asyncio.to_thread(read_output, log, cursor or 0, limit, form, unfinished)
        else:
            reading = read_output(log, cursor or 0, limit, form, unfinished)
        if reading.data or reading.next_cursor > (cursor or 0) or run is None or not running:
            return reading
        if log.size > seen or not run.running:
            continue  # what came while the thread was reading has woken nobody
        if for_input and run.awaiting_input:
            return reading
        try:
            async with asyncio.timeout_at(deadline):
                await run.changed()
        except TimeoutError:
            return reading


def start_of_last_line(log: OutputLog) -> int:
    """Return the cursor from which a reader who has seen all so far goes on: the unfinished line's start."""
    window = 64 * 1024
    start = max(0, log.size - window)
    data = log.read(start, window).data
    return start + data.rfind(b"\n") + 1
