"""Logging: one logger, as text or as JSON lines, to standard error or to a file that is rotated."""

import asyncio
import contextlib
import json
import logging
import os
import select
import sys
import time
from logging.handlers import RotatingFileHandler
from typing import Any, Final

from shelld_py.config import LogFormat, LoggingSettings
from shelld_py.models import utc_timestamp

LOGGER_NAME = "shelld_py"


_STDERR: Final = 2
_MOST_WAITING: Final = 1024 * 1024
"""Bytes that wait for a reader of standard error who is late: some ten thousand lines."""
_RETRY_AFTER: Final = 1.0
"""Seconds after which such a reader is looked for again, where no other line comes."""
_LAST_LINES: Final = 0.5
"""Seconds that such a reader has at the end."""


def _one_line(message: str) -> str:
    return message.replace("\r", "\\r").replace("\n", "\\n")


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        request = f" [{record.request_id}]" if hasattr(record, "request_id") else ""
        if hasattr(record, "traceparent"):
            request += f" [{record.traceparent}]"
        line = f"{utc_timestamp(record.created)} {record.levelname.lower()}{request} {_one_line(record.getMessage())}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": utc_timestamp(record.created),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if hasattr(record, "request_id"):
            fields["request_id"] = record.request_id
        if hasattr(record, "traceparent"):
            fields["traceparent"] = record.traceparent
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class _StandardError(logging.Handler):
    """Writes the lines of one turn of the event loop together: a write costs more than a line.

    Nobody is held up by a pipe whose reader is stuck, or a terminal that somebody has stopped (Ctrl-S) or does not
    read: lines wait for them, a bounded number, and what comes beyond that is lost, and counted.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor = _not_blocking(descriptor)
        self._lines: list[str] = []
        self._waiting = b""
        self._lost = 0
        self._retry: asyncio.TimerHandle | None = None
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line; without an event loop it is written at once."""
        self._lines.append(self.format(record))
        if len(self._lines) > 1:
            return
        try:
            asyncio.get_running_loop().call_soon(self.flush)
        except RuntimeError:
            self.flush()

    def flush(self) -> None:
        """Write what is taken at once; when this returns, it has been written, whoever has begun to."""
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            if self._waiting:
                self._write(0)
            if len(self._waiting) > _MOST_WAITING:
                self._lost += len(lines)
            elif lines:
                if self._lost:
                    lines.insert(0, self.format(_told_of_loss(self._lost)))
                    self._lost = 0
                self._waiting += "\n".join([*lines, ""]).encode("utf-8", "backslashreplace")
            self._write(0)
            if self._waiting and not self._retry:
                with contextlib.suppress(RuntimeError):  # without an event loop nobody comes back
                    self._retry = asyncio.get_running_loop().call_later(_RETRY_AFTER, self._flush_again)
        finally:
            self.release()

    def close(self) -> None:
        """Give whoever reads a moment to take what is left."""
        self.acquire()
        try:
            self._write(_LAST_LINES)
        finally:
            self.release()
        super().close()

    def _flush_again(self) -> None:
        self._retry = None
        self.flush()

    def _write(self, longest_wait: float) -> None:
        """Write what waits, as long as it is taken; wait for that so many seconds in all."""
        deadline = time.monotonic() + longest_wait
        waiting, written = memoryview(self._waiting), 0
        try:
            # poll(2) says of a pipe that it takes PIPE_BUF bytes without blocking, and of more nothing (pipe(7)).
            while written < len(waiting) and self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                written += os.write(self._descriptor, waiting[written : written + select.PIPE_BUF])
        except BlockingIOError:  # a terminal with less room than a character takes
            pass
        except OSError:  # a terminal that was closed, a pipe whose reader is gone: there is nobody who could be told
            written = len(waiting)
        if written:
            self._waiting = bytes(waiting[written:])


def _not_blocking(descriptor: int) -> int:
    """Return a descriptor of the same terminal that no write waits for; anything else is returned as it is.

    Of a terminal poll(2) says that it takes a byte, and a write waits until it has taken all. O_NONBLOCK holds for all
    who have the same open file: so it is opened anew.
    """
    if os.isatty(descriptor):
        with contextlib.suppress(OSError):  # it is another user's, say
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return descriptor


class _File(RotatingFileHandler):
    """A file that is rotated. Where it takes no lines standard error says so, once, and the file how many are lost."""

    def __init__(self, path: str, told: logging.Handler, **options: Any) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", **options)
        self._told = told
        self._lost = 0
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        self._failed = False
        super().emit(record)
        if self._lost and not self._failed:
            super().emit(_told_of_loss(self._lost))
            if not self._failed:
                self._lost = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Note that a line could not be written."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._failed = True
        self._lost += 1
        if self._lost == 1:
            reason = f"log: {self.baseFilename} cannot be written, lines are lost: {error.strerror}"
            self._told.emit(_record(logging.ERROR, reason))


class _PrivateFile(_File):
    """A file that its owner alone can read."""

    def _open(self) -> Any:
        return open(
            self.baseFilename, self.mode, encoding=self.encoding, errors=self.errors,
            opener=lambda path, flags: os.open(path, flags, 0o600),
        )  # fmt: skip


def _record(level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord(LOGGER_NAME, level, "", 0, message, None, None)


def _told_of_loss(lost: int) -> logging.LogRecord:
    return _record(logging.WARNING, f"log: {lost} lines before this one are lost")


def set_up_logging(settings: LoggingSettings, *, private: bool = False) -> logging.Logger:
    """Return the logger of the daemon; with `private` its file is nobody else's to read.

    Raises `OSError` when the file cannot be opened.
    """
    formatter = _JsonFormatter() if settings.format is LogFormat.JSON else _TextFormatter()
    handler: logging.Handler = _StandardError(_STDERR)
    handler.setFormatter(formatter)
    if settings.file:
        make = _PrivateFile if private else _File
        handler = make(settings.file, handler, maxBytes=settings.max_size, backupCount=settings.backup_count)
        handler.setFormatter(formatter)
    # What no line shows need not be found out: half of the cost of a record ("Optimization" in logging's docs).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers[:] = [handler]
    logger.setLevel(settings.level.upper())
    logger.propagate = False
    for name in ("uvicorn", "asyncio", "mcp"):
        library = logging.getLogger(name)
        library.handlers[:] = [handler]
        library.setLevel(logging.WARNING)
        library.propagate = False
    return logger
