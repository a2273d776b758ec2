"""Statements that are put in a transaction together, as one statement for Postgres.

Each becomes a part of one `WITH`, and all of them are one round trip. The server runs the parts in their order, as the
rows of the answer are asked for one after the other; it runs each to its end; and constraints are checked when all are
done. None of them sees what another has written, and what two of them write to the same row is not defined: callers
must not put such statements. Each must have a RETURNING clause, so that its rows can be counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from holdfast.plane.db.statements import compiled

REFUSED: Final = "22012"
"""The code of the error in which a statement ends whose parts did not write what they had to."""

TOGETHER_MAX: Final = 8
"""So many go into one statement: each combination is a plan of its own, in the server and in the driver."""


class Put(NamedTuple):
    """One of them."""

    statement: str  # with places written `:name`
    values: tuple[Any, ...]
    rows: int | None  # how many it has to write; None: whatever it finds


def together(kept: Sequence[Put], *, checked: bool = False) -> tuple[str, tuple[Any, ...]]:
    """One statement that does what they do. Its answer is a row for each, in order: the `number` of its rows.

    `checked`: if one does not write as many rows as it has to, the statement ends in `REFUSED` and writes nothing.
    """
    numbered = tuple(checked and each.rows is not None for each in kept)
    values = [value for each in kept for value in each.values]
    values += [each.rows for each, has in zip(kept, numbered, strict=True) if has]
    return _text(tuple(each.statement for each in kept), numbered), tuple(values)


@lru_cache(maxsize=256)
def _text(statements: tuple[str, ...], numbered: tuple[bool, ...]) -> str:
    parts: list[str] = []
    places = 0
    for number, statement in enumerate(statements):
        ready = compiled(statement, "postgres", places)
        places += len(ready.names)
        parts.append(f"put_{number} AS (\n{ready.text}\n)")
    counts: list[str] = []
    for number, has in enumerate(numbered):
        places += has
        # To divide by zero is the one way to end a statement in an error without a function of one's own.
        check = f" / CASE WHEN count(*) = ${places} THEN 1 ELSE 0 END" if has else ""
        counts.append(f"SELECT count(*){check} AS number FROM put_{number}")  # noqa: S608 - a number of ours
    return f"WITH {', '.join(parts)}\n{' UNION ALL '.join(counts)}"
