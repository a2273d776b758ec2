"""Changes numbers in a `holdfast.toml` and nothing else: comments, order, spacing and the rest stay as they are.

The standard library reads TOML and does not write it, so the lines themselves are edited: a key that is there has its
number exchanged, one that is not is put into its section, and a section that is not there is put at the end.

Promises: what is written was read back first, and says what it should: the wanted values, and every other value as
before. Otherwise nothing is written (`BadInput`). The new file takes the place of the old in one step, with its rights,
after the old one was kept as `NAME.before`; a crash leaves the one or the other. Does not promise anything about two
people who edit at once: the last one wins.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.errors import BadInput

KEPT: Final = ".before"
_HEADING: Final = re.compile(r"\s*\[(?!\[)\s*([A-Za-z0-9_-]+)\s*\]\s*(?:#.*)?$")
_ANY_HEADING: Final = re.compile(r"\s*\[")
_VALUE: Final = r"(?P<before>\s*[\"']?{name}[\"']?\s*=\s*)(?P<value>[^#\s][^#]*?)(?P<after>\s*(?:#.*)?)$"


def edited(text: str, changes: Mapping[str, float]) -> str:
    """The text with these values (`scheduler.job_ttl`: 24.0). `BadInput`: this cannot be done safely."""
    before = _document(text)
    lines = text.splitlines(keepends=True)
    end = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        lines = _put(lines, section, key, _number(value), end)
    after = "".join(lines)
    wanted = _flat(before) | dict(changes)
    try:
        found = _flat(_document(after))
    except BadInput:
        found = {}
    if found != wanted:
        named = ", ".join(changes)
        raise BadInput("settings", f"{named} cannot be changed in this file safely", "write the values there yourself")
    return after


def difference(before: str, after: str, name: str) -> str:
    """What changes, as `diff -u` shows it."""
    return "".join(difflib.unified_diff(_ended(before), _ended(after), f"a/{name}", f"b/{name}"))


def write(path: Path, before: str, after: str) -> Path | None:
    """Put the new text in place of the old in one step. Returns where the old one was kept; None: there was none."""
    target = path.resolve()  # a link stays a link
    kept = None
    mode = 0o644
    if target.exists():
        if target.read_bytes() != before.encode():
            raise BadInput(str(path), "was changed by somebody meanwhile", "look at it, and try again")
        mode = stat.S_IMODE(target.stat().st_mode)
        kept = target.with_name(target.name + KEPT)
        _replace(kept, before, mode)
    _replace(target, after, mode)
    return kept


def _replace(path: Path, text: str, mode: int) -> None:
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise BadInput(str(path), f"cannot be written: {error.strerror}", "change its rights") from None
    try:
        with os.fdopen(number, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        if isinstance(error, OSError):
            raise BadInput(
                str(path), f"cannot be written: {error.strerror}", "make room, or change its rights"
            ) from None
        raise


def _put(lines: list[str], section: str, key: str, value: str, end: str) -> list[str]:
    begin, stop = _span(lines, section)
    if begin is None:
        gap = [end] if lines and lines[-1].strip() else []
        if lines and not lines[-1].endswith("\n"):
            lines = [*lines[:-1], lines[-1] + end]
        return [*lines, *gap, f"[{section}]{end}", f"{key} = {value}{end}"]
    pattern = re.compile(_VALUE.format(name=re.escape(key)))
    for place in range(begin, stop):
        bare = lines[place].rstrip("\r\n")
        if found := pattern.match(bare):
            rest = lines[place][len(bare) :]
            return [*lines[:place], f"{found['before']}{value}{found['after']}{rest}", *lines[place + 1 :]]
    last = max((place for place in range(begin, stop) if lines[place].strip()), default=begin - 1)
    if last >= 0 and not lines[last].endswith("\n"):
        lines = [*lines[:last], lines[last] + end, *lines[last + 1 :]]
    return [*lines[: last + 1], f"{key} = {value}{end}", *lines[last + 1 :]]


def _span(lines: list[str], section: str) -> tuple[int | None, int]:
    """The lines of a section, without its heading. None: it has none."""
    begin: int | None = None if section else 0
    for place, line in enumerate(lines):
        heading = _HEADING.match(line.rstrip("\r\n"))
        if begin is not None and _ANY_HEADING.match(line) and place >= begin:
            return begin, place
        if begin is None and heading and heading[1] == section:
            begin = place + 1
    return begin, len(lines)


def _document(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput("settings", str(error), "write the file as TOML first") from None


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _ended(text: str) -> list[str]:
    return [line if line.endswith("\n") else line + "\n" for line in text.splitlines(keepends=True)]
