"""Positions of keys in a TOML text: line, value, and the table around them.

The standard library reads TOML but returns no positions. This is not a second parser: `tomllib` must have read the
text, and the values are those of `tomllib`. Every form of a table is known: `[scheduler]`, `scheduler.job_ttl = 60`,
`scheduler = { job_ttl = 60 }`. Keys inside a list have no position, because their table has no name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

LISTED: Final = "[]"
"""In a path: the last table of a list of tables, which has no name. Not a valid bare key."""

_GAP: Final = re.compile(r"[ \t]*")
_ANY_GAP: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_SCALAR: Final = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}'''  # over several lines; up to two quotes may precede the end
    r"""|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'"""
    r"""|[^\s,#\]}]+(?:\ [0-9][^\s,#\]}]*)?""",  # a date may have a space before its time
    re.DOTALL,
)


class TomlForm(Enum):
    """The kind of text at a position."""

    HEADING = auto()  # [table]
    LIST_HEADING = auto()  # [[table]]
    VALUE = auto()  # key = value
    INLINE = auto()  # key = { … }


class TomlPosition(NamedTuple):
    """The position of one key or heading."""

    path: tuple[str, ...]
    form: TomlForm
    begin: int  # of the key, or of the bracket
    value: int  # where the value begins
    end: int  # after the value, or the bracket
    under: tuple[str, ...]  # the table of the heading above it, or of the braces around it
    inside: bool = False  # of braces

    def line(self, text: str) -> int:
        """Its line number, from 1."""
        return text.count("\n", 0, self.begin) + 1


def positions(text: str) -> Iterator[TomlPosition]:
    """All positions in order. The text must be TOML."""
    at = 0
    under: tuple[str, ...] = ()
    lists: set[tuple[str, ...]] = set()
    while (at := _skip(_ANY_GAP, text, at)) < len(text):
        if text[at] != "[":
            found = _pair(text, at, under)
            yield from found
            at = found[0].end
            continue
        brackets = 2 if text.startswith("[[", at) else 1
        name, end = _name(text, at + brackets)
        path = _through(name, lists)
        if brackets == 2:
            lists.add(path)
        yield TomlPosition(
            path, TomlForm.LIST_HEADING if brackets == 2 else TomlForm.HEADING, at, at, end + brackets, path[:-1]
        )
        under, at = (*path, LISTED) if brackets == 2 else path, end + brackets


def _through(name: tuple[str, ...], lists: set[tuple[str, ...]]) -> tuple[str, ...]:
    """The full path of a heading: below a list of tables it belongs to the last of them."""
    path: tuple[str, ...] = ()
    for part in name:
        path = (*path, LISTED, part) if path in lists else (*path, part)
    return path


def _pair(text: str, at: int, under: tuple[str, ...], *, inside: bool = False) -> list[TomlPosition]:
    """A key with its value, then the keys inside of the value."""
    name, sign = _name(text, at)
    value = _skip(_GAP, text, sign + 1)
    path = (*under, *name)
    if text[value] != "{":
        return [TomlPosition(path, TomlForm.VALUE, at, value, _value_end(text, value), under, inside)]
    members, end = _braces(text, value, path)
    return [TomlPosition(path, TomlForm.INLINE, at, value, end, under, inside), *members]


def _braces(text: str, at: int, path: tuple[str, ...]) -> tuple[list[TomlPosition], int]:
    """The keys in an inline table, and the position of its end."""
    members: list[TomlPosition] = []
    here = _skip(_ANY_GAP, text, at + 1)
    while text[here] != "}":
        found = _pair(text, here, path, inside=True)
        members += found
        here = _next(text, found[0].end)
    return members, here + 1


def _name(text: str, at: int) -> tuple[tuple[str, ...], int]:
    """A key, possibly dotted, and the position of the character after it."""
    parts: list[str] = []
    while True:
        found = _KEY.match(text, _skip(_GAP, text, at))
        if found is None:
            raise ValueError(f"no key at {at}")  # the text is no TOML
        parts.append(next(iter(tomllib.loads(f"{found[0]} = 0"))))
        end = _skip(_GAP, text, found.end())
        if text[end] != ".":
            return tuple(parts), end
        at = end + 1


def _value_end(text: str, at: int) -> int:
    if text[at] == "{":
        return _braces(text, at, ())[1]
    if text[at] != "[":
        found = _SCALAR.match(text, at)
        if found is None:
            raise ValueError(f"no value at {at}")  # the text is no TOML
        return found.end()
    here = _skip(_ANY_GAP, text, at + 1)
    while text[here] != "]":
        here = _next(text, _value_end(text, here))
    return here + 1


def _next(text: str, at: int) -> int:
    """The position of the next key or of the closing bracket."""
    here = _skip(_ANY_GAP, text, at)
    return _skip(_ANY_GAP, text, here + 1) if text[here] == "," else here


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()
