"""Data from outside as models; what is wrong with it is told in this project's words, never in a library's.

Knows models of msgspec, and nothing of HTTP or tools. Everything that comes in is hostile: every step is linear.
"""

import difflib
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

_Model = TypeVar("_Model", bound=msgspec.Struct)

_SYNONYMS: Final = {
    "cwd": ("directory", "working_directory"),
    "workdir": ("directory", "working_directory"),
    "cmd": ("command",),
    "args": ("command",),
    "env": ("environment",),
    "input": ("stdin", "text"),
    "file": ("path",),
    "filename": ("path",),
}
"""What other programs call a member: no likeness of letters leads from there to the name that it has here."""
_MISFITS: Final = (msgspec.ValidationError, UnicodeEncodeError)
"""What msgspec raises: the second for a lone surrogate (JSON can bring one) where it has a text to look up."""
_LONGEST_SHOWN: Final = 60
_LARGEST_TOLD: Final = 2**53
"""Bounds above this are there to keep numbers finite; nobody needs to be told of them."""


class FaultKind(Enum):
    """What is wrong with a member."""

    UNKNOWN = auto()
    MISSING = auto()
    WRONG = auto()


class Fault(Struct, frozen=True):
    """The first thing that is wrong: the `name` of a member, and what it must be, as the rest of a sentence."""

    kind: FaultKind
    name: str
    reason: str = ""


def converted(given: Mapping[str, object], model: type[_Model]) -> _Model | Fault:
    """Return `given` as a `model`, or what is wrong with it. Numbers without a fraction are whole numbers."""
    try:
        return msgspec.convert(given, model)
    except _MISFITS:
        pass
    try:
        given = _with_whole_numbers(given)
        return msgspec.convert(given, model)
    except _MISFITS:
        return _fault(given, model)
    except RecursionError:
        return Fault(FaultKind.WRONG, next(iter(given)), "is nested too deeply")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return which of `names` somebody may mean who writes `name`; None where nothing is like it."""
    if len(name) > _LONGEST_SHOWN:
        return None
    known = list(names)
    plain = name.lower()
    for synonym in _SYNONYMS.get(plain, ()):
        if synonym in known:
            return synonym
    return next(iter(difflib.get_close_matches(plain, known, 1, 0.5)), None)


def shown(value: object) -> str:
    """Return a value as an error shows it: never more than a line of it."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value[: _LONGEST_SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _with_whole_numbers(value: Any) -> Any:
    """Return `value` with `80` for `80.0`: some languages write every number with a fraction."""
    if isinstance(value, dict):
        return {name: _with_whole_numbers(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fault(given: Mapping[str, object], model: type[msgspec.Struct]) -> Fault:
    """Return what is wrong with `given`, which is no `model`."""
    from msgspec.inspect import type_info

    info: Any = type_info(model)
    members = {field.encode_name: field for field in info.fields}
    annotations = {field.encode_name: field.type for field in msgspec.structs.fields(model)}
    if info.forbid_unknown_fields and (unknown := [name for name in given if name not in members]):
        return Fault(FaultKind.UNKNOWN, unknown[0])
    for name, field in members.items():
        if name not in given:
            if field.required:
                return Fault(FaultKind.MISSING, name, f"must be {described(field.type)}")
            continue
        try:
            msgspec.convert(given[name], annotations[name])
        except _MISFITS:
            value, inner = given[name], _structure(field.type)
            if inner and isinstance(value, Mapping):
                inside = _fault(value, inner)
                return Fault(inside.kind, f"{name}.{inside.name}", inside.reason)
            return Fault(FaultKind.WRONG, name, _reason(field.type, value))
    raise AssertionError(f"nothing is wrong with {model.__name__}")


def _structure(kind: Any) -> type[msgspec.Struct] | None:
    """Return the model of which a value of this kind is one, if it is of one."""
    from msgspec import inspect

    match kind:
        case inspect.Metadata(type=inner):
            return _structure(inner)
        case inspect.UnionType(types=types):
            return next(filter(None, map(_structure, types)), None)
        case inspect.StructType(cls=model):
            return model
    return None


def _reason(kind: Any, value: object) -> str:
    """Return what a value of this kind must be; and what it is, unless the fault is inside of it."""
    right = described(kind)
    inside = isinstance(value, list | tuple) and right.startswith("a list")
    inside = inside or (isinstance(value, Mapping) and right.startswith("an object"))
    return f"must be {right}" if inside else f"must be {right}, not {shown(value)}"


def described(kind: Any, *, many: bool = False) -> str:
    """Return in words what a value of a kind (of `msgspec.inspect`) is; `many`: in the plural."""
    from msgspec import inspect

    match kind:
        case inspect.Metadata(type=inner, extra=extra):
            told = (extra or {}).get("words")
            return str(told) if told else described(inner, many=many)
        case inspect.UnionType(types=types):
            parts = [described(part, many=many) for part in types if not isinstance(part, inspect.NoneType)]
            return " or ".join(dict.fromkeys(part for part in parts if part))
        case inspect.EnumType(cls=members):
            return f"one of {', '.join(str(member.value) for member in members)}"
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}" if len(values) > 1 else repr(values[0])
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=least, le=most):
            return ("whole numbers" if many else "a whole number") + _bounds(least, most)
        case inspect.FloatType(ge=least, le=most):
            return ("numbers" if many else "a number") + _bounds(least, most)
        case inspect.StrType(min_length=least, max_length=most, pattern=pattern):
            return ("strings" if many else "a string") + _lengths(least, most, pattern)
        case inspect.TupleType(item_types=items):
            return f"a list of {len(items)} {described(items[0], many=True)}"
        case inspect.ListType(item_type=item, min_length=n) | inspect.VarTupleType(item_type=item, min_length=n):
            return f"a list of {described(item, many=True)}" + (f", at least {n}" if n else "")
        case inspect.DictType(value_type=item):
            return "an object" if isinstance(item, inspect.AnyType) else f"an object of {described(item, many=True)}"
        case inspect.StructType():
            return "objects" if many else "an object"
    return "values" if many else "a value"


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None and most <= _LARGEST_TOLD:
        return f" from {least} to {most}"
    return f" of at least {least}" if least is not None else ""


def _lengths(least: int | None, most: int | None, pattern: str | None) -> str:
    if pattern is not None:
        return f" that matches {pattern}"
    if most is not None:
        return f" of {least or 0} to {most} characters"
    return f" of at least {least} character{'s' if least > 1 else ''}" if least else ""
