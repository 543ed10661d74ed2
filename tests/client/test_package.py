"""What the package exports, and what it imports for that."""

import subprocess
import sys

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


def test_a_start_does_without_what_no_first_request_needs() -> None:
    """The start of the daemon imports no library of archives, no client of HTTP, and nothing of MCP or the tools.

    Nor does it execute what its libraries import and it does not need: command lines, TOML, other processes.
    """
    start = "from shelld_py.imports import put_off_imports; put_off_imports(); import shelld_py.cli, shelld_py.daemon"
    modules = _imported(f"{start}; import sys; print(*[n for n, m in sys.modules.items() if '__getattr__' in vars(m)])")
    assert not modules & {"tarfile", "zipfile", "urllib.request", "mcp", "pydantic", "socketio", "engineio", "h11"}
    assert not modules & {"click", "multiprocessing", "socketserver", "tomli", "uvicorn.main", "email.parser"}
    own = {"files.packing", "files.unpacking", "files.archive_formats", "tools.catalogue", "mcp.server", "library"}
    own |= {"http.proxied", "http.links", "proxy", "proxy.fields", "proxy.passing"}
    assert not modules & {f"shelld_py.{name}" for name in own}


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
        "from shelld_py.imports import put_off_imports; put_off_imports(); import shelld_py.daemon, sys, uvicorn;"
        "import http.client, http.cookies, logging.config, anyio;"
        "assert 'click' not in sys.modules;"
        "from uvicorn import Config, run;"
        "assert uvicorn.Config is Config and uvicorn.run is run and callable(run) and 'click' in sys.modules;"
        "assert http.client.responses[404] == 'Not Found' and http.cookies.SimpleCookie('a=b')['a'].value == 'b';"
        "assert logging.config.dictConfig and anyio.run and not hasattr(uvicorn, 'nonsense')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_is_put_off_is_there_for_threads_as_well() -> None:
    """Whichever comes first has it executed, the others wait until all of it is there."""
    program = (
        "from shelld_py.imports import put_off_imports; put_off_imports();"
        "import http.client, anyio, sys; from concurrent.futures import ThreadPoolExecutor;"
        "sys.setswitchinterval(1e-6);"
        "ask = lambda _: (http.client.responses[404], anyio.CancelScope);"
        "print(len(set(ThreadPoolExecutor(20).map(ask, range(20)))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "1\n"
