"""Imports that the start of the daemon does without.

Somebody waits for each millisecond of it, and each daemon pays for what it has loaded. Libraries import much that the
daemon never needs, or rarely. Knows nothing of what is imported.
"""

import contextlib
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import FunctionType, GeneratorType, ModuleType
from typing import Any, Final, NamedTuple


class From(NamedTuple):
    """From which module, and by what name, something is to be had without executing the one that is put off."""

    module: str
    name: str


LATER: Final = object()
"""In place of a function or a class: what executes the module when it is called, and calls it."""


def is_coroutine_function(what: object) -> bool:
    """As `inspect` says it of functions, methods and what `functools.partial` makes of them."""
    while isinstance(what, partial):
        what = what.func
    function = getattr(what, "__func__", what)
    return isinstance(function, FunctionType) and bool(function.__code__.co_flags & _CO_COROUTINE)


_CO_COROUTINE: Final = 0x80
"""`inspect.CO_COROUTINE`."""
_PUT_OFF: Final[dict[str, dict[str, object]]] = {
    # Command lines, configurations and applications of other kinds than ours, which uvicorn knows.
    "uvicorn": {"Config": From("uvicorn.config", "Config")},
    "uvicorn.middleware.asgi2": {"ASGI2Middleware": LATER},
    "uvicorn.middleware.message_logger": {"MessageLoggerMiddleware": LATER},
    "uvicorn.middleware.proxy_headers": {"ProxyHeadersMiddleware": LATER},
    "uvicorn.middleware.wsgi": {"WSGIMiddleware": LATER},
    "configparser": {"RawConfigParser": LATER},
    "logging.config": {},
    # What annotations are made of.
    "uvicorn._types": dict.fromkeys(
        (
            *("ASGI2Application", "ASGI3Application", "ASGIApplication", "ASGIReceiveCallable", "ASGIReceiveEvent"),
            *("ASGISendCallable", "ASGISendEvent", "HTTPRequestEvent", "HTTPScope", "Scope", "WWWScope"),
        ),
        Any,
    ),
    "typing_extensions": {
        **{name: From("typing", name) for name in ("NotRequired", "Required", "get_type_hints")},
        "TypeIs": Any,
        "TypeVar": lambda name, *_, **__: typing.TypeVar(name),
        "deprecated": lambda *_, **__: lambda what: what,
    },
    # What Starlette knows beyond requests and responses: forms, cookies, files, streams, threads, phrases of statuses.
    "starlette.formparsers": {"FormParser": LATER, "MultiPartParser": LATER, "MultiPartException": Exception},
    "python_multipart": {},
    "python_multipart.multipart": {"parse_options_header": LATER},
    "http.client": {},
    "http.cookies": {},
    "email.utils": {"format_datetime": LATER, "formatdate": LATER},
    "mimetypes": {"guess_type": LATER},
    "anyio": {},
    "anyio.abc": {},
    "anyio.to_thread": {},
    # TLS, which nobody speaks here. uvloop and uvicorn take these names when they are imported.
    "ssl": {
        **dict.fromkeys(("SSLContext", "MemoryBIO", "create_default_context"), Any),
        **dict.fromkeys(("SSLError", "SSLWantReadError", "SSLSyscallError", "SSLZeroReturnError"), OSError),
        "CertificateError": ValueError,
        "SSL_ERROR_WANT_READ": 2,
        "SSL_ERROR_WANT_WRITE": 3,
        "SSL_ERROR_SYSCALL": 5,
        "PROTOCOL_TLS_SERVER": 17,
        "CERT_NONE": 0,
    },
    "asyncio.sslproto": {},
    "asyncio.staggered": {},
    # Hashes, for which the C library of TLS is loaded.
    "hashlib": {"blake2b": From("_blake2", "blake2b")},
    "hmac": {"compare_digest": From("_operator", "_compare_digest")},
    # Of the standard library and of msgspec, what their modules need for a few of their functions.
    "inspect": {
        "isgenerator": lambda what: isinstance(what, GeneratorType),
        "iscoroutinefunction": From(__name__, "is_coroutine_function"),
        # Of a dataclass, in newer versions of Python; and for its docstring.
        "get_annotations": lambda what, **_: dict(vars(what).get("__annotations__", {})),
        "signature": lambda *_, **__: "",
    },
    "bz2": {},
    "difflib": {},
    "locale": {},
    "lzma": {},
    "pickle": {},
    "platform": {"system": lambda: "Linux"},
    "tokenize": {},
    "msgspec.inspect": {},
    "msgspec._json_schema": {"schema": LATER, "schema_components": LATER},
}
"""What is executed when something of it is asked for; and what those are given meanwhile who are imported with the
daemon: as good for them, as they ask for it by name when they are imported, and use it differently or not at all."""

OF_FILES: Final = ("bz2", "difflib", "hashlib", "locale", "lzma", "pickle", "tokenize")
"""What operations on files may ask for."""
OF_STREAMS: Final = ("anyio",)
"""What Starlette sends an answer piece by piece with."""


def execute(names: Iterable[str]) -> None:
    """Execute modules that were put off, where somebody else would wait for it, or could not do it."""
    for name in names:
        hasattr(import_module(name), "__all__")


@contextlib.contextmanager
def put_off_imports() -> Iterator[None]:
    """Have the modules that are named above executed when something of them is asked for, not when they are imported.

    For a program of our own alone, while it imports what it consists of. Who asks for something afterwards gets that,
    and nothing in its place.
    """
    given = {name: dict(instead) for name, instead in _PUT_OFF.items() if name not in sys.modules}
    for name, instead in given.items():
        _put_off(name, instead)
    try:
        yield
    finally:
        for name, instead in given.items():
            for attribute in [each for each, value in instead.items() if not isinstance(value, From)]:
                del instead[attribute]
            parent, _, child = name.rpartition(".")
            if parent and name in sys.modules:  # as an import does
                setattr(import_module(parent), child, sys.modules[name])


def _put_off(name: str, instead: Mapping[str, object]) -> None:
    """Put a module there that is executed when an attribute is asked for that it has not got yet (PEP 562).

    `importlib.util.LazyLoader` does not do: there an `import` of a module that is there already executes it as well, so
    would that of a module below it.
    """
    spec = _spec(name)
    if not spec or not spec.loader:
        return
    module = module_from_spec(spec)
    waiting = [spec.loader.exec_module]
    lock = RLock()

    def find(attribute: str) -> Any:
        if attribute == "__path__":  # each `from module import name` asks whether it is a package
            raise AttributeError(attribute)
        if attribute in instead:
            found = instead[attribute]
            if found is LATER:
                return _called_later(module, attribute)
            return getattr(import_module(found.module), found.name) if isinstance(found, From) else found
        with lock:  # another thread waits here until all is there; what the module asks of itself meanwhile does not
            if waiting:
                execute = waiting.pop()
                users = sys.modules.get("shelld_py.linux.users")
                own_files = getattr(users, "own_files", contextlib.nullcontext)
                try:
                    with own_files():  # it may be where whoever the thread uses files as cannot read it
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


def _called_later(module: ModuleType, attribute: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(module, attribute)(*arguments, **named)

    return call


def _spec(name: str) -> ModuleSpec | None:
    """Find a module without importing the package that it is in, which may import it."""
    parent = name.rpartition(".")[0]
    if not parent or parent in sys.modules:
        return find_spec(name)
    package = _spec(parent)
    return PathFinder.find_spec(name, package.submodule_search_locations) if package else None
