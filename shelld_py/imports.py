"""Imports that the start of the daemon does without.

Somebody waits for each millisecond of it, and libraries import much that the daemon never needs, or rarely. Knows
nothing of what is imported.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import RLock
from typing import Any, Final

_PUT_OFF: Final[dict[str, dict[str, str]]] = {
    "uvicorn": {"Config": "uvicorn.config"},  # its own code also imports its command line, and all that takes
    "logging.config": {},  # uvicorn can set up logging by it
    "http.client": {},  # Starlette takes the phrases of statuses from it
    "http.cookies": {},  # Starlette's requests and responses know cookies
    "anyio": {},  # Starlette's streams and threads
}
"""What is executed when something of it is asked for; and what can be had of it without that, from which module."""


def put_off_imports() -> None:
    """Have the modules that are named above executed when something of them is asked for, not when they are imported.

    For a program of our own alone, before it imports them.
    """
    for name, elsewhere in _PUT_OFF.items():
        if name not in sys.modules:
            _put_off(name, elsewhere)


def _put_off(name: str, elsewhere: Mapping[str, str]) -> None:
    """Put a module there that is executed when an attribute is asked for that it has not got yet (PEP 562).

    `importlib.util.LazyLoader` does not do: there an `import` of a module that is there already executes it as well, so
    would that of a module below it.
    """
    spec = find_spec(name)
    if not spec or not spec.loader:
        return
    module = module_from_spec(spec)
    waiting = [spec.loader.exec_module]
    lock = RLock()

    def find(attribute: str) -> Any:
        if attribute in elsewhere:
            return getattr(import_module(elsewhere[attribute]), attribute)
        with lock:  # another thread waits here until all is there; what the module asks of itself meanwhile does not
            if waiting:
                execute = waiting.pop()
                try:
                    execute(module)
                except BaseException:  # no descriptor is left, say: the next time it is tried again
                    waiting.append(execute)
                    vars(module)["__getattr__"] = find
                    raise
                if vars(module)["__getattr__"] is find:  # it may have one of its own
                    del vars(module)["__getattr__"]
        if vars(module).get("__getattr__") is not find:
            return getattr(module, attribute)
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}", name=attribute, obj=module)

    vars(module)["__getattr__"] = find
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:  # as an import does
        setattr(import_module(parent), child, module)
