"""The command `shelld-py`: arguments in, exit status out.

Exit statuses: 0 when all went well, 1 when it did not, 2 for arguments or a configuration that cannot be
used.
"""

import argparse
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from shelld_py.config import forget_key, load, process_environment
from shelld_py.errors import ConfigError
from shelld_py.version import __version__

_USAGE_ERROR = 2
_HEALTH_TIMEOUT = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (those of the process by default); return its exit status."""
    options = _parser().parse_args(arguments)
    environ = process_environment()
    try:
        if options.command == "check-config":
            return _check_config(options.file, environ)
        if options.command == "health":
            return _health(options.url or _own_url(options.config, environ))
        return _serve(options.config, environ)
    except ConfigError as error:
        print(f"shelld-py: {error}".replace("\n", "\nshelld-py: "), file=sys.stderr)
        return _USAGE_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shelld-py", description="The daemon that gives an LLM agent its computer.")
    parser.add_argument("--version", action="version", version=f"shelld-py {__version__}")
    parser.add_argument("--config", metavar="FILE", help="the configuration (TOML); also SHELLD_CONFIG")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve (the default)")
    health = commands.add_parser("health", help="ask a daemon whether it is alive; exit status 0 or 1")
    health.add_argument("--url", help="where it listens; by default as configured")
    for command in (serve, health):
        command.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    check = commands.add_parser("check-config", help="check a configuration; exit status 0 or 2")
    check.add_argument("file", metavar="FILE")
    return parser


def _serve(config: str | None, environ: Mapping[str, str]) -> int:
    configuration = load(config, environ)
    forget_key()
    from shelld_py.daemon import serve

    return serve(configuration, environ)


def _check_config(file: str, environ: Mapping[str, str]) -> int:
    load(file, environ)
    print(f"{file}: ok")
    return 0


def _health(url: str) -> int:
    """Ask for /health. Uses the standard library alone: a probe runs often and must start fast."""
    target = url.rstrip("/") + "/health"
    try:
        with urllib.request.urlopen(target, timeout=_HEALTH_TIMEOUT) as answer:  # noqa: S310
            print(answer.read().decode("utf-8", "replace"))
            return 0
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        print(f"shelld-py: {target}: {error}", file=sys.stderr)
        return 1


def _own_url(config: str | None, environ: Mapping[str, str]) -> str:
    """Return where a daemon with this configuration listens."""
    server = load(config, environ).settings.server
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)  # noqa: S104
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"
