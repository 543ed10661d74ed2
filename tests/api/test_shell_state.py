"""The state of a shell as a document: read, given to another shell of this or another daemon, copied."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import RunningDaemon


def opened(daemon: RunningDaemon, **fields: Any) -> tuple[Callable[..., str], list[str]]:
    """Open a session; return what runs a command there and gives its output, and what was not restored."""
    answer = daemon.json("POST", "/sessions", json=fields)
    assert "session_id" in answer, answer
    path = f"/sessions/{answer['session_id']}"

    def run(command: str) -> str:
        result = daemon.json("POST", f"{path}/run", json={"command": command, "max_output": 0})
        return str(result["stdout"])

    return run, answer.get("not_restored")


EVERYTHING = r"""
x=$'a\xff"$`b'; y=$'é\n '; E="it's"; export E; export U=$'\xff'; declare -ai arr=(1 2 [7]=3)
declare -Ar map=([k]=$'v\nw' ["b ]c"]='"'); declare -ix N=7; declare -l low=ABC; readonly Q=1; declare -n ref=y
export EMPTY=; declare -x LATER; alias ll='ls -l
x'; alias set=nothing; f() { [[ $1 == @(a|b) ]] && cat <<A
$1 é
A
}
export -f f; shopt -s extglob nullglob; set -u -o pipefail; umask 027; set -- 'a b' c
trap 'echo "hu'"'"'p"' HUP; trap '' USR2; trap 'echo bye' EXIT; trap ': err' ERR; trap ': debug' DEBUG
unset PAGER
mkdir -p one two; cd one; pushd ../two >/dev/null; pushd / >/dev/null
"""
TOLD = r"""
declare -p x y E U arr map N low Q ref EMPTY LATER OLDPWD; alias; declare -fp f; shopt
\set +o; umask; builtin trap -p HUP USR2 ERR DEBUG
dirs -l; printf '%s|' "$@" "$-" "$PWD"; f a; bash -c 'f b; echo ${PAGER-none} $N'
"""


def test_a_copy_is_what_its_original_is(daemon: RunningDaemon) -> None:
    """Variables of all kinds, functions, aliases, options, umask, traps, directories, parameters; then each goes on."""
    daemon.run(EVERYTHING)
    assert daemon.run("echo $x")["exit_code"] == 0
    copy, not_restored = opened(daemon, copy_of="main")
    assert not_restored == []
    told = daemon.run(TOLD, max_output=0)["stdout"]
    assert "declare -ai arr" in told
    assert copy(TOLD).splitlines() == told.splitlines()
    copy("arr[0]=copy; cd /tmp; f() { echo other; }")
    daemon.run("arr[0]=41")
    assert (copy("echo ${arr[0]} $PWD; f"), daemon.run("echo ${arr[0]} $PWD; f b")["stdout"]) == (
        "0 /tmp\nother\n", "41 /\nb é\n",
    )  # fmt: skip
    assert copy("exit 3") == "bye\n"
    assert daemon.run("exit 3")["stdout"] == "bye\n"


def test_a_document_of_a_copy_is_that_of_the_original(daemon: RunningDaemon) -> None:
    """So it can be handed on and on; reading it changes nothing of the shell."""
    daemon.run(EVERYTHING + "set -o xtrace; set -v\n")
    first = daemon.json("GET", "/state")
    assert first == daemon.json("GET", "/state")
    assert first["working_directory"] == "/"
    assert first["environment"]["E"] == "it's"
    assert "PAGER" not in first["environment"]
    assert first["left_out"] == []
    answer = daemon.json("POST", "/sessions", json={"state": first})
    assert answer["not_restored"] == []
    assert daemon.json("GET", f"/sessions/{answer['session_id']}/state") == first
    assert daemon.state() == "ready"


def test_it_moves_to_another_machine(daemon: RunningDaemon, start_daemon: Callable[..., RunningDaemon]) -> None:
    """The request's own directory and environment go before; a recycle is fresh."""
    daemon.run("v=$(printf %1000000s); f() { echo moved; }; cd /usr; export A=1 B=2")
    other = start_daemon()
    document = daemon.json("GET", "/state")
    fields = {"state": document, "working_directory": "/tmp", "environment": {"B": "3"}}
    assert other.json("POST", "/startup", json=fields) == {"state": "ready", "not_restored": []}
    assert other.run("echo ${#v} $A $B $PWD; f")["stdout"] == "1000000 1 3 /tmp\nmoved\n"
    assert other.client.post("/recycle").text == "ready"
    assert other.run("echo ${#v} $B $PWD; declare -F f")["stdout"] == "0 3 /tmp\n"


def test_what_cannot_be_set_is_listed(daemon: RunningDaemon) -> None:
    """In bash's words; what comes after it is set all the same, but for a script that cannot be read to its end."""
    document = {
        "working_directory": "/gone/away",
        "environment": {"A": "1"},
        "script": "declare UID=5\ncd /nowhere\nb=2",
    }
    run, not_restored = opened(daemon, state=document)
    assert len(not_restored) == 3
    for said, line in zip(("/gone/away: No such", "UID: readonly", "/nowhere: No such"), not_restored, strict=True):
        assert said in line
    assert run("echo $A $b") == "1 2\n"
    for script, said in (("c=3\nif", "syntax error"), ("c=3\nreturn", ""), ("c=3\nexit 5", "")):
        run, not_restored = opened(daemon, state={"script": script})
        assert not_restored[-1] == "The script was not read to its end."
        assert said in "".join(not_restored)
        assert run("echo $c again") == "3 again\n"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": {"script": "a\0"}}, "state.script contains a NUL"),
        ({"state": {"environment": {"a b": ""}}}, "state.environment: 'a b'"),
        ({"state": {"environment": {"a": "\0"}}}, "the value of a contains a NUL"),
        ({"state": {"working_directory": "here"}}, "'here' is no absolute path"),
        ({"state": {"variables": {}}}, "variables"),
        ({"state": 5}, "state"),
        ({"state": {}, "copy_of": "main"}, "exclude each other"),
    ],
)
def test_what_is_no_state_is_refused(daemon: RunningDaemon, fields: dict[str, Any], said: str) -> None:
    """With what is wrong about it, before a bash is started."""
    answer = daemon.client.post("/sessions", json=fields)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert said in answer.json()["detail"]


def test_only_a_ready_shell_can_be_asked(daemon: RunningDaemon) -> None:
    """Otherwise the refusals of a run; for a copy too."""
    run_id = daemon.start("sleep 60")
    for answer in (
        daemon.client.get("/sessions/main/state"),
        daemon.client.post("/sessions", json={"copy_of": "main"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "shell_busy")
    daemon.client.post(f"/runs/{run_id}/kill")
    assert daemon.client.post("/sessions", json={"copy_of": "none"}).json()["code"] == "session_not_found"


def test_what_cannot_travel_is_named(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Jobs, descriptors, what is too large; the file of a descriptor is not opened again."""
    daemon.run(f"exec 7>{tmp_path}/file; sleep 60 & large=$(printf %5000000s)")
    left_out = daemon.json("GET", "/state")["left_out"]
    assert left_out[:2] == ["a background process: sleep 60", f"descriptor 7: {tmp_path}/file"]
    assert left_out[2].startswith("large: it has 5000")


def test_a_shell_whose_builtins_are_gone_says_so(daemon: RunningDaemon) -> None:
    """It is brought back as after a command, and the next is run."""
    daemon.run("enable -n declare shopt; f() { echo still; }")
    assert daemon.json("GET", "/state")["script"]
    assert daemon.run("f")["stdout"] == "still\n"


@pytest.mark.parametrize(("command", "then"), [("set -e", "errexit"), ("ulimit -Sf 0", "\n0\n")])
def test_a_shell_is_what_it_was_when_it_has_told(daemon: RunningDaemon, command: str, then: str) -> None:
    """Also with an option and a limit that could end it; no EXIT trap runs."""
    daemon.run("trap 'echo bye' EXIT; v=1")
    daemon.run(command)
    assert "v=" in daemon.json("GET", "/state")["script"]
    assert then in daemon.run("echo $SHELLOPTS $v; ulimit -Sf")["stdout"]
    assert daemon.run("exit 3")["stdout"] == "bye\n"


def test_what_fails_does_not_end_a_shell_with_errexit(daemon: RunningDaemon) -> None:
    """That option comes last, as those that show what is set; what shows it is no complaint."""
    daemon.run("alias ok=true; trap 'echo hup' HUP; set -e -x")
    document = daemon.json("GET", "/state")
    script = document["script"].replace("builtin alias ok", "builtin alias 'b/d'=1; builtin alias ok")
    run, not_restored = opened(daemon, state={**document, "script": script})
    assert not_restored == ["alias: `b/d': invalid alias name"]
    assert run("set +x; echo $-; trap -p HUP").startswith("++++ set +x\ne")


def test_the_working_directory_is_a_variable_of_programs(daemon: RunningDaemon) -> None:
    """As in any bash, also where a document says nothing of it."""
    for state in (daemon.json("GET", "/state"), {}):
        run, _ = opened(daemon, state=state)
        assert run("echo $PWD; /usr/bin/env | /bin/grep ^PWD=") == run("pwd; echo PWD=$(pwd)")
