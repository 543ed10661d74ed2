"""The command `shelld-py`: arguments in, exit status out.

Exit statuses: 0 when all went well, 1 when it did not, 2 for arguments or a configuration that cannot be
used. Those of `run`, `attach`, `status` and `kill` are in client/commands.py.
"""

import argparse
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence

from shelld_py.errors import ConfigError
from shelld_py.loading import forget_key, load, process_environment
from shelld_py.version import __version__

_USAGE_ERROR = 2
_HEALTH_TIMEOUT = 5.0
_CLIENT_COMMANDS = ("run", "attach", "status", "kill")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (those of the process by default); return its exit status."""
    options = _parser().parse_args(arguments)
    environ = process_environment()
    try:
        if options.command == "check-config":
            return _check_config(options.file, environ)
        if options.command in _CLIENT_COMMANDS:
            from shelld_py.client.commands import perform

            return perform(options)
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
    _add_client_commands(commands)
    return parser


def _add_client_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands that speak to a daemon; here, so that their module is only imported when they are used."""
    run = commands.add_parser("run", help="run a command in the main shell; exit with its status")
    run.add_argument("shell_command", metavar="COMMAND", help="one argument: quote it")
    run.add_argument("--timeout", metavar="DURATION", help="how long to wait (30s, 5m); the command goes on after it")
    run.add_argument("--separate", action="store_true", help="standard error to standard error")
    attach = commands.add_parser("attach", help="follow the current run, and type into it; Ctrl-] detaches")
    attach.add_argument("run_id", metavar="RUN_ID", nargs="?", help="another run than the shell's current one")
    attach.add_argument("--echo", action="store_true", help="show what is typed (programs that read lines do not)")
    status = commands.add_parser("status", help="what the shell is doing")
    status.add_argument("--json", action="store_true", help="as JSON")
    kill = commands.add_parser("kill", help="end the current run, and keep the shell")
    kill.add_argument("run_id", metavar="RUN_ID", nargs="?", help="another run than the shell's current one")
    kill.add_argument("--signal", metavar="NAME", help="send this one signal, such as TERM, instead")
    for command in (run, attach, status, kill):
        command.add_argument("--url", help="the daemon; by default SHELLD_URL, or http://127.0.0.1:8080")
        command.add_argument("--session", metavar="ID", help="a session instead of the main shell")


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
