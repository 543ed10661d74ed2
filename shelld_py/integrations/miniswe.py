"""shelld-py as the environment of mini-swe-agent: commands share one shell, or get one each. Made with 2.4.6.

`ShelldEnvironment(url=..., key=...)`, or `environment_class: shelld_py.integrations.miniswe.ShelldEnvironment`.
"""

import platform
from collections.abc import Mapping
from typing import Any

from minisweagent.exceptions import Submitted
from pydantic import BaseModel

from shelld_py import Client, ShelldError

_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class ShelldConfig(BaseModel):
    """Where the daemon is (default: `SHELLD_URL`, `SHELLD_KEY`), and how commands are run."""

    url: str | None = None
    key: str | None = None
    cwd: str = ""
    env: dict[str, str] = {}
    timeout: int = 30
    persistent: bool = True
    """Whether variables and directory stay from command to command."""


class ShelldEnvironment:
    """An environment of mini-swe-agent."""

    def __init__(self, *, config_class: type[ShelldConfig] = ShelldConfig, **options: Any) -> None:
        self.config = config_class(**options)
        self.client = Client(self.config.url, self.config.key)
        self.shell = self.client.sessions.open() if self.config.persistent else None

    def execute(self, action: Mapping[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run the command of an action; one that takes too long, or waits for input, is killed."""
        seconds = timeout or self.config.timeout
        try:
            run = (self.shell.run if self.shell else self.client.exec)(
                action.get("command", ""),
                directory=cwd or self.config.cwd or None,
                environment=self.config.env or None,
                streams="merged",
                deadline=seconds,
            )
            output: dict[str, Any] = {"output": run.stdout, "returncode": run.exit_code, "exception_info": ""}
            if run.awaiting_input:
                self.client.runs.kill(run.run_id)
                output |= {"returncode": -1, "exception_info": "It waited for input, and was killed."}
            elif run.cause == "deadline":
                output |= {"returncode": -1, "exception_info": f"It took longer than {seconds} s, and was killed."}
        except ShelldError as error:
            extra = {"exception_type": error.code}
            output = {"output": "", "returncode": -1, "exception_info": error.detail, "extra": extra}
        lines = (output["output"] or "").lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == _SUBMIT and output["returncode"] == 0:
            text = "".join(lines[1:])
            raise Submitted(
                {"role": "exit", "content": text, "extra": {"exit_status": "Submitted", "submission": text}}
            )
        return output

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """Return what prompts may name."""
        return {**self.config.model_dump(exclude={"key"}), **platform.uname()._asdict(), **more}

    def serialize(self) -> dict[str, Any]:
        """Return what a trajectory says of the environment; not the key."""
        return {"info": {"config": {"environment": self.config.model_dump(mode="json", exclude={"key"})}}}
