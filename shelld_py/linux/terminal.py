"""A pseudo-terminal as its owner holds it: modes, size, draining, writing, and the fence.

It knows nothing of bash or of runs: bytes come in from programs and go to a `sink`, bytes go out to
whatever reads the terminal.

The fence
    How does one know that everything which a program has written has been read? Reading until nothing is
    left never ends while another program keeps writing, and a mark printed by the program could be printed
    by anyone. Here the owner itself writes a random token to the slave side and reads the master up to it.
    A terminal is a queue: what was written before the token comes out before it; and the token did not
    exist while the program ran, so no output can contain it.

    Where nobody is left who could write, no token is needed: reading until nothing is left ends, and
    `drained` does it. That saves a quick command the time in which the kernel carries the token across.

Facts of the Linux terminal driver that this file hides
    - A read of the master mostly gives 4 KiB at the most, so a burst is gathered into one buffer before it is
      handed on; and a non-blocking read first flushes what is still on its way (n_tty flushes its work
      queue), so a fence mostly comes back in the very next read. On a busy machine that is a wait.
    - With OPOST off, LF stays LF and a write passes unchanged; it is also three times as fast.
    - The master gives EIO when no slave is open (tty_ioctl(4) does not say so, n_tty does). The owner
      keeps a slave descriptor of its own, so that happens only where a privileged process hangs the terminal
      up (vhangup(2)): then every call on the slave gives EIO as well.
    - TIOCSIG on the master signals the foreground process group whatever the modes are (`stty -isig`), but
      knows SIGINT, SIGQUIT and SIGTSTP only.
"""

import asyncio
import contextlib
import errno
import fcntl
import io
import os
import secrets
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from shelld_py.linux.terminal_echo import LineEcho, is_line_editor

_TIOCGPTPEER: Final = 0x5441
_TIOCSIG: Final = 0x40045436
_IUTF8: Final = 0x4000
_BUFFER_SIZE: Final = 256 * 1024
"""Bytes that are handed on at once: a log that gets them in pieces of 64 KiB takes half as much again of the kernel."""
_PIECE: Final = 16 * 1024
"""Bytes of input that are written in one turn of the event loop: its line discipline takes some 20 ns for each."""
_SHORT_READ: Final = 2048
"""A read that gives less has emptied the terminal. Should it not have, the event loop tells at once."""
_BURST: Final = 0.004
"""Seconds after which other events get their turn. A buffer is full within 1 to 4 ms, on a machine that is not busy."""
_SHOWN: Final = 4096
"""Bytes of what was typed that are shown at once: more was not typed by hand."""

_LEFTOVERS: Final = 64
"""Reads of 4 KiB after which a terminal that nobody writes to must be empty: the kernel holds 64 KiB or so."""

_IFLAG, _OFLAG, _LFLAG, _CC = 0, 1, 3, 6
_MODES_BUFFER: Final = bytes(64)
"""Room for the kernel's struct termios, which has 36 bytes on most machines and 44 at the most."""
_ECHO: Final = termios.ECHO | termios.ECHOE | termios.ECHOK

Sink = Callable[[memoryview], None]
"""Takes what was written. The memory is used again when it returns."""


class _Memory(threading.local):
    """What a thread reads into: one buffer for all that it reads, since each has handed on before the next reads."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_BUFFER_SIZE))


_memory: Final = _Memory()


def reading_buffer() -> memoryview:
    """Return the memory into which this thread reads what is handed on to sinks."""
    return _memory.buffer


def set_baseline_modes(fd: int) -> None:
    """Give the terminal `fd` the modes that every run starts with.

    A cooked terminal (lines, signals from keys), but what programs write comes out unchanged (OPOST off),
    what is typed does not appear in the output (ECHO off), and no key freezes it (IXON off).
    """
    modes = termios.tcgetattr(fd)
    modes[_IFLAG] |= termios.ICRNL | termios.BRKINT | _IUTF8
    modes[_IFLAG] &= ~(termios.IXON | termios.IXOFF | termios.IMAXBEL | termios.ISTRIP | termios.INLCR | termios.IGNCR)
    modes[_OFLAG] &= ~termios.OPOST
    modes[_LFLAG] |= termios.ICANON | termios.ISIG | termios.IEXTEN
    modes[_LFLAG] &= ~(_ECHO | termios.ECHONL)
    termios.tcsetattr(fd, termios.TCSANOW, modes)


class Terminal:
    """The master side of one pseudo-terminal, drained on the running event loop."""

    def __init__(self, master: int, sink: Sink, on_hangup: Callable[[], None] = lambda: None) -> None:
        """Take over the descriptor `master`; what comes out of the terminal goes to `sink`.

        `on_hangup` is called once where the terminal is taken from all who have it open (vhangup(2)). From then on
        nothing comes out of it and nothing is waited for.
        """
        self.sink = sink
        self._on_hangup = on_hangup
        self._hung_up = False
        self._master = master
        os.set_blocking(master, False)
        # Of a terminal that is empty it tells without an exception, which takes ten times as long to raise.
        self._reader = io.FileIO(master, closefd=False)
        self._slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._baseline = termios.tcgetattr(self._slave)
        self._baseline_bytes = fcntl.ioctl(self._slave, termios.TCGETS, _MODES_BUFFER)
        self._echo_holders = 0
        self._line_echo: LineEcho | None = None
        self._buffer = reading_buffer()
        self._token = b""
        self._held = b""
        self._behind_fence = b""
        self._passed: asyncio.Future[None] | None = None
        self._input = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(master, self._drain)

    @classmethod
    def open(cls, sink: Sink, rows: int, cols: int, owner: int | None = None) -> "Terminal":
        """Make a new pseudo-terminal with the baseline modes, which is nobody's controlling terminal.

        It belongs to the user `owner`, or to this process's.
        """
        master, slave = os.openpty()
        try:
            set_baseline_modes(slave)
            if owner is not None:
                os.fchown(slave, owner, -1)
            terminal = cls(master, sink)
        finally:
            os.close(slave)
        terminal.resize(rows, cols)
        return terminal

    @property
    def slave_path(self) -> str:
        """A path by which any process of this user can open the slave side."""
        return f"/proc/{os.getpid()}/fd/{self._slave}"

    @property
    def name(self) -> str:
        """The path of the slave side's device, by which its owner can open it."""
        return os.ttyname(self._slave)

    @property
    def device_number(self) -> int:
        """The device number of the slave, as in the `tty_nr` field of /proc/PID/stat."""
        return os.fstat(self._slave).st_rdev

    @property
    def line_mode(self) -> bool:
        """Whether input is handed over by lines (ICANON), as it is unless a program asked for keys."""
        return bool(self._modes()[_LFLAG] & termios.ICANON)

    def resize(self, rows: int, cols: int) -> None:
        """Set the window size; the kernel tells the foreground process group (SIGWINCH)."""
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def restore(self) -> None:
        """Make the terminal as new: baseline modes, output not stopped, no input left unread."""
        if self._input:
            self._input.clear()
            self._loop.remove_writer(self._master)
        try:
            termios.tcflush(self._slave, termios.TCIFLUSH)
            if not self.has_baseline_modes:
                termios.tcsetattr(self._slave, termios.TCSANOW, self._baseline)
        except (OSError, termios.error) as error:
            self._note_hangup(error)
        if self._echo_holders:
            self._line_echo = None
            self._set_echo(on=True)
        self.resume()

    @contextlib.contextmanager
    def echo(self) -> Iterator[None]:
        """Have what is typed appear in the output for a while, for somebody who looks on.

        Programs with line editing take over whether there is an echo when they begin to read, and give the modes back
        as they were; so it is the modes of lines that are changed, never those of a program that has asked for keys.
        Line editors that have begun before show nothing: what is typed is shown for them (see `LineEcho`).
        """
        self._echo_holders += 1
        if self._echo_holders == 1:
            self._line_echo = None if self.line_mode else LineEcho()
            self._set_echo(on=True)
        try:
            yield
        finally:
            self._echo_holders -= 1
            if not self._echo_holders:
                self._line_echo = None
                self._set_echo(on=False)

    def _set_echo(self, *, on: bool) -> None:
        if self._slave >= 0 and self.line_mode:
            modes = self._modes()
            modes[_LFLAG] = modes[_LFLAG] | _ECHO if on else modes[_LFLAG] & ~_ECHO
            with self._unless_hung_up():
                termios.tcsetattr(self._slave, termios.TCSANOW, modes)

    def _modes(self) -> list[Any]:
        """Return the modes as they are now; those of the beginning where the terminal was hung up."""
        with self._unless_hung_up():
            return termios.tcgetattr(self._slave)
        return list(self._baseline)

    @property
    def has_baseline_modes(self) -> bool:
        """Whether the modes are those that every run starts with; also where the terminal was hung up."""
        try:  # the bytes as they are: termios.tcgetattr makes a list of lists of them, for each command
            return fcntl.ioctl(self._slave, termios.TCGETS, _MODES_BUFFER) == self._baseline_bytes
        except OSError as error:
            self._note_hangup(error)
            return True

    def resume(self) -> None:
        """Let output flow again, whether a program (tcflow(3)) or a key (^S) has stopped it.

        TCOON alone undoes only what TCOOFF did.
        """
        if self._slave >= 0:
            try:
                termios.tcflow(self._slave, termios.TCOOFF)
                termios.tcflow(self._slave, termios.TCOON)
            except (OSError, termios.error) as error:
                self._note_hangup(error)

    async def fence(self) -> None:
        """Return when everything that was written to the terminal before this call has gone to the sink."""
        if self._passed:
            await asyncio.wait({self._passed})
        self._token = b"\x1b]" + secrets.token_hex(16).upper().encode() + b"\x07"
        passed = self._passed = self._loop.create_future()
        self.resume()
        rest = self._token
        with contextlib.suppress(BlockingIOError), self._unless_hung_up():
            rest = rest[os.write(self._slave, rest) :]
        self._drain()
        if self._hung_up:
            self._pass_fence()
        elif rest:
            await asyncio.to_thread(_write_blocking, self.slave_path, rest)
        if not passed.done():
            await passed

    def drained(self) -> bool:
        """Hand on all that was written so far; return whether the terminal is empty now.

        For the time when nobody else can write: then what was written before this call has gone to the
        sink. A non-blocking read gives up only after it has flushed what was on its way (n_tty_read calls
        tty_buffer_flush_work). False where there was more than such a time leaves behind.
        """
        if self._passed or self._behind_fence:
            return False
        try:
            for _ in range(_LEFTOVERS):
                count = self._reader.readinto(self._buffer)
                if count is None:
                    return True
                self.sink(self._buffer[:count])
        except OSError as error:
            self._note_hangup(error)
            return True
        return False

    def write(self, data: bytes) -> None:
        """Type `data`: what the terminal does not take at once is kept and follows when there is room."""
        if self._line_echo and is_line_editor(self._modes(), self._baseline):
            self._drain()  # what was written before stands before
            self.sink(memoryview(self._line_echo.shown(data[:_SHOWN])))
        self._input += data
        self._type()

    def type_through(self) -> None:
        """Have what was typed take effect now: a key that sends a signal has sent it when this returns.

        The kernel carries input across in a work queue. A poll that finds nothing waits for that
        (n_tty_poll calls tty_buffer_flush_work).
        """
        select.select([self._slave], [], [], 0)

    @property
    def interrupt_key(self) -> bytes:
        """The key that sends SIGINT now; empty where none does."""
        modes = self._modes()
        key: bytes = modes[_CC][termios.VINTR]
        return key if modes[_LFLAG] & termios.ISIG else b""

    @property
    def unwritten(self) -> int:
        """Bytes of input that the terminal has not taken yet."""
        return len(self._input)

    def end_of_file_keys(self, *, after_line: bool) -> bytes:
        """Return the keys that mean end-of-file now.

        In a terminal in line mode the key hands over what was typed; only on an empty line is that
        end-of-file (termios(3), VEOF), so after an unfinished line it takes two.
        """
        key: bytes = self._modes()[_CC][termios.VEOF]
        return key if after_line or not self.line_mode else key * 2

    def foreground_group(self) -> int:
        """Return the id of the foreground process group, or 0."""
        try:
            return os.tcgetpgrp(self._master)
        except OSError:
            return 0

    def signal_foreground(self, number: int) -> bool:
        """Send a signal to the foreground process group; return whether there was one."""
        if number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._master, _TIOCSIG, number)
                return True
            return False
        group = self.foreground_group()
        if group <= 0:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            return True
        return False

    def close(self) -> None:
        """Give the terminal up: its foreground processes get SIGHUP when it was a controlling one."""
        if self._master < 0:
            return
        self._loop.remove_reader(self._master)
        self._loop.remove_writer(self._master)
        os.close(self._slave)
        os.close(self._master)
        self._master = self._slave = -1
        self._pass_fence()

    def _drain(self) -> None:
        """Read what is there, up to a buffer or a burst, and hand it on."""
        if self._master < 0:
            return
        if self._behind_fence:
            rest, self._behind_fence = self._behind_fence, b""
            self.sink(memoryview(rest))
        if filled := self._fill_buffer():
            self._hand_on(self._buffer[:filled])

    def _fill_buffer(self) -> int:
        """Return how many bytes were read into the buffer."""
        filled = 0
        buffer, readinto, monotonic = self._buffer, self._reader.readinto, time.monotonic
        end = monotonic() + _BURST
        try:
            while filled < _BUFFER_SIZE and (count := readinto(buffer[filled:])):
                filled += count
                # A read does not block, but it waits until the kernel has carried across what is on its way.
                if count < _SHORT_READ or monotonic() > end:
                    break
        except OSError as error:
            self._note_hangup(error)
        return filled

    def _hand_on(self, data: memoryview) -> None:
        """Give `data` to the sink, up to the fence if that is in it.

        What lies behind the fence is for the next drain: whoever waits for the fence changes the sink first.
        """
        if not self._token:
            self.sink(data)
            return
        held = self._held + bytes(data)
        position = held.find(self._token)
        ready = position if position >= 0 else max(0, len(held) - len(self._token) + 1)
        if ready:
            self.sink(memoryview(held)[:ready])
        if position < 0:
            self._held = held[ready:]
            return
        self._behind_fence = held[position + len(self._token) :]
        self._pass_fence()
        if self._behind_fence:
            self._loop.call_soon(self._drain)

    def _pass_fence(self) -> None:
        self._token = self._held = b""
        passed, self._passed = self._passed, None
        if passed and not passed.done():
            passed.set_result(None)

    def _type(self) -> None:
        """Write what the terminal takes of the next piece: a program that reads on would be written to for seconds."""
        try:
            del self._input[: os.write(self._master, self._input[:_PIECE])]
        except BlockingIOError:
            pass
        except OSError as error:
            self._note_hangup(error)
            self._input.clear()
        if self._input:
            self._loop.add_writer(self._master, self._type)
        else:
            self._loop.remove_writer(self._master)

    @contextlib.contextmanager
    def _unless_hung_up(self) -> Iterator[None]:
        """Do something with the terminal, or nothing where it was hung up."""
        try:
            yield
        except BlockingIOError:
            raise
        except (OSError, termios.error) as error:
            self._note_hangup(error)

    def _note_hangup(self, error: Exception) -> None:
        """Take EIO as the end of the terminal; raise any other error.

        The owner's slave has no other reason for it: no process of a background group is stopped by its own calls.
        """
        if error.args[0] != errno.EIO:
            raise error
        if not self._hung_up:
            self._hung_up = True
            self._loop.remove_reader(self._master)  # it stays readable, with nothing to be read
            self._on_hangup()


def _write_blocking(path: str, data: bytes) -> None:
    """Write to the terminal at `path`, waiting for its turn. It is over when the terminal is.

    A program that writes without pause holds the terminal's write lock nearly always (tty_write_lock in the
    kernel), and a write that may not block hardly ever gets it; one that waits is the next.
    """
    with contextlib.suppress(OSError), open(path, "wb", buffering=0, opener=_open_blocking) as terminal:
        while data:
            data = data[terminal.write(data) or 0 :]


def _open_blocking(path: str, flags: int) -> int:
    return os.open(path, (flags & ~(os.O_CREAT | os.O_TRUNC)) | os.O_NOCTTY)
