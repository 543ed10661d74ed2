"""`argv` in place of `command`: a program and its arguments, whatever is in them."""

import json
import sys

import pytest

from tests.daemons import RunningDaemon

SHOW = [sys.executable, "-c", "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])))"]
HOSTILE = [
    "", " ", "a  b", "*", "?(a)", "!(x)", "!!", "!1", "~", "{a,b}", "$HOME", "$(id)", "`id`", "'", "''", "'\\''", '"',
    "\\", "a\\", "\n", "\r\n", "\t", "-", "--", "-n", "#", "a;b", "a&b", "a|b", "<x", ">x", "(", ")", "[[", "A=b",
    "\x01", "\x7f", "\x01'\x7f", "\x1b[31m", "".join(map(chr, range(1, 128))), "é", "\udcff", "\udc80'\udcff", "日本",
    "\u2028", "x" * 100_000,
]  # fmt: skip
MODES = {
    "as it starts": ":",
    "POSIX": "set -o posix",
    "extglob": "shopt -s extglob nullglob",
    "failglob": "shopt -s failglob globstar",
    "histexpand": "set -o history; set -H",
    "no splitting": "IFS=abc",
    "another locale": "LC_ALL=C",
    "strict": "set -eufo pipefail",
    "expanding aliases": "shopt -s expand_aliases",
}


@pytest.mark.parametrize("mode", MODES)
def test_arguments_arrive_as_they_are(daemon: RunningDaemon, mode: str) -> None:
    """Every byte of them, in whatever mode the shell is; with the other options of a run, too."""
    daemon.run(MODES[mode])
    for options in ({}, {"directory": "/", "environment": {"A": "b"}, "stdin": ""}):
        fields = {"argv": [*SHOW, *HOSTILE], "format": "raw", "max_output": 0, **options}
        answer = daemon.client.post(
            "/run",
            content=json.dumps(fields),
            headers={"Accept": "application/json", "Content-Type": "application/json"},
        )
        result = json.loads(answer.content)
        assert result["exit_code"] == 0
        assert result["stdout"].split("\0") == HOSTILE


@pytest.mark.parametrize("path", ["/run", "/exec"])
def test_words_mean_nothing_to_bash(daemon: RunningDaemon, path: str) -> None:
    """No alias, keyword or assignment is seen in them; a builtin and a function are what their names say."""
    daemon.run("alias ls='echo alias'; greet() { echo \"hello $1\"; }")
    for argv, status in ((["if"], 127), (["A=b"], 127), (["~"], 127), (["!"], 127), (["ls", "/nowhere"], 2)):
        assert daemon.json("POST", path, json={"argv": argv})["exit_code"] == status, argv
    assert daemon.json("POST", path, json={"argv": ["echo", "-e", "a b"]})["stdout"] == "a b\n"
    result = daemon.json("POST", "/run", json={"argv": ["greet", "$you"]})
    assert (result["stdout"], result["command"]) == ("hello $you\n", "'greet' '$you'")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"argv": ["ls"], "command": "ls"}, "leave out one"),
        ({}, "missing"),
        ({"argv": []}, "a list of strings, at least 1"),
        ({"argv": [""]}, "argv is empty"),
        ({"argv": ["ls", "a\0b"]}, "argv[1] contains a NUL"),
        ({"argv": ["ls", 1]}, "argv"),
        ({"argv": "ls"}, "argv"),
    ],
)
def test_what_is_no_argv(daemon: RunningDaemon, fields: dict[str, object], told: str) -> None:
    for path in ("/run", "/exec"):
        answer = daemon.json("POST", path, json=fields)
        assert (answer["status"], answer["code"]) == (400, "invalid_request")
        assert told in answer["detail"]


def test_argv_without_content_type(daemon: RunningDaemon) -> None:
    """It is JSON that somebody forgot to call so."""
    answer = daemon.json("POST", "/run", content=b'{"argv": ["ls"]}')
    assert answer["code"] == "json_without_content_type"
