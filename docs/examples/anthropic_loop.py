"""An agent for models that speak Anthropic's Messages.

    python anthropic_loop.py 'What is in this directory?'

The model: ANTHROPIC_BASE_URL (https://api.anthropic.com), ANTHROPIC_API_KEY, ANTHROPIC_MODEL.
The computer: SHELLD_URL, SHELLD_KEY.
"""

import os
import sys
from typing import Any

import httpx

from shelld_py import Client, ShelldError

MOST_TURNS = 50


def call(computer: Client, asked: dict[str, Any]) -> dict[str, Any]:
    """Call a tool. What goes wrong is told to the model, which can do better."""
    try:
        done = computer.tools.call(asked["name"], asked["input"])
        text, is_error = done["text"], done["is_error"]
    except ShelldError as error:
        text, is_error = error.detail, True
    return {"type": "tool_result", "tool_use_id": asked["id"], "content": text, "is_error": is_error}


def answer(task: str, model: httpx.Client, computer: Client) -> str:
    """Let the model work on `task` until it calls no more tools; return its last words."""
    tools = computer.tools.list("anthropic")
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for _ in range(MOST_TURNS):
        name = os.environ.get("ANTHROPIC_MODEL", "default")
        request = {"model": name, "max_tokens": 8192, "messages": messages, "tools": tools}
        response = model.post("/v1/messages", json=request)
        response.raise_for_status()
        content = response.json()["content"]
        messages.append({"role": "assistant", "content": content})
        results = [call(computer, block) for block in content if block["type"] == "tool_use"]
        if not results:
            return "".join(block["text"] for block in content if block["type"] == "text")
        messages.append({"role": "user", "content": results})
    raise SystemExit(f"No answer after {MOST_TURNS} turns.")


if __name__ == "__main__":
    url = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
    headers = {"x-api-key": os.environ.get("ANTHROPIC_API_KEY", ""), "anthropic-version": "2023-06-01"}
    with httpx.Client(base_url=url, headers=headers, timeout=600) as model, Client() as computer:
        print(answer(" ".join(sys.argv[1:]), model, computer))
