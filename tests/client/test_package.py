"""What the package exports, and what it imports for that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shelld_py


def test_the_package_exports_what_it_says() -> None:
    assert set(shelld_py.__all__) == {"AsyncClient", "Client", "Files", "Shell", "ShelldError", "__version__"}
    for name in shelld_py.__all__:
        assert getattr(shelld_py, name) is not None
        assert name in dir(shelld_py)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = shelld_py.nonsense


def _imported(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    modules = _imported("import shelld_py")
    assert {name for name in modules if name.startswith("shelld_py")} == {"shelld_py", "shelld_py.version"}
    assert not modules & {"httpx", "msgspec", "asyncio"}


def test_the_client_imports_nothing_of_the_daemon() -> None:
    own = {name for name in _imported("import shelld_py.client") if name.startswith("shelld_py.")}
    shared = {"shelld_py.errors", "shelld_py.models", "shelld_py.event_data", "shelld_py.units", "shelld_py.version"}
    shared |= {"shelld_py.files", "shelld_py.files.models", "shelld_py.request_data"}
    assert {name for name in own if not name.startswith("shelld_py.client")} == shared


def test_the_daemon_imports_nothing_of_the_client() -> None:
    modules = _imported("import shelld_py.cli, shelld_py.daemon")
    assert not [name for name in modules if name.startswith("shelld_py.client")]
    assert "httpx" not in modules


_START = (
    "from shelld_py.imports import put_off_imports\nwith put_off_imports():\n import shelld_py.cli, shelld_py.daemon\n"
)


def _executed_at_start() -> set[str]:
    """What the start of the daemon executes: without what is only put there to be executed later."""
    later = (
        "[n for n, m in sys.modules.items() if '_put_off' in getattr(vars(m).get('__getattr__'), '__qualname__', '')]"
    )
    return _imported(f"{_START}import sys\nfor name in {later}: del sys.modules[name]")


def test_a_start_does_without_what_no_first_request_needs() -> None:
    """The start of the daemon imports no library of archives, no client of HTTP, and nothing of MCP or the tools.

    Nor does it execute what its libraries import and it does not need: command lines, TOML, TLS, hashes, e-mail, forms.
    """
    modules = _executed_at_start()
    assert not modules & {"tarfile", "zipfile", "urllib.request", "mcp", "pydantic", "socketio", "engineio", "h11"}
    assert not modules & {"click", "multiprocessing", "socketserver", "tomli", "uvicorn.main", "email.parser"}
    assert not modules & {"ssl", "_ssl", "hashlib", "_hashlib", "hmac", "asyncio.sslproto"}
    assert not modules & {"inspect", "ast", "dis", "tokenize", "typing_extensions", "pickle", "platform"}
    assert not modules & {"email.utils", "configparser", "logging.config", "locale", "mimetypes", "bz2", "lzma"}
    assert not modules & {"uvicorn._types", "python_multipart", "starlette.formparsers", "anyio", "msgspec.inspect"}
    assert not modules & {"starlette.routing", "difflib"}
    own = {"files.packing", "files.unpacking", "files.archive_formats", "tools.catalogue", "mcp.server", "library"}
    own |= {"http.proxied", "http.links", "proxy", "proxy.fields", "proxy.passing"}
    assert not modules & {f"shelld_py.{name}" for name in own}
    assert "shelld_py.shells.shell" in modules


def test_a_start_executes_these_libraries_alone() -> None:
    """What is new among them is paid for at each start, and by each daemon: it is worth a thought."""
    executed = {name.partition(".")[0] for name in _executed_at_start() - _imported("")}
    libraries = executed - sys.stdlib_module_names - {"shelld_py"}
    assert {name for name in libraries if "cython" not in name} == {
        "httptools",
        "msgspec",
        "ptyprocess",
        "starlette",
        "uvicorn",
        "uvloop",
    }


def test_the_daemon_compiles_no_dataclass() -> None:
    """Each costs the start as much as thirty structures of msgspec do."""
    program = (
        "import shelld_py.cli, shelld_py.daemon, sys;"
        "classes = [each for name, module in sys.modules.items() if name.startswith('shelld_py')"
        "           for each in vars(module).values() if isinstance(each, type)];"
        "print(len(classes) > 100, *[each for each in classes if '__dataclass_fields__' in vars(each)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"


def test_what_is_put_off_is_there_when_it_is_asked_for() -> None:
    """Whoever imports it, and whatever of it they ask for, sees no difference."""
    program = (
        f"{_START}"
        "import sys, uvicorn, http.client, http.cookies, logging.config, anyio, inspect, ssl, hashlib\n"
        "import msgspec.inspect\n"
        "assert not {'click', '_ssl', '_hashlib', 'ast'} & sys.modules.keys()\n"
        "from uvicorn import Config, run\n"
        "assert uvicorn.Config is Config and uvicorn.run is run and callable(run) and 'click' in sys.modules\n"
        "assert http.client.responses[404] == 'Not Found' and http.cookies.SimpleCookie('a=b')['a'].value == 'b'\n"
        "assert logging.config.dictConfig and anyio.run and not hasattr(uvicorn, 'nonsense')\n"
        "from ssl import SSLContext, PROTOCOL_TLS_CLIENT\n"
        "from uvicorn._types import Scope\n"
        "from typing_extensions import TypeVar\n"
        "from starlette.formparsers import MultiPartException\n"
        "assert SSLContext(PROTOCOL_TLS_CLIENT).check_hostname and MultiPartException is not Exception\n"
        "assert str(inspect.signature(len)) == '(obj, /)' and TypeVar('T', default=int).__default__ is int\n"
        "assert msgspec.inspect.type_info(int) == msgspec.inspect.IntType() and msgspec.json.schema(int)\n"
        "assert hashlib.sha256(b'').hexdigest().startswith('e3b0c442')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_is_given_for_what_is_put_off_does_its_work() -> None:
    """Functions that libraries took while they were imported execute what they are of when they are called."""
    program = (
        f"{_START}"
        "import sys, asyncio, asyncio.sslproto, functools, starlette.responses, uvloop\n"
        "assert starlette.responses.formatdate(0, usegmt=True) == 'Thu, 01 Jan 1970 00:00:00 GMT'\n"
        "assert starlette.responses.guess_type('a.html')[0] == 'text/html'\n"
        "assert issubclass(asyncio.sslproto.SSLProtocol, asyncio.BufferedProtocol)\n"
        "async def answer():\n"
        "    return 42\n"
        "async def main():\n"
        "    loop = asyncio.get_running_loop()\n"
        "    try:\n"
        "        loop.run_in_executor(None, functools.partial(answer))\n"
        "    except TypeError:\n"
        "        assert 'inspect' in sys.modules and 'ast' not in sys.modules\n"
        "        print(await loop.run_in_executor(None, lambda: 42))\n"
        "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner: runner.run(main())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "42\n"


def test_what_is_put_off_is_there_for_threads_as_well() -> None:
    """Whichever comes first has it executed, the others wait until all of it is there."""
    program = (
        f"{_START}"
        "import http.client, anyio, sys; from concurrent.futures import ThreadPoolExecutor;"
        "sys.setswitchinterval(1e-6);"
        "ask = lambda _: (http.client.responses[404], anyio.CancelScope);"
        "print(len(set(ThreadPoolExecutor(20).map(ask, range(20)))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can use files as somebody else")
def test_what_is_put_off_is_there_for_threads_that_use_files_as_another_user(tmp_path: Path) -> None:
    """It is executed as the user of the process, for the others may not be able to read it."""
    (tmp_path / "late.py").write_text("value = 42")
    (tmp_path / "late.py").chmod(0o600)
    program = (
        "import sys; from concurrent.futures import ThreadPoolExecutor; import shelld_py.imports as imports;"
        f"sys.path.insert(0, {str(tmp_path)!r}); imports._put_off('late', {{}}); import late;"
        "from shelld_py.linux.users import User; pool = ThreadPoolExecutor(1, '', User.find('65534').use_files);"
        "print(pool.submit(lambda: late.value).result())"
    )
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "42\n"
