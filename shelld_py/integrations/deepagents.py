"""shelld-py as a sandbox backend of deepagents. Made with deepagents 0.7.32.

The daemon wants `files.allowed_directories = ["/"]`, for deepagents names files by absolute paths.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from shelld_py import Client, ShelldError

T = TypeVar("T")
_TIMED_OUT = 124
_ERRORS = {
    "file_not_found": "file_not_found",
    "not_found": "file_not_found",
    "permission_denied": "permission_denied",
    "path_not_allowed": "permission_denied",
    "not_a_file": "is_directory",
    "not_a_directory": "invalid_path",
}


class ShelldBackend(BaseSandbox):
    """The computer of a daemon: each command in a shell of its own, killed after `timeout` seconds."""

    def __init__(self, url: str | None = None, key: str | None = None, timeout: int = 120) -> None:
        self._client, self._timeout = Client(url, key), timeout

    @property
    def id(self) -> str:
        """What tells it from others."""
        return f"shelld-{self._client.metadata().workspace_directory}"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command."""
        seconds = timeout or self._timeout
        run = self._client.exec(
            command, deadline=seconds, streams="merged", on_input="wait", max_output=0, startup_file=""
        )
        if run.cause == "deadline":
            return ExecuteResponse(f"{run.stdout}\n[killed after {seconds} s]", _TIMED_OUT)
        return ExecuteResponse(run.stdout or "", run.exit_code, run.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Make files, with the directories above them."""
        write = self._client.files.write_raw
        return [FileUploadResponse(path, _tried(path, partial(write, path, content))[1]) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Return what files hold."""
        found = [(path, *_tried(path, partial(self._client.files.read_raw, path))) for path in paths]
        return [FileDownloadResponse(path, raw.content if raw else None, error) for path, raw, error in found]


def _tried(path: str, call: Callable[[], T]) -> tuple[T | None, str | None]:
    if not path.startswith("/"):
        return None, "invalid_path"
    try:
        return call(), None
    except ShelldError as error:
        return None, _ERRORS.get(error.code, error.detail)
