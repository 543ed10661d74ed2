"""A bash that tests drive directly, without a shell, a run or a daemon."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from shelld_py.bash.confinement import Confinement
from shelld_py.bash.process import Bash, Outcome
from shelld_py.linux.orphans import Reaper
from tests.daemons import BASH


class Driven:
    """Runs commands one after the other, and calls `check` as a supervisor does."""

    def __init__(self, bash: Bash, idle: bytearray) -> None:
        self.bash = bash
        self.idle = idle
        """What was written while no command ran."""

    async def run(self, command: str, **options: Any) -> tuple[str, Outcome]:
        """Return the output of a command, and how it ended."""
        output = bytearray()
        outcome = await self.bash.outcome(self.bash.begin(command, output.extend, **options))
        self.bash.settle()
        return output.decode(errors="replace"), outcome

    async def output(self, command: str, **options: Any) -> str:
        """Return the output of a command that ends with status 0."""
        output, outcome = await self.run(command, **options)
        assert (outcome.status, outcome.damage, outcome.death) == (0, None, None), output
        return output


@contextlib.asynccontextmanager
async def driven(
    directory: Path, *, restore: bool = True, open_files: tuple[int, int] = (1024, 4096), environment: Any = None
) -> AsyncIterator[Driven]:
    """Start a bash in `directory`, and end it with all that it started."""
    idle = bytearray()
    bash = await Bash.start(
        [BASH or "bash", "--norc"],
        environment={"PATH": os.environ["PATH"], "HOME": str(directory), **(environment or {})},
        directory=str(directory),
        size=(24, 80),
        restore=restore,
        confinement=Confinement(open_files=open_files),
        idle_sink=idle.extend,
        reaper=Reaper(),
    )
    try:
        yield Driven(bash, idle)
    finally:
        await bash.end()
        bash.close()
