"""What calls return beyond the models that the daemon itself uses.

Durations are seconds, cursors and sizes of files bytes, times RFC 3339 in UTC. Members that a newer daemon adds
are passed over.
"""

from typing import Any

import msgspec

from shelld_py.models import Foreground, Resources, RunResult, RunStatus, ShellState, Stream


class CurrentRun(RunResult, frozen=True, kw_only=True):
    """The run that is going on in a shell, without its output; and what it is doing."""

    foreground: Foreground | None = None
    resources: Resources | None = None


class ShellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a shell. `shell_pid` and `working_directory` are None where no bash lives.

    `created_at` and `expires_at` are told of sessions in listings; one that never expires has None.
    """

    state: ShellState
    version: str
    session_id: str
    working_directory: str | None
    shell_pid: int | None
    uptime: float
    sessions: int
    run: CurrentRun | None
    last_run_id: str | None
    idle: float | None = None
    idle_timeout: float | None = None
    created_at: str | None = None
    expires_at: str | None = None


class OutputPart(msgspec.Struct, frozen=True, kw_only=True):
    """Output from `cursor` on; reading goes on at `next_cursor`, unless `eof`: nothing more will come.

    `dropped` bytes in between are not kept any more. In raw form, bytes that are not UTF-8 are lone surrogates:
    `output.encode("utf-8", "surrogateescape")` gives them back.
    """

    run_id: str
    stream: Stream
    cursor: int
    next_cursor: int
    output: str
    status: RunStatus
    eof: bool
    dropped: int


class WaitResult(RunResult, frozen=True, kw_only=True):
    """A run as it stands after a wait. `reached` is the condition of `until` that came first, if any did."""

    reached: str | None = None


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What may be known of the machine and of the daemon's rules; `memory_mb` is in MiB."""

    operating_system: str
    shell: str
    workspace_directory: str
    version: str
    user: str
    cpus: float
    memory_mb: float
    limits: dict[str, Any]
    timeouts: dict[str, Any]
    allowed_directories: tuple[str, ...]


class RawContent(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a file: `content` begins at offset `start` of a file of `size` bytes; large files have no `etag`."""

    content: bytes
    start: int
    size: int
    etag: str | None
