"""`user` of /exec: whom a command with pipes runs as. Only root can do that."""

import os
import pwd

import pytest

from tests.daemons import RunningDaemon, alive, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")


def execute(daemon: RunningDaemon, command: str, user: str, **fields: object) -> dict[str, object]:
    """Run a command as `user`; return the result."""
    return daemon.json("POST", "/exec", json={"command": command, "user": user, "streams": "pipes", **fields})


def test_a_command_runs_as_another_user(daemon: RunningDaemon) -> None:
    """With the groups and variables of a login; input, output and what is opened anew are theirs to use."""
    nobody = pwd.getpwnam("nobody")
    shown = execute(
        daemon, "id -u; id -g; echo $HOME $USER $LOGNAME $SHELL; cat; echo e >/dev/stderr", "nobody", stdin="in\n"
    )
    assert shown["stdout"] == (
        f"{nobody.pw_uid}\n{nobody.pw_gid}\n{nobody.pw_dir} nobody nobody {nobody.pw_shell}\nin\n"
    )
    assert (shown["stderr"], shown["exit_code"]) == ("e\n", 0)
    assert execute(daemon, "id -u; id -G; echo $A", "4321:5432", environment={"A": "b"})["stdout"] == "4321\n5432\nb\n"
    assert execute(daemon, "kill -0 1 2>/dev/null; cat /etc/shadow", "4321")["exit_code"] == 1
    assert execute(daemon, f"echo {'x' * 200_000} | wc -c", "nobody")["stdout"] == "200001\n"


def test_an_open_standard_input_is_theirs(daemon: RunningDaemon) -> None:
    """It can be opened anew, as the other streams can."""
    shown = execute(daemon, "head -n1 /dev/stdin", "nobody", stdin="in\n", stdin_open=True)
    assert (shown["stdout"], shown["exit_code"]) == ("in\n", 0)


def test_it_can_be_killed(daemon: RunningDaemon) -> None:
    """As any other: by a deadline, with what it has left in the background."""
    shown = execute(daemon, "setsid sleep 987 & echo $!; sleep 987", "nobody", deadline=0.3)
    assert (shown["status"], shown["cause"]) == ("killed", "deadline")
    wait_for(lambda: not alive(int(str(shown["stdout"]))))


@pytest.mark.parametrize("user", ["no such user", "", "nobody:no such group", "99999999999", "\0", "nobody:\0"])
def test_users_that_there_are_not(daemon: RunningDaemon, user: str) -> None:
    answer = execute(daemon, "true", user)
    assert (answer["status"], answer["code"]) == (400, "invalid_request")


def test_a_name_of_megabytes_is_no_user(daemon: RunningDaemon) -> None:
    """Where names are looked up, one could end the process: it is refused before."""
    answer = execute(daemon, "true", "x" * 5_000_000)
    assert "a name has at most 256 characters" in str(answer["detail"])
    assert len(str(answer["detail"])) < 500
    assert daemon.client.get("/health").status_code == 200


def test_exit_where_no_process_can_be_begun(daemon: RunningDaemon) -> None:
    """A shell comes back from `exit` without one: bash would try again for half a minute, and then give up."""
    opened = daemon.json("POST", "/sessions", json={"user": "4713", "working_directory": "/", "startup_file": ""})
    shell = f"/sessions/{opened['session_id']}"
    shown = daemon.json("POST", f"{shell}/run", json={"command": "ulimit -Su 1; exit 3"})
    assert (shown["exit_code"], shown["stdout"], shown["restored"]) == (3, "", True)
    daemon.client.delete(shell)
