"""The example agents in docs/examples, as real processes, against a real daemon and a scripted model on a socket."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import KEY, RunningDaemon

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"


class Model:
    """A model that says what the test has written for it, and keeps what it was asked."""

    def __init__(self, script: list[dict[str, Any]]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._script = iter(script)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> bytes:
        self.paths.append(path)
        self.headers.append({name.lower(): value for name, value in headers.items()})
        self.requests.append(json.loads(body))
        return json.dumps(next(self._script)).encode()


@contextmanager
def serving(model: Model) -> Iterator[str]:
    """Serve the model on a socket of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            content = model.answer(self.path, dict(self.headers), body)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def perform(example: str, daemon: RunningDaemon, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run an example with a task."""
    settings = {**os.environ, "SHELLD_URL": daemon.url, "SHELLD_KEY": KEY, **environ}
    arguments = [sys.executable, str(EXAMPLES / example), "Do", "the task."]
    return subprocess.run(arguments, env=settings, capture_output=True, text=True, timeout=30, check=False)


def test_the_loop_for_openai(daemon: RunningDaemon) -> None:
    """Several calls at once, arguments that are no JSON or no object, an unknown tool, and an answer at the end."""

    def calls(*asked: tuple[str, str]) -> dict[str, Any]:
        items = [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(asked)
        ]
        return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": items}}]}

    good = json.dumps({"command": "echo $((6 * 7))"})
    asked = calls(("execute_command", good), ("execute_command", "{oops"), ("execute_command", "[1]"), ("dance", ""))
    model = Model([asked, {"choices": [{"message": {"role": "assistant", "content": "It is 42."}}]}])
    with serving(model) as url:
        done = perform("openai_loop.py", daemon, OPENAI_BASE_URL=f"{url}/v1", OPENAI_API_KEY="k", OPENAI_MODEL="m")
    assert (done.returncode, done.stdout, done.stderr) == (0, "It is 42.\n", "")
    first, second = model.requests
    assert model.paths == ["/v1/chat/completions"] * 2
    assert model.headers[0]["authorization"] == "Bearer k"
    assert (first["model"], first["messages"]) == ("m", [{"role": "user", "content": "Do the task."}])
    assert "execute_command" in [tool["function"]["name"] for tool in first["tools"]]
    task, spoken, *results = second["messages"]
    assert (task, spoken) == (first["messages"][0], asked["choices"][0]["message"])
    assert [(item["role"], item["tool_call_id"]) for item in results] == [("tool", f"call_{n}") for n in range(4)]
    assert results[0]["content"].startswith("42\n")
    assert "not a JSON object" in results[1]["content"]
    assert "not a JSON object" in results[2]["content"]
    assert results[3]["content"].startswith("Error: ")
    assert "dance" in results[3]["content"]


def test_the_loop_for_anthropic(daemon: RunningDaemon) -> None:
    """Text beside calls, several calls at once, a refused one, and an answer at the end."""
    asked = [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "a", "name": "execute_command", "input": {"command": "echo $((6 * 7))"}},
        {"type": "tool_use", "id": "b", "name": "execute_command", "input": {"comand": "typo"}},
    ]
    script = [
        {"role": "assistant", "content": asked, "stop_reason": "tool_use"},
        {"role": "assistant", "content": [{"type": "text", "text": "It is 42."}], "stop_reason": "end_turn"},
    ]
    model = Model(script)
    with serving(model) as url:
        done = perform("anthropic_loop.py", daemon, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="k", ANTHROPIC_MODEL="m")
    assert (done.returncode, done.stdout, done.stderr) == (0, "It is 42.\n", "")
    first, second = model.requests
    assert model.paths == ["/v1/messages"] * 2
    assert model.headers[0]["x-api-key"] == "k"
    assert first["max_tokens"] > 0
    assert "execute_command" in [tool["name"] for tool in first["tools"]]
    task, spoken, results = second["messages"]
    assert (task["content"], spoken, results["role"]) == (
        "Do the task.",
        {"role": "assistant", "content": asked},
        "user",
    )
    worked, refused = results["content"]
    assert (worked["type"], worked["tool_use_id"], worked["is_error"]) == ("tool_result", "a", False)
    assert worked["content"].startswith("42\n")
    assert (refused["tool_use_id"], refused["is_error"]) == ("b", True)
    assert "comand" in refused["content"]


@pytest.mark.parametrize("form", ["openai", "anthropic"])
def test_tools_are_listed_and_called(client: Any, form: str) -> None:
    """By both clients; what a model got wrong is an exception."""
    assert client.tools.list(form)
    done = client.tools.call("execute_command", {"command": "echo hello", "session_id": None})
    assert (done["tool"], done["is_error"], done["result"]["stdout"]) == ("execute_command", False, "hello\n")
    with pytest.raises(ValueError, match="mapping"):
        client.tools.call("execute_command", [1])


@pytest.mark.parametrize("example", ["openai_loop.py", "anthropic_loop.py"])
def test_the_examples_are_short_and_import_little(example: str) -> None:
    text = (EXAMPLES / example).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= {"httpx", "shelld_py", *sys.stdlib_module_names}
