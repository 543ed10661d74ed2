"""What a request for a run may say: every field in both forms, every limit, everything malformed."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.conftest import Gate
from tests.api.problems import problem, text_problem
from tests.daemons import KEY, RunningDaemon

JSON = {"Accept": "application/json"}

FORMS = pytest.mark.parametrize("form", ["json", "raw"])


def post_run(daemon: RunningDaemon, form: str, command: str, **fields: Any) -> httpx.Response:
    """Ask for a run in the JSON form, or in the raw form with the fields in the query string."""
    headers = {"Accept": "application/json"}
    if form == "json":
        return daemon.client.post("/run", json={"command": command, **fields}, headers=headers)
    if "environment" in fields:
        fields["environment"] = [f"{name}={value}" for name, value in fields["environment"].items()]
    return daemon.client.post("/run", content=command.encode(), params=fields, headers=headers)


def run(daemon: RunningDaemon, form: str, command: str, **fields: Any) -> dict[str, Any]:
    """Run a command to its end; return the result."""
    answer = post_run(daemon, form, command, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- fields -------------------------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("command", [
    "echo one\necho two",
    "cat <<'END'\nhere\n'\"`$(\nEND",
    "printf '%s\\n' \"a  b\" 'c;d' e\\&f",
    "echo 'Grüße, 世界 🎉'",
    "echo a # comment",
    "echo +%26+",
    ":" + " " * 5000 + "; echo far",
])  # fmt: skip
def test_commands_arrive_as_they_are(daemon: RunningDaemon, form: str, command: str) -> None:
    """A command arrives character by character in both forms, and is echoed in the result."""
    result = run(daemon, form, command)
    expected = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    assert (result["command"], result["stdout"], result["exit_code"]) == (command, expected, 0)


@FORMS
@pytest.mark.parametrize("command", ["echo 'open", 'echo "open', "if true", "( echo", "echo $(", "done", "} }", "<<<"])
def test_broken_commands_break_only_themselves(daemon: RunningDaemon, form: str, command: str) -> None:
    """A command that bash cannot parse fails alone: the next one runs."""
    assert run(daemon, form, command)["exit_code"] != 0
    assert run(daemon, form, "echo fine")["stdout"] == "fine\n"


@pytest.mark.parametrize("content_type", [
    None, "application/x-www-form-urlencoded", "text/plain", "application/jsonx", "text/json", "nonsense",
])  # fmt: skip
def test_raw_body_of_any_content_type(ready_daemon: RunningDaemon, content_type: str | None) -> None:
    """The raw body is the command, whatever Content-Type curl sends; a multipart form alone is refused elsewhere."""
    headers = {"Content-Type": content_type} if content_type else {}
    answer = ready_daemon.ask("POST", "/run", key="test-key", headers=headers, body=b"echo 'a=b%20c&d'")
    assert answer.status == 200
    assert answer.body == b"a=b%20c&d\n"


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_body(ready_daemon: RunningDaemon, content_type: str) -> None:
    """A body of type application/json is an object, with or without parameters of the type."""
    answer = ready_daemon.ask(
        "POST", "/run", key="test-key", headers={"Content-Type": content_type}, body=b'{"command": "echo x"}'
    )
    assert answer.body == b"x\n"


@FORMS
def test_run_id(daemon: RunningDaemon, form: str) -> None:
    """The caller's run id is the run's."""
    run_id = f"Given-{form}_1.x"
    daemon.client.delete(f"/runs/{run_id}")
    assert run(daemon, form, "echo mine", run_id=run_id)["run_id"] == run_id
    assert daemon.json("GET", f"/runs/{run_id}")["stdout"] == "mine\n"


@FORMS
@pytest.mark.parametrize("timeout", ["500ms", "30s", "5m", "1h30m", "1.5h", 60, 1.5, "60", "2.5", "1000000us"])
def test_forms_of_durations(ready_daemon: RunningDaemon, form: str, timeout: Any) -> None:
    """A timeout is a number of seconds or text in Go's form."""
    assert run(ready_daemon, form, "echo x", timeout=timeout)["stdout"] == "x\n"


@FORMS
@pytest.mark.parametrize("timeout", [0, "0", "0s", "0.0", 0.05, "50ms", "1us"])
def test_timeout_ends_the_wait(daemon: RunningDaemon, form: str, timeout: Any) -> None:
    """When the timeout is over the answer is 202 and the command goes on; with 0 that is at once."""
    answer = post_run(daemon, form, "sleep 60", timeout=timeout)
    result = answer.json()
    assert answer.status_code == 202
    assert (result["status"], result["timed_out"], result["state"]) == ("running", True, "busy")


@pytest.mark.parametrize("body", [{"content": "sleep 60"}, {"json": {"command": "sleep 60"}}])
@pytest.mark.parametrize("timeout", ["0", "50ms", "0.05"])
def test_timeout_header(daemon: RunningDaemon, body: dict[str, Any], timeout: str) -> None:
    """X-Command-Timeout says the timeout for both forms."""
    assert daemon.client.post("/run", **body, headers={"X-Command-Timeout": timeout}).status_code == 202


@FORMS
def test_default_timeout_and_its_maximum(impatient_daemon: RunningDaemon, form: str) -> None:
    """Without a timeout timeout.command counts, and no wait is longer than timeout.command_maximum."""
    answer = post_run(impatient_daemon, form, "sleep 60")
    assert answer.status_code == 202
    default = answer.json()["duration"]
    assert default > 0.29
    assert impatient_daemon.client.post("/recycle").text == "ready"
    answer = post_run(impatient_daemon, form, "sleep 60", timeout="1h")
    assert answer.status_code == 202
    maximum = answer.json()["duration"]
    assert maximum > 0.59
    assert answer.json()["timed_out"]


@FORMS
@pytest.mark.parametrize(("directory", "expected"), [
    ("/tmp", "/tmp"), ("/usr/bin", "/usr/bin"), ("sub", "{work}/sub"), ("sub/..", "{work}"), (".", "{work}"),
    ("with blank 'ü", "{work}/with blank 'ü"),
])  # fmt: skip
def test_directory(daemon: RunningDaemon, tmp_path: Path, form: str, directory: str, expected: str) -> None:
    """A run's own directory is for it alone: afterwards the shell is where it was, even if the command moved."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "with blank 'ü").mkdir()
    daemon.run(f"cd '{tmp_path}'")
    result = run(daemon, form, "pwd -P; cd /; X=kept", directory=directory)
    assert os.path.normpath(result["stdout"].rstrip("\n")) == expected.format(work=tmp_path)
    assert run(daemon, form, 'pwd; echo "$X"')["stdout"] == f"{tmp_path}\nkept\n"


def test_without_directory_cd_lasts(daemon: RunningDaemon) -> None:
    """Without a directory of its own, a command's `cd` is the shell's."""
    assert daemon.run("cd /usr")["working_directory"] == "/usr"
    assert daemon.run("pwd")["stdout"] == "/usr\n"


@FORMS
@pytest.mark.parametrize("description", ["say what", "null", "42", "true", "Ü&=+ %41", ""])
def test_description(daemon: RunningDaemon, form: str, description: str) -> None:
    """The description is in the result and in the listing, as it was given."""
    result = run(daemon, form, "true", description=description)
    assert result["description"] == description
    assert daemon.json("GET", "/runs?limit=1")[0]["description"] == description


@FORMS
@pytest.mark.parametrize("text", ["", "one\ntwo\n", "no newline", "null", "Grüße\t\x03\x04\x1b[A", "x" * 10000])
def test_stdin(daemon: RunningDaemon, form: str, text: str) -> None:
    """A command is fed the text of `stdin` and then end-of-file; for the next one stdin is the terminal again."""
    result = run(daemon, form, "wc -c; test -t 0 || echo not a terminal", stdin=text)
    assert result["stdout"].split(maxsplit=1) == [str(len(text.encode())), "not a terminal\n"]
    assert run(daemon, form, "test -t 0")["exit_code"] == 0


def test_large_stdin(daemon: RunningDaemon) -> None:
    """Megabytes of stdin reach the command whole, also one that reads late."""
    text = "0123456789abcdef" * 200_000
    assert daemon.run("wc -c", stdin=text)["stdout"].strip() == str(len(text))
    assert daemon.run("true", stdin=text)["exit_code"] == 0
    assert daemon.run("head -c 16", stdin=text)["stdout"] == "0123456789abcdef"


@FORMS
def test_environment(daemon: RunningDaemon, form: str) -> None:
    """Variables of a run are exported for it alone; what the shell had is back afterwards."""
    daemon.run("export A=old; B=unexported")
    values = {"A": "new", "B": "b = 'x' \"$y\"", "C": "", "D": "null"}
    show = "printenv A; printenv B; printenv C; printenv D"
    assert run(daemon, form, show, environment=values)["stdout"] == "new\nb = 'x' \"$y\"\n\nnull\n"
    assert run(daemon, form, f'{show}; echo "$B"')["stdout"] == "old\nunexported\n"


@FORMS
@pytest.mark.parametrize("name", ["UID", "BASHOPTS", "READONLY"])
def test_environment_of_readonly_variables(daemon: RunningDaemon, form: str, name: str) -> None:
    """A variable that bash does not let be set breaks neither the command nor the shell."""
    daemon.run("readonly READONLY=1")
    answer = post_run(daemon, form, "echo ran", environment={name: "x"})
    assert answer.status_code == 400 or answer.json()["stdout"].endswith("ran\n"), answer.text
    assert daemon.state() == "ready"
    assert run(daemon, form, "echo fine")["stdout"] == "fine\n"


@FORMS
def test_streams(daemon: RunningDaemon, form: str) -> None:
    """Merged streams come in true order, separate ones apart; in both ways both are terminals."""
    command = "echo 1; echo 2 >&2; echo 3; test -t 1 && test -t 2"
    merged, separate = run(daemon, form, command), run(daemon, form, command, streams="separate")
    assert run(daemon, form, command, streams="merged")["stdout"] == merged["stdout"] == "1\n2\n3\n"
    assert (merged["streams"], merged["stderr"], merged["exit_code"]) == ("merged", "", 0)
    assert (separate["streams"], separate["stdout"], separate["stderr"]) == ("separate", "1\n3\n", "2\n")
    assert separate["exit_code"] == 0
    assert run(daemon, form, command)["stdout"] == "1\n2\n3\n"


@FORMS
def test_format(daemon: RunningDaemon, form: str) -> None:
    """`text` is what a person would see, `raw` what the program wrote."""
    command = r"printf '\e[31mred\e[0m\r\n12345\rab\n\xff\n'"
    assert run(daemon, form, command)["stdout"] == "red\nab345\n\N{REPLACEMENT CHARACTER}\n"
    assert run(daemon, form, command, format="text")["stdout"] == "red\nab345\n\N{REPLACEMENT CHARACTER}\n"
    assert run(daemon, form, command, format="raw")["stdout"] == "\x1b[31mred\x1b[0m\r\n12345\rab\n\udcff\n"


@FORMS
@pytest.mark.parametrize(("maximum", "truncated"), [(0, False), (1000, False), (999, True), (1, True)])
def test_max_output(daemon: RunningDaemon, form: str, maximum: int, truncated: bool) -> None:
    """`max_output` says from which size on an output is cut; 0 is never."""
    result = run(daemon, form, "printf %01000d 0", max_output=maximum)
    assert (result["truncated"], result["original_stdout_size"]) == (truncated, 1000)
    assert (result["stdout"] == "0" * 1000) != truncated


@FORMS
def test_on_input(daemon: RunningDaemon, form: str) -> None:
    """A command that waits for input ends the wait by default, long before the timeout; with `wait` it does not."""
    answer = post_run(daemon, form, "read -r x", timeout=60)
    assert answer.status_code == 202
    assert (answer.json()["awaiting_input"], answer.json()["timed_out"]) == (True, False)
    assert answer.json()["duration"] < 60
    daemon.client.post("/stdin", content="x\n")
    assert daemon.finished(answer.json()["run_id"])["exit_code"] == 0
    answer = post_run(daemon, form, "read -r x", timeout="700ms", on_input="wait")
    assert answer.status_code == 202
    assert answer.json()["timed_out"] is True
    assert answer.json()["duration"] > 0.65


def test_text_of_a_wait_that_input_did_not_end(daemon: RunningDaemon) -> None:
    """Where the wait goes on although the command waits for input, the text says what has ended it: the timeout."""
    answer = daemon.client.post("/run?on_input=wait&timeout=500ms", content="read -r x")
    assert answer.text == "The command timed out waiting for completion and is still running."
    assert answer.headers["x-awaiting-input"] == "true"


def test_json_fields_go_before_parameters(daemon: RunningDaemon) -> None:
    """In the JSON form parameters of the query string fill what the object leaves open."""
    answer = daemon.client.post(
        "/run?description=query&format=raw&max_output=0", json={"command": "echo x", "description": "object"}
    )
    assert answer.content == b"x\n"
    assert daemon.json("GET", "/runs?limit=1")[0]["description"] == "object"


# --- what is malformed --------------------------------------------------------------------------------------

BAD_FIELDS: list[tuple[str, Any, str]] = [
    ("timeout", "abc", "timeout"), ("timeout", "5x", "timeout"), ("timeout", "", "timeout"), ("timeout", -1, "timeout"),
    ("timeout", "-1s", "timeout"), ("timeout", "1h 30m", "timeout"), ("timeout", "nan", "timeout"),
    ("timeout", "inf", "timeout"), ("timeout", "99999999h", "timeout"), ("timeout", 1e300, "timeout"),
    ("run_id", "", "run_id"), ("run_id", "a/b", "run_id"), ("run_id", "a b", "run_id"), ("run_id", "x" * 65, "run_id"),
    ("run_id", "ü", "run_id"), ("run_id", "x\n", "run_id"), ("run_id", "..%2f", "run_id"),
    ("directory", "/no/such/place", "directory"), ("directory", "/etc/passwd", "directory"),
    ("directory", "nul\0byte", "directory"), ("directory", "x" * 5000, "directory"),
    ("environment", {"1A": "x"}, "1A"), ("environment", {"": "x"}, "environment"),
    ("environment", {"A-B": "x"}, "A-B"), ("environment", {"A": "nul\0"}, "A"),
    ("streams", "both", "streams"), ("format", "html", "format"), ("format", "", "format"),
    ("max_output", -1, "max_output"), ("max_output", "many", "max_output"), ("max_output", 1.5, "max_output"),
    ("on_input", "hang", "on_input"),
    ("time_out", "5s", "time_out"), ("Timeout", "5s", "Timeout"), ("session_id", "main", "session_id"),
]  # fmt: skip


@FORMS
@pytest.mark.parametrize(("field", "value", "named"), BAD_FIELDS)
def test_malformed_fields(
    ready_daemon: RunningDaemon, tmp_path: Path, form: str, field: str, value: Any, named: str
) -> None:
    """A field that is unknown or not as it may be is 400 and named, and nothing is run."""
    document = problem(post_run(ready_daemon, form, f"touch {tmp_path}/ran", **{field: value}), 400, "invalid_request")
    assert named in document["detail"]
    assert ready_daemon.state() == "ready"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("field", "value"), [
    ("command", 5), ("command", None), ("command", ["ls"]), ("timeout", True), ("timeout", []), ("timeout", {}),
    ("run_id", 5), ("directory", 5), ("description", 5), ("stdin", 5), ("stdin", ["x"]), ("environment", ["A=1"]),
    ("environment", {"A": 1}), ("environment", {"A": None}), ("environment", "A=1"), ("streams", 1), ("format", True),
    ("max_output", "100"), ("max_output", True), ("on_input", 1),
])  # fmt: skip
def test_json_fields_of_wrong_types(ready_daemon: RunningDaemon, field: str, value: Any) -> None:
    """A JSON field of a wrong type is 400, and the message names the field."""
    body = {"command": "true", field: value}
    answer = ready_daemon.client.post("/run", json=body, headers={"Accept": "application/json"})
    assert field in problem(answer, 400, "invalid_request")["detail"]


@pytest.mark.parametrize(
    "field",
    ["run_id", "timeout", "directory", "description", "stdin", "max_output", "streams", "environment", "format",
     "on_input"],
)  # fmt: skip
def test_null_is_as_if_absent(ready_daemon: RunningDaemon, field: str) -> None:
    """What a wrapper leaves out by a null has its default."""
    assert ready_daemon.run("echo x", **{field: None})["stdout"] == "x\n"


@pytest.mark.parametrize("environment", ["NOVALUE", "=x", ""])
def test_malformed_environment_parameters(ready_daemon: RunningDaemon, environment: str) -> None:
    """In a query string a variable is NAME=VALUE."""
    answer = ready_daemon.client.post("/run", content="true", params={"environment": environment})
    assert "environment" in text_problem(answer, 400)


@pytest.mark.parametrize("body", [
    b"", b" ", b"{", b"[]", b"null", b'"ls"', b"5", b"{}", b'{"command": "a"', b'{"command": "a"} x', b"{'command': 1}",
    b'{"command": "\xff"}', b'{"command": "\\ud800"}', b'{"command": "a\\udc00b"}', b'{"command": "\\ud800\\ud800"}',
    b'{"command": "a", "environment": {"A": "\\ud800"}}', b'{"command": "a", "stdin": "\\udfff"}',
    b'{"command": "a", "timeout": NaN}', b'{"command": "a", "timeout": 1e999}', b"command=ls", b"\xef\xbb\xbf{}",
    b"[" * 5000, b'{"command": "a", "x": ' + b"[" * 5000,
])  # fmt: skip
@pytest.mark.parametrize("query", ["", "?description=x"])
def test_bad_json(ready_daemon: RunningDaemon, body: bytes, query: str) -> None:
    """A body that is not the JSON object that it should be is 400 with a reason, and never a fault."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    problem(ready_daemon.client.post(f"/run{query}", content=body, headers=headers), 400, "invalid_request")
    assert ready_daemon.state() == "ready"


@pytest.mark.parametrize("path", ["/startup", "/resize", "/stdin"])
@pytest.mark.parametrize("body", [b"{", b"[]", b'{"nonsense": 1}', b'{"rows": 0, "cols": 80}', b'{"text": 5}'])
def test_bad_json_elsewhere(daemon: RunningDaemon, path: str, body: bytes) -> None:
    """Other bodies are JSON objects as well, with the same refusals; the state comes after the form."""
    if path == "/startup":
        daemon.client.post("/shutdown?recycle=true")
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    problem(daemon.client.post(path, content=body, headers=headers), 400, "invalid_request")


@FORMS
@pytest.mark.parametrize("command", ["", " ", "\n\n", "\t \n"])
def test_empty_command(ready_daemon: RunningDaemon, form: str, command: str) -> None:
    """A command without anything in it is 400."""
    assert "command" in problem(post_run(ready_daemon, form, command), 400, "invalid_request")["detail"]


@FORMS
@pytest.mark.parametrize("command", ["\0", "echo a\0b", "true\0"])
def test_nul_in_a_command(ready_daemon: RunningDaemon, form: str, command: str) -> None:
    """NUL in a command is 400: bash could not be given it."""
    assert "NUL" in problem(post_run(ready_daemon, form, command), 400, "invalid_request")["detail"]


@pytest.mark.parametrize("parameter", ["colour=red", "timeout=1&nope=1", "command=ls"])
@pytest.mark.parametrize("body", [{"content": "true"}, {"json": {"command": "true"}}])
def test_unknown_parameters(ready_daemon: RunningDaemon, parameter: str, body: dict[str, Any]) -> None:
    """An unknown parameter is 400, and the message names it and those that there are."""
    line = text_problem(ready_daemon.client.post(f"/run?{parameter}", **body), 400)
    assert parameter.rpartition("&")[2].partition("=")[0] in line
    assert "run_id" in line


@pytest.mark.parametrize("value", ["soon", "-1", "5 s"])
def test_malformed_timeout_header(ready_daemon: RunningDaemon, value: str) -> None:
    """A malformed X-Command-Timeout is 400."""
    answer = ready_daemon.client.post("/run", content="true", headers={"X-Command-Timeout": value})
    assert "timeout" in text_problem(answer, 400).lower()


def test_invalid_utf8_in_a_raw_body(daemon: RunningDaemon) -> None:
    """The bytes of a raw body reach bash as they are, also where they are not UTF-8."""
    answer = daemon.client.post("/run?format=raw", content=b"printf %s 'a\xff\xfe\xc3b'")
    assert (answer.status_code, answer.content) == (200, b"a\xff\xfe\xc3b")
    result = daemon.json("POST", "/run", content=b"printf %s 'a\xffb'")
    assert result["stdout"] == "a\N{REPLACEMENT CHARACTER}b"
    assert result["command"] == "printf %s 'a\N{REPLACEMENT CHARACTER}b'"


@pytest.mark.parametrize("accept", ["application/json", "text/plain"])
@pytest.mark.parametrize("body", [
    b'{"\\ud800": 1}', b'{"command": "true", "streams": "\\ud800"}', b'{"command": "true", "description": "\\ud800"}',
    b'{"command": "true", "run_id": "\\ud800"}', b'{"command": "true", "timeout": "\\ud800"}',
])  # fmt: skip
def test_half_a_surrogate_pair_is_refused(ready_daemon: RunningDaemon, body: bytes, accept: str) -> None:
    """JSON can bring half a surrogate pair, which no text can hold: that is 400, in the name of a field, too."""
    answer = ready_daemon.client.post(
        "/run", content=body, headers={"Content-Type": "application/json", "Accept": accept}
    )
    assert answer.status_code == 400


@pytest.mark.parametrize("form", ["application/json", "text/plain"])
def test_half_a_surrogate_pair_in_what_is_refused_is_told(daemon: RunningDaemon, form: str) -> None:
    """A refusal that shows what was sent can show that, too, as text and as JSON."""
    headers = {"Content-Type": "application/json", "Accept": form}
    answer = daemon.client.post("/sessions", content=b'{"copy_of": "\\ud800"}', headers=headers)
    assert (answer.status_code, "ud800" in answer.text) == (404, True)


def test_what_is_no_utf8_in_a_directory_or_description_is_kept(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A run that lasts is kept whatever bytes its directory and description have: they are shown as U+FFFD."""
    directory = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(directory)
    shown = f"{tmp_path}/\N{REPLACEMENT CHARACTER}"
    asked = json.dumps({"directory": os.fsdecode(directory), "description": "a\udcff", "command": "sleep 0.02; pwd"})
    result = daemon.json("POST", "/run", content=asked, headers={"Content-Type": "application/json"})
    assert (result["directory"], result["description"]) == (shown, "a\N{REPLACEMENT CHARACTER}")
    kept = daemon.json("GET", f"/runs/{result['run_id']}")
    assert (kept["directory"], kept["stdout"]) == (shown, result["stdout"])


def test_run_ids_that_look_like_files(start_daemon) -> None:
    """A run id that means something to the file system is refused, or harms no file but its own."""
    daemon = start_daemon()
    daemon.fresh()
    daemon.run("echo kept", run_id="kept")
    for run_id in ("snapshot.json", "-rf", "...", ".snapshot", ".spare", ".", ".."):
        answer = daemon.client.post("/run", json={"command": "echo x", "run_id": run_id})
        assert answer.status_code in (200, 400), run_id
        daemon.run("true")
        path = "/runs/" + run_id.replace(".", "%2e")
        if answer.status_code == 200:
            assert b'"stdout":"x\\n"' in daemon.ask("GET", path, key="test-key").body, run_id
        daemon.ask("DELETE", path, key="test-key")
        assert (daemon.data / "lock").exists(), run_id
        assert daemon.json("GET", "/runs/kept")["stdout"] == "kept\n", run_id
        assert not list(daemon.data.glob("*.log")), run_id
        assert not list(daemon.data.glob("*.json")), run_id


# --- the limit of bodies ------------------------------------------------------------------------------------

LIMIT = 64 * 1024


@pytest.mark.parametrize("path", ["/run", "/stdin", "/startup", "/kill", "/runs/x/stdin"])
def test_body_declared_too_large(impatient_daemon: RunningDaemon, path: str) -> None:
    """A body that is declared larger than server.max_body is 413 with a problem document."""
    answer = impatient_daemon.client.post(path, content=b"x" * (LIMIT + 1), headers={"Accept": "application/json"})
    assert "server.max_body, which is 64KiB." in problem(answer, 413, "body_too_large")["detail"]


@pytest.mark.parametrize("path", ["/run", "/stdin", "/resize"])
def test_chunked_body_too_large(impatient_daemon: RunningDaemon, path: str) -> None:
    """A body that turns out to be larger than server.max_body while it arrives is 413 as well."""
    pieces = (b"x" * 4096 for _ in range(LIMIT // 4096 + 1))
    answer = impatient_daemon.client.post(path, content=pieces, headers={"Accept": "application/json"})
    problem(answer, 413, "body_too_large")
    assert impatient_daemon.state() == "ready"


def test_largest_body(impatient_daemon: RunningDaemon) -> None:
    """A body of exactly server.max_body is taken, declared or in chunks."""
    command = b"echo taken #".ljust(LIMIT, b"x")
    assert impatient_daemon.client.post("/run", content=command).text == "taken\n"
    pieces = (command[start : start + 1000] for start in range(0, LIMIT, 1000))
    assert impatient_daemon.client.post("/run", content=pieces).text == "taken\n"


def test_large_command(daemon: RunningDaemon) -> None:
    """A command may be megabytes long."""
    command = ": '" + "x" * 3_000_000 + "'; echo done"
    assert daemon.client.post("/run", content=command).text == "done\n"


# --- starting the shell -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["in memory", "on disk"])
def test_what_is_told_of_a_large_command(daemon: RunningDaemon, kept: str) -> None:
    """Results, which are written and listed, have the beginning of it. Repeats are known by the whole."""
    run_id, description = kept.replace(" ", "-"), "d" * 70_000
    command = f"{': &' if kept == 'on disk' else ':'} {'é' * 70_000}x"
    result = daemon.run(command, run_id=run_id, description=description)
    assert (result["command"], result["description"]) == (command[:65_536], description[:65_536])
    assert daemon.run(command, run_id=run_id, description=description)["run_id"] == run_id
    assert daemon.run(f"{command}y", run_id=run_id, description=description)["code"] == "run_id_conflict"
    assert daemon.run(command, run_id=run_id, description=f"{description}d")["code"] == "run_id_conflict"
    listed = next(run for run in daemon.json("GET", "/runs") if run["run_id"] == run_id)
    assert len(listed["command"]) == 65_536


@pytest.mark.parametrize("name", ["directory", "working_directory", "startup_file"])
def test_a_path_that_none_can_be(daemon: RunningDaemon, name: str) -> None:
    """It is refused for its length, in few words."""
    path, body = ("/run", {"command": "true"}) if name == "directory" else ("/sessions", {})
    refusal = problem(daemon.client.post(path, json={**body, name: "/x" * 2_049}, headers=JSON), 400, "invalid_request")
    assert "4096 characters" in refusal["detail"]
    assert len(refusal["detail"]) < 500


def test_startup_fields(daemon: RunningDaemon, tmp_path: Path) -> None:
    """/startup takes a directory, an environment and a size; a recycled shell has them again."""
    daemon.client.post("/shutdown?recycle=true")
    request = {
        "working_directory": str(tmp_path),
        "environment": {"GIVEN": "x y", "PAGER": "less"},
        "rows": 7,
        "cols": 33,
    }
    assert daemon.client.post("/startup", json=request).text == "ready"
    show = 'pwd; echo "$GIVEN" $PAGER $GIT_PAGER $TERM; stty size'
    expected = f"{tmp_path}\nx y less cat xterm-256color\n7 33\n"
    assert daemon.run(show)["stdout"] == expected
    daemon.run("cd /; GIVEN=other; stty rows 1")
    daemon.client.post("/recycle")
    assert daemon.run(show)["stdout"] == expected


@pytest.mark.parametrize("fields", [
    {"working_directory": "/no/such"}, {"working_directory": 5}, {"environment": {"A=B": "x"}},
    {"environment": {"A": "\0"}}, {"environment": {"A": 5}}, {"rows": 0}, {"cols": 65536}, {"rows": "5"}, {"row": 5},
])  # fmt: skip
def test_malformed_startup(daemon: RunningDaemon, fields: dict[str, Any]) -> None:
    """A malformed startup is 400, and the shell has not been started."""
    daemon.client.post("/shutdown?recycle=true")
    problem(daemon.client.post("/startup", json=fields, headers={"Accept": "application/json"}), 400, "invalid_request")
    assert daemon.state() == "available"


def test_first_run_of_a_gated_command(daemon: RunningDaemon, gate: Gate) -> None:
    """Output that was written before the answer's timeout is in the answer."""
    answer = post_run(daemon, "raw", f"echo early; {gate}; echo late", timeout="200ms")
    assert answer.json()["stdout"] == "early\n"
    gate.open()
    assert daemon.finished(answer.json()["run_id"])["stdout"] == "early\nlate\n"


@pytest.mark.parametrize("apart", [False, True])
def test_offer_of_http2(daemon: RunningDaemon, apart: bool) -> None:
    """A client that offers HTTP/2 is answered in HTTP/1.1: its body is read, and so are the requests after it."""
    host, port = urlsplit(daemon.url).netloc.split(":")
    head = f"POST /run HTTP/1.1\r\nHost: localhost\r\nX-Shell-Key: {KEY}\r\nContent-Length: 7\r\n"
    offer = head + "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    last = head + "Connection: close\r\n\r\necho $X"
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        for part in [offer, "X=first", offer, "X+=next", last] if apart else [f"{offer}X=first{offer}X+=next{last}"]:
            connection.sendall(part.encode())
            if apart:
                time.sleep(0.05)
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200 OK") == 3, answers
    assert answers.endswith(b"firstnext\n")


def test_large_json(daemon: RunningDaemon) -> None:
    """A command or a file's content may be as large as a body; many small values are refused, whatever they mean."""
    text = 'zwölf "\\\n' * 400_000
    answer = daemon.client.post("/files/create", json={"path": "large.txt", "content": text})
    assert (answer.status_code, answer.json()["size"]) == (200, len(text.encode()))
    assert daemon.client.get("/files/raw", params={"path": "large.txt"}).content == text.encode()
    body = {"command": "true", "environment": {f"NAME_{number}": "" for number in range(10_000)}}
    assert "as one string" in text_problem(daemon.client.post("/run", json=body), 400)
    assert daemon.client.post("/tools/bash", json={"command": [1.5e300] * 10_000}).status_code == 400
    assert daemon.client.post("/run", json={"command": ": " + "x" * 100_000, "cmd": 1}).status_code == 400
