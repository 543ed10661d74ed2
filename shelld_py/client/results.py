"""What calls return where that is not the daemon's model to the letter.

All other results are models. Members that a newer daemon adds are passed over, in these and in models.
"""

from typing import Any

import msgspec

from shelld_py import models


class WaitResult(models.RunResult, frozen=True, kw_only=True):
    """A run as it stands after a wait. `reached` is the condition of `until` that came first, if any did."""

    reached: str | None = None


class Metadata(models.Metadata[dict[str, Any], dict[str, Any]], frozen=True, kw_only=True):
    """What may be known of the machine and of the daemon's rules; `memory_mb` is in MiB."""


class RawContent(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a file: `content` begins at offset `start` of a file of `size` bytes; large files have no `etag`."""

    content: bytes
    start: int
    size: int
    etag: str | None
