"""`shell.user`: shells of a daemon that is root run as somebody else, who can do nothing to it."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shelld_py.linux.users import missing_capabilities
from tests.daemons import KEY, RunningDaemon, alive, running_daemon, wait_for

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or bool(missing_capabilities()),
    reason="only root, with its capabilities, may become somebody else",
)

NOBODY = pwd.getpwnam("nobody")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that everybody can enter, with one for `nobody` to work in: those of pytest are closed."""
    path = Path(tempfile.mkdtemp(prefix="shelld-test-"))
    path.chmod(0o755)
    (path / "work").mkdir()
    os.chown(path / "work", NOBODY.pw_uid, NOBODY.pw_gid)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def separated(place: Path) -> Iterator[RunningDaemon]:
    """A daemon whose shells are nobody's."""
    with running_daemon(place, shell__user="nobody", timeout__kill="0.2s") as daemon:
        yield daemon


@pytest.fixture
def box(separated: RunningDaemon) -> RunningDaemon:
    """The same with a fresh bash."""
    separated.fresh()
    return separated


def test_every_shell_is_theirs(box: RunningDaemon, place: Path) -> None:
    """The main shell, sessions and commands of their own, with or without a terminal: user, groups, variables."""
    command = 'id -u; id -G; echo "$HOME $USER $LOGNAME $SHELL"; env | grep -c SHELLD_; touch here'
    groups = " ".join(map(str, os.getgrouplist("nobody", NOBODY.pw_gid)))
    expected = f"{NOBODY.pw_uid}\n{groups}\n{NOBODY.pw_dir} nobody nobody {NOBODY.pw_shell}\n0\n"
    session = box.json("POST", "/sessions", json={})["session_id"]
    asked = ({}, {"streams": "pipes"}, {"streams": "merged"}, {"user": "nobody"})
    results = [box.json("POST", "/exec", json={"command": command, **fields}) for fields in asked]
    results += [box.run(command), box.json("POST", f"/sessions/{session}/run", json={"command": command})]
    box.client.delete(f"/sessions/{session}")
    assert [result["stdout"] for result in results] == [expected] * 6
    assert (place / "work/here").stat().st_uid == NOBODY.pw_uid
    assert box.json("GET", "/metadata")["user"] == "nobody"


def test_the_terminal_is_theirs(box: RunningDaemon) -> None:
    """They can open it by its name, for a question say; so is the one for standard error."""
    assert box.run("stat -c %U $(tty); echo ok >$(tty)")["stdout"] == "nobody\nok\n"
    assert box.run("stat -Lc %U /dev/fd/2; echo e >/dev/stderr", streams="separate")["stderr"] == "e\n"


def test_ordinary_things_work(box: RunningDaemon) -> None:
    """State, a command's own input and variables, `exit`, jobs, a question, a kill, a copy of the shell."""
    box.run("cd /tmp; name=value; f() { echo $name; }")
    assert box.run("f; pwd; cat; echo $A", stdin="in\n", environment={"A": "b"})["stdout"] == "value\n/tmp\nin\nb\n"
    assert box.run("exit 3")["exit_code"] == 3
    assert box.run("f")["stdout"] == "value\n"
    session = box.json("POST", "/sessions", json={"copy_of": "main"})["session_id"]
    assert box.json("POST", f"/sessions/{session}/run", json={"command": "f; id -un"})["stdout"] == "value\nnobody\n"
    box.client.delete(f"/sessions/{session}")
    asking = box.run("read -p '? ' x; echo got $x")
    assert asking["awaiting_input"]
    box.client.post("/stdin", content=b"it\n")
    assert box.finished(asking["run_id"])["stdout"].endswith("got it\n")
    left = int(box.run("setsid sleep 987 & echo $!")["stdout"])
    run = box.start("trap '' INT; sleep 987")
    assert box.client.post("/kill").text == "ready"
    assert box.finished(run)["status"] == "killed"
    box.client.post("/recycle")
    wait_for(lambda: not alive(left))


def test_a_body_is_standard_input(box: RunningDaemon) -> None:
    """It lies on the daemon's own disk, where they may do nothing; a command with pipes reads it, and opens it anew."""
    params = {"command": "cat; id -un; head -c 2 /dev/stdin", "streams": "pipes"}
    headers = {"Content-Type": "application/octet-stream"}
    answer = box.json("POST", "/exec", params=params, content=b"body\n", headers=headers)
    assert answer.get("stdout") == "body\nnobody\nbo", answer


def test_a_file_is_standard_input(box: RunningDaemon) -> None:
    """With a terminal, too, where bash opens it by its name, whatever that is; nobody must be able to do so."""
    name = "it's $HOME"
    box.client.put("/files/raw", params={"path": name}, content=b"content\n")
    for streams in ("merged", "pipes"):
        fields = {"command": "cat; id -un", "stdin_path": name, "streams": streams}
        assert box.json("POST", "/exec", json=fields)["stdout"] == "content\nnobody\n"


def test_files_for_a_shell_are_removed_with_it(box: RunningDaemon) -> None:
    """What it shares with the daemon has names, which no other user can list, and which go with the shell."""
    box.client.delete("/sessions/" + box.json("POST", "/sessions", json={})["session_id"])
    shared = Path(box.run("readlink /proc/$$/fd/244")["stdout"].strip()).parent
    assert (shared.stat().st_mode & 0o777, shared.stat().st_uid) == (0o711, 0)
    assert box.run(f"ls {shared}; rm -rf {shared}; mv {shared} /tmp/x")["exit_code"] == 1
    box.run("true", stdin="x", environment={"A": "b"})
    assert len(list(shared.iterdir())) == 7
    box.client.post("/recycle")
    assert not shared.exists()


@pytest.mark.parametrize("path", ["/exec", "/sessions", "/startup"])
def test_nobody_else_may_be_asked_for(box: RunningDaemon, path: str) -> None:
    """Neither root, nor the same user with another group."""
    if path == "/startup":
        box.client.post("/shutdown?recycle=true")
    for user in ("root", "0", "1", "nobody:0"):
        answer = box.json("POST", path, json={"user": user, **({"command": "id"} if path == "/exec" else {})})
        assert (answer["status"], answer["code"]) == (403, "user_not_allowed")


def test_hooks_are_theirs(place: Path) -> None:
    """The operator's commands run beside the agent's files, so they run as the agent's user."""
    hook = "echo $(id -un) $HOME $USER >hooked"
    (place / "hooks/work").mkdir(parents=True)
    os.chown(place / "hooks/work", NOBODY.pw_uid, -1)
    with running_daemon(place / "hooks", shell__user="nobody", hooks__on_startup=hook) as daemon:
        daemon.fresh()
        assert (place / "hooks/work/hooked").read_text() == f"nobody {NOBODY.pw_dir} nobody\n"


@pytest.mark.parametrize("user", ["nobody", "4321:5432"])
def test_a_root_daemon_runs_shells_as_whom_a_request_names(daemon: RunningDaemon, user: str) -> None:
    """Without `shell.user` each session, and each command with a shell of its own, may name its user."""
    session = daemon.json("POST", "/sessions", json={"user": user, "working_directory": "/"})["session_id"]
    shown = daemon.json("POST", f"/sessions/{session}/run", json={"command": "id -u; id -g"})["stdout"]
    assert shown == ("4321\n5432\n" if ":" in user else f"{NOBODY.pw_uid}\n{NOBODY.pw_gid}\n")
    daemon.client.post(f"/sessions/{session}/recycle")
    assert daemon.json("POST", f"/sessions/{session}/run", json={"command": "id -u; id -g"})["stdout"] == shown
    daemon.client.delete(f"/sessions/{session}")


def test_a_directory_that_is_closed_to_them_is_refused(daemon: RunningDaemon, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    answer = daemon.json("POST", "/sessions", json={"user": "nobody", "working_directory": str(tmp_path)})
    assert answer["code"] == "shell_start_failed"
    assert str(tmp_path) in answer["detail"]


_SERVE_AS = """
import os, sys
import shelld_py.daemon
from shelld_py.cli import main
user = int(sys.argv[1])
os.setresuid(user, user, user)
sys.exit(main(sys.argv[2:]))
"""
"""It becomes the user when all is imported: the interpreter may be where that one cannot read it."""


def refusal(place: Path, *settings: str, user: int = 0, below: tuple[str, ...] = ()) -> str:
    """Start a daemon that must refuse its settings, `below` a program that takes rights away; return what it says."""
    options = [word for setting in ("server.port=0", *settings) for word in ("--set", setting)]
    done = subprocess.run(
        [*below, sys.executable, "-c", _SERVE_AS, str(user), *options],
        cwd=place / "work", env={**os.environ, "SHELLD_KEY": KEY}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_users_that_cannot_be(place: Path) -> None:
    """The start fails, and says why: an unknown user, root, a daemon that is not root, or may too little."""
    assert "there is no user 'no such'" in refusal(place, "shell.user=no such")
    assert "is root, from whom nothing is kept apart" in refusal(place, "shell.user=0")
    assert "only root can run shells as nobody" in refusal(place, "shell.user=nobody", user=4321)


def test_a_root_without_the_capabilities_is_refused(place: Path) -> None:
    """All that are missing are named, and no others."""
    said = refusal(place, "shell.user=nobody", below=("setpriv", "--bounding-set", "-setuid,-sys_ptrace,-net_raw"))
    assert "to run shells as nobody the daemon also needs CAP_SETUID, CAP_SYS_PTRACE\n" in said


def test_a_kernel_that_does_not_let_a_thread_become_the_user_is_believed(place: Path) -> None:
    """In a user namespace root has all capabilities, and there may be nobody else to become."""
    said = refusal(place, "shell.user=4321", below=("unshare", "--user", "--map-root-user"))
    assert "shell.user: the kernel refuses to use files as 4321: " in said


def test_file_ids_that_were_not_taken_are_an_error() -> None:
    """setfsuid(2) itself tells of no failure."""
    program = """
import os
from shelld_py.linux.syscalls import set_file_ids
os.setresuid(4321, 4321, 4321)
set_file_ids(4321, os.getgid())
for ids in ((4322, os.getgid()), (4321, 4322)):
    try:
        set_file_ids(*ids)
    except PermissionError as error:
        print(error.filename)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "setfsuid\nsetfsuid\n"


def test_what_the_daemon_keeps_must_be_out_of_their_reach(place: Path) -> None:
    """Where they own a directory on the way, or can write to it, they could put something else in its place."""
    work = place / "work"
    for setting in ("server.data_directory", "files.backup_directory", "logging.file", "logging.audit"):
        said = refusal(place, "shell.user=nobody", f"{setting}={work}/below/it")
        assert f"{setting}: nobody (shell.user) can write to {work}" in said
    shutil.copy("/bin/bash", work / "bash")
    assert "shell.command: nobody (shell.user) can write" in refusal(
        place, "shell.user=nobody", f"shell.command={work}/bash"
    )
    (place / "key").write_text(KEY)
    said = refusal(place, "shell.user=nobody", f"server.key_file={place}/key")
    assert f"server.key_file: nobody (shell.user) can read {place}/key: chmod go= {place}/key" in said
