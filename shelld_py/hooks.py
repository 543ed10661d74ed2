"""Hooks: commands of the operator at the daemon's turning points.

A hook runs in a process group of its own, with `SHELLD_HOOK` set to its name, and never with the key. One
that fails or does not end in time is logged with what it wrote, and blocks nothing.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from shelld_py.config import HookSettings
from shelld_py.linux.oom import set_adjustment
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.processes import default_signals
from shelld_py.linux.users import User

_MOST_OUTPUT: Final = 8192


class HookName(StrEnum):
    """The turning points."""

    STARTUP = "startup"
    SHUTDOWN = "shutdown"
    RECYCLE = "recycle"


class Hooks:
    """Runs the hooks that are configured."""

    def __init__(
        self,
        settings: HookSettings,
        *,
        environment: Mapping[str, str],
        directory: str,
        reaper: Reaper,
        logger: logging.Logger,
        oom_score_adj: int | None = None,
        user: User | None = None,
    ) -> None:
        """`oom_score_adj` is what the daemon was started with, and what hooks get; `user` is whom they run as."""
        self._user = user
        self._settings = settings
        self._commands = {
            HookName.STARTUP: settings.on_startup,
            HookName.SHUTDOWN: settings.on_shutdown,
            HookName.RECYCLE: settings.on_recycle,
        }
        self._environment = environment
        self._directory = directory
        self._reaper = reaper
        self._logger = logger
        self._oom_score_adj = oom_score_adj

    async def run(self, name: HookName) -> None:
        """Run the hook `name` to its end, if there is one. Never raises for what the hook does."""
        command = self._commands[name]
        if not command:
            return
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 (it must have an owner before the event loop runs again)
                [*shlex.split(self._settings.shell_command), "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env={**self._environment, **(self._user.variables if self._user else {}), "SHELLD_HOOK": name.value},
                start_new_session=True,
                preexec_fn=self._in_child,  # noqa: PLW1509 (it takes no lock)
            )
        except OSError as error:
            self._logger.error("hook %s: cannot be started: %s", name, error)
            return
        self._reaper.own(process.pid)
        try:
            await self._see_through(name, process)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._reaper.disown(process.pid)

    def _in_child(self) -> None:
        default_signals()
        if self._oom_score_adj is not None:
            set_adjustment(self._oom_score_adj)
        if self._user:
            self._user.become()

    async def _see_through(self, name: HookName, process: subprocess.Popen[bytes]) -> None:
        output = bytearray()
        assert process.stdout is not None
        handle = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def take() -> None:
            data = os.read(pipe, 65536)
            output.extend(data)
            del output[:-_MOST_OUTPUT]
            if not data:
                loop.remove_reader(pipe)

        def end() -> None:
            loop.remove_reader(handle)
            ended.set_result(None)

        pipe = process.stdout.fileno()
        loop.add_reader(pipe, take)
        loop.add_reader(handle, end)
        try:
            await asyncio.wait_for(ended, self._settings.timeout)
        except TimeoutError:
            self._logger.error(
                "hook %s: killed, it took longer than hooks.timeout (%gs); it wrote: %s",
                name, self._settings.timeout, _readable(output),
            )  # fmt: skip
        else:
            code = process.wait()
            if code:
                self._logger.error("hook %s: failed with exit status %d; it wrote: %s", name, code, _readable(output))
            else:
                self._logger.info("hook %s: done", name)
        finally:
            loop.remove_reader(pipe)
            loop.remove_reader(handle)
            os.close(handle)
            process.stdout.close()


def _readable(output: bytearray) -> str:
    return output.decode("utf-8", "replace").strip() or "nothing"
