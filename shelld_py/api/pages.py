"""The API for people: one page of HTML, made from the OpenAPI document. It asks nothing of another host.

Imported, and the page made, when it is first asked for.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any, Final

import msgspec

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid; }
h3 { margin: 2rem 0 .3rem; font: 600 1rem ui-monospace, monospace; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8886; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-top: 1px solid #8884; }
td:first-child { font-family: ui-monospace, monospace; white-space: nowrap; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #8bf; } }
"""
_CODE: Final = re.compile(r"`([^`]+)`")
_SCHEMAS: Final = "#/components/schemas/"
_RESPONSES: Final = "#/components/responses/"

HEADERS: Final = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
"""What a browser is told about every page of ours: it needs nothing but its own style."""


def page(title: str, *body: str) -> str:
    """Return a whole page; `body` is HTML."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return f'<!doctype html>\n<html lang="en">\n{head}<style>{_STYLE}</style>\n{chr(10).join(body)}\n</html>\n'


@lru_cache(maxsize=1)
def reference(document: bytes) -> str:
    """Return the page for an OpenAPI document."""
    return page("shelld-py API", *_Reference(msgspec.json.decode(document)).parts())


class _Reference:
    """Writes one page; every method returns HTML."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._components = document["components"]

    def parts(self) -> Iterator[str]:
        info = self._document["info"]
        yield f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        yield "".join(f"<p>{_prose(part)}</p>" for part in info["description"].split("\n\n"))
        yield "<p>Every path needs the header <code>X-Shell-Key</code>, but for those that say so.</p>"
        tags = self._document["tags"]
        yield "<p>" + " · ".join(f'<a href="#{_anchor(tag)}">{escape(tag["name"])}</a>' for tag in tags) + "</p>"
        for tag in tags:
            yield f'<h2 id="{_anchor(tag)}">{escape(tag["name"])}</h2>'
            yield f"<p>{_prose(tag.get('description', ''))}</p>"
            for path, item in self._document["paths"].items():
                for method, operation in item.items():
                    if tag["name"] in operation["tags"]:
                        yield from self._operation(method.upper(), path, operation)

    def _operation(self, method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
        name = operation["operationId"]
        yield f'<h3 id="{name}"><a href="#{name}">{method} {escape(path)}</a></h3>'
        keyless = " Needs no key." if operation.get("security") == [] else ""
        yield f"<p>{_prose(operation['summary'])}. {_prose(operation.get('description', ''))}{keyless}</p>"
        rows = [
            (item["name"], f"{item['in']}{', required' if item.get('required') else ''}", self._kind(item["schema"]),
             item.get("description", ""))
            for item in operation.get("parameters", ())
        ]  # fmt: skip
        yield _table(("parameter", "where", "type", "meaning"), rows)
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            yield f"<p>Body as <code>{media_type}</code>: {_prose(content['schema'].get('description', ''))}</p>"
            yield _table(("field", "type", "meaning"), self._fields(content["schema"]))
            if "example" in content:
                yield f"<pre>{escape(msgspec.json.encode(content['example']).decode())}</pre>"
        yield _table(("answer", "types", "meaning"), list(self._answers(operation["responses"])))

    def _fields(self, schema: dict[str, Any]) -> list[tuple[str, ...]]:
        target = self._resolved(schema)
        return [
            (name, self._kind(member) + (", required" if name in target.get("required", ()) else ""),
             member.get("description") or self._resolved(member).get("description", ""))
            for name, member in target.get("properties", {}).items()
        ]  # fmt: skip

    def _answers(self, responses: dict[str, Any]) -> Iterator[tuple[str, ...]]:
        for status, given in responses.items():
            answer = given
            if "$ref" in given:
                answer = self._components["responses"][given["$ref"].removeprefix(_RESPONSES)]
            content = answer.get("content", {})
            models = {self._kind(item["schema"]) for item in content.values()} - {"string", ""}
            yield status, ", ".join([*content, *sorted(models)]) if status < "4" else "", answer["description"]

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        reference = schema.get("$ref", "")
        return dict(self._components["schemas"][reference.removeprefix(_SCHEMAS)]) if reference else schema

    def _kind(self, schema: dict[str, Any]) -> str:
        """Return the type of a schema in a few words."""
        if "$ref" in schema:
            target = self._resolved(schema)
            name = str(schema["$ref"]).removeprefix(_SCHEMAS)
            return " | ".join(map(str, target["enum"])) if "enum" in target else name
        if "anyOf" in schema:
            return " | ".join(dict.fromkeys(self._kind(part) for part in schema["anyOf"]))
        if "enum" in schema:
            return " | ".join(map(str, schema["enum"]))
        if "allOf" in schema:
            return self._kind(schema["allOf"][0])
        if schema.get("type") == "array":
            return f"list of {self._kind(schema.get('items', {}))}"
        kind = schema.get("type", "")
        return " | ".join(kind) if isinstance(kind, list) else str(kind)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = ["".join(f"<td>{_prose(cell)}</td>" for cell in row) for row in rows]
    return f"<table><tr><th>{'<th>'.join(head)}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _prose(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))


def _anchor(tag: Mapping[str, str]) -> str:
    return tag["name"].replace(" ", "-")
