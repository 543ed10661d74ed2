"""The catalogue of adversarial commands in cases.yaml, each over HTTP against a running daemon."""

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.daemons import RunningDaemon, wait_for

CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())
SIGNAL_NAMES = {2: "INT", 3: "QUIT", 9: "KILL", 20: "TSTP"}


class Player:
    """Plays the steps of one case."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        self.run_id = ""
        self.values: dict[str, Any] = {}

    def play(self, step: dict[str, Any]) -> None:
        if "sleep" in step:
            time.sleep(step["sleep"])
        elif "write" in step:
            self.daemon.client.post("/stdin", content=step["write"].encode("latin-1"))
        elif "sig" in step:
            self.daemon.client.post("/kill", params={"signal": SIGNAL_NAMES[step["sig"]]})
        elif "killshell" in step:
            self.daemon.run("true")
            pid = self.daemon.json("GET", "/status")["shell_pid"]
            os.kill(pid, step["killshell"])
        elif "finish" in step:
            self.check(step, self.wait(step["finish"]))
        else:
            self.check(step, self.run(step))

    def run(self, step: dict[str, Any]) -> dict[str, Any]:
        """Run a command, feed and signal it as the step says, and return its result."""
        command = eval(step["run_py"], {"v": self.values}) if "run_py" in step else step["run"]
        self.send(command)
        if "in" in step:
            self.feed(step["in"], step.get("delay", 0.15))
        if "kill" in step:
            time.sleep(step["after"])
            self.signal(step["kill"])
            if "kill2" in step:
                time.sleep(step["kill2"])
                self.signal(step["kill2"] or step["kill"])
        return self.wait(step.get("to", 10))

    def send(self, command: str) -> None:
        """Start a command without waiting; a shell that is gone refuses it."""
        started = self.daemon.json("POST", "/run", json={"command": command, "timeout": 0, "on_input": "wait"})
        assert "run_id" in started, started
        self.run_id = started["run_id"]

    def feed(self, pieces: list[Any], delay: float) -> None:
        time.sleep(delay)
        for piece in pieces:
            if isinstance(piece, str):
                self.daemon.client.post(f"/runs/{self.run_id}/stdin", content=piece.encode("latin-1"))
            else:
                time.sleep(piece)

    def signal(self, number: int) -> None:
        self.daemon.client.post(f"/runs/{self.run_id}/kill", params={"signal": SIGNAL_NAMES[number]})

    def wait(self, timeout: float) -> dict[str, Any]:
        return self.daemon.json("GET", f"/runs/{self.run_id}/wait", params={"timeout": timeout, "max_output": 1})

    def check(self, step: dict[str, Any], result: dict[str, Any]) -> None:
        """Compare what came back with what the step says."""
        raw = self.daemon.client.get(
            f"/runs/{self.run_id}/output", params={"format": "raw"}, headers={"Accept": "text/plain"}
        )
        output = raw.content
        states = {"completed": "done", "killed": "done", "lost": "shell_exited", "running": "running"}
        wanted = step.get("st", "done")
        assert states[result["status"]] in ([wanted] if isinstance(wanted, str) else wanted), (result, output[:500])
        if "out" in step:
            assert output == step["out"].encode("latin-1"), result
        if "out_py" in step:
            assert output == eval(step["out_py"], {"v": self.values}), output[:500]
        if "out_re" in step:
            assert re.fullmatch(step["out_re"], output.decode("latin-1"), re.DOTALL), output[:500]
        if "out_len" in step:
            assert len(output) == step["out_len"]
        if "rc" in step and result["status"] != "running":
            wanted = step["rc"] if isinstance(step["rc"], list) else [step["rc"]]
            assert result["exit_code"] in [128 - code if code and code < 0 else code for code in wanted], result
        if "cwd" in step:
            assert result["working_directory"] == step["cwd"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(daemon: RunningDaemon, case: dict[str, Any]) -> None:
    """The output, the exit code and the state are exactly what bash's own would be."""
    player = Player(daemon)
    for step in case["s"]:
        player.play(step)
    wait_for(lambda: daemon.state() in ("ready", "unrecoverable", "busy"))
