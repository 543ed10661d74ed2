"""The container image, as operators run it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.image.containers import LOCKED_DOWN, WRITABLE, Container, podman, tmpfs
from tests.test_docs import walk

ROOT = Path(__file__).parent.parent.parent
IMAGE = os.environ["SHELLD_TEST_IMAGE"]
Start = Callable[..., Container]


def test_the_image_names_its_user_by_number() -> None:
    """An orchestrator that demands another user than root cannot resolve a name."""
    assert podman("image", "inspect", "--format", "{{.Config.User}}", IMAGE).strip() == "1000:1000"


def test_the_image_has_a_health_check_a_stop_signal_and_labels() -> None:
    inspected = podman("image", "inspect", "--format", "{{.HealthCheck}} {{.Config.StopSignal}} {{.Labels}}", IMAGE)
    assert "shelld-py health" in inspected
    assert "SIGTERM" in inspected
    assert "org.opencontainers.image.version" in inspected


def test_the_virtual_environment_holds_no_installer(start_container: Start) -> None:
    result = start_container().run("ls /opt/shelld-py/lib/python3*/site-packages /opt/shelld-py/bin")
    assert result["exit_code"] == 0
    assert "uvicorn" in result["stdout"]
    assert {"pip", "setuptools", "pkg_resources", "gcc"}.isdisjoint(result["stdout"].split())


def test_a_command_runs_as_a_user_without_rights(start_container: Start) -> None:
    container = start_container()
    result = container.run(
        "id -u; pwd; touch made-here && rm made-here; for tool in rg jq less; do $tool --version; done"
    )
    assert result["exit_code"] == 0
    assert result["stdout"].startswith("1000\n/work\n")


@pytest.mark.parametrize("user", ["1000:1000", "12345:0", "12345:12345"])
def test_it_works_locked_down(start_container: Start, user: str) -> None:
    """No writable root, no capabilities, no new privileges; any uid; root's tmpfs where it writes."""
    container = start_container(*LOCKED_DOWN, *tmpfs(*WRITABLE), "--user", user)
    rights = "grep -c -e '^Cap.*:.0*$' -e '^NoNewPrivs:.1$' /proc/self/status"
    result = container.run(f"id -u; {rights}; echo x > ~/x && echo y > /tmp/y; touch /x")
    assert result["stdout"].startswith(f"{user.split(':', maxsplit=1)[0]}\n6\n")
    assert "Read-only file system" in result["stdout"]
    created = container.client.post("/files/create", json={"path": "made.txt", "content": "made\n"})
    assert created.status_code == 200, created.text
    assert container.run("cat made.txt")["stdout"] == "made\n"


def test_shells_are_somebody_elses_where_the_daemon_is_root(start_container: Start) -> None:
    """With the capabilities that the documentation names and no others; the agent cannot look at the daemon."""
    rights = [f"--cap-add={name}" for name in ("CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID", "SYS_PTRACE")]
    user = ("--user", "0", "--env", "SHELLD_SHELL__USER=agent")
    data = ("--tmpfs", "/run/shelld-py:mode=0700", "--env", "SHELLD_SERVER__DATA_DIRECTORY=/run/shelld-py")
    container = start_container(*LOCKED_DOWN, *rights, *tmpfs("/work", "/home/agent", "/tmp"), *user, *data)
    result = container.run("id -u; touch ~/x /work/y && stat -c %u ~/x; cat /proc/1/environ; ls /run/shelld-py; kill 1")
    assert result["stdout"].startswith("1000\n1000\ncat: /proc/1/environ: Permission denied\n")
    assert "cannot open directory '/run/shelld-py': Permission denied" in result["stdout"]
    assert container.healthy()


def test_it_works_below_an_arbitrary_uid_without_any_mount(start_container: Start) -> None:
    """The places that are written to are open to everybody in the image itself."""
    result = start_container("--user", "12345:12345").run("touch ~/x /work/y && stat -c %u ~/x")
    assert result["stdout"] == "12345\n"


def test_the_walk_of_the_readme_is_what_happens(start_container: Start, tmp_path: Path) -> None:
    """By curl from outside, from the first key to the end of the daemon."""
    container = start_container(locked=False)
    walk((ROOT / "README.md").read_text(), container.url, tmp_path, Path("/work"))
    assert podman("wait", container.name).strip() == "0"


def test_the_console_is_there(start_container: Start) -> None:
    """It was built with the image."""
    answer = start_container().client.get("/console")
    assert answer.status_code == 200
    assert "<script" in answer.text


def test_the_health_check_of_the_image_succeeds(start_container: Start) -> None:
    podman("healthcheck", "run", start_container().name)


def test_orphans_are_reaped(start_container: Start) -> None:
    container = start_container()
    container.run("for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.01 & exec sleep 0.05' &); done; sleep 1")
    assert [line for line in container.processes() if line.startswith("Z")] == []


def test_orphans_are_reaped_below_an_init(start_container: Start) -> None:
    """With tini as PID 1 the daemon does the same."""
    container = start_container("--entrypoint", '["tini", "--", "/opt/shelld-py/bin/shelld-py", "--config", '
        '"/etc/shelld-py/config.toml"]')  # fmt: skip
    container.run("for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.01 & exec sleep 0.05' &); done; sleep 1")
    assert [line for line in container.processes() if line.startswith("Z")] == []
    container.stop()
    assert container.inspect("{{.State.ExitCode}}") == "0"


def test_it_ends_in_order_by_its_stop_signal(start_container: Start) -> None:
    """Well within the grace period, with a command that goes on."""
    container = start_container()
    container.run("sleep 1000", timeout=0)
    assert container.stop() < 20
    assert container.inspect("{{.State.ExitCode}}") == "0"


def test_a_command_that_breaks_the_memory_limit_is_told_while_the_daemon_lives(start_container: Start) -> None:
    container = start_container("--memory", "256m", "--memory-swap", "256m")
    result = container.run("python3 -c 'b\"x\" * 400_000_000'")
    assert result["cause"] == "oom"
    assert container.healthy()
    assert container.run("echo alive")["stdout"] == "alive\n"


def test_a_fork_bomb_leaves_the_daemon_alone(start_container: Start) -> None:
    container = start_container("--pids-limit", "64")
    container.run("bomb() { bomb | bomb & }; bomb", timeout="2s")
    assert container.healthy()
    assert container.client.post("/recycle").status_code == 200
    assert container.run("echo alive")["stdout"] == "alive\n"


def test_runs_are_kept_on_a_volume(start_container: Start) -> None:
    volume = f"shelld-test-{os.getpid()}"
    podman("volume", "create", volume)
    try:
        mount = ("--volume", f"{volume}:/var/lib/shelld-py")
        first = start_container(*mount)
        run_id = first.run("echo kept; sleep 0.2")["run_id"]
        first.stop()
        second = start_container(*mount)
        assert second.client.get(f"/runs/{run_id}", headers={"Accept": "application/json"}).json()["stdout"] == "kept\n"
        second.stop()
    finally:
        podman("volume", "rm", "--force", volume)
