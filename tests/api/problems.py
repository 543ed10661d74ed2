"""What every refusal must look like: one line of text, or a problem document of RFC 9457."""

from http import HTTPStatus
from typing import Any

import httpx

BASE = {"type", "title", "status", "code", "detail"}


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that `answer` is the problem document for `status` and `code`; return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document.keys() >= BASE
    assert document["type"] == "about:blank"
    assert document["title"] == HTTPStatus(status).phrase
    assert document["status"] == status
    assert document["code"] == code
    assert document["detail"]
    return document


def text_problem(answer: httpx.Response, status: int) -> str:
    """Check that `answer` is one line of text with `status`; return the line."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text
    assert "\n" not in answer.text
    return answer.text
