"""The catalogue: schemas that all vendors take, the exact forms of the listings, refusals of calls."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from shelld_py.tools.catalogue import TOOLS
from shelld_py.tools.schemas import arguments_schema, result_schema
from shelld_py.tools.tool import Tool
from tests.tools.conftest import Bench

NAMES = [
    "run_shell_command",
    "open_session",
    "close_session",
    "execute_command",
    "shell_metadata",
    "shell_exec",
    "shell_start",
    "shell_status",
    "shell_read",
    "shell_write",
    "shell_wait",
    "shell_close",
    "view",
    "read",
    "create",
    "delete",
    "move",
    "update",
    "insert",
    "replace",
    "undo",
    "search",
    "find",
    "bash",
    "bash_input",
    "bash_screen",
    "str_replace_based_edit_tool",
]
SCHEMAS = {
    "run_shell_command": (["command"], ["command", "description", "directory"]),
    "open_session": ([], []),
    "close_session": (["session_id"], ["session_id"]),
    "execute_command": (["command"], ["command", "session_id"]),
    "shell_metadata": ([], []),
    "shell_status": (["shell_id"], ["shell_id"]),
    "shell_close": (["shell_id"], ["shell_id"]),
    "bash": ([], ["command", "restart", "timeout_ms", "deadline_ms", "changes"]),
    "str_replace_based_edit_tool": (
        ["command", "path"],
        ["command", "path", "file_text", "view_range", "old_str", "new_str", "insert_line", "insert_text"],
    ),
}
RESULTS = {
    "run_shell_command": [
        "command", "directory", "stdout", "stderr", "error", "exit_code", "signal", "background_pids",
    ],
    "open_session": ["session_id"],
    "close_session": ["session_id"],
    "execute_command": ["stdout", "stderr", "exit_code", "original_stdout_size", "original_stderr_size"],
    "shell_metadata": ["operating_system", "shell", "workspace_directory"],
    "shell_start": ["shell_id", "status", "output", "cursor"],
}  # fmt: skip

each_tool = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from _nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _nodes(value)


def test_the_tools_are_those_named() -> None:
    assert [tool.name for tool in TOOLS] == NAMES


@each_tool
def test_the_schema_of_arguments_is_plain_json_schema(tool: Tool) -> None:
    """Valid in 2020-12, an object, no union, no reference, no null."""
    schema = arguments_schema(tool.arguments)
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    for node in _nodes(schema):
        assert not {"anyOf", "oneOf", "allOf", "$ref", "$defs", "prefixItems", "title"} & set(node)
        assert not isinstance(node.get("type"), list)
        assert node.get("type") != "null"
        assert None not in node.get("enum", ())
        assert "default" not in node or node["default"] is not None


@each_tool
def test_every_argument_is_described_and_required_only_without_a_default(tool: Tool) -> None:
    schema = arguments_schema(tool.arguments)
    for member in schema["properties"].values():
        assert "type" in member
        assert len(member["description"]) > 10
    fields = msgspec.structs.fields(tool.arguments)
    assert schema["required"] == [field.name for field in fields if field.required]
    assert list(schema["properties"]) == [field.name for field in fields]


@each_tool
def test_the_schema_of_the_result_is_an_object_without_references(tool: Tool) -> None:
    schema = result_schema(tool.result)
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert not any({"$ref", "$defs"} & set(node) for node in _nodes(schema))


@pytest.mark.parametrize(("name", "expected"), SCHEMAS.items(), ids=list(SCHEMAS))
def test_the_arguments_are_those_named(name: str, expected: tuple[list[str], list[str]]) -> None:
    schema = arguments_schema(next(tool.arguments for tool in TOOLS if tool.name == name))
    assert (schema["required"], list(schema["properties"])) == expected


@pytest.mark.parametrize(("name", "expected"), RESULTS.items(), ids=list(RESULTS))
def test_the_results_are_those_named(name: str, expected: list[str]) -> None:
    tool = next(tool for tool in TOOLS if tool.name == name)
    assert list(tool.result.__struct_fields__) == expected


def test_an_optional_argument_keeps_its_type_its_limits_and_its_description() -> None:
    schema = arguments_schema(next(tool.arguments for tool in TOOLS if tool.name == "replace"))
    assert schema["properties"]["expected_replacements"] == {
        "type": "integer",
        "minimum": 1,
        "description": "How often the text must occur; without it, every occurrence is replaced.",
    }
    assert schema["properties"]["if_none_match"]["enum"] == ["*"]
    editor = arguments_schema(next(tool.arguments for tool in TOOLS if tool.name == "str_replace_based_edit_tool"))
    view_range = editor["properties"]["view_range"]
    assert (view_range["type"], view_range["items"]) == ("array", {"type": "integer"})
    assert (view_range["minItems"], view_range["maxItems"]) == (2, 2)
    assert editor["properties"]["command"]["enum"] == ["create", "insert", "str_replace", "view"]


def test_the_full_form_has_everything(bench: Bench) -> None:
    listed = bench.daemon.json("GET", "/tools")
    assert [tool["name"] for tool in listed] == NAMES
    assert all(
        list(tool) == ["name", "title", "description", "input_schema", "output_schema", "hints"] for tool in listed
    )
    read = next(tool for tool in listed if tool["name"] == "read")
    assert read["hints"] == {"read_only": True, "destructive": False, "idempotent": True, "open_world": False}
    assert listed == bench.daemon.json("GET", "/tools?format=full")


def test_openai_takes_functions(bench: Bench) -> None:
    listed = bench.daemon.json("GET", "/tools?format=openai")
    assert [tool["function"]["name"] for tool in listed] == NAMES
    assert listed[NAMES.index("close_session")] == {
        "type": "function",
        "function": {
            "name": "close_session",
            "description": "Close a session. Everything that it started and that still runs is killed.",
            "parameters": {
                "type": "object",
                "properties": {
                    "session_id": {"type": "string", "description": "The session_id that open_session has given."}
                },
                "required": ["session_id"],
                "additionalProperties": False,
            },
        },
    }


def test_anthropic_takes_an_input_schema(bench: Bench) -> None:
    listed = bench.daemon.json("GET", "/tools?format=anthropic")
    assert listed[NAMES.index("open_session")] == {
        "name": "open_session",
        "description": (
            "Open a bash that keeps its state (variables, directory, functions) from one execute_command to the next. "
            "Close it with close_session."
        ),
        "input_schema": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    }
    assert all(list(tool) == ["name", "description", "input_schema"] for tool in listed)


def test_mcp_takes_the_result_of_tools_list(bench: Bench) -> None:
    listed = bench.daemon.json("GET", "/tools?format=mcp")
    assert list(listed) == ["tools"]
    tool = listed["tools"][NAMES.index("delete")]
    assert list(tool) == ["name", "title", "description", "inputSchema", "outputSchema", "annotations"]
    assert tool["annotations"] == {
        "title": "Delete a file",
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": False,
        "openWorldHint": False,
    }
    assert tool["inputSchema"]["required"] == ["path"]
    assert tool["outputSchema"]["properties"]["etag"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}


def test_another_form_is_refused(bench: Bench) -> None:
    document = bench.daemon.json("GET", "/tools?format=gemini")
    assert (document["status"], document["detail"]) == (
        400,
        "format must be one of anthropic, full, mcp, openai, not 'gemini'.",
    )


def test_an_unknown_tool_is_404_with_the_nearest_name(bench: Bench) -> None:
    document = bench.refused("run_shell_comand", command="true")
    assert (document["status"], document["code"], document["nearest"]) == (404, "tool_not_found", "run_shell_command")
    assert document["detail"] == "There is no tool 'run_shell_comand'. Do you mean run_shell_command?"


def test_where_no_name_is_near_all_are_told(bench: Bench) -> None:
    document = bench.refused("xyz")
    assert document["nearest"] is None
    assert "str_replace_based_edit_tool" in document["detail"]


@pytest.mark.parametrize(
    ("tool", "arguments", "argument", "said"),
    [
        ("run_shell_command", {}, "command", "needs the argument 'command': string (The command line"),
        ("run_shell_command", {"command": 3}, "command", "command must be a string of at least 1 character, not 3."),
        ("run_shell_command", {"command": " \n"}, "command", "empty"),
        ("run_shell_command", {"command": "ls", "cwd": "/"}, "cwd", "'directory'? It takes: command, description,"),
        ("run_shell_command", {"command": "ls", "dir": "/"}, "dir", "Do you mean 'directory'?"),
        ("open_session", {"x": 1}, "x", "It takes none."),
        ("view", {"path": ".", "depth": 0}, "depth", "integer of at least 1 (How many levels"),
        ("read", {"path": "a", "view_range": ["1", 2]}, "view_range", "must be a list of 2 whole numbers. It "),
        ("shell_exec", {"command": "ls", "streams": "both"}, "streams", "one of merged, separate"),
        ("shell_exec", {"command": "ls", "environment": {"A": 1}}, "environment", "must be an object of strings. "),
        ("shell_start", {"command": "ls", "inline_wait": "5s"}, "inline_wait", "number of at least 0 (Seconds"),
        ("str_replace_based_edit_tool", {"command": "undo_edit", "path": "a"}, "command", "one of create, insert, "),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(
    bench: Bench, tool: str, arguments: dict[str, Any], argument: str, said: str
) -> None:
    document = bench.refused(tool, **arguments)
    assert (document["status"], document["code"]) == (400, "invalid_request")
    assert document["argument"] == argument
    assert said in document["detail"]


@pytest.mark.parametrize("body", ["[]", '"ls"', "{", "null", '{"command": "ls"} x'])
def test_arguments_are_a_json_object(bench: Bench, body: str) -> None:
    answer = bench.daemon.client.post("/tools/run_shell_command", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_null_counts_as_left_out_and_an_empty_body_as_no_arguments(bench: Bench) -> None:
    assert bench.call("run_shell_command", command="echo a", description=None, directory=None).result["stdout"] == "a\n"
    assert bench.refused("read", path=None)["detail"].startswith("read needs the argument 'path'")
    assert bench.daemon.client.post("/tools/shell_metadata").json()["shell"].startswith("bash ")


def test_a_refusal_can_be_had_as_text(bench: Bench) -> None:
    answer = bench.daemon.client.post("/tools/bash", json={}, headers={"Accept": "text/plain"})
    assert (answer.status_code, answer.text) == (400, "bash needs the argument 'command', or 'restart': true.")


def test_nobody_without_the_key_lists_or_calls(bench: Bench) -> None:
    assert bench.daemon.ask("GET", "/tools").status == 401
    assert bench.daemon.ask("POST", "/tools/run_shell_command", body=b'{"command": "true"}').status == 401
    assert bench.daemon.ask("POST", "/tools/open_session", key="other").status == 401


def test_structured_results_fit_their_schemas(bench: Bench) -> None:
    """One result with nulls and one without are checked; a wrong one is noticed."""
    exec_schema = Draft202012Validator(result_schema(next(tool.result for tool in TOOLS if tool.name == "shell_exec")))
    result = bench.call("shell_exec", command="echo a; exit 2").result
    exec_schema.validate(result)
    exec_schema.validate(bench.call("shell_exec", command="sleep 9", timeout=0).result)
    with pytest.raises(ValidationError):
        exec_schema.validate({**result, "exit_code": "2"})
