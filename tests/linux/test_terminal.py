"""A real pseudo-terminal: the fence, what is typed, its modes, and its size."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from shelld_py.linux.terminal import Terminal

TOKEN = re.compile(rb"\x1b\][0-9A-F]{8,}\x07|[0-9A-F]{32}")


def on_terminal(test: Callable[[Terminal, bytearray], Awaitable[None]]) -> None:
    """Run `test` with a new terminal and the buffer that its output goes to."""

    async def body() -> None:
        output = bytearray()
        terminal = Terminal.open(output.extend, 24, 80)
        try:
            async with asyncio.timeout(60):
                await test(terminal, output)
        finally:
            terminal.close()

    asyncio.run(body())


async def until(condition: Callable[[], object]) -> None:
    """Return when `condition` is true; the time is bounded by the test's own."""
    while not condition():
        await asyncio.sleep(0.005)


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of `process` without keeping the loop from draining."""
    await until(lambda: process.poll() is not None)
    return process.returncode


def program(terminal: Terminal, script: str) -> subprocess.Popen[bytes]:
    """Start a shell script with the terminal as its input and output."""
    with open(terminal.slave_path, "r+b", buffering=0) as slave:
        return subprocess.Popen(["bash", "-c", script], stdin=slave, stdout=slave, stderr=slave)


def test_output_comes_out_unchanged() -> None:
    """LF stays LF, every byte is as it was written."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        data = bytes(range(256)) * 40
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        with open(terminal.slave_path, "wb", buffering=0) as slave:
            process = subprocess.Popen(["cat"], stdin=read, stdout=slave)
        os.close(read)
        await ended(process)
        await terminal.fence()
        assert output == data

    on_terminal(test)


@pytest.mark.parametrize("size", [0, 1, 100, 4095, 4096, 4097, 65536, 3_000_000])
def test_all_that_was_written_before_the_fence_has_arrived(size: int) -> None:
    """When the writer is over and the fence has passed, nothing is missing, and no mark is in the output."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        process = program(terminal, f"yes 0123456 | head -c {size}")
        await ended(process)
        await terminal.fence()
        assert len(output) == size
        assert output == (b"0123456\n" * (size // 8 + 1))[:size]

    on_terminal(test)


def test_fences_one_after_the_other() -> None:
    """Each write is there after its own fence, and the fences leave nothing behind."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        with open(terminal.slave_path, "wb", buffering=0) as slave:
            for number in range(300):
                slave.write(b"%d\n" % number)
                await terminal.fence()
                assert output.endswith(b"%d\n" % number)
        assert output == b"".join(b"%d\n" % number for number in range(300))

    on_terminal(test)


def test_two_fences_at_once() -> None:
    """A second one waits for the first, and both pass."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        with open(terminal.slave_path, "wb", buffering=0) as slave:
            slave.write(b"before")
            await asyncio.gather(terminal.fence(), terminal.fence())
        assert output == b"before"

    on_terminal(test)


def test_a_background_writer_does_not_stop_the_fence() -> None:
    """While something writes without end fences pass, and their tokens are never in the output."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        process = program(terminal, "exec yes abcdefg")
        try:
            await until(lambda: len(output) > 10_000)
            for _ in range(5):
                before = len(output)
                async with asyncio.timeout(60):
                    await terminal.fence()
            await until(lambda: len(output) > before)
        finally:
            process.kill()
            process.wait()
        await terminal.fence()
        assert not TOKEN.search(output)
        assert set(bytes(output).splitlines()[:-1]) == {b"abcdefg"}

    on_terminal(test)


def test_what_comes_behind_the_fence_goes_to_the_next_sink() -> None:
    """Output of what still runs is not given to a run that is over."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        process = program(terminal, "echo mine; read; echo next")
        await until(lambda: output == b"mine\n")
        await terminal.fence()
        other = bytearray()
        terminal.sink = other.extend
        terminal.write(b"\n")
        await ended(process)
        await terminal.fence()
        assert (output, other) == (b"mine\n", b"next\n")

    on_terminal(test)


def test_a_fence_passes_though_output_was_stopped() -> None:
    """A program that has stopped the terminal's output (tcflow) stops the owner no more than a moment."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        with open(terminal.slave_path, "r+b", buffering=0) as slave:
            slave.write(b"text")
            termios.tcflow(slave, termios.TCOOFF)
            async with asyncio.timeout(60):
                await terminal.fence()
        assert output == b"text"

    on_terminal(test)


def test_a_closed_terminal_lets_the_fence_go() -> None:
    """Whoever waits for the fence of a terminal that is given up is not left waiting; closing twice is harmless."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        process = program(terminal, "exec yes")
        try:
            await until(lambda: output)
            waiting = asyncio.ensure_future(terminal.fence())
            await asyncio.sleep(0)
            terminal.close()
            await asyncio.wait_for(waiting, 60)
            terminal.close()
        finally:
            process.kill()
            process.wait()

    on_terminal(test)


def test_what_is_typed_does_not_appear() -> None:
    """There is no echo: the output holds what programs write and nothing else."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        process = program(terminal, "read line; echo got $line")
        terminal.write(b"secret\n")
        assert await ended(process) == 0
        await terminal.fence()
        assert output == b"got secret\n"

    on_terminal(test)


def test_input_is_written_in_pieces() -> None:
    """In one turn of the event loop no more goes than takes well under a millisecond, though the terminal has room."""

    async def test(terminal: Terminal, _: bytearray) -> None:
        terminal.write(b"x" * 60_000)
        assert terminal.unwritten >= 60_000 - 16 * 1024

    on_terminal(test)


def test_input_larger_than_the_terminal_takes_at_once(tmp_path: Path) -> None:
    """What does not fit is kept and follows, in order and complete, without blocking anybody."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        data = b"".join(b"line %06d of a long text\n" % number for number in range(20_000))
        terminal.write(data[:100_000])
        assert terminal.unwritten > 0
        process = program(terminal, f"head -c {len(data)} >{tmp_path}/input")
        terminal.write(data[100_000:])
        assert await ended(process) == 0
        assert terminal.unwritten == 0
        assert (tmp_path / "input").read_bytes() == data

    on_terminal(test)


@pytest.mark.parametrize(
    ("typed", "after_line", "expected"),
    [
        (b"", True, b""),
        (b"line\n", True, b"line\n"),
        (b"unfinished", False, b"unfinished"),
        (b"one\ntwo", False, b"one\ntwo"),
    ],
)
@pytest.mark.parametrize("mode", ["", "stty eof @; "])
def test_end_of_file_keys(tmp_path: Path, mode: str, typed: bytes, after_line: bool, expected: bytes) -> None:
    """They end the input of a program, after a line or in the middle of one, whatever the key is."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        process = program(terminal, f"{mode}echo ready; cat >{tmp_path}/input")
        await until(lambda: output == b"ready\n")
        terminal.write(typed)
        terminal.write(terminal.end_of_file_keys(after_line=after_line))
        assert await ended(process) == 0
        assert (tmp_path / "input").read_bytes() == expected

    on_terminal(test)


def test_end_of_file_in_a_terminal_that_hands_over_keys() -> None:
    """There the key is a byte like any other, and comes once."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        process = program(terminal, "stty -icanon min 1; head -c 2 | od -An -tx1")
        await until(lambda: not terminal.line_mode)
        terminal.write(b"x" + terminal.end_of_file_keys(after_line=False))
        assert await ended(process) == 0
        await terminal.fence()
        assert output.split() == [b"78", b"04"]

    on_terminal(test)


@pytest.mark.parametrize(
    "modes", ["raw -echo", "echo", "-icanon min 0 time 5", "intr q", "-isig", "opost onlcr", "iuclc", "ixon"]
)
def test_restore_undoes_whatever_a_program_did_to_the_modes(modes: str) -> None:
    """Modes and keys are as in a new terminal."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        with open(terminal.slave_path, "r+b", buffering=0) as slave:
            before = termios.tcgetattr(slave)
            subprocess.run(["stty", *modes.split()], stdin=slave, check=True)
            assert termios.tcgetattr(slave) != before
            terminal.restore()
            assert termios.tcgetattr(slave) == before
        assert terminal.line_mode

    on_terminal(test)


def test_restore_drops_input_that_nobody_has_read() -> None:
    """What was typed for one command is not read by the next: neither what the terminal took nor what was kept."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        terminal.write(b"old line\n" * 2000)
        assert terminal.unwritten > 0
        terminal.restore()
        assert terminal.unwritten == 0
        terminal.write(b"new line\n")
        process = program(terminal, "read line; echo $line; read -t 0.05 || echo nothing more")
        await ended(process)
        await terminal.fence()
        assert output == b"new line\nnothing more\n"

    on_terminal(test)


def test_restore_lets_stopped_output_go_on() -> None:
    """A terminal whose output was stopped is not stopped for the next command."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        with open(terminal.slave_path, "r+b", buffering=0) as slave:
            termios.tcflow(slave, termios.TCOOFF)
            process = program(terminal, "echo waits")
            await asyncio.sleep(0.1)
            assert process.poll() is None
            terminal.restore()
            await ended(process)
            await until(lambda: output == b"waits\n")

    on_terminal(test)


@pytest.mark.parametrize(("rows", "cols"), [(24, 80), (1, 1), (50, 200), (65535, 65535)])
def test_the_size(rows: int, cols: int) -> None:
    """Programs see the size that was set."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        terminal.resize(rows, cols)
        process = program(terminal, "stty size")
        await ended(process)
        await terminal.fence()
        assert output.split() == [b"%d" % rows, b"%d" % cols]

    on_terminal(test)


def test_a_new_terminal() -> None:
    """It has a device of its own, hands over lines, and has no foreground process group."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        assert os.stat(terminal.slave_path).st_rdev == terminal.device_number
        assert terminal.line_mode
        assert terminal.foreground_group() == 0
        assert not terminal.signal_foreground(15)

    on_terminal(test)


def test_a_terminal_releases_its_descriptors() -> None:
    """A thousand shells later there are as many descriptors as before."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            other = Terminal.open(output.extend, 24, 80)
            other.write(b"x" * 10_000)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(other.fence(), 1)
            other.close()
        assert len(os.listdir("/proc/self/fd")) == before

    on_terminal(test)


def test_programs_see_a_terminal() -> None:
    """isatty(3) is true on both sides of a program."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        process = program(terminal, f"{sys.executable} -SEc 'import os; print(*map(os.isatty, (0, 1, 2)))'")
        await ended(process)
        await terminal.fence()
        assert output == b"True True True\n"

    on_terminal(test)


def test_a_line_editor_that_has_found_no_echo_gets_one() -> None:
    """What is typed is shown between what the program writes; a mode is not touched; passwords stay hidden."""

    async def test(terminal: Terminal, output: bytearray) -> None:
        process = program(terminal, "read -e -p '> ' a; read -rsp secret: b; read -rsn1 -p key: c; echo; echo $a $b $c")
        await until(lambda: output.endswith(b"> "))
        with terminal.echo():
            terminal.write(b"on\x7f")
            terminal.write(b"n\x1b")
            terminal.write(b"[Ae\r")
            await until(lambda: output.endswith(b"secret:"))
            assert b"> on\b \bne\n" in output
            terminal.write(b"hidden\n")
            await until(lambda: output.endswith(b"key:"))
            terminal.write(b"k")
            await ended(process)
            await terminal.fence()
        assert output.count(b"hidden") == 1
        assert b"key:\n" in output
        assert terminal.has_baseline_modes

    on_terminal(test)
