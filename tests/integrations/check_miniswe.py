"""An environment of mini-swe-agent (scripts/test-integrations runs this)."""

import pytest
from minisweagent.exceptions import Submitted

from shelld_py.integrations.miniswe import ShelldEnvironment


@pytest.mark.parametrize("persistent", [True, False])
def test_an_environment(persistent):
    """State, exit status, a time-out, a question, the end of a task; the key is not told."""
    environment = ShelldEnvironment(persistent=persistent, timeout=1, key="integrations")
    done = environment.execute({"command": "x=5; echo $x; false"})
    assert (done["output"], done["returncode"]) == ("5\n", 1)
    assert environment.execute({"command": "echo ${x-none}"})["output"] == ("5\n" if persistent else "none\n")
    assert "longer than 1 s" in environment.execute({"command": "sleep 60"})["exception_info"]
    assert "waited for input" in environment.execute({"command": "read answer"})["exception_info"]
    with pytest.raises(Submitted):
        environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo done"})
    assert "integrations" not in str([environment.serialize(), environment.get_template_vars()])
