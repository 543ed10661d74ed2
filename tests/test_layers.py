"""Imports point downwards: no wing knows one that stands above it. And they come in by the door."""

import ast
from collections.abc import Iterator
from pathlib import Path

import shelld_py

PACKAGE = Path(shelld_py.__file__).parent
ORDER = (
    "foundation", "linux", "output", "bash", "shells", "files", "computer", "tools", "mcp", "proxy", "http", "api",
    "daemon",
)  # fmt: skip
COMPUTER = {"computer", "events", "hooks", "idle", "metadata"}
DAEMON = {"daemon", "cli", "library", "__init__", "__main__"}
APART = {"files": {"output", "bash", "shells"}, "client": set(ORDER) - {"foundation", "files"}}


def _wing(module: tuple[str, ...]) -> str:
    """The wing to which shelld_py.MODULE belongs."""
    first = module[0] if module else "__init__"
    if (PACKAGE / first).is_dir():
        return first
    return "computer" if first in COMPUTER else "daemon" if first in DAEMON else "foundation"


def _imports(path: Path) -> Iterator[tuple[str, ...]]:
    """What PATH imports of the package: WING, ROOM, or WING and the name that its door gives."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shelld_py":
            inside = tuple((node.module or "").split(".")[1:])
            yield from ([(*inside, name.name) for name in node.names] if len(inside) < 2 else [inside])
        elif isinstance(node, ast.Import):
            yield from (tuple(name.name.split(".")[1:]) for name in node.names if name.name.startswith("shelld_py."))


def test_imports_point_downwards() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        own = _wing(path.relative_to(PACKAGE).with_suffix("").parts)
        for module in _imports(path):
            other = _wing(module)
            below = own == "daemon" or other == own or (own in ORDER and ORDER.index(other) < ORDER.index(own))
            if own == "integrations":
                below = other in ("client", "foundation", "daemon")
            if own == "client":
                below = other not in APART["client"]
            if not below or other in APART.get(own, ()):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {'.'.join(module)}")
    assert wrong == []


def _doors() -> dict[str, set[str]]:
    """What each wing that says so lets others import: names, or rooms."""
    doors = {}
    for path in PACKAGE.glob("*/__init__.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                doors[path.parent.name] = set(ast.literal_eval(node.value))
    return doors


def test_wings_are_entered_by_their_doors() -> None:
    """Where a wing's `__init__` names what others may import, they import nothing else of it."""
    doors = _doors()
    assert doors.keys() == {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"integrations"}
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE).with_suffix("").parts
        for wing, *rest in _imports(path):
            own_command = inside == ("cli",) and (wing, *rest) == ("client", "commands")
            if wing in doors and inside[0] != wing and rest[0] not in doors[wing] and not own_command:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {'.'.join((wing, *rest))}")
    assert wrong == []
