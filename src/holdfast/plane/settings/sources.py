"""Sources of settings: flags take precedence over the environment, then `holdfast.toml`, then defaults.

Promises: unknown keys, values of the wrong type and conflicting values are refused, each with its position and a fix,
all in one error. A misspelled key is never ignored, in the environment neither. Only the file is opened.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.core.strict_parsers import NotToml, toml_of
from holdfast.errors import BadInput
from holdfast.plane.settings import consistency
from holdfast.plane.settings.settings import FILE, KEYS, PREFIX, SECTIONS, Key, Origin, Settings
from holdfast.plane.settings.toml_positions import positions

CONFIG_VARIABLE: Final = f"{PREFIX}_CONFIG"
FILE_BYTES_MAX: Final = 1_000_000

OTHERS: Final = frozenset(
    f"{PREFIX}_{name}"
    for name in (
        *("CONFIG", "URL", "DEBUG", "GUARD_DATABASE", "LEDGER", "METRICS_TOKEN"),  # of commands
        *("KEY", "OWNER", "FENCE", "DEADLINE"),  # that `holdfast run` gives to its command
        *("NATS_PLANE", "NATS_WORKER", "NATS_API"),  # passwords, in the output of `holdfast access nats`
    )
)
"""Variables of Holdfast that are no settings."""

_OTHERS_BEGIN: Final = f"{PREFIX}_DRILL_"
# Variables that Kubernetes sets in every container next to a service named holdfast, or holdfast-something.
_LINKED: Final = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)\Z")
_LINK: Final = re.compile(r"(tcp|udp|sctp)://")


class BadSettings(BadInput):
    """The settings cannot be used. `problems` has all errors; the text is the first."""

    def __init__(self, problems: tuple[BadInput, ...]) -> None:
        first, more = problems[0], len(problems) - 1
        rest = f" (and {more} more: holdfast up --check)" if more else ""
        super().__init__(first.field, first.problem, f"{first.fix}{rest}")
        self.problems = problems


class FlagValue(NamedTuple):
    """The value of a flag that is not named after its key."""

    flag: str
    value: object


class _Reading:
    """Values and problems found so far."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.problems: list[BadInput] = []

    def put(self, key: Key, origin: Origin, raw: object, *, text: bool = False) -> None:
        """Set one value. It replaces one from a source with lower precedence."""
        where = f"{origin} ({key.name})" if origin.kind == "environment" else f"{origin}: {key.name}"
        where = origin.name if origin.name == f"--{key.name}" else where
        try:
            read = key.kind.parse if text else key.kind.check
            self.values[key.name] = read(where, raw)  # type: ignore[arg-type]  # text, if it was said to be
            self.origins[key.name] = origin
        except BadInput as error:
            self.problems.append(error)


def load(
    config: str | Path | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    only_database: bool = False,
) -> Settings:
    """Read the settings, or raise `BadSettings`.

    The file is `config`, else `$HOLDFAST_CONFIG`, else `holdfast.toml` in the directory if it exists. `flags` are
    values by key, or `FlagValue` ones; None stands for a flag that was not given. `only_database`: nothing else will be
    opened.
    """
    variables = os.environ if environment is None else environment
    reading = _Reading()
    path = _file(config, variables, directory or Path.cwd())
    if path is not None:
        _read_file(reading, path)
    _read_environment(reading, variables)
    for name, value in (flags or {}).items():
        if value is not None:
            key = KEYS[name]
            flag, given = value if isinstance(value, FlagValue) else (key.flag or f"--{name}", value)
            reading.put(key, Origin("flag", flag), given)
    settings = _settings(reading, path)
    problems = reading.problems or consistency.problems(settings, only_database=only_database)
    if problems:
        raise BadSettings(tuple(problems))
    return settings


def _settings(reading: _Reading, path: Path | None) -> Settings:
    trees = {
        section: made(**{name: value for owner, name, value in _split(reading.values) if owner == section})
        for section, made in SECTIONS.items()
    }
    own = {name: value for owner, name, value in _split(reading.values) if not owner}
    return Settings(**own, **trees, origins=reading.origins, file=None if path is None else str(path))


def _split(values: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for name, value in values.items():
        section, _, last = name.rpartition(".")
        yield section, last, value


# The file.


def _file(config: str | Path | None, variables: Mapping[str, str], directory: Path) -> Path | None:
    if config == "":
        raise BadSettings((BadInput("--config", "is empty", "name a file, or leave it out"),))
    named = config or variables.get(CONFIG_VARIABLE)
    if not named:
        path = directory / FILE
        return path if path.exists() else None
    if "\0" in str(named):
        raise BadSettings((BadInput("config", "contains a zero character", "name a file"),))
    return Path(named)


def _read_file(reading: _Reading, path: Path) -> None:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BadSettings((BadInput(str(path), "is too large for settings", "name another file"),))
        text = path.read_text(encoding="utf-8")
        document = toml_of(text)
    except NotToml as error:
        fix = "write it as TOML: name = value, text in quotes, sections in [brackets]"
        raise BadSettings((BadInput(str(path), str(error), fix),)) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadSettings((BadInput(str(path), f"cannot be read: {reason}", "name a file with --config"),)) from None
    lines = {".".join(each.path): each.line(text) for each in positions(text)}
    for name, value, whole in _found(document):
        line = lines.get(name)
        origin = Origin("file", f"{path.name}:{line}" if line else path.name)
        if name in KEYS:
            reading.put(KEYS[name], origin, value)
        elif name in SECTIONS:
            fix = f"write [{name}], and its keys below"
            reading.problems.append(BadInput(f"{origin}: {name}", "is a section, not a key", fix))
        else:
            kind = "section" if whole else "key"
            reading.problems.append(BadInput(f"{origin}: {name}", f"is not a {kind}", _nearest(name)))


def _found(document: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Every key with its value; an unknown section as a whole."""
    for name, value in document.items():
        if name in SECTIONS and isinstance(value, dict):
            yield from ((f"{name}.{each}", inner, False) for each, inner in value.items())
        else:
            yield name, value, isinstance(value, dict)


# The environment.


def _read_environment(reading: _Reading, variables: Mapping[str, str]) -> None:
    known = {key.variable: key for key in KEYS.values()}
    for variable, text in sorted(variables.items()):
        if variable in known and text:
            reading.put(known[variable], Origin("environment", variable), text, text=True)
        elif variable.startswith(f"{PREFIX}_") and variable not in known and not _is_another(variable, text):
            near = difflib.get_close_matches(variable, known, n=1, cutoff=0.7)
            fix = f"did you mean ${near[0]}?" if near else "unset it; holdfast up --check lists what there is"
            reading.problems.append(BadInput(f"${variable}", "is not a setting", fix))


def _is_another(variable: str, text: str) -> bool:
    """Whether a variable that looks like a setting is known to be something else."""
    linked = _LINKED.match(variable) or (variable.endswith("_PORT") and _LINK.match(text))
    return variable in OTHERS or variable.startswith(_OTHERS_BEGIN) or bool(linked)


def _nearest(name: str) -> str:
    last = name.rpartition(".")[2]
    elsewhere = [key for key in KEYS if key.rpartition(".")[2] == last]
    near = elsewhere or difflib.get_close_matches(name, [*KEYS, *SECTIONS], n=1, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else "remove it; holdfast up --check lists all keys"
