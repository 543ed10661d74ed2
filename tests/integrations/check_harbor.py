"""Harbor with its oracle (scripts/test-integrations runs this; SHELLD_CONTAINER_URL is the daemon of a container)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shelld_py.integrations.harbor import ShelldHarbor

TASK = {
    "task.toml": 'schema_version = "1.4"\n[agent]\nuser = "nobody"\n[verifier]\nuser = "root"\n[environment]\n',
    "instruction.md": "Put the greeting where it belongs.\n",
    "environment/Dockerfile": "FROM scratch\n",
    "solution/solve.sh": '#!/bin/bash\nid -un\ncp "${0%/*}/greeting" /logs/\n',
    "solution/greeting": "hello\n",
    "tests/test.sh": "#!/bin/bash\nid -un && pwd\ncd /logs && cmp greeting /tests/wanted &&"
    ' [ "$(stat -c %U greeting)" = nobody ]\necho $((! $?)) >/logs/verifier/reward.txt\n',
    "tests/wanted": "hello\n",
}


def test_an_environment_is_whole():
    """Nothing that Harbor asks of one is missing."""
    assert ShelldHarbor.type() == "shelld"
    assert not ShelldHarbor.__abstractmethods__


@pytest.mark.parametrize(("agent", "reward"), [("nop", "0"), ("oracle", "1")])
def test_a_trial(tmp_path: Path, agent, reward):
    """The oracle solves a task as its user, and the verifier sees it as root; who does nothing has no reward."""
    url = os.environ.get("SHELLD_CONTAINER_URL")
    if not url:
        pytest.skip("there is no container")
    for name, text in TASK.items():
        file = tmp_path / "task" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    options = ["-a", agent, "--env", "shelld_py.integrations.harbor:ShelldHarbor", "-y", "-q", "-o", tmp_path / "jobs"]
    environ = {**os.environ, "SHELLD_URL": url}
    harbor = Path(sys.executable).parent / "harbor"
    subprocess.run([harbor, "run", "-p", tmp_path / "task", *options], env=environ, check=True)
    (trial,) = (tmp_path / "jobs").glob("*/task__*")
    result = json.loads((trial / "result.json").read_text())
    assert result["exception_info"] is None
    assert (trial / "verifier/reward.txt").read_text().strip() == reward
    assert (trial / "verifier/test-stdout.txt").read_text().startswith("root\n/app\n")
    if agent == "oracle":
        assert (trial / "agent/oracle.txt").read_text() == "nobody\n"
        assert result["verifier_result"]["rewards"] == {"reward": 1.0}
