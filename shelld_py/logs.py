"""Logging: one logger, as text or as JSON lines, to standard error or to a file that is rotated."""

import json
import logging
import sys
from logging.handlers import RotatingFileHandler

from shelld_py.config import LogFormat, LoggingSettings
from shelld_py.models import utc_timestamp

LOGGER_NAME = "shelld_py"


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        request = f" [{record.request_id}]" if hasattr(record, "request_id") else ""
        line = f"{utc_timestamp(record.created)} {record.levelname.lower()}{request} {record.getMessage()}"
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
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up_logging(settings: LoggingSettings) -> logging.Logger:
    """Return the logger of the daemon. Raises `OSError` when the file cannot be opened."""
    handler: logging.Handler
    if settings.file:
        handler = RotatingFileHandler(
            settings.file, maxBytes=settings.max_size, backupCount=settings.backup_count, encoding="utf-8"
        )
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if settings.format is LogFormat.JSON else _TextFormatter())
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers[:] = [handler]
    logger.setLevel(settings.level.upper())
    logger.propagate = False
    for name in ("uvicorn", "asyncio"):
        library = logging.getLogger(name)
        library.handlers[:] = [handler]
        library.setLevel(logging.WARNING)
        library.propagate = False
    return logger
