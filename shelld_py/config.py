"""Settings: what there is, what is allowed, and how a file and the environment become them.

The dataclasses below are the one list of all settings. Each field names its default in the form that
people write and a `kind` that turns such a form into the value used inside, or says what is allowed.
`load` collects all problems before it raises, so that one look at the message mends the whole file.
This is the only file of the daemon that reads the process's environment.
"""

import ctypes
import dataclasses
import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import tomli

from shelld_py.errors import ConfigError
from shelld_py.units import parse_duration, parse_size

ENVIRONMENT_PREFIX = "SHELLD_"
KEY_PATTERN = re.compile(r"[\x21-\x7e]{1,256}")
"""What a key may be: 1 to 256 visible ASCII characters."""

Kind = Callable[[object], Any]
_LARGEST_NUMBER = 2.0**62


class OnExit(StrEnum):
    """What `exit` in a command ends: the run alone (`restore`), or the shell (`end`)."""

    RESTORE = "restore"
    END = "end"


class SecurityMode(StrEnum):
    """Which files may be read: listed extensions, all but the blocked ones, or all."""

    STRICT = "strict"
    PERMISSIVE = "permissive"
    UNRESTRICTED = "unrestricted"


class CgroupUse(StrEnum):
    """Whether the kernel is asked to hold limits: where it lets us (`auto`), or never (`off`)."""

    AUTO = "auto"
    OFF = "off"


class LogFormat(StrEnum):
    """The form of a log line."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least serious level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {value!r}")
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    return value


def _command(value: object) -> str:
    text = _text(value)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"must be a command line: {error}") from None
    if not words:
        raise ValueError("must be a command line such as '/bin/bash', not empty")
    return text


def _directory(value: object) -> str:
    text = _text(value)
    if text and not Path(text).is_dir():
        raise ValueError(f"must be a directory that exists, not {text!r}")
    return text


def _integer(least: int, most: int | None = None) -> Kind:
    allowed = f"must be a whole number of at least {least}"
    if most is not None:
        allowed = f"must be a whole number from {least} to {most}"

    def parse(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{allowed}, not {value!r}")
        if value < least or (most is not None and value > most):
            raise ValueError(f"{allowed}, not {value}")
        return value

    return parse


def _switch(value: object) -> bool:
    value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def _mcp_switch(value: object) -> bool:
    wanted = _switch(value)
    if wanted and (problem := _missing_mcp()):
        raise ValueError(f"{problem}: pip install 'shelld-py[mcp]'")
    return wanted


def _missing_mcp() -> str:
    """Return what is wrong with the package of the extra `mcp`, without importing it; nothing where all is well."""
    from importlib import metadata

    try:
        version = metadata.version("mcp")
    except metadata.PackageNotFoundError:
        return "needs the package mcp, which is not installed"
    return "" if version.startswith("2.") else f"needs version 2 of the package mcp, not {version}"


def _number(value: object) -> float:
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value):
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _LARGEST_NUMBER:
        raise ValueError(f"must be a number of at least 0 (0: no limit), not {value!r}")
    return float(value)


def _positive_duration(value: object) -> float:
    seconds = parse_duration(value)
    if seconds == 0:
        raise ValueError("must be longer than 0")
    return seconds


def _one_of(kind: type[StrEnum]) -> Kind:
    def parse(value: object) -> StrEnum:
        names = [member.value for member in kind]
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}, not {value!r}{_nearest(str(value), names)}")
        return kind(value)

    return parse


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'must be a list of texts such as ["a", "b"], not {value!r}')
    return tuple(value)


def _extensions(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.lower().lstrip(".") for item in _strings(value)))


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError('must be a table of texts such as { PAGER = "cat" }')
    for name, content in value.items():
        if not isinstance(content, str) or "\0" in content:
            raise ValueError(f"{name} must be text without NUL, not {content!r}")
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name!r} cannot be the name of a variable")
    return dict(value)


def _setting(kind: Kind, default: object) -> Any:
    """Declare a setting: its kind, and its default as one would write it in the file."""
    return field(default_factory=lambda: kind(default), metadata={"kind": kind})


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """`[server]`: the socket, the key, the data."""

    host: str = _setting(_text, "127.0.0.1")
    port: int = _setting(_integer(0, 65535), 8080)
    key_file: str = _setting(_text, "")
    data_directory: str = _setting(_text, "")
    max_body: int = _setting(parse_size, "16MiB")
    socketio: bool = _setting(_switch, False)
    mcp: bool = _setting(_mcp_switch, False)


@dataclass(frozen=True, kw_only=True)
class ShellSettings:
    """`[shell]`: what is started, where, and in what terminal."""

    command: str = _setting(_command, "/bin/bash")
    on_exit: OnExit = _setting(_one_of(OnExit), "restore")
    working_directory: str = _setting(_directory, "")
    term: str = _setting(_text, "xterm-256color")
    rows: int = _setting(_integer(1, 65535), 24)
    cols: int = _setting(_integer(1, 65535), 80)
    cpu_variables: bool = _setting(_switch, True)
    environment: dict[str, str] = _setting(_environment, {"PAGER": "cat", "GIT_PAGER": "cat"})


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """`[output]`: sizes of answers in characters, of logs in bytes."""

    max_size: int = _setting(_integer(0), 100_000)
    begin_size: int = _setting(_integer(0), 40_000)
    end_size: int = _setting(_integer(0), 60_000)
    log_max: int = _setting(parse_size, "256MiB")
    retain_runs: int = _setting(_integer(0), 200)


@dataclass(frozen=True, kw_only=True)
class TimeoutSettings:
    """`[timeout]`: seconds."""

    command: float = _setting(parse_duration, "5m")
    command_maximum: float = _setting(_positive_duration, "30m")
    command_lifetime: float = _setting(parse_duration, "0")
    mcp: float = _setting(_positive_duration, "50s")
    session_idle: float = _setting(parse_duration, "30m")
    session_lifetime: float = _setting(parse_duration, "0")
    idle: float = _setting(parse_duration, "30m")
    shutdown: float = _setting(_positive_duration, "30s")
    kill: float = _setting(parse_duration, "5s")


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """`[limits]`: of each shell and all it started; 0 is no limit."""

    cpu_percent: float = _setting(_number, 0)
    memory_mb: float = _setting(_number, 0)
    disk_mb: float = _setting(_number, 0)
    processes: int = _setting(_integer(0), 0)
    check_interval: float = _setting(_positive_duration, "2s")
    cgroups: CgroupUse = _setting(_one_of(CgroupUse), "auto")
    max_sessions: int = _setting(_integer(0), 16)


_TEXT_EXTENSIONS = (
    "adoc asm awk bash bat bib c cc cfg clj cmake cmd conf cpp cs css csv cxx dart diff dockerfile editorconfig "
    "el elm env erl ex exs fish fs gitattributes gitignore go gql gradle graphql groovy h hbs hh hpp hs htm html "
    "hxx ini ipynb java jinja jl js json json5 jsonl jsx kt kts less lisp lock log lua m make makefile md mdx mjs "
    "mk ml mm nim nix org patch php pl plist pm po properties proto ps1 py pyi pyx r rb rs rst sass sbt scala scm "
    "scss sed sh sql srt sty svelte svg swift tcl tex tf toml ts tsv tsx txt v vb vhdl vim vtt vue xhtml xml xsd "
    "xsl yaml yml zig zsh"
)


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """`[files]`: where file operations may go and what they may read."""

    base_directory: str = _setting(_text, "")
    allowed_directories: tuple[str, ...] = _setting(_strings, ())
    security_mode: SecurityMode = _setting(_one_of(SecurityMode), "permissive")
    allowed_extensions: tuple[str, ...] = _setting(_extensions, tuple(_TEXT_EXTENSIONS.split()))
    blocked_extensions: tuple[str, ...] = _setting(_extensions, ("exe", "dll", "bin"))
    max_file_size: int = _setting(parse_size, "5MiB")
    max_token_count: int = _setting(_integer(0), 10_000)
    backup_directory: str = _setting(_text, "")
    event_ttl: float = _setting(parse_duration, "2h")
    cleanup_interval: float = _setting(_positive_duration, "1h")
    max_events_per_file: int = _setting(_integer(0), 10)


@dataclass(frozen=True, kw_only=True)
class HookSettings:
    """`[hooks]`: commands of the operator at the daemon's turning points; empty is none."""

    shell_command: str = _setting(_command, "/bin/sh")
    on_startup: str = _setting(_text, "")
    on_shutdown: str = _setting(_text, "")
    on_recycle: str = _setting(_text, "")
    timeout: float = _setting(_positive_duration, "30s")


@dataclass(frozen=True, kw_only=True)
class LoggingSettings:
    """`[logging]`: what is logged, in which form, and where."""

    level: LogLevel = _setting(_one_of(LogLevel), "info")
    format: LogFormat = _setting(_one_of(LogFormat), "text")
    file: str = _setting(_text, "")
    max_size: int = _setting(parse_size, "5MiB")
    backup_count: int = _setting(_integer(0), 3)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, by section."""

    server: ServerSettings = field(default_factory=ServerSettings)
    shell: ShellSettings = field(default_factory=ShellSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    timeout: TimeoutSettings = field(default_factory=TimeoutSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    files: FileSettings = field(default_factory=FileSettings)
    hooks: HookSettings = field(default_factory=HookSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)


_SECTIONS: dict[str, type[Any]] = {item.name: item.type for item in dataclasses.fields(Settings)}  # type: ignore[misc]


@dataclass(frozen=True)
class Configuration:
    """What the daemon starts with: the settings, and the key if one is set in advance."""

    settings: Settings
    key: str | None = field(default=None, repr=False)


def load(file: str | None, environ: Mapping[str, str]) -> Configuration:
    """Return the configuration from `file` (or `SHELLD_CONFIG`, or none) and `environ`.

    Raises `ConfigError`, whose message has a line for each problem found.
    """
    file = file or environ.get("SHELLD_CONFIG") or None
    problems: list[str] = []
    document = _read_toml(file) if file else {}
    tables = dict(_checked_tables(document, file or "", problems))
    for name, value in _overrides(environ):
        _apply_override(tables, name, value, problems)
    settings = Settings(**{section: _build(section, table, problems) for section, table in tables.items()})
    key = None if problems else _preset_key(tables["server"].get("key_file"), environ, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return Configuration(settings, key)


def process_environment() -> dict[str, str]:
    """Return the environment of this process."""
    return dict(os.environ)


def forget_key() -> None:
    """Remove `SHELLD_KEY` from this process, from the memory too that /proc/PID/environ shows (proc(5))."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(b"SHELLD_KEY")
    if address:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    os.environ.pop("SHELLD_KEY", None)


def inheritable_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the daemon's own variables: what shells and hooks may see of it."""
    return {name: value for name, value in environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}


_Source = tuple[object, str]
"""A value as written, and where: for messages."""


def _read_toml(file: str) -> dict[str, Any]:
    try:
        return tomli.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: is not valid TOML: {error}") from None


def _checked_tables(
    document: Mapping[str, Any], file: str, problems: list[str]
) -> Iterator[tuple[str, dict[str, _Source]]]:
    """Yield each section with its known keys; what is not known becomes a problem."""
    for name in document:
        if name not in _SECTIONS:
            problems.append(
                f"{file}: [{name}]: no such section{_nearest(name, _SECTIONS)}; there are: {', '.join(_SECTIONS)}"
            )
    for section, kind in _SECTIONS.items():
        table = document.get(section, {})
        keys = [item.name for item in dataclasses.fields(kind)]
        if not isinstance(table, dict):
            problems.append(f"{file}: {section}: must be a section, written [{section}], not {table!r}")
            table = {}
        known: dict[str, _Source] = {}
        for key, value in table.items():
            if (section, key) == ("shell", "environment") and isinstance(value, dict):
                known[key] = ({**ShellSettings().environment, **value}, f"{file}: {section}.{key}")
            elif key in keys:
                known[key] = (value, f"{file}: {section}.{key}")
            else:
                problems.append(
                    f"{file}: {section}.{key}: no such key{_nearest(key, keys)}; [{section}] has: {', '.join(keys)}"
                )
        yield section, known


def _overrides(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            yield name, environ[name]


def _apply_override(tables: dict[str, dict[str, _Source]], name: str, value: str, problems: list[str]) -> None:
    """Put the environment variable `name` over what the file says."""
    section, key, *rest = name.removeprefix(ENVIRONMENT_PREFIX).split("__", 2)
    section, key = section.lower(), key.lower()
    if section not in _SECTIONS:
        problems.append(f"{name}: no such section{_nearest(section, _SECTIONS)}; there are: {', '.join(_SECTIONS)}")
        return
    keys = [item.name for item in dataclasses.fields(_SECTIONS[section])]
    if key not in keys:
        problems.append(f"{name}: no such key{_nearest(key, keys)}; [{section}] has: {', '.join(keys)}")
    elif (section, key) == ("shell", "environment") and rest:
        before, _ = tables[section].get(key, (ShellSettings().environment, ""))
        merged = {**before, rest[0]: value} if isinstance(before, dict) else before
        tables[section][key] = (merged, name)
    elif rest:
        problems.append(
            f"{name}: {section}.{key} has no parts; write {ENVIRONMENT_PREFIX}{section.upper()}__{key.upper()}"
        )
    else:
        tables[section][key] = (_override_value(value), name)


def _override_value(value: str) -> object:
    """Lists and tables are written in the environment as in TOML; all else is text."""
    if value.startswith(("[", "{")):
        try:
            return tomli.loads(f"value = {value}")["value"]
        except tomli.TOMLDecodeError:
            return value
    return value


def _build(section: str, table: Mapping[str, _Source], problems: list[str]) -> Any:
    kind = _SECTIONS[section]
    values = {}
    for item in dataclasses.fields(kind):
        if item.name in table:
            value, where = table[item.name]
            try:
                values[item.name] = item.metadata["kind"](value)
            except ValueError as error:
                problems.append(f"{where}: {error}")
    return kind(**values)


def _preset_key(key_file: _Source | None, environ: Mapping[str, str], problems: list[str]) -> str | None:
    """Return the key of `SHELLD_KEY` or of `server.key_file`; messages never show it."""
    if "SHELLD_KEY" in environ:
        key, where = environ["SHELLD_KEY"], "SHELLD_KEY"
    elif key_file and key_file[0]:
        path, where = str(key_file[0]), f"{key_file[1]}: {key_file[0]}"
        try:
            key = Path(path).read_text(encoding="ascii").rstrip("\r\n")
        except OSError as error:
            problems.append(f"{where}: cannot be read: {error.strerror}")
            return None
        except UnicodeDecodeError:
            key = ""
    else:
        return None
    if not KEY_PATTERN.fullmatch(key):
        problems.append(f"{where}: must hold a key of 1 to 256 visible ASCII characters")
        return None
    return key


def _nearest(name: str, names: Mapping[str, object] | list[str]) -> str:
    """Return ` (did you mean X?)` when one of `names` is near to `name`."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" (did you mean {found[0]}?)" if found else ""
