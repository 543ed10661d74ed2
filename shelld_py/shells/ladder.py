"""The ladder by which a command is ended: SIGINT, SIGKILL for all that it has started, and at last for bash itself.

It knows a run and its bash, and nothing of states or of why the run is to end.
"""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from shelld_py.bash.process import Bash
from shelld_py.shells.run import Run

_KILL_PATIENCE: Final = 2.0
_FIRST_PAUSE: Final = 0.2
_SHORTEST_PAUSE: Final = 0.002


async def bring_to_end(
    run: Run, bash: Bash, *, grace: float, spared: Callable[[], Sequence[int]], logger: logging.Logger
) -> None:
    """End `run`, with bash alive where that is possible; return when it has ended.

    It has `grace` seconds to end by itself after SIGINT. `spared` gives the pids of those that other runs have
    started.
    """
    run.signals_sent.add(signal.SIGINT)
    await bash.interrupt()
    await run.wait(grace)
    if run.running:
        logger.info("run %s: not ended by SIGINT, killing what it started", run.run_id)
        await _kill_started(run, bash, spared)
    if run.running:
        logger.warning("run %s: bash does not come back, killing it", run.run_id)
        bash.kill()
        await run.wait(_KILL_PATIENCE)


async def _kill_started(run: Run, bash: Bash, spared: Callable[[], Sequence[int]]) -> None:
    """Kill all that the run has started, and what bash starts next: a list or a loop goes on after a SIGKILL.

    Each pause is half of the one before, so that in the end an interrupt meets what has only just begun, and
    cannot ignore it yet: that ends a loop.
    """
    deadline = time.monotonic() + _KILL_PATIENCE
    pause = _FIRST_PAUSE
    while run.running and time.monotonic() < deadline:
        run.signals_sent.add(signal.SIGKILL)
        await bash.kill_started(spared())
        await run.wait(pause)
        if run.running:
            await bash.interrupt()
            await run.wait(pause)
        pause = max(pause / 2, _SHORTEST_PAUSE)
