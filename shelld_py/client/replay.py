"""`shelld-py replay`: the recording of a run, played in one's own terminal.

What a program wrote may ask the terminal questions, and change its modes. So while it is played the answers of the
terminal are not shown, at the end they are thrown away, and whatever happens, the modes are set back.
"""

import asyncio
import contextlib
import os
import signal
import termios
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from shelld_py.client.attach import LEAVE_FULL_SCREEN, TerminalOutput
from shelld_py.client.client import AsyncClient
from shelld_py.client.failures import UnknownAnswer
from shelld_py.client.printing import complain, write

_RESET: Final = "\x1b[!p\x1b[0m\x1b[?25h\x1b[?9;1000;1002;1003;1004;1006;1015;2004l"
"""Soft reset, plain, with a cursor, no reports of mouse or focus, no bracketed paste (xterm's ctlseqs)."""
_LOCAL_MODES: Final = 3
_ANSWERED: Final = 0.1
"""Seconds in which most terminals have answered what they were asked last."""


async def replay(client: AsyncClient, run_id: str, *, speed: float, longest_pause: float | None) -> None:
    """Play a run, as far as it is, so many times as fast, without pauses longer than that (seconds).

    Raises what the client raises.
    """
    content = await client.runs.recording(run_id)
    with _own_terminal() as screen:
        loop = asyncio.get_running_loop()
        played, due = 0.0, loop.time()
        for at, kind, data in _events(content):
            pause = max(0.0, at - played)
            played = at
            due += (pause if longest_pause is None else min(pause, longest_pause)) / speed
            await asyncio.sleep(due - loop.time())
            if kind == "o":
                screen.shown(data.encode("utf-8", "replace"))
                write(1, data)
            elif kind == "m":
                complain(data)


def _events(recording: bytes) -> Iterator[tuple[float, str, str]]:
    decode = msgspec.json.Decoder(tuple[float, str, str]).decode
    try:
        for line in recording.splitlines()[1:]:
            yield decode(line)
    except msgspec.MsgspecError as error:
        raise UnknownAnswer(f"This is not a recording: {error}.") from None


@contextlib.contextmanager
def _own_terminal() -> Iterator[TerminalOutput]:
    """Have our terminal be shown what another program wrote, for a while; Ctrl-C is ours all the time."""
    loop, task, screen = asyncio.get_running_loop(), asyncio.current_task(), TerminalOutput()
    modes = termios.tcgetattr(0) if os.isatty(0) else None
    for number in (signal.SIGTERM, signal.SIGHUP):  # no signal may keep the terminal from its modes
        if task:
            loop.add_signal_handler(number, task.cancel)
    try:
        if modes:
            silent = [*modes]
            silent[_LOCAL_MODES] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(0, termios.TCSADRAIN, silent)
        yield screen
    finally:
        if os.isatty(1):
            write(1, (LEAVE_FULL_SCREEN if screen.full else "") + _RESET)
        if modes:
            time.sleep(_ANSWERED)
            termios.tcsetattr(0, termios.TCSAFLUSH, modes)
