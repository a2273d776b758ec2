"""Printing of the command line: tables and JSON on stdout, messages on stderr.

Colors only on a terminal, and none when `NO_COLOR` is set. Names and owners are external input: they are never read as
markup, and their control characters are escaped before they reach a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.errors import BackendError, Misconfigured, RowMissing
from holdfast.leases.inspection import Inspection

T = TypeVar("T")

PLAIN_WIDTH = 160  # for pipes and files, whose width is unknown
WIDE = 10_000


def out() -> Console:
    """Standard output."""
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, emoji=False, width=_width())


def put_table(table: Table) -> None:
    """Print a table on stdout, one line per row however long: rows stay searchable, and a terminal wraps them."""
    console = Console(highlight=False, markup=False, emoji=False, width=WIDE)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def _width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else PLAIN_WIDTH


def print_note(text: str) -> None:
    """Print one line on stderr, with our name as prefix."""
    put_line(note_line(text))


@contextlib.contextmanager
def named_in_errors(place: str) -> Iterator[None]:
    """Add the used store or database to errors of the block, if the error itself does not know its origin.

    Only for errors that depend on it: an unreachable store, a missing row.
    """
    try:
        yield
    except (BackendError, RowMissing) as error:
        if not isinstance(error, Misconfigured):
            error.add_note(place)
        raise


def note_line(text: str) -> str:
    """The line that `print_note` prints."""
    return f"holdfast: {printable(text)}"


def put_line(line: str) -> None:
    """Print a line on stderr. A missing reader must not disturb the caller."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def put_json(value: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
    """Print one JSON value on one line of stdout, without buffering."""
    print(json_line(value), flush=True)


def json_line(value: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> str:
    """One JSON value on one line."""
    return json.dumps(value if isinstance(value, dict) else list(value), ensure_ascii=False)


def put_page(
    items: Sequence[T],
    following: str | None,
    as_dict: Callable[[T], Mapping[str, Any]],
    table: Callable[[Sequence[T]], Table],
    *,
    what: str,
    json: bool,
) -> None:
    """One page of a list. `following`: the cursor of the next page, if there is one; `what`: the plural of an item."""
    if json:
        put_json({"items": [as_dict(each) for each in items], "next": following})
    elif not items:
        put_none(what)
    else:
        put_table(table(items))
        if following is not None:
            out().print(cell(f"(there are more: --after {following})", "dim"), soft_wrap=True)


def put_none(what: str) -> None:
    """Print that a list is empty. `what`: the plural of an item."""
    out().print(cell(f"No {what} found."), soft_wrap=True)


def printable(text: str) -> str:
    """The text on one line, without terminal control characters."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return " " if character == "\n" else character.encode("unicode_escape", "backslashreplace").decode()


def seconds(value: float | None) -> str:
    """A duration as people write it."""
    if value is None:
        return "?"
    if value < 0:
        return "0 s"
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24:02d} h"


def since(look: Inspection) -> str:
    """When the lock was taken, in local time."""
    return "?" if look.since is None else moment(look.since)


def moment(at: datetime) -> str:
    """A moment of today as a time, any other with its date."""
    local = at.astimezone()
    today = datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%Y-%m-%d %H:%M:%S}"


def fence(look: Inspection) -> str:
    """The fence, or that the holder has none."""
    return "none: another library" if look.fence is None else str(look.fence)


def plain_table(*columns: tuple[str, str]) -> Table:
    """A table without lines; columns are pairs of heading and justification. Names are cut if they do not fit."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading, justify in columns:
        right = justify == "right"
        table.add_column(
            heading,
            justify="right" if right else "left",
            no_wrap=right,  # keeps its width, and names are cut instead
            overflow="ellipsis",
            min_width=len(heading),
        )
    return table


def cell(text: str, style: str = "") -> Text:
    """Text for a table cell, without markup."""
    return Text(printable(text), style=style)
