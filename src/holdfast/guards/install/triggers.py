"""The triggers that hold every client of a table to the guard: their text, made from the files in `sql/`. Pure.

What they promise, and what not, is said at the top of `sql/triggers_sqlite.sql` and `sql/triggers_postgres.sql`. Names
come from `TableNames`, which has validated them; nothing else is put into the text.
"""

# ruff: noqa: S608 - names are validated and quoted in `names`, values are parameters

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

from holdfast.guards.settings import sql
from holdfast.guards.sql.identifiers import LEDGER_TABLE, NAME_CHARS_MAX, TableNames, quoted

PREFIX: Final = "holdfast_guard_"
MARK_TABLE: Final = "holdfast_guard_mark"

_PART: Final = re.compile(r"^-- part: (?P<name>\w+)(?: \((?P<mode>\w+)\))?$", re.MULTILINE)
_BLOCK: Final = re.compile(r"^ *-- if (?P<mode>\w+)\n(?P<text>.*?)^ *-- end\n", re.MULTILINE | re.DOTALL)
_PLACE: Final = re.compile(r"\{(\w+)\}")
_BODY: Final = re.compile(r"\$holdfast\$(.*)\$holdfast\$", re.DOTALL)
_MARKER: Final = re.compile(r"Holdfast guard: (\w+)\.")

# The bits of `pg_trigger.tgtype`.
_EVENTS: Final = {"INSERT": 4, "DELETE": 8, "UPDATE": 16, "TRUNCATE": 32}
_ROW, _BEFORE = 1, 2


class Trigger(StrEnum):
    """Which clients of a table are held to the guard, and how."""

    NONE = "none"  # those that use it
    RISING = "rising"  # every client: a fence never goes down; what mentions none is let through
    STRICT = "strict"  # every client: and what mentions none is refused


@dataclass(frozen=True, slots=True)
class TriggerPart:
    """One trigger: what makes it, what drops it, and how the catalogue of the database describes it."""

    name: str
    create: tuple[str, ...]
    drop: tuple[str, ...]
    definition: str


def mode_of(definitions: Mapping[str, str]) -> Trigger:
    """The mode of the triggers that were found, which may be incomplete; the stricter one if they are mixed."""
    said = {found[1] for text in definitions.values() if (found := _MARKER.search(text))}
    return next((mode for mode in (Trigger.STRICT, Trigger.RISING) if mode in said), Trigger.NONE)


def sqlite_parts(
    names: TableNames, mode: Trigger, other_unique: tuple[tuple[str, ...], ...]
) -> tuple[TriggerPart, ...]:
    """The triggers of a SQLite table. `other_unique`: the unique indexes by which REPLACE could remove other rows."""
    words = _words(names, mode) | {
        "mark": MARK_TABLE,
        "remember_victims": "".join(_victims(names, columns) for columns in other_unique) or "SELECT 1;",
        "held_is_new": _each(names, "held.{0} = NEW.{0}", " AND "),
        "is_new": _each(names, "{0} = NEW.{0}", " AND "),
        "id_changed": _each(names, "NEW.{0} IS NOT OLD.{0}", " OR "),
        "memory": "SELECT fence FROM {0} WHERE place = {1} AND resource = {2} UNION ALL "
        "SELECT fence FROM {3} WHERE place = {1} AND resource = {2} AND act = 'insert'".format(
            LEDGER_TABLE, _literal(names.table), _sqlite_id(names, "NEW."), MARK_TABLE
        ),
    }
    words |= {f"resource_{row}": _sqlite_id(names, f"{row.upper()}.") for row in ("old", "new")}
    words["level"] = (
        f"(SELECT max(level) FROM {MARK_TABLE} "
        f"WHERE place = {words['place']} AND resource = {words['resource_old']} AND act = 'update')"
    )
    parts = _parts("triggers_sqlite", mode)
    words |= {part: quoted(f"{PREFIX}{names.table}_{part}") for part in parts}
    result = []
    for part, template in parts.items():
        text = _filled(template, words)
        name = f"{PREFIX}{names.table}_{part}"
        result.append(TriggerPart(name, (text,), (f"DROP TRIGGER {quoted(name)}",), text))
    return tuple(result)


def postgres_parts(names: TableNames, mode: Trigger) -> tuple[TriggerPart, ...]:
    """The triggers of a Postgres table, with their functions. `names.schema` is known."""
    words = _words(names, mode) | {
        "schema": quoted(names.schema or ""),
        "shown_place": names.table,
        "held_is_new": _each(names, "held.{0} = NEW.{0}", " AND "),
        "is_new": _each(names, "{0} = NEW.{0}", " AND "),
        "id_changed": _each(names, "NEW.{0} IS DISTINCT FROM OLD.{0}", " OR "),
    }
    words |= {f"resource_{row}": _postgres_id(names, f"{row}.") for row in ("OLD", "NEW", "held")}
    words = {name.lower(): text for name, text in words.items()}
    result = []
    for part, template in _parts("triggers_postgres", mode).items():
        function, trigger = f"{words['schema']}.{quoted(function_name(names.table, part))}", _trigger_name(part)
        text = _filled(template, words | {"function": quoted(function_name(names.table, part))})
        text, _, event = text.partition("\n-- trigger: ")
        body = _BODY.search(text)
        result.append(
            TriggerPart(
                trigger,
                (text, f"CREATE TRIGGER {quoted(trigger)} {event} EXECUTE FUNCTION {function}()"),
                (f"DROP TRIGGER {quoted(trigger)} ON {names.sql}", f"DROP FUNCTION IF EXISTS {function}()"),
                postgres_definition(
                    body[1] if body else "",
                    function_name(names.table, part),
                    "SECURITY DEFINER" in text,
                    _tgtype(event),
                    names.fence_column if " OF " in event else "",
                    "O",
                    " WHEN " in event,
                ),
            )
        )
    return tuple(result)


def postgres_definition(
    body: str, function: str, definer: bool, tgtype: int, column: str, enabled: str, condition: bool
) -> str:
    """What the catalogue of Postgres says about a trigger and its function, as one text that can be compared."""
    return f"{function} {definer} {tgtype} {column} {enabled} {condition}\n{body.strip()}"


def function_name(table: str, part: str) -> str:
    """The name of a trigger function: functions are named per schema, so the table is in it."""
    name = f"{PREFIX}{table}_{part}"
    if len(name.encode()) <= NAME_CHARS_MAX:
        return name
    digest = sha256(table.encode()).hexdigest()[:12]
    kept = table.encode()[:20].decode(errors="ignore")
    return f"{PREFIX}{kept}_{digest}_{part}"


def postgres_functions(table: str) -> tuple[str, ...]:
    """The names of all functions that any mode would make."""
    return tuple(function_name(table, found["name"]) for found in _PART.finditer(sql("triggers_postgres")))


def _trigger_name(part: str) -> str:
    # The two that mark and unmark the fence have to be neighbors in the order of names, and in this order.
    order = {"present": "1_", "require": "2_"}.get(part, "")
    return f"{PREFIX}{order}{part}"


def _tgtype(event: str) -> int:
    words = event.split()
    bits = sum(bit for word, bit in _EVENTS.items() if words[1] == word)
    return bits | (_BEFORE if words[0] == "BEFORE" else 0) | (_ROW if "FOR EACH ROW" in event else 0)


def _words(names: TableNames, mode: Trigger) -> dict[str, str]:
    return {
        "table": names.sql,
        "fence": quoted(names.fence_column),
        "fence_shown": names.fence_column,
        "shown": names.shown,
        "place": _literal(names.table),
        "ledger": names.ledger_sql,
        "ledger_shown": LEDGER_TABLE,
        "mode": mode.value,
        "id_missing": _each(names, "NEW.{0} IS NULL", " OR "),
    }


def _parts(file: str, mode: Trigger) -> dict[str, str]:
    """The statements of a file that belong to a mode, by name."""
    text = sql(file)
    heads = list(_PART.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    kept = {}
    for head, end in zip(heads, ends, strict=True):
        if head["mode"] in (None, mode):
            body = text[head.end() : end].strip()
            kept[head["name"]] = _BLOCK.sub(lambda found: found["text"] if found["mode"] == mode else "", body)
    return kept


def _filled(template: str, words: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: words[found[1]], template)


def _each(names: TableNames, template: str, between: str) -> str:
    return "(" + between.join(template.format(quoted(column)) for column in names.id_columns) + ")"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sqlite_id(names: TableNames, row: str) -> str:
    """The id of a row as `rows.ledger_id` writes it."""
    columns = [f"{row}{quoted(column)}" for column in names.id_columns]
    return f"CAST({columns[0]} AS TEXT)" if len(columns) == 1 else f"json_array({', '.join(columns)})"


def _postgres_id(names: TableNames, row: str) -> str:
    columns = [f"{row}{quoted(column)}" for column in names.id_columns]
    if len(columns) == 1:
        return f"({columns[0]})::text"
    return "('[' || " + " || ',' || ".join(f"to_json({column})::text" for column in columns) + " || ']')"


def _victims(names: TableNames, columns: tuple[str, ...]) -> str:
    """Remember the fences of the other rows that have the same unique values: REPLACE is about to remove them."""
    fence = quoted(names.fence_column)
    same = " AND ".join(f"held.{quoted(column)} = NEW.{quoted(column)}" for column in columns)
    return (
        f"INSERT INTO {LEDGER_TABLE} (place, resource, fence) "
        f"SELECT {_literal(names.table)}, {_sqlite_id(names, 'held.')}, held.{fence} FROM {names.sql} AS held\n"
        f"        WHERE {same} AND NOT {_each(names, 'held.{0} IS NEW.{0}', ' AND ')} AND held.{fence} IS NOT NULL\n"
        "        ON CONFLICT (place, resource) DO UPDATE SET fence = max(fence, excluded.fence);\n    "
    )
