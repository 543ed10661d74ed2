"""Imports point downwards: no wing knows one that stands above it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import shelld_py

PACKAGE = Path(shelld_py.__file__).parent
ORDER = ("foundation", "linux", "output", "bash", "shells", "files", "computer", "tools", "mcp", "http", "daemon")
COMPUTER = {"computer", "hooks", "idle", "metadata"}
DAEMON = {"daemon", "cli", "__init__", "__main__"}
APART = {"files": {"output", "bash", "shells"}, "client": set(ORDER) - {"foundation", "files"}}


def _wing(module: tuple[str, ...]) -> str:
    """The wing to which shelld_py.MODULE belongs."""
    first = module[0] if module else "__init__"
    if (PACKAGE / first).is_dir():
        return first
    return "computer" if first in COMPUTER else "daemon" if first in DAEMON else "foundation"


def _imports(path: Path) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shelld_py":
            inside = tuple((node.module or "").split(".")[1:])
            yield from ([(name.name,) for name in node.names] if not inside else [inside])
        elif isinstance(node, ast.Import):
            yield from (tuple(name.name.split(".")[1:]) for name in node.names if name.name.startswith("shelld_py."))


def test_imports_point_downwards() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        own = _wing(path.relative_to(PACKAGE).with_suffix("").parts)
        for module in _imports(path):
            other = _wing(module)
            below = own == "daemon" or other == own or (own in ORDER and ORDER.index(other) < ORDER.index(own))
            if own == "client":
                below = other not in APART["client"]
            if not below or other in APART.get(own, ()):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {'.'.join(module)}")
    assert wrong == []
