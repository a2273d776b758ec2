"""Statements as the plane writes them (`:name`), as each driver wants them; and values that every engine takes alike.

Promises: one statement and one mapping mean the same in both dialects. A name in a string, a quoted identifier, a
comment, a dollar quote, or after a second colon (a cast) is not a place. What one of the engines would refuse or bend
(a zero character, a number past 64 bits, NaN, half a surrogate pair) is refused for both, before anything is sent.
Whole numbers are 64 bits wide in both.

`put_many` runs one statement for many rows. SQLite runs it once for each row without leaving the process. Postgres gets
all rows in one statement, as a JSON array, because a statement for each of them costs the client more than the server.
Both mean the same.

Does not promise to understand SQL: nested comments end at the first `*/`, and a slice `a[x:y]` of names needs spaces.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from operator import itemgetter
from typing import Any, Final

from holdfast.errors import BadInput, RowMissing
from holdfast.plane.db.ports import Dialect, Tx

_BRIEF: Final = """id, tenant, topic, pool, state, attempt, max_attempts, created_ns, updated_ns, version,
    holdfast_fence, run_fence, worker, reason"""

# The columns of a job without its payload and result, and those of the status page.
_OUTLINE: Final = """id, tenant, topic, pool, state, priority, attempt, max_attempts, created_ns, updated_ns, version,
    holdfast_fence, run_fence, worker, reason, code, idempotency_key, timeout_ns, deadline_ns, not_before_ns,
    submitted_by, trace, labels"""

_SQL: Final = files("holdfast.plane") / "sql"

_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**63 - 1

# `'it''s'` is read as two strings side by side, which is right for what is asked here.
_TOKEN: Final = re.compile(
    r"""
    (?<![A-Za-z0-9_]) [eE] ' (?: [^'\\] | \\. )* '
    | ' [^']* '
    | " [^"]* "
    | -- [^\n]*
    | /\* .*? \*/
    | (?P<quote> \$ (?: [A-Za-z_]\w* )? \$ ) .*? (?P=quote)
    | ::
    | : (?P<name> [A-Za-z_]\w* )
    | (?P<number> (?<!\w) \$ [0-9]+ | \? )
    | (?P<end> ; )
    """,
    re.VERBOSE | re.DOTALL,
)
_FIRST_WORD: Final = re.compile(r"(?: \s | -- [^\n]* (?:\n|\Z) | /\* .*? \*/ )* (\w*)", re.VERBOSE | re.DOTALL)
# Works share transactions: one that ended its own would end its neighbors'.
_NOT_IN_A_WORK: Final = frozenset(
    (
        *("abort", "begin", "commit", "end", "prepare", "release", "rollback", "savepoint", "start"),
        *("attach", "detach", "vacuum"),
    )
)
_LOOKING: Final = frozenset(("select", "with"))
_WRITES: Final = re.compile(r"\b(insert|update|delete|merge|into|for\s+(key\s+)?share)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, ready for a driver."""

    text: str
    names: tuple[str, ...]  # of its places, which are numbered in this order
    reads: bool  # it only looks: no word in it is one that writes, or locks
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]]  # the values of its places, from a mapping that has them

    def ordered(self, parameters: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """The values of its places in order. Those that it does not mention are left out."""
        if not self.names:
            return ()
        try:
            values = self.pick(parameters or {})
        except KeyError as missing:
            name = missing.args[0]
            raise BadInput(f"parameters[{name}]", f"the place :{name} has no value", "give one, or None") from None
        for value in values:  # the usual ones are let through here: this is done for every value of every row
            kind = type(value)
            if kind is str:
                if "\0" in value:
                    break
            elif kind is int:
                if not _INT_MIN <= value <= _INT_MAX:
                    break
            elif value is not None:
                break
        else:
            return values
        return tuple([value_of(name, value) for name, value in zip(self.names, values, strict=True)])


@lru_cache(maxsize=2048)
def compiled(text: str, dialect: Dialect, after: int = 0) -> Statement:
    """The statement for a dialect: SQLite gets `?1`, Postgres `$1`, or the number after `after`."""
    first = _FIRST_WORD.match(text)
    if first is not None and first[1].lower() in _NOT_IN_A_WORK:
        fix = "a work is inside a transaction already: return to commit it, raise to undo it"
        raise BadInput("statement", f"{first[1].upper()} cannot be run here", fix)
    numbers: dict[str, int] = {}
    parts: list[str] = []
    words: list[str] = []  # what is left without strings, comments and places
    done = seen = 0
    for token in _TOKEN.finditer(text):
        words.append(text[seen : token.start()])
        seen = token.end()
        if token["number"] is not None and (dialect == "sqlite" or token["number"] != "?"):
            raise BadInput("statement", f"has the place {token['number']}", "write places as :name")
        if token["end"] is not None and dialect == "postgres" and _says_something(text[token.end() :]):
            # SQLite's driver sees to it itself, and a trigger has semicolons of its own.
            raise BadInput("statement", "is more than one", "run one statement at a time")
        if token["name"] is not None:
            number = numbers.setdefault(token["name"], after + len(numbers) + 1)
            parts += (text[done : token.start()], f"?{number}" if dialect == "sqlite" else f"${number}")
            done = token.end()
    words.append(text[seen:])
    reads = first is not None and first[1].lower() in _LOOKING and not any(map(_WRITES.search, words))
    return Statement("".join([*parts, text[done:]]), tuple(numbers), reads, _picking(tuple(numbers)))


def _picking(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Takes the values of these names, in their order, out of a mapping."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda given: tuple(given[name] for name in names)


def split(script: str, dialect: Dialect) -> Iterator[str]:
    """The statements of a script, one by one. What has only comments is none."""
    pending = ""
    for piece in _pieces(script):
        pending += piece
        # The body of a trigger has semicolons of its own, which only SQLite can tell from the last one.
        if dialect == "postgres" or sqlite3.complete_statement(pending):
            if _says_something(pending):
                yield pending.strip()
            pending = ""
    if _says_something(pending):
        yield pending.strip()


def value_of(name: str, value: Any) -> Any:
    """A value as a plain one that both engines take, or `BadInput`."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        if "\0" in value:
            raise BadInput(f"parameters[{name}]", "contains a zero character", "remove it")
        return str.__str__(value)  # an enumeration's member becomes its text
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise BadInput(f"parameters[{name}]", "is past the range of 64 bits", "give a smaller number, or text")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadInput(f"parameters[{name}]", f"{value} is not a number that can be stored", "give a finite one")
        return float(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    fix = "give text, bytes, a number, a truth value or None; JSON as text"
    raise BadInput(f"parameters[{name}]", f"{type(value).__name__} cannot be stored", fix)


def _pieces(script: str) -> Iterator[str]:
    done = 0
    for token in _TOKEN.finditer(script):
        if token["end"] is not None:
            yield script[done : token.end()]
            done = token.end()
    yield script[done:]


def _says_something(text: str) -> bool:
    first = _FIRST_WORD.match(text)
    return first is not None and bool(text[first.end(0) - len(first[1]) :].strip(" \t\r\n;"))


def sql(name: str) -> str:
    """The statement in the file of that name, with the columns of a job in place of `{outline}` and `{brief}`."""
    text = (_SQL / f"{name}.sql").read_text(encoding="utf-8")
    return text.replace("{outline}", _OUTLINE).replace("{brief}", _BRIEF)


@cache
def script(name: str, dialect: str) -> str:
    """The script of that name: `<name>_<dialect>.sql` where the dialects differ, else `<name>.sql`."""
    for path in (_SQL / f"{name}_{dialect}.sql", _SQL / f"{name}.sql"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise BadInput("name", f"there is no script {name!r}", "name one of the plane's sql files")


async def put_many(tx: Tx, name: str, rows: Sequence[Mapping[str, Any]], *, each: bool = False) -> None:
    """Put the statement of that name (in Postgres `<name>_many`) for each row; see `Tx.put`.

    `each`: every one of them has to change a row, or it is `RowMissing`, and nothing of the transaction is written.
    """
    if not rows:
        return
    if tx.dialect == "sqlite":
        changed = await tx.query_many(script(name, "sqlite"), rows)
        if each and changed != len(rows):
            raise RowMissing(f"{changed} rows were written where there should have been {len(rows)}")
        return
    text = json.dumps(rows, separators=(",", ":"))
    await tx.put(script(f"{name}_many", "postgres"), {"rows": text}, rows=len(rows) if each else None)
