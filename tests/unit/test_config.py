"""Configuration: every key with its default, every kind of mistake, the environment, the key."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from shelld_py.config import SECTIONS, Settings, kinds
from shelld_py.errors import ConfigError
from shelld_py.loading import Configuration, inheritable_environment, load

MIB = 1024 * 1024
TEXT = "must be text"
SIZE = "must be a size such as '512KiB'"
DURATION = "must be a duration such as '500ms'"
NUMBER = "must be a number of at least 0"
NUL = '"a\\u0000b"'

KEYS = [
    # section, key, default, a value of a wrong type, an impossible value (both TOML), what the message says is allowed
    ("server", "host", "127.0.0.1", "1", NUL, (TEXT, "NUL")),
    ("server", "port", 8080, "8080.5", "65536", ("must be a whole number from 0 to 65535",) * 2),
    ("server", "key_file", "", "[]", NUL, (TEXT, "NUL")),
    ("server", "hosts", (), '"box.example"', '["http://box.example"]', ("must be a list of texts", "must be names")),
    ("server", "origins", (), '"null"', '["box.example"]', ("must be a list of texts", "must be origins")),
    ("server", "data_directory", "", "true", NUL, (TEXT, "NUL")),
    ("server", "max_body", 16 * MIB, "1.5", '"16XB"', (SIZE, SIZE)),
    ("server", "max_connections", 1000, "1.5", "0", ("must be a whole number of at least 1",) * 2),
    ("server", "header_timeout", 10.0, "[]", "0", (DURATION, "must be longer than 0")),
    ("server", "body_timeout", 30.0, "[]", "0", (DURATION, "must be longer than 0")),
    ("server", "socketio", False, "1", '"yes"', ("must be true or false",) * 2),
    ("server", "mcp", False, "1", '"yes"', ("must be true or false",) * 2),
    ("server", "agent_sandbox", False, "1", '"yes"', ("must be true or false",) * 2),
    ("server", "proxy", False, "1", '"yes"', ("must be true or false",) * 2),
    ("server", "proxy_port", 8081, '"x"', "65536", ("must be a whole number from 0 to 65535",) * 2),
    ("server", "proxy_url", "", "1", '"preview.example"', (TEXT, "must be an origin")),
    ("server", "proxy_timeout", 60.0, "[]", "0", (DURATION, "must be longer than 0")),
    ("shell", "command", "/bin/bash", "5", '""', (TEXT, "must be a command line")),
    ("shell", "user", "", "1", NUL, (TEXT, "NUL")),
    ("shell", "on_exit", "restore", "1", '"restart"', ("must be one of restore, end",) * 2),
    ("shell", "start_on_run", False, "1", '"yes"', ("must be true or false",) * 2),
    ("shell", "startup_file", "~/.bashrc", "1", '"bashrc"', (TEXT, "must be an absolute path")),
    ("shell", "working_directory", "", "1", NUL, (TEXT, "NUL")),
    ("shell", "term", "xterm-256color", "1", NUL, (TEXT, "NUL")),
    ("shell", "rows", 24, "true", "0", ("must be a whole number from 1 to 65535",) * 2),
    ("shell", "cols", 80, '"wide"', "70000", ("must be a whole number from 1 to 65535",) * 2),
    ("shell", "cpu_variables", True, "1", '"yes"', ("must be true or false",) * 2),
    ("shell", "environment", {"PAGER": "cat", "GIT_PAGER": "cat"}, '"PAGER=cat"', '{ "A=B" = "c" }',
     ("must be a table of texts", "cannot be the name of a variable")),
    ("output", "max_size", 100_000, "1.5", "-1", ("must be a whole number of at least 0",) * 2),
    ("output", "begin_size", 40_000, "[1]", "-1", ("must be a whole number of at least 0",) * 2),
    ("output", "end_size", 60_000, "false", "-1", ("must be a whole number of at least 0",) * 2),
    ("output", "log_max", 256 * MIB, "{}", "-1", (SIZE, "must not be negative")),
    ("output", "retain_runs", 200, '"many"', "-1", ("must be a whole number of at least 0",) * 2),
    ("output", "timing", True, "1", '"yes"', ("must be true or false",) * 2),
    ("timeout", "command", 300.0, "true", '"5 minutes"', (DURATION, DURATION)),
    ("timeout", "command_maximum", 1800.0, "[]", "0", (DURATION, "must be longer than 0")),
    ("timeout", "command_lifetime", 0.0, "true", "-1", (DURATION, "between 0 and ten years")),
    ("timeout", "mcp", 50.0, "[]", "0", (DURATION, "must be longer than 0")),
    ("timeout", "session_idle", 1800.0, "true", '"-5m"', (DURATION, DURATION)),
    ("timeout", "session_lifetime", 0.0, "{}", "inf", (DURATION, "between 0 and ten years")),
    ("timeout", "idle", 1800.0, "true", '"1d"', (DURATION, DURATION)),
    ("timeout", "idle_counts_runs", False, "1", '"yes"', ("must be true or false",) * 2),
    ("timeout", "shutdown", 30.0, "true", '"0s"', (DURATION, "must be longer than 0")),
    ("timeout", "kill", 5.0, "true", "nan", (DURATION, "between 0 and ten years")),
    ("limits", "cpu_percent", 0.0, '"half"', "-1", (NUMBER, NUMBER)),
    ("limits", "memory_mb", 0.0, "true", "inf", (NUMBER, NUMBER)),
    ("limits", "disk_mb", 0.0, "[]", "nan", (NUMBER, NUMBER)),
    ("limits", "processes", 0, "1.5", "-1", ("must be a whole number of at least 0",) * 2),
    ("limits", "check_interval", 2.0, "true", "0", (DURATION, "must be longer than 0")),
    ("limits", "cgroups", "auto", "true", '"on"', ("must be one of auto, off",) * 2),
    ("limits", "max_sessions", 16, '"x"', "-1", ("must be a whole number of at least 0",) * 2),
    ("limits", "message", "", "1", NUL, (TEXT, "NUL")),
    ("files", "base_directory", "", "1", NUL, (TEXT, "NUL")),
    ("files", "allowed_directories", (), '"/tmp"', "[1]", ("must be a list of texts",) * 2),
    ("files", "security_mode", "permissive", "1", '"lax"', ("must be one of strict, permissive, unrestricted",) * 2),
    ("files", "allowed_extensions", None, '"txt"', "[1]", ("must be a list of texts",) * 2),
    ("files", "blocked_extensions", ("exe", "dll", "bin"), "{}", '["a", 1]', ("must be a list of texts",) * 2),
    ("files", "max_file_size", 5 * MIB, "true", '"big"', (SIZE, SIZE)),
    ("files", "max_token_count", 10_000, "1e3", "-1", ("must be a whole number of at least 0",) * 2),
    ("files", "max_archive_size", 1024 * MIB, "true", '"big"', (SIZE, SIZE)),
    ("files", "max_archive_entries", 100_000, "1e3", "-1", ("must be a whole number of at least 0",) * 2),
    ("files", "backup_directory", "", "1", NUL, (TEXT, "NUL")),
    ("files", "event_ttl", 7200.0, "true", '"2 h"', (DURATION, DURATION)),
    ("files", "cleanup_interval", 3600.0, "true", "0", (DURATION, "must be longer than 0")),
    ("files", "max_events_per_file", 10, "1.0", "-1", ("must be a whole number of at least 0",) * 2),
    ("hooks", "shell_command", "/bin/sh", "1", "\"sh 'open\"", (TEXT, "must be a command line")),
    ("hooks", "on_startup", "", "1", NUL, (TEXT, "NUL")),
    ("hooks", "on_shutdown", "", "1", NUL, (TEXT, "NUL")),
    ("hooks", "on_recycle", "", "[]", NUL, (TEXT, "NUL")),
    ("hooks", "timeout", 30.0, "true", "0", (DURATION, "must be longer than 0")),
    ("logging", "level", "info", "1", '"verbose"', ("must be one of debug, info, warning, error",) * 2),
    ("logging", "format", "text", "true", '"xml"', ("must be one of text, json",) * 2),
    ("logging", "file", "", "1", NUL, (TEXT, "NUL")),
    ("logging", "max_size", 5 * MIB, "true", "-1", (SIZE, "must not be negative")),
    ("logging", "backup_count", 3, "1.5", "-1", ("must be a whole number of at least 0",) * 2),
    ("logging", "audit", "", "1", NUL, (TEXT, "NUL")),
    ("metrics", "enabled", False, "1", '"yes"', ("must be true or false",) * 2),
    ("metrics", "host", "127.0.0.1", "1", NUL, (TEXT, "NUL")),
    ("metrics", "port", 9464, "true", "65536", ("must be a whole number from 0 to 65535",) * 2),
    ("console", "enabled", True, "1", '"no"', ("must be true or false",) * 2),
]  # fmt: skip
NAMES = [f"{section}.{key}" for section, key, *_ in KEYS]


def load_text(directory: Path, text: str, **environ: str) -> Settings:
    """Return the settings of a file with `text`."""
    return load(write(directory, text), environ).settings


def write(directory: Path, text: str) -> str:
    """Make a configuration file; return its path."""
    file = directory / "shelld.toml"
    file.write_text(text)
    return str(file)


def problems(file: str | None, **environ: str) -> list[str]:
    """Return the lines of the message that refuses the configuration."""
    with pytest.raises(ConfigError) as error:
        load(file, environ)
    return str(error.value).splitlines()


def value_of(settings: Settings, section: str, key: str) -> Any:
    """Return a setting by its name."""
    return getattr(getattr(settings, section), key)


@pytest.mark.parametrize(("section", "key", "default", "wrong", "impossible", "allowed"), KEYS, ids=NAMES)
def test_every_key(
    tmp_path: Path, section: str, key: str, default: object, wrong: str, impossible: str, allowed: tuple[str, str]
) -> None:
    """A key has its default; a wrong type and an impossible value are refused by file, key and what is allowed."""
    found = value_of(load(None, {}).settings, section, key)
    if default is not None:
        assert found == default
        assert type(found) is type(default) or isinstance(found, str)
    for value, reason in zip((wrong, impossible), allowed, strict=True):
        file = write(tmp_path, f"[{section}]\n{key} = {value}\n")
        (message,) = problems(file)
        assert message.startswith(f"{file}: {section}.{key}: ")
        assert reason in message


def test_there_are_no_other_keys() -> None:
    """The table of this test names every key that there is."""
    assert [f"{section}.{key}" for section, kind in SECTIONS.items() for key in kinds(kind)] == NAMES


def test_defaults_are_legal_values(tmp_path: Path) -> None:
    """The defaults of the contract, written into a file, are what one gets without a file."""
    lines = [
        '[server]\nhost = "127.0.0.1"\nport = 8080\nmax_body = "16MiB"',
        '[timeout]\nidle = "30m"\ncommand_lifetime = "0"',
    ]
    assert load_text(tmp_path, "\n".join(lines)) == load(None, {}).settings


def test_text_extensions_are_allowed_by_default() -> None:
    """The default list holds the usual text files, each once, without dots."""
    allowed = Settings().files.allowed_extensions
    assert {"txt", "md", "py", "json", "toml", "sh"} <= set(allowed)
    assert len(allowed) == len(set(allowed))
    assert not any(item.startswith(".") for item in allowed)


def test_extensions_are_written_in_any_form(tmp_path: Path) -> None:
    """Dots and case do not matter, nor do repeats."""
    settings = load_text(tmp_path, '[files]\nallowed_extensions = [".TXT", "txt", "Tar.Gz"]')
    assert settings.files.allowed_extensions == ("txt", "tar.gz")


@pytest.mark.parametrize(
    ("text", "section", "key", "expected"),
    [
        ('[timeout]\nidle = "1h30m"', "timeout", "idle", 5400.0),
        ("[timeout]\nidle = 90", "timeout", "idle", 90.0),
        ("[timeout]\nkill = 0", "timeout", "kill", 0.0),
        ("[server]\nmax_body = 1000", "server", "max_body", 1000),
        ('[output]\nlog_max = "1GB"', "output", "log_max", 10**9),
        ("[server]\nport = 0", "server", "port", 0),
        ("[limits]\ncpu_percent = 150", "limits", "cpu_percent", 150.0),
        ("[limits]\nmemory_mb = 0.5", "limits", "memory_mb", 0.5),
        ('[shell]\ncommand = "/bin/bash --norc"', "shell", "command", "/bin/bash --norc"),
        ('[shell]\non_exit = "end"', "shell", "on_exit", "end"),
        (
            '[shell.environment]\nA = "ä b"\nPAGER = "less"',
            "shell",
            "environment",
            {"PAGER": "less", "GIT_PAGER": "cat", "A": "ä b"},
        ),
        ('[files]\nallowed_directories = ["/a", "/b c"]', "files", "allowed_directories", ("/a", "/b c")),
        ('[logging]\nlevel = "debug"', "logging", "level", "debug"),
    ],
)
def test_values_of_a_file(tmp_path: Path, text: str, section: str, key: str, expected: object) -> None:
    """A file's values are what is used inside: seconds, bytes, numbers, texts."""
    assert value_of(load_text(tmp_path, text), section, key) == expected


@pytest.mark.parametrize(
    ("text", "start", "rest"),
    [
        ("[server]\nprot = 1", "server.prot: no such key (did you mean port?)", "[server] has: host, port,"),
        ("[timeout]\ncomand = 1", "timeout.comand: no such key (did you mean command?)", "command_maximum"),
        ("[limits]\nzzz = 1", "limits.zzz: no such key; ", "[limits] has: cpu_percent,"),
        ("[sever]\nport = 1", "[sever]: no such section (did you mean server?)", "there are: server, shell,"),
        ("[zzzzz]\nport = 1", "[zzzzz]: no such section; ", "there are: server, shell,"),
        ("port = 1", "[port]: no such section", "there are: server"),
        ("server = 1", "server: must be a section, written [server]", "1"),
        ('[shell]\non_exit = "restor"', "shell.on_exit: must be one of restore, end", "did you mean restore?"),
        ('[files]\nsecurity_mode = "stict"', "files.security_mode: must be one of", "did you mean strict?"),
        ("[shell.environment]\nPAGER = 1", "shell.environment: PAGER must be text", "1"),
        ('[shell.environment]\nA = "x\\u0000"', "shell.environment: A must be text without NUL", "x"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, text: str, start: str, rest: str) -> None:
    """The message names the file, the key, what is there and what is nearest."""
    file = write(tmp_path, text)
    (message,) = problems(file)
    assert message.startswith(f"{file}: {start}")
    assert rest in message


def test_a_number_with_too_many_digits_is_an_error_with_a_message(tmp_path: Path) -> None:
    """A number that fits into nothing is explained like any other mistake."""
    file = write(tmp_path, f'[timeout]\nidle = 1{"0" * 400}\n[server]\nmax_body = "{"9" * 400}"\n')
    assert [line.split(": ")[:2] for line in problems(file)] == [[file, "server.max_body"], [file, "timeout.idle"]]


def test_all_problems_are_in_one_message(tmp_path: Path) -> None:
    """One look at the message mends the whole file, and the environment."""
    file = write(tmp_path, "[server]\nport = -1\nprot = 1\n[zzz]\n[timeout]\nidle = true\n[shell]\nrows = 0\n")
    found = problems(file, SHELLD_LIMITS__PROCESSES="x", SHELLD_LIMITS__NOTHING="1")
    assert len(found) == 7
    for name in ("server.port", "server.prot", "[zzz]", "timeout.idle", "shell.rows"):
        assert any(line.startswith(f"{file}: {name}: ") for line in found), name
    assert any(line.startswith("SHELLD_LIMITS__PROCESSES: ") for line in found)
    assert any(line.startswith("SHELLD_LIMITS__NOTHING: ") for line in found)


def test_a_missing_working_directory_is_named_with_its_file(tmp_path: Path) -> None:
    """A directory that does not exist is a problem of the file that names it."""
    file = write(tmp_path, f'[shell]\nworking_directory = "{tmp_path}/none"\n')
    (message,) = problems(file)
    assert message.startswith(f"{file}: shell.working_directory: must be a directory that exists")


def test_a_missing_working_directory_is_told_with_the_other_problems(tmp_path: Path) -> None:
    """What can be checked only on the disk is in the same message as the rest."""
    file = write(tmp_path, f'[server]\nport = -1\n[shell]\nworking_directory = "{tmp_path}/none"\n')
    assert len(problems(file)) == 2


@pytest.mark.parametrize("content", ["[server\n", "a = = 1", "[server]\nport = 1\nport = 2"])
def test_a_file_that_is_not_toml(tmp_path: Path, content: str) -> None:
    """The message names the file and the place."""
    file = write(tmp_path, content)
    (message,) = problems(file)
    assert message.startswith(f"{file}: is not valid TOML: ")
    assert "(at " in message


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    """TOML is UTF-8."""
    file = tmp_path / "shelld.toml"
    file.write_bytes(b'[server]\nhost = "\xff"\n')
    (message,) = problems(str(file))
    assert message.startswith(f"{file}: is not valid TOML: ")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The message says why: it is not there, it is a directory."""
    assert problems(f"{tmp_path}/none") == [f"{tmp_path}/none: cannot be read: No such file or directory"]
    assert problems(str(tmp_path)) == [f"{tmp_path}: cannot be read: Is a directory"]


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    """`SHELLD_CONFIG` is used where no file is given, and an empty one is none."""
    file = write(tmp_path, "[server]\nport = 1234\n")
    other = tmp_path / "other.toml"
    other.write_text("[server]\nport = 4321\n")
    assert load(None, {"SHELLD_CONFIG": file}).settings.server.port == 1234
    assert load(str(other), {"SHELLD_CONFIG": file}).settings.server.port == 4321
    assert load(None, {"SHELLD_CONFIG": ""}).settings.server.port == 8080


@pytest.mark.parametrize(
    ("variable", "value", "section", "key", "expected"),
    [
        ("SHELLD_SERVER__PORT", "9000", "server", "port", 9000),
        ("SHELLD_server__port", "9000", "server", "port", 9000),
        ("SHELLD_SERVER__HOST", "::1", "server", "host", "::1"),
        ("SHELLD_SERVER__MAX_BODY", "1MiB", "server", "max_body", MIB),
        ("SHELLD_SERVER__SOCKETIO", "true", "server", "socketio", True),
        ("SHELLD_SERVER__MCP", "false", "server", "mcp", False),
        ("SHELLD_TIMEOUT__IDLE", "90", "timeout", "idle", 90.0),
        ("SHELLD_TIMEOUT__IDLE", "1m30s", "timeout", "idle", 90.0),
        ("SHELLD_LIMITS__MEMORY_MB", "1.5", "limits", "memory_mb", 1.5),
        ("SHELLD_SHELL__ON_EXIT", "end", "shell", "on_exit", "end"),
        ("SHELLD_FILES__ALLOWED_DIRECTORIES", '["/a", "/b"]', "files", "allowed_directories", ("/a", "/b")),
        ("SHELLD_FILES__BLOCKED_EXTENSIONS", "[]", "files", "blocked_extensions", ()),
        ("SHELLD_SHELL__ENVIRONMENT", '{ A = "1" }', "shell", "environment", {"A": "1"}),
        (
            "SHELLD_SHELL__ENVIRONMENT__X",
            "a b",
            "shell",
            "environment",
            {"PAGER": "cat", "GIT_PAGER": "cat", "X": "a b"},
        ),
        ("SHELLD_SHELL__ENVIRONMENT__PAGER", "", "shell", "environment", {"PAGER": "", "GIT_PAGER": "cat"}),
        (
            "SHELLD_SHELL__ENVIRONMENT__a__B",
            "5",
            "shell",
            "environment",
            {"PAGER": "cat", "GIT_PAGER": "cat", "a__B": "5"},
        ),
        ("SHELLD_HOOKS__ON_STARTUP", "[ -d /tmp ]", "hooks", "on_startup", "[ -d /tmp ]"),
        ("SHELLD_HOOKS__ON_STARTUP", "{ true; }", "hooks", "on_startup", "{ true; }"),
    ],
)
def test_the_environment_overrides(
    tmp_path: Path, variable: str, value: str, section: str, key: str, expected: object
) -> None:
    """`SHELLD_SECTION__KEY` goes over the file; lists and tables are written as in TOML, all else as it is."""
    file = write(tmp_path, "[server]\nport = 1\n[timeout]\nidle = 1\n")
    assert value_of(load(file, {variable: value}).settings, section, key) == expected


def test_one_variable_of_the_shell_is_added_to_those_of_the_file(tmp_path: Path) -> None:
    """`SHELLD_SHELL__ENVIRONMENT__X` leaves the others as the file has them, and goes over a whole table."""
    file = write(tmp_path, '[shell.environment]\nA = "file"\nB = "file"\n')
    environ = {"SHELLD_SHELL__ENVIRONMENT__B": "variable", "SHELLD_SHELL__ENVIRONMENT__C": "variable"}
    added = {"A": "file", "B": "variable", "C": "variable"}
    assert load(file, environ).settings.shell.environment == {"PAGER": "cat", "GIT_PAGER": "cat", **added}
    environ = {"SHELLD_SHELL__ENVIRONMENT": '{ D = "table" }', "SHELLD_SHELL__ENVIRONMENT__D": "variable"}
    assert load(file, environ).settings.shell.environment == {"D": "variable"}


@pytest.mark.parametrize(
    ("variable", "value", "start"),
    [
        ("SHELLD_SERVER__PROT", "1", "SHELLD_SERVER__PROT: no such key (did you mean port?)"),
        ("SHELLD_SEVER__PORT", "1", "SHELLD_SEVER__PORT: no such section (did you mean server?)"),
        ("SHELLD_SERVER__PORT", "http", "SHELLD_SERVER__PORT: must be a whole number from 0 to 65535, not 'http'"),
        ("SHELLD_SERVER__PORT", "", "SHELLD_SERVER__PORT: must be a whole number from 0 to 65535, not ''"),
        ("SHELLD_SERVER__PORT__X", "1", "SHELLD_SERVER__PORT__X: server.port has no parts"),
        ("SHELLD_FILES__ALLOWED_DIRECTORIES", "/a", "SHELLD_FILES__ALLOWED_DIRECTORIES: must be a list of texts"),
        ("SHELLD_FILES__ALLOWED_DIRECTORIES", "[/a", "SHELLD_FILES__ALLOWED_DIRECTORIES: must be a list of texts"),
        ("SHELLD_SHELL__ENVIRONMENT", "A=1", "SHELLD_SHELL__ENVIRONMENT: must be a table of texts"),
        ("SHELLD_SHELL__ENVIRONMENT__", "1", "SHELLD_SHELL__ENVIRONMENT__: '' cannot be the name of a variable"),
        ("SHELLD_TIMEOUT__IDLE", "soon", "SHELLD_TIMEOUT__IDLE: must be a duration"),
    ],
)
def test_mistakes_in_the_environment(variable: str, value: str, start: str) -> None:
    """The message names the variable in place of a file."""
    (message,) = problems(None, **{variable: value})
    assert message.startswith(start)


@pytest.mark.parametrize("key", ["k", "a" * 256, "!~", "correct-horse:battery/staple"])
def test_keys_that_are_taken(tmp_path: Path, key: str) -> None:
    """1 to 256 visible ASCII characters, from the environment or a file; a line feed at its end is not part of it."""
    (tmp_path / "key").write_text(f"{key}\n")
    file = write(tmp_path, f'[server]\nkey_file = "{tmp_path}/key"\n')
    assert load(None, {"SHELLD_KEY": key}).key == key
    assert load(file, {}).key == key
    assert load(file, {"SHELLD_KEY": "environment"}).key == "environment"


@pytest.mark.parametrize("key", ["", "a" * 257, "with space", "tab\t", "sécret", "two\nlines", "\x7f"])
def test_keys_that_are_refused(tmp_path: Path, key: str) -> None:
    """The message says where the key is from and what it must be, and does not show it."""
    (tmp_path / "key").write_text(key)
    file = write(tmp_path, f'[server]\nkey_file = "{tmp_path}/key"\n')
    for (message,), where in (
        (problems(None, SHELLD_KEY=key), "SHELLD_KEY: "),
        (problems(file), f"{file}: server.key_file: {tmp_path}/key: "),
        (problems(None, SHELLD_SERVER__KEY_FILE=f"{tmp_path}/key"), f"SHELLD_SERVER__KEY_FILE: {tmp_path}/key: "),
    ):
        assert message.startswith(where)
        assert "1 to 256 visible ASCII characters" in message
        assert not key or key not in message


def test_a_key_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The message names the configuration, the key and its file."""
    file = write(tmp_path, f'[server]\nkey_file = "{tmp_path}/none"\n')
    assert problems(file) == [f"{file}: server.key_file: {tmp_path}/none: cannot be read: No such file or directory"]


def test_no_key_is_set_by_default() -> None:
    """Then the first request sets it."""
    assert load(None, {}).key is None


def test_the_key_is_never_shown() -> None:
    """Neither `repr` nor `str` of a configuration holds it."""
    configuration = load(None, {"SHELLD_KEY": "the-secret-key"})
    assert "the-secret-key" not in f"{configuration!r} {configuration!s}"
    assert isinstance(configuration, Configuration)


def test_a_mistake_elsewhere_does_not_show_the_key() -> None:
    """A message about other settings does not hold it either."""
    assert not any("the-secret-key" in line for line in problems(None, SHELLD_KEY="the-secret-key", SHELLD_A__B="1"))


def test_a_forgotten_key_is_gone_from_the_environment() -> None:
    """Neither /proc/PID/environ nor a child shows what was erased."""
    script = (
        "import os, subprocess; from pathlib import Path; from shelld_py.linux.syscalls import erase_variable;"
        "erase_variable('SHELLD_KEY');"
        "print('SHELLD_KEY' in os.environ, Path('/proc/self/environ').read_bytes().count(b'the-secret'),"
        " b'the-secret' in subprocess.check_output(['env']), os.environ['OTHER'])"
    )
    environ = {**os.environ, "SHELLD_KEY": "the-secret", "OTHER": "stays"}
    output = subprocess.check_output([sys.executable, "-c", script], env=environ, text=True)
    assert output.split() == ["False", "0", "False", "stays"]


def test_shells_do_not_inherit_the_variables_of_the_daemon() -> None:
    """Nothing that begins with SHELLD_ goes to shells and hooks."""
    environ = {"PATH": "/bin", "SHELLD_KEY": "k", "SHELLD_SERVER__PORT": "1", "MY_SHELLD_": "x"}
    assert inheritable_environment(environ) == {"PATH": "/bin", "MY_SHELLD_": "x"}


def test_settings_cannot_be_changed() -> None:
    """What was loaded stays as it is."""
    settings = Settings()
    with pytest.raises(AttributeError):
        settings.server.port = 1  # type: ignore[misc]


def test_the_example_of_the_contract_is_legal(tmp_path: Path) -> None:
    """A file with every key of this test's table at its default loads and is the default."""
    settings = Settings()
    lines = []
    for section in SECTIONS:
        lines.append(f"[{section}]")
        for key, value in asdict(getattr(settings, section)).items():
            if isinstance(value, bool):
                lines.append(f"{key} = {str(value).lower()}")
            elif isinstance(value, dict):
                lines.append(f"{key} = {{ {', '.join(f'{name} = {text!r}' for name, text in value.items())} }}")
            elif isinstance(value, tuple):
                lines.append(f"{key} = {list(value)}")
            else:
                shown = str(value).lower() if isinstance(value, bool) else value
                lines.append(f"{key} = {str(value)!r}" if isinstance(value, str) else f"{key} = {shown}")
    text = "\n".join(lines)
    assert len(tomllib.loads(text)) == 10
    assert load_text(tmp_path, text) == settings
