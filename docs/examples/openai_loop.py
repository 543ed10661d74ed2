"""An agent for models that speak OpenAI's Chat Completions.

    python openai_loop.py 'What is in this directory?'

The model: OPENAI_BASE_URL (http://127.0.0.1:8000/v1), OPENAI_API_KEY, OPENAI_MODEL.
The computer: SHELLD_URL, SHELLD_KEY.
"""

import json
import os
import sys

import httpx

from shelld_py import Client, ShelldError

MOST_TURNS = 50


def call(computer: Client, name: str, arguments: str) -> str:
    """Call a tool. What goes wrong is told to the model, which can do better."""
    try:
        return computer.tools.call(name, json.loads(arguments or "{}"))["text"]
    except ValueError as error:
        return f"Error: the arguments are not a JSON object: {error}"
    except ShelldError as error:
        return f"Error: {error.detail}"


def answer(task: str, model: httpx.Client, computer: Client) -> str:
    """Let the model work on `task` until it calls no more tools; return its last words."""
    tools = computer.tools.list("openai")
    messages = [{"role": "user", "content": task}]
    for _ in range(MOST_TURNS):
        request = {"model": os.environ.get("OPENAI_MODEL", "default"), "messages": messages, "tools": tools}
        response = model.post("/chat/completions", json=request)
        response.raise_for_status()
        message = response.json()["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for asked in message["tool_calls"]:
            text = call(computer, asked["function"]["name"], asked["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": asked["id"], "content": text})
    raise SystemExit(f"No answer after {MOST_TURNS} turns.")


if __name__ == "__main__":
    url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    with httpx.Client(base_url=url, headers=headers, timeout=600) as model, Client() as computer:
        print(answer(" ".join(sys.argv[1:]), model, computer))
