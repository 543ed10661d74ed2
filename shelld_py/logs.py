"""Logging: one logger, as text or as JSON lines, to standard error or to a file that is rotated."""

import asyncio
import contextlib
import json
import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from typing import Any, TextIO

from shelld_py.config import LogFormat, LoggingSettings
from shelld_py.models import utc_timestamp

LOGGER_NAME = "shelld_py"


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


class _BatchHandler(logging.StreamHandler[TextIO]):
    """Writes the lines of one turn of the event loop together: a write costs more than a line."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: list[str] = []

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
        """Write what is there; when this returns, it has been written, whoever has begun to."""
        # A terminal that was closed (EIO), a pipe whose reader is gone: there is nobody who could be told.
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            with contextlib.suppress(OSError):
                if lines:
                    self.stream.write("\n".join(lines) + "\n")
                super().flush()
        finally:
            self.release()


class _PrivateFile(RotatingFileHandler):
    """A file that its owner alone can read."""

    def _open(self) -> Any:
        return open(
            self.baseFilename, self.mode, encoding=self.encoding, errors=self.errors,
            opener=lambda path, flags: os.open(path, flags, 0o600),
        )  # fmt: skip


def set_up_logging(settings: LoggingSettings, *, private: bool = False) -> logging.Logger:
    """Return the logger of the daemon; with `private` its file is nobody else's to read.

    Raises `OSError` when the file cannot be opened.
    """
    handler: logging.Handler
    if settings.file:
        handler = (_PrivateFile if private else RotatingFileHandler)(
            settings.file,
            maxBytes=settings.max_size,
            backupCount=settings.backup_count,
            encoding="utf-8",
            errors="backslashreplace",
        )
    else:
        handler = _BatchHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if settings.format is LogFormat.JSON else _TextFormatter())
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
