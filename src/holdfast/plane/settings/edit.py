"""Changes numbers in a `holdfast.toml` and keeps everything else: comments, order and spacing.

The standard library reads TOML but does not write it, so the text itself is edited. The number of an existing key is
replaced. A new key is added to its section (below `[scheduler]`, next to `scheduler.job_ttl = 60`, or into
`scheduler = { job_ttl = 60 }`), and a new section is added at the end.

Promises: the new text is parsed before it is written. It must contain the new values, and every other value unchanged;
otherwise nothing is written (`BadInput`). The new file replaces the old one in one step, with its permissions, after
the old one was saved as `NAME.before`; a crash leaves one or the other. Does not promise anything about two people who
edit at the same time: the last one wins.
"""

from __future__ import annotations

import difflib
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.core.strict_parsers import NotToml, toml_of
from holdfast.errors import BadInput
from holdfast.plane.settings.toml_positions import TomlForm, TomlPosition, positions
from holdfast.runtime.durable_files import PRIVATE, replace_file

KEPT: Final = ".before"


def edited(text: str, changes: Mapping[str, float]) -> str:
    """The text with these values (`scheduler.job_ttl`: 24.0). `BadInput`: no safe edit exists."""
    wanted = _document(text)
    after = text
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        after = _put(after, section, key, _number(value))
        table = wanted.setdefault(section, {}) if section else wanted
        table[key] = tomllib.loads(f"x = {_number(value)}")["x"]
    try:
        found = _document(after)
    except BadInput:
        found = {}
    if not _same(found, wanted):
        lines = "; ".join(f"{name} = {_number(value)}" for name, value in changes.items())
        raise BadInput("settings", "they cannot be changed in this file safely", f"write there yourself: {lines}")
    return after


def difference(before: str, after: str, name: str) -> str:
    """The change, as `diff -u` prints it."""
    return "".join(difflib.unified_diff(_ended(before), _ended(after), f"a/{name}", f"b/{name}"))


def write(path: Path, before: str, after: str) -> Path | None:
    """Replace the old text in one step. Returns the path of the saved old file; None: there was none."""
    target = path.resolve()  # a link stays a link
    kept = None
    mode = PRIVATE  # settings may hold the password of a store
    if target.exists():
        if target.read_bytes() != before.encode():
            raise BadInput(str(path), "was changed in the meantime", "read it, and try again")
        mode = stat.S_IMODE(target.stat().st_mode)
        kept = target.with_name(target.name + KEPT)
        _replace(kept, before, mode)
    _replace(target, after, mode)
    return kept


def _replace(path: Path, text: str, mode: int) -> None:
    try:
        replace_file(path, text.encode(), mode)
    except OSError as error:
        raise BadInput(str(path), f"cannot be written: {error.strerror}", "free space, or change permissions") from None


def _put(text: str, section: str, key: str, value: str) -> str:
    """The text with one value: replaced where the key is, else added to its section, else with a new section."""
    table, line = (section,) if section else (), f"{key} = {value}"
    found = list(positions(text))
    pairs = [each for each in found if each.form in {TomlForm.VALUE, TomlForm.INLINE}]
    for each in pairs:
        if each.path == (*table, key):
            return text[: each.value] + value + text[each.end :]
    heading = None
    for each in found:
        if each.path == table and each.form is TomlForm.INLINE:
            members = [one for one in pairs if one.inside and one.under == table]
            return _into_braces(text, each, members, line)
        if each.path == table and each.form is not TomlForm.HEADING:
            raise _no_table(text, each, section, line)
        heading = each if each.path == table else heading
    if heading is not None or not section:
        below = [each for each in pairs if each.under == table]
        return _below(text, below[-1] if below else heading, line)
    dotted = [each for each in pairs if each.path[0] == section and not each.under]
    return _below(text, dotted[-1], f"{section}.{line}") if dotted else _at_the_end(text, f"[{section}]", line)


def _into_braces(text: str, table: TomlPosition, members: list[TomlPosition], line: str) -> str:
    if members:
        return f"{text[: members[-1].end]}, {line}{text[members[-1].end :]}"
    return f"{text[: table.value]}{{ {line} }}{text[table.end :]}"


def _below(text: str, position: TomlPosition | None, line: str) -> str:
    """A new line after the one of `position`, indented like it. None: before the first heading."""
    end = _line_end(text)
    if position is None:
        first = next((each.begin for each in positions(text)), len(text))
        last, indent = len(text[:first].rstrip()), ""
        if not last:
            return f"{line}{end}{text}"
    else:
        last, indent = position.end, text[text.rfind("\n", 0, position.begin) + 1 : position.begin]
    stop = text.find("\n", last) + 1
    return f"{text[:stop]}{indent}{line}{end}{text[stop:]}" if stop else f"{text}{end}{indent}{line}{end}"


def _at_the_end(text: str, *lines: str) -> str:
    end = _line_end(text)
    begun = text if not text or text.endswith("\n") else text + end
    gap = "" if not begun.strip() or begun.endswith(("\n\n", "\n\r\n")) else end
    return "".join((begun, gap, *(line + end for line in lines)))


def _line_end(text: str) -> str:
    return "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"


def _no_table(text: str, position: TomlPosition, section: str, line: str) -> BadInput:
    number = position.line(text)
    written = text.split("\n")[number - 1].strip()
    return BadInput(
        "settings",
        f"line {number}, {written}: is not a table of settings",
        f"write [{section}] there, and below it {line}",
    )


def _document(text: str) -> dict[str, Any]:
    try:
        return toml_of(text)
    except NotToml as error:
        raise BadInput("settings", str(error), "write the file as TOML first") from None


def _same(one: object, other: object) -> bool:
    """Whether two documents are equal, including the type of each value."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))  # nan equals nan


def _number(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _ended(text: str) -> list[str]:
    return [line if line.endswith("\n") else line + "\n" for line in text.splitlines(keepends=True)]
