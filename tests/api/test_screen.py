"""The screen of a terminal over HTTP: what a person would see, of real programs."""

import shlex
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.problems import problem
from tests.daemons import RunningDaemon, wait_for

JSON = {"Accept": "application/json"}


def _needs(program: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")


def _shown(daemon: RunningDaemon, holds: Callable[[dict[str, Any]], bool], path: str = "/screen") -> dict[str, Any]:
    """Return the screen once `holds` is true of it."""

    def look() -> dict[str, Any] | None:
        screen = daemon.json("GET", path)
        return screen if "lines" in screen and holds(screen) else None

    return wait_for(look)


def test_forms(daemon: RunningDaemon) -> None:
    """Text has the rows without blanks at their ends, JSON all that is known, SVG is a picture."""
    run_id = daemon.run("printf 'one  \\ntwo\\r\\033[1mTWO'")["run_id"]
    answer = daemon.client.get("/screen")
    assert (answer.text, answer.headers["x-run-id"]) == ("one\nTWO\n", run_id)
    for path in ("/screen", "/sessions/main/screen", f"/runs/{run_id}/screen"):
        assert daemon.json("GET", path) == {
            "run_id": run_id, "rows": 24, "cols": 80, "lines": ["one", "TWO", *[""] * 22],
            "cursor": {"row": 1, "col": 3, "visible": True}, "title": "", "alternate": False, "at": 17,
            "status": "completed", "awaiting_input": False,
        }  # fmt: skip
    answer = daemon.client.get("/screen", headers={"Accept": "image/svg+xml,image/*;q=0.8"})
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "TWO" in [node.text for node in ET.fromstring(answer.text)]


def test_a_picture_has_no_blanks_that_browsers_leave_out(daemon: RunningDaemon) -> None:
    """They would stretch what is left of a text to the width of the whole."""
    daemon.run(r"printf 'a\e[31m b  c \e[0m'")
    picture = ET.fromstring(daemon.client.get("/screen", headers={"Accept": "image/svg+xml"}).text)
    drawn = [
        (node.text, node.get("x"), node.get("textLength")) for node in picture.iter("{http://www.w3.org/2000/svg}text")
    ]
    assert drawn[:2] == [("a", "0.0", "8.4"), ("b\xa0\xa0c", "16.8", "33.6")]


def test_no_run_yet(daemon: RunningDaemon) -> None:
    """A shell that has run nothing has no screen."""
    session = daemon.json("POST", "/sessions")["session_id"]
    problem(daemon.client.get(f"/sessions/{session}/screen", headers=JSON), 404, "run_not_found")
    problem(daemon.client.get("/runs/none/screen", headers=JSON), 404, "run_not_found")
    problem(daemon.client.get("/screen?at=x", headers=JSON), 400, "invalid_request")


def test_wait(daemon: RunningDaemon) -> None:
    """`wait` waits for what comes after `at`, and then until nothing more comes."""
    daemon.start("read -r; echo first; sleep 0.02; echo second; read -r")
    before = _shown(daemon, lambda screen: screen["status"] == "running")
    daemon.client.post("/stdin", content="\n")
    screen = daemon.json("GET", f"/screen?wait=30s&at={before['at']}")
    assert screen["lines"][:2] == ["first", "second"]
    assert daemon.client.get(f"/screen?wait=10ms&at={screen['at']}").text == "first\nsecond\n"


def test_a_long_log(daemon: RunningDaemon) -> None:
    """Of a long output the end is shown, with the modes that were set at its beginning."""
    run_id = daemon.run("printf '\\033[?1049h\\033[?25l'; seq -f %.0f 200000")["run_id"]
    screen = daemon.json("GET", f"/runs/{run_id}/screen")
    assert screen["lines"] == [*(str(number) for number in range(199978, 200001)), ""]
    assert screen["alternate"] is True
    assert screen["cursor"]["visible"] is False


def test_sizes(daemon: RunningDaemon) -> None:
    """What was written is shown as it stood in the terminal of that time; a kept run remembers its sizes."""
    daemon.client.post("/resize", json={"rows": 10, "cols": 20})
    run_id = daemon.start("printf '%030d' 7; read -r; printf '%030d' 8")
    assert _shown(daemon, lambda screen: screen["at"] == 30)["lines"][:2] == ["0" * 20, "0" * 9 + "7"]
    daemon.client.post("/resize", json={"rows": 5, "cols": 40})
    daemon.client.post("/stdin", content="\n")
    daemon.finished(run_id)
    daemon.run("true")
    screen = daemon.json("GET", f"/runs/{run_id}/screen")
    assert (screen["rows"], screen["cols"]) == (5, 40)
    assert screen["lines"][:2] == ["0" * 20, "0" * 9 + "7" + "0" * 29 + "8"]


def test_less(daemon: RunningDaemon, tmp_path: Path) -> None:
    """less shows a page, pages on, and finds."""
    _needs("less")
    (tmp_path / "text").write_text("".join(f"line {number}\n" for number in range(1, 101)))
    daemon.start(f"less {tmp_path}/text")
    assert _shown(daemon, lambda screen: "line 23" in screen["lines"])["lines"][0] == "line 1"
    daemon.client.post("/stdin", content=" ")
    _shown(daemon, lambda screen: screen["lines"][0] == "line 24")
    daemon.client.post("/stdin", content="/line 77\n")
    _shown(daemon, lambda screen: screen["lines"][0] == "line 77")
    daemon.client.post("/stdin", content="q")


def test_top_and_another_size(daemon: RunningDaemon) -> None:
    """top redraws when the terminal gets another size."""
    _needs("top")
    daemon.start("top -d 0.5")
    _shown(daemon, lambda screen: any("PID" in line for line in screen["lines"]))
    daemon.client.post("/resize", json={"rows": 15, "cols": 60})
    screen = _shown(daemon, lambda screen: screen["rows"] == 15 and any("PID" in line for line in screen["lines"]))
    assert max(len(line) for line in screen["lines"]) <= 60
    daemon.client.post("/stdin", content="q")


def test_curses(daemon: RunningDaemon) -> None:
    """A program of curses has its boxes drawn where it put them."""
    code = (
        "import curses\ndef main(s):\n curses.nonl()\n w=curses.newwin(5,12,3,10); w.box(); w.addstr(2,2,'inside'); "
        "w.refresh(); w.getch()\ncurses.wrapper(main)"
    )
    daemon.start(f"python3 -c {shlex.quote(code)}", environment={"LC_ALL": "C.UTF-8"})
    screen = _shown(daemon, lambda screen: any("inside" in line for line in screen["lines"]))
    assert [line[10:22] for line in screen["lines"][3:8]] == [
        "┌──────────┐", "│          │", "│ inside   │", "│          │", "└──────────┘",
    ]  # fmt: skip
    daemon.client.post("/stdin", content="q")
