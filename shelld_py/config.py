"""Settings: what there is, and what is allowed.

The structures below are the one list of all settings. Each field names its default in the form that
people write and a `kind` that turns such a form into the value used inside, or says what is allowed.
How a file and the environment become them is in loading.py.
"""

import difflib
import importlib.util
import re
import shlex
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from shelld_py.units import parse_duration, parse_size

KEY_PATTERN = re.compile(r"[\x21-\x7e]{1,256}")
"""What a key may be: 1 to 256 visible ASCII characters."""

Kind = Callable[[object], Any]
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._:\[\]-]+|null")
_WEB_ORIGIN = re.compile(r"https?://[a-z0-9._:\[\]-]+")
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


def _startup_file(value: object) -> str:
    text = _text(value)
    if text and not text.startswith(("/", "~/")):
        raise ValueError(f"must be an absolute path, one that begins with ~/, or empty, not {text!r}")
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
        raise ValueError(f"{problem}: pip install '.[mcp]' in shelld-py's checkout")
    return wanted


def _metrics_switch(value: object) -> bool:
    wanted = _switch(value)
    if wanted and importlib.util.find_spec("prometheus_client") is None:
        hint = "pip install '.[metrics]' in shelld-py's checkout"
        raise ValueError(f"needs the package prometheus-client, which is not installed: {hint}")
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
            raise ValueError(f"must be one of {', '.join(names)}, not {value!r}{did_you_mean(str(value), names)}")
        return kind(value)

    return parse


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'must be a list of texts such as ["a", "b"], not {value!r}')
    return tuple(value)


def _host_names(value: object) -> tuple[str, ...]:
    for name in (names := _strings(value)):
        if not _HOST_NAME.fullmatch(name):
            raise ValueError(f'must be names without scheme and port such as ["box.example", "10.0.0.7"], not {name!r}')
    return tuple(name.lower() for name in names)


def _origins(value: object) -> tuple[str, ...]:
    for origin in (origins := _strings(value)):
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f'must be origins such as ["https://box.example:8443"], not {origin!r}')
    return tuple(origin.lower() for origin in origins)


def _web_origin(value: object) -> str:
    text = _text(value).rstrip("/").lower()
    if text and not _WEB_ORIGIN.fullmatch(text):
        raise ValueError(f"must be an origin such as 'https://preview.example', or empty, not {value!r}")
    return text


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


class _Default:
    """The default of a setting, as one would write it in the file, and its kind, which makes the value of it."""

    def __init__(self, kind: Kind, written: object) -> None:
        self.kind = kind
        self._written = written

    def __call__(self) -> Any:
        return self.kind(self._written)


def _setting(kind: Kind, default: object) -> Any:
    """Declare a setting: its kind, and its default as one would write it in the file."""
    return field(default_factory=_Default(kind, default))


class ServerSettings(Struct, frozen=True, kw_only=True):
    """`[server]`: the socket, the key, the data."""

    host: str = _setting(_text, "127.0.0.1")
    port: int = _setting(_integer(0, 65535), 8080)
    key_file: str = _setting(_text, "")
    hosts: tuple[str, ...] = _setting(_host_names, ())
    origins: tuple[str, ...] = _setting(_origins, ())
    data_directory: str = _setting(_text, "")
    max_body: int = _setting(parse_size, "16MiB")
    max_connections: int = _setting(_integer(1), 1000)
    header_timeout: float = _setting(_positive_duration, "10s")
    body_timeout: float = _setting(_positive_duration, "30s")
    socketio: bool = _setting(_switch, False)
    mcp: bool = _setting(_mcp_switch, False)
    agent_sandbox: bool = _setting(_switch, False)
    proxy: bool = _setting(_switch, False)
    proxy_port: int = _setting(_integer(0, 65535), 8081)
    proxy_url: str = _setting(_web_origin, "")
    proxy_timeout: float = _setting(_positive_duration, "60s")


class ShellSettings(Struct, frozen=True, kw_only=True):
    """`[shell]`: what is started, where, and in what terminal."""

    command: str = _setting(_command, "/bin/bash")
    user: str = _setting(_text, "")
    on_exit: OnExit = _setting(_one_of(OnExit), "restore")
    start_on_run: bool = _setting(_switch, False)
    startup_file: str = _setting(_startup_file, "~/.bashrc")
    working_directory: str = _setting(_directory, "")
    term: str = _setting(_text, "xterm-256color")
    rows: int = _setting(_integer(1, 65535), 24)
    cols: int = _setting(_integer(1, 65535), 80)
    cpu_variables: bool = _setting(_switch, True)
    environment: dict[str, str] = _setting(_environment, {"PAGER": "cat", "GIT_PAGER": "cat"})


class OutputSettings(Struct, frozen=True, kw_only=True):
    """`[output]`: sizes of answers in characters, of logs in bytes."""

    max_size: int = _setting(_integer(0), 100_000)
    begin_size: int = _setting(_integer(0), 40_000)
    end_size: int = _setting(_integer(0), 60_000)
    log_max: int = _setting(parse_size, "256MiB")
    retain_runs: int = _setting(_integer(0), 200)
    timing: bool = _setting(_switch, True)


class TimeoutSettings(Struct, frozen=True, kw_only=True):
    """`[timeout]`: seconds."""

    command: float = _setting(parse_duration, "5m")
    command_maximum: float = _setting(_positive_duration, "30m")
    command_lifetime: float = _setting(parse_duration, "0")
    mcp: float = _setting(_positive_duration, "50s")
    session_idle: float = _setting(parse_duration, "30m")
    session_lifetime: float = _setting(parse_duration, "0")
    idle: float = _setting(parse_duration, "30m")
    idle_counts_runs: bool = _setting(_switch, False)
    shutdown: float = _setting(_positive_duration, "30s")
    kill: float = _setting(parse_duration, "5s")


class LimitSettings(Struct, frozen=True, kw_only=True):
    """`[limits]`: of each shell and all it started; 0 is no limit."""

    cpu_percent: float = _setting(_number, 0)
    memory_mb: float = _setting(_number, 0)
    disk_mb: float = _setting(_number, 0)
    processes: int = _setting(_integer(0), 0)
    check_interval: float = _setting(_positive_duration, "2s")
    cgroups: CgroupUse = _setting(_one_of(CgroupUse), "auto")
    max_sessions: int = _setting(_integer(0), 16)
    message: str = _setting(_text, "")


_TEXT_EXTENSIONS = (
    "adoc asm awk bash bat bib c cc cfg clj cmake cmd conf cpp cs css csv cxx dart diff dockerfile editorconfig "
    "el elm env erl ex exs fish fs gitattributes gitignore go gql gradle graphql groovy h hbs hh hpp hs htm html "
    "hxx ini ipynb java jinja jl js json json5 jsonl jsx kt kts less lisp lock log lua m make makefile md mdx mjs "
    "mk ml mm nim nix org patch php pl plist pm po properties proto ps1 py pyi pyx r rb rs rst sass sbt scala scm "
    "scss sed sh sql srt sty svelte svg swift tcl tex tf toml ts tsv tsx txt v vb vhdl vim vtt vue xhtml xml xsd "
    "xsl yaml yml zig zsh"
)


class FileSettings(Struct, frozen=True, kw_only=True):
    """`[files]`: where file operations may go and what they may read."""

    base_directory: str = _setting(_text, "")
    allowed_directories: tuple[str, ...] = _setting(_strings, ())
    security_mode: SecurityMode = _setting(_one_of(SecurityMode), "permissive")
    allowed_extensions: tuple[str, ...] = _setting(_extensions, tuple(_TEXT_EXTENSIONS.split()))
    blocked_extensions: tuple[str, ...] = _setting(_extensions, ("exe", "dll", "bin"))
    max_file_size: int = _setting(parse_size, "5MiB")
    max_token_count: int = _setting(_integer(0), 10_000)
    max_archive_size: int = _setting(parse_size, "1GiB")
    max_archive_entries: int = _setting(_integer(0), 100_000)
    backup_directory: str = _setting(_text, "")
    event_ttl: float = _setting(parse_duration, "2h")
    cleanup_interval: float = _setting(_positive_duration, "1h")
    max_events_per_file: int = _setting(_integer(0), 10)


class HookSettings(Struct, frozen=True, kw_only=True):
    """`[hooks]`: commands of the operator at the daemon's turning points; empty is none."""

    shell_command: str = _setting(_command, "/bin/sh")
    on_startup: str = _setting(_text, "")
    on_shutdown: str = _setting(_text, "")
    on_recycle: str = _setting(_text, "")
    timeout: float = _setting(_positive_duration, "30s")


class LoggingSettings(Struct, frozen=True, kw_only=True):
    """`[logging]`: what is logged, in which form, and where."""

    level: LogLevel = _setting(_one_of(LogLevel), "info")
    format: LogFormat = _setting(_one_of(LogFormat), "text")
    file: str = _setting(_text, "")
    max_size: int = _setting(parse_size, "5MiB")
    backup_count: int = _setting(_integer(0), 3)
    audit: str = _setting(_text, "")


class MetricsSettings(Struct, frozen=True, kw_only=True):
    """`[metrics]`: whether there are metrics for Prometheus, and on which address."""

    enabled: bool = _setting(_metrics_switch, False)
    host: str = _setting(_text, "127.0.0.1")
    port: int = _setting(_integer(0, 65535), 9464)


class ConsoleSettings(Struct, frozen=True, kw_only=True):
    """`[console]`: whether there is the page for people who watch."""

    enabled: bool = _setting(_switch, True)


class Settings(Struct, frozen=True, kw_only=True):
    """All settings, by section."""

    server: ServerSettings = field(default_factory=ServerSettings)
    shell: ShellSettings = field(default_factory=ShellSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    timeout: TimeoutSettings = field(default_factory=TimeoutSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    files: FileSettings = field(default_factory=FileSettings)
    hooks: HookSettings = field(default_factory=HookSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)


SECTIONS: dict[str, type[Struct]] = {item.name: item.type for item in msgspec.structs.fields(Settings)}
"""What there is to set, by section."""


def kinds(section: type[Struct]) -> dict[str, Kind]:
    """Return the settings of a section, and for each what makes a value of what is written (or raises `ValueError`)."""
    defaults = {item.name: item.default_factory for item in msgspec.structs.fields(section)}
    return {name: default.kind for name, default in defaults.items() if isinstance(default, _Default)}


def did_you_mean(name: str, names: Mapping[str, object] | list[str]) -> str:
    """Return ` (did you mean X?)` when one of `names` is near to `name`."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f" (did you mean {found[0]}?)" if found else ""
