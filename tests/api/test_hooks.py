"""The operator's hooks: when they run, with what, and what becomes of those that fail."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.conftest import Gate
from tests.daemons import KEY, RunningDaemon, processes_with, wait_for


def told(daemon: RunningDaemon) -> list[str]:
    """Return the hooks that have run, in their order."""
    path = daemon.log.parent / "work" / "hooks"
    return path.read_text().split() if path.exists() else []


def test_order(start_daemon) -> None:
    """Each hook runs at its turning point, with its name in SHELLD_HOOK, before the request is answered."""
    tell = 'echo "$SHELLD_HOOK" >>hooks'
    daemon = start_daemon(hooks__on_startup=tell, hooks__on_recycle=tell, hooks__on_shutdown=tell)
    assert told(daemon) == []
    daemon.client.post("/startup")
    assert told(daemon) == ["startup"]
    daemon.client.post("/recycle")
    assert told(daemon) == ["startup", "recycle"]
    daemon.client.post("/shutdown?recycle=true")
    assert told(daemon) == ["startup", "recycle", "recycle"]
    assert daemon.client.post("/recycle").status_code == 409
    daemon.client.post("/startup")
    assert daemon.client.post("/startup").status_code == 409
    daemon.client.post("/shutdown")
    assert daemon.process.wait(60) == 0
    assert told(daemon) == ["startup", "recycle", "recycle", "startup", "shutdown"]
    log = daemon.log.read_text()
    assert log.count("hook recycle") == 2
    assert log.index("hook startup") < log.index("hook recycle") < log.index("hook shutdown")


def test_a_startup_in_the_middle_of_a_recycle_runs_no_hook(start_daemon) -> None:
    """Between two bashes the state is seen as it was before, and what is refused is refused at once."""
    daemon = start_daemon(hooks__on_startup="echo startup >>hooks")
    daemon.client.post("/startup")
    work = daemon.log.parent / "work"
    (work / ".bashrc").write_text("touch ~/starting; until [ -e ~/go ]; do sleep 0.01; done\n")
    with ThreadPoolExecutor() as pool:
        recycled = pool.submit(daemon.client.post, "/recycle")
        wait_for((work / "starting").exists)
        assert daemon.client.get("/status").text == "ready"
        for path, body, code in (("/startup", "", "shell_already_started"), ("/run", "true", "shell_busy")):
            refused = daemon.client.post(path, content=body, headers={"Accept": "application/json"})
            assert (refused.status_code, refused.json()["code"], refused.json()["state"]) == (409, code, "ready")
        assert told(daemon) == ["startup"]
        (work / "go").touch()
        assert recycled.result().text == "ready"
    assert daemon.client.post("/run", content="echo fine").text == "fine\n"


def test_startup_hook_runs_before_bash(start_daemon) -> None:
    """The startup hook is over before bash is started, so it can prepare the directory."""
    daemon = start_daemon(hooks__on_startup="ps -o comm= --ppid $PPID >children; echo prepared >file")
    daemon.client.post("/startup")
    assert daemon.run("cat file")["stdout"] == "prepared\n"
    assert "bash" not in daemon.run("cat children")["stdout"]


def test_surroundings(start_daemon) -> None:
    """A hook runs in the shell's first directory, with no input, in a session of its own, with none of our settings."""
    daemon = start_daemon(hooks__on_startup="{ pwd; cat; ps -o sid= -p $$; echo $$; env; } >seen")
    daemon.client.post("/startup")
    lines = (daemon.log.parent / "work" / "seen").read_text().splitlines()
    assert lines[0] == str(daemon.log.parent / "work")
    assert lines[1].strip() == lines[2].strip()
    assert [line for line in lines if line.startswith("SHELLD_")] == ["SHELLD_HOOK=startup"]


@pytest.mark.parametrize(("hook", "said"), [
    ("echo out; echo err >&2; exit 7", ["exit status 7", "out", "err"]),
    ("no-such-command", ["exit status 127", "not found"]),
    ("echo begun; sleep 3210; echo never", ["longer than hooks.timeout", "0.3s", "begun"]),
    ("head -c 100000 /dev/zero | tr '\\0' x; echo tail; exit 1", ["exit status 1", "tail"]),
])  # fmt: skip
def test_failures_are_logged_and_block_nothing(start_daemon, hook: str, said: list[str]) -> None:
    """A hook that fails, or takes longer than hooks.timeout, is logged with what it wrote; all goes on."""
    daemon = start_daemon(hooks__on_startup=hook, hooks__timeout="300ms")
    assert daemon.client.post("/startup").text == "ready"
    assert daemon.run("echo fine")["stdout"] == "fine\n"
    lines = [line for line in daemon.log.read_text().splitlines() if "hook startup" in line]
    assert " error " in lines[0]
    log = daemon.log.read_text()
    for word in said:
        assert word in log
    assert len(log) < 20_000
    assert processes_with("sleep\x003210") == []


def test_hook_shell_that_is_not_there(start_daemon) -> None:
    """A hook whose shell cannot be started is logged, and blocks nothing."""
    daemon = start_daemon(hooks__on_startup="true", hooks__shell_command="/no/such/shell")
    assert daemon.client.post("/startup").text == "ready"
    assert "hook startup" in daemon.log.read_text()


def test_hook_shell_command(start_daemon) -> None:
    """hooks.shell_command is what runs a hook, with arguments if wanted."""
    daemon = start_daemon(
        hooks__on_startup='echo "${BASH_VERSION:+bash} $-" >seen', hooks__shell_command="/bin/bash -eu"
    )
    daemon.client.post("/startup")
    kind, flags = (daemon.log.parent / "work" / "seen").read_text().split()
    assert kind == "bash"
    assert {"e", "u"} <= set(flags)


def test_what_a_hook_leaves_behind(start_daemon) -> None:
    """A process that a hook leaves in the background delays nothing and is ended with its group."""
    daemon = start_daemon(hooks__on_startup="sleep 2109 & echo done", hooks__timeout="10m")
    assert daemon.client.post("/startup").text == "ready"
    wait_for(lambda: processes_with("sleep\x002109") == [])


def test_other_requests_during_a_hook(start_daemon) -> None:
    """While a hook runs the daemon answers other requests."""
    daemon = start_daemon(hooks__on_startup="echo >begun; read -r _ <gate")
    work = daemon.log.parent / "work"
    gate = Gate(work / "gate")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(daemon.ask, "POST", "/startup", key=KEY)
        wait_for((work / "begun").exists)
        assert daemon.client.get("/health").text == "ok"
        assert daemon.state() == "available"
        gate.open()
        assert starting.result().body == b"ready"


def test_simultaneous_startups_run_the_hook_once(start_daemon) -> None:
    """Of two simultaneous startups one is refused, and the hook is run once."""
    daemon = start_daemon(hooks__on_startup="echo startup >>hooks; read -r _ <gate")
    gate = Gate(daemon.log.parent / "work" / "gate")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(daemon.ask, "POST", "/startup", key=KEY)
        wait_for(lambda: told(daemon))
        second = pool.submit(daemon.ask, "POST", "/startup", key=KEY)
        soon = time.monotonic() + 0.3
        wait_for(lambda: second.done() or len(told(daemon)) > 1 or time.monotonic() > soon)
        gate.open()
        wait_for(lambda: second.done() or len(told(daemon)) > 1)
        if len(told(daemon)) > 1:
            gate.open()
        statuses = sorted([first.result().status, second.result().status])
    assert (statuses, told(daemon)) == ([200, 409], ["startup"])
