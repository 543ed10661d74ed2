"""Keys by their names, in real programs."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.problems import problem
from tests.daemons import RunningDaemon, wait_for

JSON = {"Accept": "application/json"}
_BYTES = "stty raw -echo; printf ready; dd bs=1 count={} 2>/dev/null | od -An -tx1"


def _needs(program: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")


def _press(daemon: RunningDaemon, *keys: str) -> None:
    answer = daemon.client.post("/stdin", json={"keys": keys})
    assert answer.status_code == 200, answer.text


def _shown(daemon: RunningDaemon, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the screen once `holds` is true of it."""

    def look() -> dict[str, Any] | None:
        screen = daemon.json("GET", "/screen")
        return screen if "lines" in screen and holds(screen) else None

    return wait_for(look)


def _holds(text: str) -> Callable[[dict[str, Any]], bool]:
    return lambda screen: any(text in line for line in screen["lines"])


@pytest.mark.parametrize(("before", "body", "sent"), [
    ("", {"keys": ["a b", "Enter", "C-c", "M-x", "S-Tab", "C-Left", "F1", "F5", "Up", "C-Space", "S-F1", "Delete"]},
     b"a b\r\x03\x1bx\x1b[Z\x1b[1;5D\x1bOP\x1b[15~\x1b[A\0\x1b[1;2P\x1b[3~"),
    ("printf '\\033[?1h';", {"keys": ["Up", "Home", "C-Up", "F 1", "C- x", "M-C-a", "S-a"]},
     b"\x1bOA\x1bOH\x1b[1;5AF 1C- x\x1b\x01A"),
    ("", {"paste": "a\r\nb\nc\x1b"}, b"a\rb\rc\x1b"),
    ("printf '\\033[?2004h';", {"paste": "a\nb\x1b[201~"}, b"\x1b[200~a\rb[201~\x1b[201~"),
])  # fmt: skip
def test_bytes(daemon: RunningDaemon, before: str, body: dict[str, Any], sent: bytes) -> None:
    """Each key is what xterm sends for it, in the modes that the program has set; the answer counts the bytes."""
    run_id = daemon.start(before + _BYTES.format(len(sent)))
    _shown(daemon, _holds("ready"))
    assert daemon.json("POST", "/stdin", json=body) == {"accepted": len(sent)}
    dump = daemon.finished(run_id)["stdout"].partition("ready")[2]
    assert bytes.fromhex(dump) == sent


@pytest.mark.parametrize(("body", "told"), [
    ({"keys": ["C-"]}, "keys: 'C-' is no key. Do you mean C-c?"),
    ({"keys": ["F13"]}, "keys: 'F13' is no key. Do you mean F12?"),
    ({"keys": ["C-Entr"]}, "keys: 'C-Entr' is no key. Do you mean C-Enter?"),
    ({"keys": ["M-S-"]}, "keys: 'M-S-' is no key."),
    ({"keys": ["C-é"]}, "keys: 'C-é' is no key."),
    ({"keys": ["a"], "text": "b"}, "There are both text and keys: leave out one of them."),
    ({"keys": ["a"], "paste": "b"}, "There are both keys and paste: leave out one of them."),
])  # fmt: skip
def test_what_is_no_key(daemon: RunningDaemon, body: dict[str, Any], told: str) -> None:
    """It is refused with the nearest name, and nothing is typed."""
    daemon.start("read -r line")
    assert problem(daemon.client.post("/stdin", json=body, headers=JSON), 400, "invalid_request")["detail"].startswith(
        told
    )
    assert daemon.json("POST", "/stdin", json={"text": "x"}) == {"accepted": 1}


def test_what_is_too_long_for_a_key_is_text(daemon: RunningDaemon) -> None:
    """Nobody looks for a key that is like it, which would take seconds for megabytes."""
    daemon.start("read -r line")
    long = "C-" + "x" * 100
    assert daemon.json("POST", "/stdin", json={"keys": [long]}) == {"accepted": len(long)}


def test_enter_and_end_of_file(daemon: RunningDaemon) -> None:
    """Enter ends a line, and end-of-file after it is one."""
    run_id = daemon.start("cat >/dev/null; cat")
    daemon.client.post("/stdin", json={"keys": ["one", "Enter"], "eof": True})
    daemon.client.post("/stdin", json={"keys": ["two", "Enter"], "eof": True})
    assert daemon.finished(run_id)["stdout"] == "two\n"


def test_bash_edits_its_line(daemon: RunningDaemon) -> None:
    """Cursor keys, words and history of readline."""
    run_id = daemon.start("bash --norc -i", environment={"PS1": "$ ", "HISTFILE": ""})
    _shown(daemon, _holds("$"))
    _press(daemon, "echo tow", "Left", "Backspace", "Right", "o", "C-a", "M-f", " -n", "Enter")
    _shown(daemon, _holds("two"))
    _press(daemon, "Up", "C-e", " again", "Enter", "exit", "Enter")
    assert "two again" in daemon.finished(run_id)["stdout"]


def test_python_edits_its_line(daemon: RunningDaemon) -> None:
    """Home and Delete in python's own prompt."""
    run_id = daemon.start("python3 -q")
    _shown(daemon, _holds(">>>"))
    _press(daemon, "x6*7", "Home", "Delete", "Enter")
    _shown(daemon, _holds("42"))
    _press(daemon, "C-d")
    daemon.finished(run_id)


def test_vim(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A file is written, and vim left."""
    _needs("vim")
    run_id = daemon.start(f"vim -u NONE -N {tmp_path}/file")
    _shown(daemon, lambda screen: screen["alternate"] and "file" in screen["lines"][23])
    _press(daemon, "i", "one", "Enter", "two", "Up", "Home", "zero ", "Escape")
    assert _shown(daemon, _holds("zero one"))["lines"][:3] == ["zero one", "two", "~"]
    _press(daemon, ":wq", "Enter")
    assert daemon.finished(run_id)["exit_code"] == 0
    assert (tmp_path / "file").read_text() == "zero one\ntwo\n"


def test_git_adds_by_pieces(daemon: RunningDaemon, tmp_path: Path) -> None:
    """`git add -p` is answered."""
    _needs("git")
    daemon.run(f"cd {tmp_path} && git init -q && echo a >f && git add f && echo b >>f")
    run_id = daemon.start("git add -p")
    _shown(daemon, _holds("Stage this hunk"))
    _press(daemon, "y", "Enter")
    assert daemon.finished(run_id)["exit_code"] == 0
    assert "+b" in daemon.run("git diff --cached")["stdout"]


def test_git_rebases_in_an_editor(daemon: RunningDaemon, tmp_path: Path) -> None:
    """`git rebase -i`, with a commit dropped in vim."""
    _needs("git")
    _needs("vim")
    commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m"
    daemon.run(f"cd {tmp_path} && git init -q && for name in first second third; do {commit} $name; done")
    run_id = daemon.start(
        "git -c user.name=a -c user.email=a@b -c sequence.editor='vim -u NONE -N' rebase -i --empty=keep --root"
    )
    _shown(daemon, lambda screen: screen["alternate"] and "pick" in screen["lines"][2])
    _press(daemon, "Down", "dd", ":wq", "Enter")
    assert daemon.finished(run_id)["exit_code"] == 0
    assert daemon.run("git log --reverse --format=%s")["stdout"] == "first\nthird\n"


def test_a_menu(daemon: RunningDaemon) -> None:
    """What is chosen with the arrows of a dialog on the whole screen is what the program gets."""
    code = """
import curses
def choose(window):
    chosen, key = 0, 0
    while key != 10:
        for row in range(3):
            window.addstr(row, 0, f"item {row}", curses.A_REVERSE if row == chosen else 0)
        key = window.getch()
        chosen = (chosen + (key == curses.KEY_DOWN) - (key == curses.KEY_UP)) % 3
    return chosen
print("chosen:", curses.wrapper(choose))
"""
    run_id = daemon.start(f"python3 -c {shlex.quote(code)}")
    _shown(daemon, _holds("item 2"))
    _press(daemon, "Down", "Down", "Down", "Up", "Enter")
    assert "chosen: 2" in daemon.finished(run_id)["stdout"]


def test_tmux_inside(daemon: RunningDaemon) -> None:
    """tmux has a screen of its own in this one, and its prefix is a key."""
    _needs("tmux")
    run_id = daemon.start(
        "TMUX_TMPDIR=$(mktemp -d) tmux -f /dev/null -u new -s inside 'printf begun; read -r; printf done; read -r'"
    )
    _shown(daemon, lambda screen: screen["lines"][0] == "begun" and "[inside]" in screen["lines"][23])
    _press(daemon, "Enter")
    _shown(daemon, _holds("done"))
    _press(daemon, "C-b", "&")
    _shown(daemon, _holds("kill-window"))
    _press(daemon, "y")
    daemon.finished(run_id)


@pytest.mark.parametrize("editor", ["nano"])
def test_nano(daemon: RunningDaemon, tmp_path: Path, editor: str) -> None:
    """A file is written with nano's own keys."""
    _needs(editor)
    run_id = daemon.start(f"{editor} -I {tmp_path}/file")
    _shown(daemon, _holds("^X"))
    _press(daemon, "hello", "C-x", "y", "Enter")
    daemon.finished(run_id)
    assert (tmp_path / "file").read_text() == "hello\n"
