"""A place to work for shells without a daemon: what they need, and a shell that is started in it."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from shelld_py.config import LimitSettings, OutputSettings, ShellSettings
from shelld_py.linux import processes
from shelld_py.linux.orphans import Reaper
from shelld_py.models import ShellState
from shelld_py.shells.shell import Shell
from shelld_py.shells.startup import ShellContext
from shelld_py.shells.store import RunStore

LOGGER = logging.getLogger("tests.shells")


def with_context(directory: Path, test: Callable[[ShellContext], Awaitable[None]], **settings: Any) -> None:
    """Run `test` with all that shells need to work in `directory`; nothing that they started may stay."""

    async def body() -> None:
        work = directory / "work"
        work.mkdir()
        store = RunStore(directory / "data", OutputSettings(), LOGGER)
        store.open()
        reaper = Reaper()
        for pid in processes.children(os.getpid()):
            reaper.own(pid)
        context = ShellContext(
            settings=ShellSettings(
                **{name: settings[name] for name in ShellSettings.__struct_fields__ if name in settings}
            ),
            environment={"PATH": os.environ["PATH"], "HOME": str(work), "FROM_HOST": "yes"},
            directory=str(work),
            log_directory=directory / "data",
            log_max=1 << 20,
            kill_grace=settings.get("kill_grace", 1.0),
            command_lifetime=settings.get("command_lifetime", 0.0),
            limits=settings.get("limits", LimitSettings()),
            on_breach=lambda _: None,
            open_files=(1024, 4096),
            store=store,
            reaper=reaper,
            logger=LOGGER,
        )
        before = set(processes.children(os.getpid()))
        async with asyncio.timeout(settings.get("patience", 60)):
            await test(context)
        assert set(processes.children(os.getpid())) <= before
        store.close()

    asyncio.run(body())


def in_shell(directory: Path, test: Callable[[Shell], Awaitable[None]], **settings: Any) -> None:
    """Run `test` with a shell that was started in `directory`, and end the shell."""

    async def started(context: ShellContext) -> None:
        async with Shell("main", context) as shell:
            assert shell.state is ShellState.READY
            await test(shell)
        assert shell.state is ShellState.AVAILABLE
        assert shell.pid is None

    with_context(directory, started, **settings)


async def until(condition: Callable[[], object]) -> None:
    """Return when `condition` is true; the time is bounded by the test's own."""
    while not condition():
        await asyncio.sleep(0.005)
