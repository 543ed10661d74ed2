"""The audit log: a line of JSON for each action of a client, in a file that is rotated.

Written by a thread of its own, so that no disk holds up the event loop. Where lines cannot be written, or come faster
than the disk takes them, the daemon goes on; its own log says so, and the next line counts those that are lost.
"""

import contextlib
import hashlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from shelld_py.config import LoggingSettings
from shelld_py.models import utc_timestamp

_MOST_WAITING: Final = 10_000
"""Lines that wait for the disk; what comes beyond that is lost, and counted."""
_LONGEST_TEXT: Final = 64 * 1024
"""Characters of a command that are kept: longer ones are heredocs, whose whole text is in no proportion to its use."""
_REFUSED_EVERY: Final = 60.0
"""Seconds from one line about a request that was not let in to the next. Anybody can send these, and each line costs
the oldest that are kept: at this rate those of the default size last for a month."""
_LAST_LINES: Final = 1.0
"""Seconds that the disk has at the end to take what waits."""
_TOLD: Final = (
    "command", "path", "source_path", "destination_path", "directory", "working_directory", "pattern", "session_id",
    "run_id", "shell_id", "tool", "event_type", "signal", "recycle",
)  # fmt: skip
"""The fields of a request that say what it is about. Not what is typed, written or put into variables."""


class Audit:
    """Takes lines, and writes them in the background. `open` it first, and `close` it."""

    def __init__(self, settings: LoggingSettings, logger: logging.Logger) -> None:
        self._path = settings.audit
        self._max_size = settings.max_size
        self._backup_count = settings.backup_count
        self._logger = logger
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._lost = 0
        self._refused = 0
        """Requests that were not let in, and of which no line tells yet."""
        self._next_refused = 0.0
        """When (monotonic) the next of these has a line of its own."""
        self._failing = False
        self._file = -1
        self._writer = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self.current_key: Callable[[], str | None] = lambda: None
        """Tells the fingerprint of the key that the daemon is locked to."""

    def open(self) -> None:
        """Open the file, which only its owner may read. Raises `OSError`."""
        self._open()
        self._writer.start()

    def close(self) -> None:
        """Write what is left, as far as the disk takes it in a moment."""
        if self._refused:
            self.note()
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._writer.join(_LAST_LINES)
        if not self._writer.is_alive() and self._file >= 0:
            os.close(self._file)
            self._file = -1

    def note(self, **members: object) -> None:
        """Take one line; what is None is left out. Never blocks, never fails."""
        members = {"time": utc_timestamp(time.time()), **members}
        if self._refused:
            members["refused_before"] = self._refused
        if self._lost:
            members["lines_lost_before"] = self._lost
        line = json.dumps({name: value for name, value in members.items() if value is not None}, default=str)
        try:
            self._lines.put_nowait(line.encode() + b"\n")
        except queue.Full:
            self._lose()
        else:
            self._lost = self._refused = 0

    def note_refused(self, **members: object) -> None:
        """Take the line about a request that was not let in; where there was one just now it is only counted."""
        now = time.monotonic()
        if now < self._next_refused:
            self._refused += 1
        else:
            self._next_refused = now + _REFUSED_EVERY
            self.note(**members)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line)
            except OSError as error:
                self._lose()
                if not self._failing:
                    self._failing = True
                    self._logger.error("audit: %s cannot be written, lines are lost: %s", self._path, error.strerror)
            else:
                if self._failing:
                    self._failing = False
                    self._logger.warning("audit: %s can be written again", self._path)

    def _lose(self) -> None:
        self._lost += 1

    def _write(self, line: bytes) -> None:
        """Append a line, whole or not at all."""
        if self._file < 0:
            self._open()
        size = os.fstat(self._file).st_size
        if self._backup_count and 0 < self._max_size < size + len(line) and size:
            self._rotate()
            size = os.fstat(self._file).st_size
        written = os.write(self._file, line)
        if written < len(line):  # the disk is full: half a line would spoil the next one
            os.ftruncate(self._file, size)
            os.write(self._file, line)

    def _rotate(self) -> None:
        """Begin a new file. Where the old one cannot be put away, go on in it: a line is worth more than the bound."""
        os.close(self._file)
        self._file = -1
        with contextlib.suppress(OSError):
            for number in range(self._backup_count, 0, -1):
                before = f"{self._path}.{number - 1}" if number > 1 else self._path
                with contextlib.suppress(FileNotFoundError):
                    os.replace(before, f"{self._path}.{number}")
        self._open()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def told(*sources: object) -> dict[str, object]:
    """Return what requests, queries or arguments say of what is to be done: the `_TOLD` fields that they have."""
    found: dict[str, object] = {}
    for source in sources:
        given = source if isinstance(source, Mapping) else None
        for name in _TOLD:
            value = given.get(name) if given is not None else getattr(source, name, None)
            if isinstance(value, str | int | bool):
                found[name] = value[:_LONGEST_TEXT] if isinstance(value, str) else value
    return found


@lru_cache(maxsize=4)
def key_fingerprint(key: bytes) -> str:
    """Return what stands for a key: enough to tell two apart, of no use to anybody who wants to be let in."""
    return hashlib.sha256(b"shelld-py audit " + key).hexdigest()[:12]
