"""The daemon's ends of the pipes of a command: what it writes goes to a sink, what it is given waits until it is read.

They know descriptors and the event loop, but not the command.
"""

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from typing import Final

from shelld_py.linux.terminal import Sink, reading_buffer

_WRITE_SIZE: Final = 256 * 1024
_PIPE_SIZE: Final = 1024 * 1024
"""What the kernel lets anybody have (pipe-max-size): a program that writes much is stopped less often."""
_BURST: Final = 4
"""Buffers that are read before other events get their turn: a millisecond, with the log on disk."""


class OutputPipe:
    """The end of a pipe that is read."""

    def __init__(self, descriptor: int, sink: Sink) -> None:
        self._descriptor = descriptor
        self._sink = sink
        os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError):  # where this user has too many pages in pipes already
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        self._buffer = reading_buffer()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    def drain(self) -> None:
        """Read what is in the pipe at this moment."""
        if self._descriptor < 0:
            return
        left = unread(self._descriptor)
        while left > 0 and (count := self._take()):
            left -= count

    def close(self) -> None:
        """Read what is left, and close it."""
        if self._descriptor < 0:
            return
        self.drain()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1

    def _read(self) -> None:
        for _ in range(_BURST):
            if self._take() < len(self._buffer):
                return

    def _take(self) -> int:
        """Hand on a buffer of what is there; return its size, 0 for nothing."""
        try:
            count = os.readv(self._descriptor, [self._buffer])
        except BlockingIOError:
            return 0
        if count:
            self._sink(self._buffer[:count])
        else:
            self._loop.remove_reader(self._descriptor)  # it stays readable, with nothing to be read
        return count


class InputPipe:
    """The end of a pipe that is written: what it does not take at once follows when there is room."""

    def __init__(self, descriptor: int) -> None:
        self.closing = False
        self._descriptor = descriptor
        self._data = bytearray()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)

    def write(self, data: bytes) -> None:
        """Give `data`."""
        self._data += data
        self._write()

    @property
    def waiting(self) -> int:
        """Bytes that the pipe has not taken yet."""
        return len(self._data)

    def close_soon(self) -> None:
        """Close it when all has been taken."""
        self.closing = True
        self._write()

    def close(self) -> None:
        """Close it now."""
        self.closing = True
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._data.clear()

    def _write(self) -> None:
        if self._descriptor < 0:
            return
        try:
            while self._data:
                del self._data[: os.write(self._descriptor, memoryview(self._data)[:_WRITE_SIZE].tobytes())]
        except BlockingIOError:
            self._loop.add_writer(self._descriptor, self._write)
            return
        except BrokenPipeError:  # nobody reads it any more
            self.close()
            return
        self._loop.remove_writer(self._descriptor)
        if self.closing:
            self.close()


def unread(pipe: int) -> int:
    """Return how many bytes lie in a pipe (FIONREAD, ioctl_tty(2))."""
    count: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
    return count
