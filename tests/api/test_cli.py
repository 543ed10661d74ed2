"""The command `shelld-py`: its subcommands, its exit statuses, and no traceback for what an operator gets wrong."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemons import RunningDaemon


def shelld(*arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHELLD_")}
    return subprocess.run(
        [sys.executable, "-m", "shelld_py", *arguments],
        env={**environ, **settings}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_version() -> None:
    """--version prints the name and the version."""
    from shelld_py.version import __version__

    done = shelld("--version")
    assert (done.returncode, done.stdout) == (0, f"shelld-py {__version__}\n")


def test_installed_command() -> None:
    """The installed command is the same as the module."""
    command = Path(sys.executable).with_name("shelld-py")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, shelld("--version").stdout)


@pytest.mark.parametrize("arguments", [["--nonsense"], ["dance"], ["check-config"], ["--config"], ["serve", "extra"]])
def test_wrong_arguments(arguments: list[str]) -> None:
    """Arguments that make no sense are exit status 2 with the usage."""
    done = shelld(*arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr
    assert "Traceback" not in done.stderr


GOOD = [
    "",
    "# nothing\n",
    "[server]\nport = 0\n",
    '[timeout]\ncommand = "1h30m"\nkill = 2\n[hooks]\non_startup = "true"\n',
]


@pytest.mark.parametrize("content", GOOD)
def test_check_of_a_good_configuration(tmp_path: Path, content: str) -> None:
    """A configuration that can be used is `ok`, with exit status 0."""
    (tmp_path / "config.toml").write_text(content)
    done = shelld("check-config", str(tmp_path / "config.toml"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}/config.toml: ok\n", "")


BAD = [
    ("[servr]\nport = 1\n", ["[servr]", "server"]),
    ("[server]\nprot = 1\n", ["server.prot", "port"]),
    ("[server]\nport = 70000\n", ["server.port", "65535"]),
    ('[server]\nport = "x"\n', ["server.port"]),
    ('[timeout]\nkill = "soon"\n', ["timeout.kill", "30s"]),
    ("[timeout]\nshutdown = 0\n", ["timeout.shutdown"]),
    ('[shell]\non_exit = "stop"\n', ["shell.on_exit", "restore", "end"]),
    ('[shell]\nworking_directory = "/no/such"\n', ["shell.working_directory", "/no/such"]),
    ('[shell]\ncommand = "bash \'"\n', ["shell.command"]),
    ('[logging]\nlevel = "loud"\n', ["logging.level", "debug"]),
    ('[output]\nlog_max = "much"\n', ["output.log_max", "MiB"]),
    ("server = 5\n", ["server"]),
    ("[server\n", ["TOML"]),
    ("[server]\nport = 1\nport = 2\n", ["TOML"]),
    ("[files]\nallowed_directories = 5\n", ["files.allowed_directories"]),
    ("[server]\nprot = 1\n[timeout]\nkill = true\n", ["server.prot", "timeout.kill"]),
]


@pytest.mark.parametrize("arguments", [["--config"], ["serve", "--config"]])
def test_bad_configuration_is_not_served(tmp_path: Path, arguments: list[str]) -> None:
    """Serving refuses a bad configuration as check-config does."""
    (tmp_path / "config.toml").write_text(BAD[-1][0])
    done, checked = (shelld(*words, str(tmp_path / "config.toml")) for words in (arguments, ["check-config"]))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", checked.stderr)


@pytest.mark.parametrize(("content", "said"), BAD)
def test_bad_configuration(tmp_path: Path, content: str, said: list[str]) -> None:
    """A configuration that cannot be used is exit status 2 and names file, key and what is allowed; no traceback."""
    (tmp_path / "config.toml").write_text(content)
    done = shelld("check-config", str(tmp_path / "config.toml"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert all(line.startswith("shelld-py: ") for line in done.stderr.splitlines())
    for word in said:
        assert word in done.stderr


@pytest.mark.parametrize(("settings", "said"), [
    ({"SHELLD_SERVER__PORT": "x"}, ["SHELLD_SERVER__PORT"]),
    ({"SHELLD_SERVER__PROT": "1"}, ["SHELLD_SERVER__PROT", "port"]),
    ({"SHELLD_SEVER__PORT": "1"}, ["SHELLD_SEVER__PORT", "server"]),
    ({"SHELLD_KEY": ""}, ["SHELLD_KEY", "256"]),
    ({"SHELLD_KEY": "a b"}, ["SHELLD_KEY", "256"]),
    ({"SHELLD_KEY": "secret" * 50}, ["SHELLD_KEY", "256"]),
    ({"SHELLD_SERVER__KEY_FILE": "/no/such/file"}, ["/no/such/file"]),
    ({"SHELLD_SERVER__KEY_FILE": "/dev/null"}, ["/dev/null", "256"]),
    ({"SHELLD_CONFIG": "/no/such/config.toml"}, ["/no/such/config.toml"]),
    ({"SHELLD_CONFIG": "/"}, ["/"]),
    ({"SHELLD_SERVER__HOST": "no-such-host.invalid"}, ["no-such-host.invalid"]),
    ({"SHELLD_SERVER__HOST": "192.0.2.1"}, ["192.0.2.1"]),
    ({"SHELLD_LOGGING__FILE": "/no/such/directory/log"}, ["logging.file", "/no/such/directory/log"]),
    ({"SHELLD_SERVER__DATA_DIRECTORY": "/dev/null/data"}, ["server.data_directory", "/dev/null/data"]),
    ({"SHELLD_SERVER__DATA_DIRECTORY": "/etc/passwd"}, ["server.data_directory", "/etc/passwd"]),
    ({"SHELLD_SERVER__DATA_DIRECTORY": "/proc/data"}, ["server.data_directory", "/proc/data"]),
])  # fmt: skip
def test_what_cannot_be_served(settings: dict[str, str], said: list[str]) -> None:
    """What the environment gets wrong is exit status 2 and is named; no traceback, and never the key."""
    done = shelld(**{"SHELLD_SERVER__PORT": "0", **settings})
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "secretsecret" not in done.stderr
    for word in said:
        assert word in done.stderr


def test_port_in_use(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A port that is in use is exit status 2, and says which; nothing is left behind."""
    port = daemon.url.rpartition(":")[2]
    done = shelld(SHELLD_SERVER__PORT=port, TMPDIR=str(tmp_path))
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_health(daemon: RunningDaemon) -> None:
    """`health` of a daemon that lives is exit status 0; with --url, or as configured."""
    port = daemon.url.rpartition(":")[2]
    for done in (
        shelld("health", "--url", daemon.url), shelld("health", "--url", daemon.url + "/"),
        shelld("health", SHELLD_SERVER__PORT=port),
        shelld("health", SHELLD_SERVER__PORT=port, SHELLD_SERVER__HOST="0.0.0.0"),
    ):  # fmt: skip
        assert (done.returncode, done.stdout.strip()) == (0, "ok")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "nonsense", "http://[::1", "ftp://127.0.0.1/", "http://no.invalid", ""]
)
def test_health_of_nothing(url: str) -> None:
    """`health` where nothing answers is exit status 1 without a traceback."""
    done = shelld("health", f"--url={url}", SHELLD_SERVER__PORT="1")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_health_of_something_else() -> None:
    """`health` of a server that answers something else than 200 is exit status 1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        probe = subprocess.Popen(
            [sys.executable, "-m", "shelld_py", "health", "--url", url], stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        connection, _ = server.accept()
        with connection:
            request = connection.recv(4096)
            connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            _, error = probe.communicate(timeout=60)
    assert probe.returncode == 1
    assert request.startswith(b"GET /health ")
    assert b"x-shell-key" not in request.lower()
    assert b"Traceback" not in error


def test_configuration_file_and_environment(start_daemon) -> None:
    """The file is read, and the environment goes before it."""
    config = '[shell]\nterm = "dumb"\nrows = 50\n[shell.environment]\nGIVEN = "file"\n[timeout]\nidle = "10m"\n'
    daemon = start_daemon(config=config, shell__rows="60")
    daemon.fresh()
    assert daemon.run('stty size; echo "$TERM $GIVEN"')["stdout"] == "60 80\ndumb file\n"
    assert daemon.json("GET", "/status")["idle_timeout"] == 600


def test_help() -> None:
    """--help names every subcommand."""
    done = shelld("--help")
    assert done.returncode == 0
    for word in ("serve", "check-config", "health", "--config", "--version"):
        assert re.search(rf"(?<![\w-]){word}", done.stdout)


def test_start_in_a_directory_that_is_gone(tmp_path: Path) -> None:
    """A daemon whose own directory was removed says so, and leaves no temporary directory."""
    place, temporary = tmp_path / "gone", tmp_path / "temporary"
    place.mkdir()
    temporary.mkdir()
    command = 'rmdir "$PWD" && exec "$0" -m shelld_py'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable],
        cwd=place, env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path.cwd())},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "shell.working_directory: the directory of the daemon itself is gone" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(temporary.iterdir()) == []
