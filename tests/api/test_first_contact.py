"""What somebody meets who does not know the daemon yet: where to look, what went wrong, what to do next."""

import json
import os
import re
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.problems import problem
from tests.daemons import KEY, RunningDaemon, wait_for

JSON = {"Accept": "application/json"}


def test_run_starts_the_shell_where_that_is_set(start_daemon: Callable[..., RunningDaemon], tmp_path: Any) -> None:
    """With its hook, once, and before the first command; requests at the same time wait for it."""
    hook = tmp_path / "hook"
    daemon = start_daemon(shell__start_on_run="true", hooks__on_startup=f"echo started >>{hook}")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: daemon.ask("POST", "/run", body=b"echo here", key=KEY), range(4)))
    told = {answer.body for answer in answers}
    assert b"here\n" in told
    assert told <= {b"here\n", b"The shell is busy executing another command."}
    assert hook.read_text() == "started\n"
    assert daemon.state() == "ready"


def test_run_starts_nothing_by_default(start_daemon: Callable[..., RunningDaemon]) -> None:
    daemon = start_daemon()
    answer = daemon.client.post("/run", content="true")
    assert (answer.status_code, answer.text) == (409, "The shell has not been started.")
    document = problem(daemon.client.post("/run", content="true", headers=JSON), 409, "shell_not_started")
    assert document["hint"] == "POST /startup starts it; shell.start_on_run does so by itself."


def test_errors_of_state_say_what_to_call_next(daemon: RunningDaemon) -> None:
    for method, path in (("POST", "/startup"), ("POST", "/stdin")):
        assert re.search(r"\bPOST /\w+", daemon.json(method, path)["hint"])
    run_id = daemon.start("sleep 60")
    assert "POST /kill" in daemon.json("POST", "/run", content="true")["hint"]
    daemon.client.post(f"/runs/{run_id}/kill")
    daemon.client.post("/run", content="kill -9 $$")
    assert daemon.json("POST", "/run", content="true")["hint"] == "POST /recycle starts a fresh bash."


@pytest.mark.parametrize(
    "body", ['{"command": "echo hi"}', '\n {"timeout": 5, "command": "ls"}\n', '{"command": null}', '{"command":[]}']
)
@pytest.mark.parametrize("path", ["/run", "/exec"])
def test_json_without_its_content_type_is_not_run(ready_daemon: RunningDaemon, path: str, body: str) -> None:
    """curl -d sends a form type."""
    headers = {"Content-Type": "application/x-www-form-urlencoded", **JSON}
    answer = ready_daemon.client.post(path, content=body, headers=headers)
    assert "Content-Type: application/json" in problem(answer, 400, "json_without_content_type")["detail"]


@pytest.mark.parametrize(
    ("command", "output"),
    [('{ echo "command"; }', "command\n"), ('{ echo a; }; : \'{"command": "x"}\'', "a\n"), ("echo '{}'", "{}\n")],
)
def test_commands_that_look_like_json_are_run(ready_daemon: RunningDaemon, command: str, output: str) -> None:
    assert ready_daemon.client.post("/run", content=command).text == output


def test_a_multipart_form_is_not_run(ready_daemon: RunningDaemon) -> None:
    """`curl -F command=ls`."""
    answer = ready_daemon.client.post("/run", files={"command": b"ls"}, headers=JSON)
    problem(answer, 400, "json_without_content_type")


def test_the_root_says_what_this_is(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Without a key, and without locking the daemon to one."""
    daemon = start_daemon(key=None)
    text = daemon.ask("GET", "/", key="a")
    assert text.status == 200
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.body.startswith(b"shelld-py ")
    assert b"X-Shell-Key" in text.body
    for path in re.findall(r"^  (/\S+)", text.body.decode(), re.MULTILINE):
        assert daemon.ask("GET", path).status == 200
        assert daemon.ask("HEAD", path).status == 200
    page = daemon.ask("GET", "/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b'<a href="/docs">' in page.body
    assert daemon.ask("GET", "/status", key="b").status == 200


def test_the_page_for_people_has_every_endpoint(ready_daemon: RunningDaemon) -> None:
    """And every code of an error; it names no other host, and forbids the browser to ask one."""
    document = ready_daemon.client.get("/openapi.json").json()
    answer = httpx.get(f"{ready_daemon.url}/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"(?:src|href)=\"?(?:https?:)?//|<script|@import|url\(", answer.text)
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert f'<h3 id="{operation["operationId"]}"' in answer.text
            assert f">{method.upper()} {path}</a>" in answer.text


def test_the_text_for_models_is_short_and_names_every_path(ready_daemon: RunningDaemon) -> None:
    """Under 2,000 tokens, taken as 3.3 characters each: the tokenizers of models make 3.35 to 3.5 of it."""
    answer = httpx.get(f"{ready_daemon.url}/llms.txt")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert len(answer.text) < 3.3 * 2000
    document = ready_daemon.client.get("/openapi.json").json()
    named = answer.text.replace("/VERB", "")
    for path in document["paths"]:
        verb = re.fullmatch(r"/sessions/\{session_id\}/(\w+)", path)
        assert re.search(rf"[ ,]{verb[1]}\b", named) if verb else f" {path}`" in named, path


def test_the_examples_for_models_work(start_daemon: Callable[..., RunningDaemon]) -> None:
    """As they stand there, in a shell, against a daemon that nobody has spoken to yet."""
    daemon = start_daemon(key=None)
    text = daemon.ask("GET", "/llms.txt").body.decode()
    script = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert script
    environment = {"URL": daemon.url, "KEY": "k", "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-ec", script[1]], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ready/tmp\n{")
    assert json.loads(done.stdout.partition("\n")[2])["exit_code"] == 0


def test_what_the_text_for_models_says_is_so(ready_daemon: RunningDaemon) -> None:
    """What stands there between the examples: a dialogue, a long output, a server, a repeat, a change of a file."""
    text, client = httpx.get(f"{ready_daemon.url}/llms.txt").text, ready_daemon.client
    for example in ("/stdin?wait=10s", "/output?cursor=0", '"timeout": 0', "until=port:8000", "expected_replacements"):
        assert example in text
    asks = ready_daemon.json("POST", "/run", json={"command": 'read -p "Name? " n; echo "hello $n"'})
    assert (asks["status"], asks["awaiting_input"]) == ("running", True)
    assert client.post("/stdin?wait=10s", content="Ann\n").text.endswith("hello Ann\n")
    fields = {"command": "seq 99999", "run_id": "long"}
    assert ready_daemon.json("POST", "/exec", json=fields)["truncated"]
    parts, cursor = "", 0
    while not (part := ready_daemon.json("GET", f"/runs/long/output?cursor={cursor}&limit=300000"))["eof"]:
        parts, cursor = parts + part["output"], part["next_cursor"]
    assert (parts + part["output"]).splitlines() == [str(number) for number in range(1, 100_000)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = f"import socket; s = socket.create_server(('127.0.0.1', {port})); s.accept()"
    fields = {"argv": ["python3", "-c", serve], "run_id": "server", "timeout": 0, "streams": "pipes"}
    assert client.post("/exec", json=fields).status_code == 202
    assert ready_daemon.json("GET", f"/runs/server/wait?until=port:{port}")["reached"] == f"port:{port}"
    assert ready_daemon.json("POST", "/exec", json=fields)["status"] == "running"
    client.delete("/runs/server")
    client.post("/files/create", json={"path": "a", "content": "one one"})
    change = {"path": "a", "old_string": "one", "new_string": "1"}
    problem(
        client.post("/files/replace", json={**change, "expected_replacements": 1}), 422, "replacement_count_mismatch"
    )
    assert ready_daemon.json("POST", "/files/replace", json=change)["replacements"] == 2
    etag = ready_daemon.json("POST", "/files/undo", json={"path": "a"})["etag"]
    assert client.post("/files/delete", json={"path": "a", "if_match": etag}).status_code == 200


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/run/", "/run"),
        ("/Run", "/run"),
        ("/v1/run", "/run"),
        ("/file/read", "/files/read"),
        ("/runs/abc/outputs", "/runs/{run_id}/output"),
        ("/sessions/abc/outpt", "/sessions/{session_id}/output"),
        ("/" + "x" * 5000, None),
        ("/etc/passwd", None),
    ],
)
def test_an_unknown_path_names_the_nearest(ready_daemon: RunningDaemon, path: str, nearest: str | None) -> None:
    document = problem(ready_daemon.client.post(path), 404, "not_found")
    assert document.get("nearest") == nearest
    assert (f"Do you mean {nearest}?" if nearest else "GET / says what there is.") in document["detail"]


@pytest.mark.parametrize(("path", "setting"), [("/mcp", "server.mcp"), ("/socket.io/", "server.socketio")])
def test_a_path_that_is_switched_off_names_the_setting(ready_daemon: RunningDaemon, path: str, setting: str) -> None:
    detail = problem(ready_daemon.client.post(path), 404, "not_found")["detail"]
    assert detail == f"There is no path {path}: {setting} = true serves it."


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"command": ["ls"]}, "command must be a string, not a list."),
        ({"command": {"a": 1}}, "command must be a string, not an object."),
        ({"command": "ls", "cwd": "/"}, "There is no field 'cwd' here. Do you mean directory? There are: command, "),
        ({"cmd": "ls"}, "There is no field 'cmd' here. Do you mean command? There are: "),
        ({"command": "ls", "timout": 1}, "There is no field 'timout' here. Do you mean timeout? "),
        ({"command": "ls", "max_output": "5"}, "max_output must be a whole number of at least 0, not '5'."),
        ({"command": "ls", "max_output": 1.5}, "max_output must be a whole number of at least 0, not 1.5."),
        ({"command": "ls", "environment": {"A": 1}}, "environment must be an object of strings."),
        ({"command": "ls", "environment": []}, "environment must be an object of strings, not a list."),
        ({"command": "ls", "streams": "both"}, "streams must be one of merged, separate, pipes, not 'both'."),
        ({"command": "ls", "run_id": "a/b"}, "run_id must be 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', "),
        ({"timeout": 5}, "The field command is missing: it must be a string."),
        ({"command": "ls", "x" * 5000: 1}, "There is no field 'xxx"),
    ],
)
def test_wrong_fields_are_told_in_plain_words(ready_daemon: RunningDaemon, body: dict[str, Any], told: str) -> None:
    detail = problem(ready_daemon.client.post("/exec", json=body), 400, "invalid_request")["detail"]
    assert detail.startswith(told)
    assert len(detail) < 500
    assert "`" not in detail, "msgspec writes names of types so"


def test_whole_numbers_may_have_a_fraction_of_zero(ready_daemon: RunningDaemon) -> None:
    answer = ready_daemon.client.post("/resize", content=b'{"rows": 40.0, "cols": 1e2}')
    assert answer.text == "ready"
    assert ready_daemon.run("stty size")["stdout"] == "40 100\n"
    arguments = {"path": ".", "depth": 1.0}
    assert ready_daemon.client.post("/tools/view", json=arguments).status_code == 200


@pytest.mark.parametrize("depth", [100, 900, 1000, 5000, 1_000_000])
@pytest.mark.parametrize("path", ["/run", "/files/read", "/tools/read", "/events", "/stdin"])
def test_json_that_is_nested_deeply_is_refused(ready_daemon: RunningDaemon, path: str, depth: int) -> None:
    """At once, by the words for any JSON that is wrong."""
    for body in (b"[" * depth, b'{"path": ' * depth + b"1" + b"}" * depth, b'{"a":' * depth):
        answer = ready_daemon.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert len(answer.text) < 1000


def test_output_without_a_cursor_waits_for_what_is_new(ready_daemon: RunningDaemon, tmp_path: Any) -> None:
    """There is output already: the request waits for more, and gives all."""
    run_id = ready_daemon.start("printf 'name? '; read name; echo hello $name; read -r _")
    ready_daemon.json("GET", f"/runs/{run_id}/wait", params={"until": "input"})
    assert ready_daemon.client.get("/output?wait=20s").text == "name? ", "it waits for input: nothing is to come"
    ready_daemon.client.post("/stdin", content="you\n")
    assert ready_daemon.client.get("/output?wait=20s").text.startswith("name? hello you\n")
    ready_daemon.client.post("/stdin", content="\n")
    assert ready_daemon.client.get("/output?wait=20s").text == "name? hello you\n"


def test_a_dialogue_takes_one_request_a_turn(ready_daemon: RunningDaemon) -> None:
    """The answer to input is what the command has written since, up to its next question or its end."""
    client = ready_daemon.client
    started = client.post("/run", content="printf 'a? '; read a; printf 'b? '; read b; echo $a$b")
    assert (started.status_code, started.text) == (202, "a? \nThe command is waiting for input.")
    turn = client.post("/stdin?wait=20s", content="1\n")
    assert (turn.text, turn.headers["x-awaiting-input"], turn.headers["x-run-status"]) == ("b? ", "true", "running")
    last = ready_daemon.json("POST", "/stdin", json={"text": "2\n", "wait": "20s"})
    assert (last["output"], last["status"], last["awaiting_input"]) == ("12\n", "completed", False)
    assert (last["accepted"], last["cursor"], last["next_cursor"], last["stderr"]) == (4, 6, 9, "")
    assert last["run_id"] == started.headers["x-run-id"]


def test_a_dialogue_sees_both_streams(ready_daemon: RunningDaemon) -> None:
    run_id = ready_daemon.json("POST", "/exec", json={"command": "read -p 'a? ' a; echo $a; echo e >&2"})["run_id"]
    told = ready_daemon.json("POST", f"/runs/{run_id}/stdin?wait=20s", content="1\n")
    assert (told["output"], told["stderr"], told["status"]) == ("1\n", "e\n", "completed")


def test_the_wait_for_a_reply_ends(ready_daemon: RunningDaemon) -> None:
    """A line that is not finished is held back, and read on from the cursor."""
    run_id = ready_daemon.start("read a; echo one; printf two; sleep 60")
    ready_daemon.json("GET", f"/runs/{run_id}/wait", params={"until": "input"})
    told = ready_daemon.json("POST", "/stdin?wait=300ms", content="\n")
    assert (told["status"], told["awaiting_input"]) == ("running", False)
    assert told["output"] in ("", "one\n")
    wait_for(lambda: ready_daemon.client.get("/output").text == "one\ntwo")
    ready_daemon.client.post("/kill")
    rest = ready_daemon.client.get(f"/runs/{run_id}/output", params={"cursor": told["next_cursor"]}).json()["output"]
    assert (told["output"] + rest).rstrip() == "one\ntwo", "bash ends the line of an interrupted command"
