"""How a file and the environment become settings, and what the environment is for shells and hooks.

`load` collects all problems before it raises, so that one look at the message mends the whole file. This is the only
file of the daemon that reads the process's environment. What settings there are is in config.py.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from shelld_py.config import KEY_PATTERN, SECTIONS, Settings, ShellSettings, did_you_mean, kinds
from shelld_py.errors import ConfigError

ENVIRONMENT_PREFIX = "SHELLD_"

_OTHER_VARIABLES = ("SHELLD_KEY", "SHELLD_CONFIG", "SHELLD_URL", "SHELLD_HOOK")
"""Those of `SHELLD_` that are no settings."""


class Configuration(Struct, frozen=True):
    """What the daemon starts with: the settings, and the key if one is set in advance."""

    settings: Settings
    key: str | None = None
    warnings: tuple[str, ...] = ()
    """What was passed over though it may have been meant, a line for each."""

    def __repr__(self) -> str:
        return f"Configuration({self.settings}, warnings={self.warnings})"  # what is printed tells no key

    def __rich_repr__(self) -> list[tuple[str, Any]]:  # nor what others print
        return [("settings", self.settings), ("warnings", self.warnings)]


def load(file: str | None, environ: Mapping[str, str], assignments: Sequence[str] = ()) -> Configuration:
    """Return the configuration from `file` (or `SHELLD_CONFIG`, or none), `environ`, and `assignments`.

    Assignments are `SECTION.KEY=VALUE`; they go before the environment, and that before the file.

    Raises `ConfigError`, whose message has a line for each problem found.
    """
    file = file or environ.get("SHELLD_CONFIG") or None
    problems: list[str] = []
    document = _read_toml(file) if file else {}
    tables = dict(_checked_tables(document, file or "", problems))
    for name, value in _overrides(environ):
        _apply_override(tables, name, name.removeprefix(ENVIRONMENT_PREFIX).split("__", 2), value, problems)
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or "." not in name:
            problems.append(f"--set {assignment}: must be SECTION.KEY=VALUE, such as server.port=9000")
        else:
            _apply_override(tables, f"--set {name}", name.split(".", 2), value, problems)
    settings = Settings(**{section: _build(section, table, problems) for section, table in tables.items()})
    key = None if problems else _preset_key(tables["server"].get("key_file"), environ, problems)
    if problems:
        raise ConfigError("\n".join(problems))
    return Configuration(settings, key, tuple(_meaningless(environ)))


def process_environment() -> dict[str, str]:
    """Return the environment of this process, as whoever started it meant it.

    In a bundle it is made that again first, for all that is started from here: PyInstaller's starter has put its own
    libraries in front, and programs of the system would be given them. They were loaded by then.
    """
    if getattr(sys, "frozen", False):
        before = os.environ.pop("LD_LIBRARY_PATH_ORIG", None)
        os.environ.pop("LD_LIBRARY_PATH", None)
        if before is not None:
            os.environ["LD_LIBRARY_PATH"] = before
        for name in [name for name in os.environ if name.startswith("_PYI_")]:
            del os.environ[name]
    return dict(os.environ)


def inheritable_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the daemon's own variables: what shells and hooks may see of it."""
    return {name: value for name, value in environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}


_Source = tuple[object, str]
"""A value as written, and where: for messages."""


def _read_toml(file: str) -> dict[str, Any]:
    import tomli  # here and below: most daemons start without a file

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
        if name not in SECTIONS:
            problems.append(
                f"{file}: [{name}]: no such section{did_you_mean(name, SECTIONS)}; there are: {', '.join(SECTIONS)}"
            )
    for section, kind in SECTIONS.items():
        table = document.get(section, {})
        keys = list(kinds(kind))
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
                    f"{file}: {section}.{key}: no such key{did_you_mean(key, keys)}; [{section}] has: {', '.join(keys)}"
                )
        yield section, known


def _overrides(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            yield name, environ[name]


def _meaningless(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable that looks like one of ours and is none."""
    settings = {_variable(section, key): key for section, kind in SECTIONS.items() for key in kinds(kind)}
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" not in name and name not in _OTHER_VARIABLES:
            wanted = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            near = [variable for variable, key in settings.items() if key == wanted]
            hint = did_you_mean(name, near or [*settings, *_OTHER_VARIABLES])
            yield f"the variable {name} means nothing here{hint}"


def _variable(section: str, key: str) -> str:
    return f"{ENVIRONMENT_PREFIX}{section.upper()}__{key.upper()}"


def _apply_override(
    tables: dict[str, dict[str, _Source]], name: str, path: list[str], value: str, problems: list[str]
) -> None:
    """Put `value`, which is called `name` in messages, over what the tables have at `path`: section, key, part."""
    section, key, *rest = path
    section, key = section.lower(), key.lower()
    if section not in SECTIONS:
        problems.append(f"{name}: no such section{did_you_mean(section, SECTIONS)}; there are: {', '.join(SECTIONS)}")
        return
    keys = list(kinds(SECTIONS[section]))
    if key not in keys:
        problems.append(f"{name}: no such key{did_you_mean(key, keys)}; [{section}] has: {', '.join(keys)}")
    elif (section, key) == ("shell", "environment") and rest:
        before, _ = tables[section].get(key, (ShellSettings().environment, ""))
        merged = {**before, rest[0]: value} if isinstance(before, dict) else before
        tables[section][key] = (merged, name)
    elif rest:
        problems.append(
            f"{name}: {section}.{key} has no parts; write {_variable(section, key)} or --set {section}.{key}="
        )
    else:
        tables[section][key] = (_override_value(value), name)


def _override_value(value: str) -> object:
    """Lists and tables are written in the environment as in TOML; all else is text."""
    if value.startswith(("[", "{")):
        import tomli

        try:
            return tomli.loads(f"value = {value}")["value"]
        except tomli.TOMLDecodeError:
            return value
    return value


def _build(section: str, table: Mapping[str, _Source], problems: list[str]) -> Any:
    values = {}
    for key, kind in kinds(SECTIONS[section]).items():
        if key in table:
            value, where = table[key]
            try:
                values[key] = kind(value)
            except ValueError as error:
                problems.append(f"{where}: {error}")
    return SECTIONS[section](**values)


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
