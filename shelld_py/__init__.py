"""shelld-py: the daemon that gives an LLM agent its computer.

What programs import is here, and is loaded when it is first asked for, so that `import shelld_py` costs nothing:
`Client` and `AsyncClient` speak to a daemon; `Shell` and `Files` do without one. `ShelldError` is the base of all that
they raise.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shelld_py.version import __version__

if TYPE_CHECKING:
    from shelld_py.client import AsyncClient, Client
    from shelld_py.errors import ShelldError
    from shelld_py.library import Files, Shell

__all__ = ["AsyncClient", "Client", "Files", "Shell", "ShelldError", "__version__"]

_HOMES = {
    "AsyncClient": "shelld_py.client",
    "Client": "shelld_py.client",
    "Files": "shelld_py.library",
    "Shell": "shelld_py.library",
    "ShelldError": "shelld_py.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
