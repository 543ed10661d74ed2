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
    """The start of the daemon imports no library of archives, no client of HTTP, and nothing of MCP or the tools."""
    modules = _imported("import shelld_py.cli, shelld_py.daemon")
    assert not modules & {"tarfile", "zipfile", "urllib.request", "mcp", "pydantic", "socketio", "engineio", "h11"}
    own = {"files.packing", "files.unpacking", "files.archive_formats", "tools.catalogue", "mcp.server", "library"}
    own |= {"http.proxied", "http.links", "proxy", "proxy.fields", "proxy.passing"}
    assert not modules & {f"shelld_py.{name}" for name in own}
