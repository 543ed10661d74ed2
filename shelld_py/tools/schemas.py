"""JSON schemas (2020-12) of models, in the plain form that the makers of language models take.

Without references, and for arguments without unions: what may be left out is not `required`, and is never null.
Pure functions.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_REFERENCE: Final = "#/$defs/"
_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}

Schema = dict[str, Any]


def arguments_schema(model: type[msgspec.Struct]) -> Schema:
    """Return the schema of what goes into a tool: an object without unions."""
    schema = _plain(_whole(model), nullable=False)
    schema.pop("description", None)
    schema.setdefault("properties", {})
    schema["required"] = schema.get("required", [])
    return schema


def result_schema(model: type[msgspec.Struct]) -> Schema:
    """Return the schema of what comes out of a tool; members may be null there."""
    schema = _plain(_whole(model), nullable=True)
    schema.pop("description", None)
    return schema


def _whole(model: type[msgspec.Struct]) -> Schema:
    """Return msgspec's schema of `model` with every reference replaced by what it refers to."""
    schema = msgspec.json.schema(model)
    definitions = schema.pop("$defs", {})
    whole = _inlined(schema, definitions)
    assert isinstance(whole, dict)
    return whole


def _inlined(node: object, definitions: Mapping[str, Schema]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    members = {name: _inlined(value, definitions) for name, value in node.items() if name != "$ref"}
    if "$ref" in node:
        target = _inlined(definitions[node["$ref"].removeprefix(_REFERENCE)], definitions)
        members = {**target, **members}
    return members


def _plain(schema: Schema, *, nullable: bool) -> Schema:
    """Return `schema` without titles, with simple arrays and typed enumerations; unions go unless `nullable`."""
    schema = {name: value for name, value in schema.items() if name != "title"}
    if "anyOf" in schema:
        choices = [_plain(choice, nullable=nullable) for choice in schema.pop("anyOf")]
        if nullable:
            schema["anyOf"] = choices
        else:
            (only,) = (choice for choice in choices if choice.get("type") != "null")
            schema = {**only, **schema}
    if not nullable and "default" in schema and schema["default"] in (None, {}, []):
        del schema["default"]
    if "prefixItems" in schema:
        schema["items"] = schema.pop("prefixItems")[0]
    if "enum" in schema:
        schema["type"] = _TYPES[type(schema["enum"][0])]
    if "properties" in schema:
        members = schema["properties"]
        schema["properties"] = {name: _plain(member, nullable=nullable) for name, member in members.items()}
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            schema[name] = _plain(schema[name], nullable=nullable)
    return schema
