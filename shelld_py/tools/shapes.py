"""The catalogue in the forms that others take: the lists of tools of OpenAI, Anthropic and MCP. Pure functions."""

from enum import StrEnum
from typing import Any

from shelld_py.tools.catalogue import TOOLS
from shelld_py.tools.schemas import arguments_schema, result_schema
from shelld_py.tools.tool import Tool


class Shape(StrEnum):
    """For whom the tools are listed."""

    FULL = "full"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


def listed(shape: Shape) -> Any:
    """Return all tools: what the client's parameter `tools` takes, or for MCP the result of `tools/list`."""
    if shape is Shape.MCP:
        return {"tools": [mcp_tool(tool) for tool in TOOLS]}
    form = {Shape.FULL: _full, Shape.OPENAI: _openai, Shape.ANTHROPIC: _anthropic}[shape]
    return [form(tool) for tool in TOOLS]


def mcp_tool(tool: Tool) -> dict[str, Any]:
    """Return a tool as MCP describes it (specification 2025-06-18, server/tools)."""
    hints = tool.hints
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": arguments_schema(tool.arguments),
        "outputSchema": result_schema(tool.result),
        "annotations": {
            "title": tool.title,
            "readOnlyHint": hints.read_only,
            "destructiveHint": hints.destructive,
            "idempotentHint": hints.idempotent,
            "openWorldHint": hints.open_world,
        },
    }


def _full(tool: Tool) -> dict[str, Any]:
    hints = tool.hints
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "input_schema": arguments_schema(tool.arguments),
        "output_schema": result_schema(tool.result),
        "hints": {
            "read_only": hints.read_only,
            "destructive": hints.destructive,
            "idempotent": hints.idempotent,
            "open_world": hints.open_world,
        },
    }


def _openai(tool: Tool) -> dict[str, Any]:
    """Return a function of the Chat Completions API."""
    function = {"name": tool.name, "description": tool.description, "parameters": arguments_schema(tool.arguments)}
    return {"type": "function", "function": function}


def _anthropic(tool: Tool) -> dict[str, Any]:
    """Return a tool of the Messages API."""
    return {"name": tool.name, "description": tool.description, "input_schema": arguments_schema(tool.arguments)}
