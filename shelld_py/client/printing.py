"""Events to the terminal, or to a pipe, of the person who waits for them."""

import os
import sys
from typing import Final

from shelld_py.client.events import Event, Gap, Output
from shelld_py.models import Stream

_DESCRIPTORS: Final = {Stream.STDOUT: 1, Stream.STDERR: 2}


def complain(message: str) -> None:
    """Say one line on standard error."""
    print(f"shelld-py: {message}", file=sys.stderr, flush=True)


def write(descriptor: int, text: str | bytes) -> None:
    """Write all of `text`, at once. Raises `BrokenPipeError` where nobody reads any more."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    while data:
        data = data[os.write(descriptor, data) :]


class Printer:
    """Prints the output in events, each stream to ours of that name."""

    def __init__(self, *, by_lines: bool) -> None:
        """`by_lines` for text that goes to a file or a pipe: a line is written when it cannot be redrawn any more."""
        self._by_lines = by_lines
        self._lines = dict.fromkeys(Stream, "")

    def show(self, event: Event) -> None:
        """Print one event."""
        if isinstance(event, Gap):
            complain(f"{event.dropped} bytes of {event.stream} are not kept any more")
        elif isinstance(event, Output) and not self._by_lines:
            write(_DESCRIPTORS[event.stream], event.text)
        elif isinstance(event, Output):
            redrawn = event.text.startswith("\r")
            text = event.text[1:] if redrawn else self._lines[event.stream] + event.text
            end = text.rfind("\n") + 1
            self._lines[event.stream] = text[end:]
            write(_DESCRIPTORS[event.stream], text[:end])

    def flush(self) -> None:
        """Print the lines that have no end: nothing more will come, or not soon."""
        for stream, line in self._lines.items():
            self._lines[stream] = ""
            write(_DESCRIPTORS[stream], line)
