"""shelld-py as an environment of Harbor (Terminal-Bench). Made with harbor 0.24.0.

`harbor run --env shelld_py.integrations.harbor:ShelldHarbor`: one daemon, as root in a container that somebody else has
started, with `files.allowed_directories = ["/"]`; `SHELLD_URL` and `SHELLD_KEY` say where it is.
"""

from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.tar_transfer import extract_dir_from_bytes

from shelld_py import AsyncClient

_LONGEST = 1800
_WORK = "/app"
_DIRECTORIES = f"mkdir -p {_WORK} /logs/agent /logs/verifier /logs/artifacts /tests /solution && chmod -R 777 /logs"


class ShelldHarbor(BaseEnvironment):
    """The computer of a daemon."""

    def __init__(self, *arguments: Any, url: str | None = None, key: str | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._client = AsyncClient(url, key)

    @staticmethod
    def type() -> str:
        """Return its name."""
        return "shelld"

    def _validate_definition(self) -> None:
        """Whatever the task defines, the container was made by somebody else."""

    async def start(self, force_build: bool) -> None:
        """Make the directories that a task expects."""
        run = await self._client.exec(_DIRECTORIES, streams="pipes")
        if run.exit_code:
            raise OSError(run.stderr)

    async def stop(self, delete: bool) -> None:
        """Let the daemon go."""
        await self._client.close()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in a shell of its own, killed when its time is over. Raises `TimeoutError`."""
        who = user if user is not None else self.default_user
        seconds = timeout_sec or _LONGEST
        run = await self._client.exec(
            command,
            directory=cwd or _WORK,
            environment=self._merge_env(env),
            user=None if who is None else str(who),
            deadline=seconds,
            streams="pipes",
            max_output=0,
        )
        if run.cause == "deadline":
            raise TimeoutError(f"{command[:80]!r} took more than {seconds} s")
        code = run.exit_code if run.exit_code is not None else 1
        return ExecResult(stdout=run.stdout, stderr=run.stderr, return_code=code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Put a file of this machine into the environment."""
        await self._client.files.upload(source_path, target_path)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Get a file."""
        Path(target_path).write_bytes((await self._client.files.read_raw(source_path)).content)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Put a directory into the environment."""
        await self._client.files.upload(source_dir, target_dir)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Get a directory."""
        extract_dir_from_bytes(await self._client.files.read_archive(source_dir), target_dir)
