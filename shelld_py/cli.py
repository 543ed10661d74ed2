"""The command `shelld-py`: arguments in, exit status out.

Exit statuses: 0 when all went well, 1 when it did not, 2 for arguments or a configuration that cannot be
used. Those of `run`, `attach`, `replay`, `status`, `kill` and `link` are in client/commands.py.
"""

import argparse
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shelld_py.imports import put_off_imports
from shelld_py.version import __version__

if TYPE_CHECKING:
    from shelld_py.loading import Configuration

_USAGE_ERROR = 2
_HEALTH_TIMEOUT = 5.0
_SERVE = (None, "serve")
_CLIENT_COMMANDS = ("run", "attach", "replay", "status", "kill", "link")
_ENVIRONMENT = """\
environment of the daemon:
  SHELLD_KEY              the key; without it, the first client's X-Shell-Key becomes it
  SHELLD_CONFIG           the configuration, where --config does not say
  SHELLD_SECTION__KEY     any setting: SHELLD_SERVER__PORT=9000
environment of run, attach, replay, status, kill and link:
  SHELLD_URL              the daemon; http://127.0.0.1:8080 by default
  SHELLD_KEY              its key
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (those of the process by default); return its exit status."""
    _open_standard_streams()
    if arguments is None and sys.argv[1:2] == ["--helper"]:  # before anything that the helper would pay for
        from shelld_py.helpers import serve

        serve(sys.argv[2])
        return 0
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser(serves=list(arguments[:1]) == ["serve"]).parse_args(arguments)
    if options.command in _SERVE:
        # What is imported stays: to look for garbage in it takes a twentieth of the start. The daemon enables it again.
        gc.disable()
        with put_off_imports():
            import_module("shelld_py.daemon")
    from shelld_py.errors import ConfigError
    from shelld_py.loading import process_environment

    environ = process_environment()
    try:
        if options.command == "check-config":
            return _check_config(options, environ)
        if options.command in _CLIENT_COMMANDS:
            from shelld_py.client.commands import perform

            return perform(options)
        if options.command == "health":
            return _health(options.url or _own_url(options, environ))
        return _serve(options, environ)
    except ConfigError as error:
        print(f"shelld-py: {error}".replace("\n", "\nshelld-py: "), file=sys.stderr)
        return _USAGE_ERROR


def _open_standard_streams() -> None:
    """Have /dev/null for those of the descriptors 0 to 2 that are closed (daemon(3)).

    Else a socket or a pipe gets the number, and is then written to by whoever means standard error, or is closed where
    a process is given another one.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _parser(*, serves: bool) -> argparse.ArgumentParser:
    """Return the parser of the arguments: the other commands are left out for those that begin with `serve`.

    To declare them all takes twice as long as the rest of the parsing, at each start of a daemon.
    """
    parser = argparse.ArgumentParser(
        prog="shelld-py",
        description="The daemon that gives an LLM agent its computer.",
        epilog=_ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shelld-py {__version__}")
    _add_settings(parser, {})
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve (the default)")
    _add_settings(serve, {"default": argparse.SUPPRESS})
    if serves:
        return parser
    health = commands.add_parser("health", help="ask a daemon whether it is alive; exit status 0 or 1")
    health.add_argument("--url", help="where it listens; by default as configured")
    _add_settings(health, {"default": argparse.SUPPRESS})
    check = commands.add_parser("check-config", help="check a configuration; exit status 0 or 2")
    check.add_argument("file", metavar="FILE")
    check.add_argument("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help="as for serve")
    _add_client_commands(commands)
    return parser


def _add_settings(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> None:
    """Add what says with which settings to serve. A subcommand's own default would hide what stands before it."""
    parser.add_argument("--config", metavar="FILE", help="the configuration (TOML); also SHELLD_CONFIG", **options)
    parser.add_argument("--host", metavar="ADDRESS", help="where to listen: server.host", **options)
    parser.add_argument("--port", metavar="PORT", help="where to listen: server.port; 0 takes a free one", **options)
    parser.add_argument(
        "--set", metavar="SECTION.KEY=VALUE", action="append", help="any setting; can be repeated", **options
    )


def _add_client_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands that speak to a daemon; here, so that their module is only imported when they are used."""
    run = commands.add_parser("run", help="run a command in the main shell; exit with its status")
    # PARSER: all that follows the first word belongs to the command, options as well.
    run.add_argument(
        "words", metavar="COMMAND", nargs=argparse.PARSER, help="a command line, or a program and its arguments"
    )
    run.add_argument("--timeout", metavar="DURATION", help="how long to wait (30s, 5m); the command goes on after it")
    run.add_argument("--deadline", metavar="DURATION", help="how long the command may take: then it is killed")
    run.add_argument("--separate", action="store_true", help="standard error to standard error")
    attach = commands.add_parser("attach", help="follow the current run, and type into it; Ctrl-] detaches")
    attach.add_argument("run_id", metavar="RUN_ID", nargs="?", help="another run than the shell's current one")
    replay = commands.add_parser("replay", help="play the recording of a run in this terminal; Ctrl-C ends it")
    replay.add_argument("run_id", metavar="RUN_ID", help="the run; one that goes on is played as far as it is")
    replay.add_argument("--speed", metavar="NUMBER", default="1", help="how many times as fast (2, 0.5)")
    replay.add_argument("--idle", metavar="DURATION", help="make pauses that are longer so long (1s)")
    status = commands.add_parser("status", help="what the shell is doing")
    status.add_argument("--json", action="store_true", help="as JSON")
    kill = commands.add_parser("kill", help="end the current run, and keep the shell")
    kill.add_argument("run_id", metavar="RUN_ID", nargs="?", help="another run than the shell's current one")
    kill.add_argument("--signal", metavar="NAME", help="send this one signal, such as TERM, instead")
    link = commands.add_parser("link", help="print a link that opens a port of the shells in a browser, once")
    link.add_argument("served_port", metavar="PORT", type=int, help="the port that a process of the shells listens on")
    link.add_argument("--expires", metavar="DURATION", help="how long the browser is let in (1h by default)")
    link.add_argument("--whole-paths", action="store_true", help="for a program that has /ports/PORT/ for its base")
    for command in (run, attach, replay, status, kill, link):
        command.add_argument("--url", help="the daemon; by default SHELLD_URL, or http://127.0.0.1:8080")
    for command in (run, attach, status, kill):
        command.add_argument("--session", metavar="ID", help="a session instead of the main shell")


def _configuration(options: argparse.Namespace, environ: Mapping[str, str]) -> "Configuration":
    from shelld_py.loading import load

    named = {"server.host": options.host, "server.port": options.port}
    assignments = [f"{name}={value}" for name, value in named.items() if value is not None]
    return load(options.config, environ, [*(options.set or []), *assignments])


def _serve(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from shelld_py.daemon import serve
    from shelld_py.linux.syscalls import erase_variable

    configuration = _configuration(options, environ)
    erase_variable("SHELLD_KEY")

    return serve(configuration, environ)


def _check_config(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from shelld_py.loading import load

    for warning in load(options.file, environ, options.set).warnings:
        print(f"shelld-py: {warning}", file=sys.stderr)
    print(f"{options.file}: ok")
    return 0


def _health(url: str) -> int:
    """Ask for /health. Uses the standard library alone: a probe runs often and must start fast."""
    import http.client  # the daemon, which begins here as well, does without these
    import urllib.error
    import urllib.request

    target = url.rstrip("/") + "/health"
    try:
        with urllib.request.urlopen(target, timeout=_HEALTH_TIMEOUT) as answer:  # noqa: S310
            print(answer.read().decode("utf-8", "replace"))
            return 0
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        print(f"shelld-py: {target}: {error}", file=sys.stderr)
        return 1


def _own_url(options: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """Return where a daemon with this configuration listens."""
    server = _configuration(options, environ).settings.server
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)  # noqa: S104
    return f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"
