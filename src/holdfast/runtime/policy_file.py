"""Changing a risk class or the busy jitter in a policy file, as a careful person would: the rest stays as it is.

Promises: whoever reads the file while it is edited sees the old one or the new one, and never a part; once edited, it
stays so through a loss of power. What cannot be edited safely (an inline table, a class named twice) is refused and
left alone. Does not promise that two editors do not overwrite each other: use one place to edit, or a plane, which
keeps its policy in a database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.core.lease.error_policy import BUSY_JITTER_MAX_NS, OnError, parse_busy_jitter, parse_mode, parse_policy
from holdfast.errors import BadInput
from holdfast.runtime.fsync import replace_file
from holdfast.runtime.private_files import PRIVATE
from holdfast.runtime.strict_toml import NotToml, toml_of
from holdfast.types import NS, check_label, duration_ns

_HEADING: Final = re.compile(r"\s*\[")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_WHAT: Final = "policy file"


def edited(text: str, risk: str, mode: OnError) -> str:
    """The text of a policy file in which one class does something else, or `BadInput`."""
    return _edited(text, "risk", risk, f'"{mode}"', {**_classes(text), risk: mode}, _classes)


def _edited(text: str, table: str, risk: str, value: str, wanted: object, read: Callable[[str], object]) -> str:
    """`read` finds what is `wanted` in the text that is returned."""
    heading = re.compile(rf"""\s*\[\s*(?:{table}|"{table}"|'{table}')\s*\]\s*(?:#.*)?$""")
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    name = risk if _BARE.match(risk) else f'"{risk}"'
    begin = next((number for number, line in enumerate(lines) if heading.match(line)), None)
    if begin is None:
        lines += [*([""] if lines and lines[-1].strip() else []), f"[{table}]", f"{name} = {value}"]
    else:
        end = next((n for n in range(begin + 1, len(lines)) if _HEADING.match(lines[n])), len(lines))
        own = re.compile(
            rf"""(\s*(?:{re.escape(risk)}|"{re.escape(risk)}"|'{re.escape(risk)}')\s*=\s*)"""
            r"""(?:"[\w.]*"|'[\w.]*'|[\d.]+)(.*)$"""
        )
        at = next((n for n in range(begin + 1, end) if own.match(lines[n])), None)
        if at is not None:
            lines[at] = own.sub(rf"\g<1>{value}\g<2>", lines[at])
        else:
            last = max((n for n in range(begin, end) if lines[n].strip()), default=begin)
            lines.insert(last + 1, f"{name} = {value}")
    made = ending.join(lines) + ending
    try:
        found = read(made)
    except BadInput:
        found = None
    if found != wanted:
        raise BadInput(_WHAT, "is written in a way that cannot be edited here", "edit it by hand")
    return made


def edit_policy_file(path: Path, risk: str, mode: OnError | str) -> tuple[OnError, OnError]:
    """Make a risk class do something else in a file, which is made if it is not there. Before, and after.

    A process that follows the file takes it over when it next matters, without a restart.
    """
    wanted = parse_mode("mode", mode)
    check_label("risk", risk)
    text = _replaced(path, lambda text: edited(text, risk, wanted))
    return _classes(text).get(risk, OnError.FAIL_CLOSED), wanted


def edit_jitter(path: Path, seconds: float) -> tuple[float, float]:
    """Set the busy jitter of a plane in its policy file, likewise. Before, and after."""
    value = f"{duration_ns('busy_jitter', seconds, high_ns=BUSY_JITTER_MAX_NS) / NS:.9g}"
    wanted = float(value)
    text = _replaced(path, lambda text: _edited(text, "scheduler", "busy_jitter", value, wanted, _jitter))
    return _jitter(text) or 0.0, wanted


def _replaced(path: Path, edit: Callable[[str], str]) -> str:
    """The text of the file before it was replaced."""
    place = path.resolve()  # a link stays a link
    try:
        text = place.read_bytes().decode("utf-8") if place.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadInput(f"{_WHAT} {path.name}", f"cannot be read: {reason}", "check the path and the rights") from None
    made = edit(text)
    try:
        rights = place.stat().st_mode & 0o7777 if place.exists() else PRIVATE
        replace_file(place, made.encode(), rights)
    except OSError as error:
        fix = "check the rights of its folder"
        raise BadInput(f"{_WHAT} {path.name}", f"cannot be written: {error.strerror}", fix) from None
    return text


def _classes(text: str) -> dict[str, OnError]:
    return dict(parse_policy(_tables(text).get("risk", {}), _WHAT).classes)


def _jitter(text: str) -> float | None:
    return parse_busy_jitter(_tables(text).get("scheduler", {}), _WHAT)


def _tables(text: str) -> Mapping[str, Any]:
    try:
        return toml_of(text)
    except NotToml as error:
        raise BadInput(_WHAT, f"is not TOML: {error}", 'write e.g. [risk] low = "fail_open"') from error
