"""What has to be done to a table, decided from what was found there. Pure: nothing is asked, nothing is changed.

Promises: the steps lead from what was found to what is wanted, in order, and there are none if it is there already.
What cannot be guarded is refused here, with `Misconfigured`, before a first step.
"""

# ruff: noqa: S608 - names are validated and quoted in `names`, values are parameters

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast.errors import Misconfigured
from holdfast.guards.install.triggers import MARK_TABLE, Trigger, TriggerPart, mode_of, postgres_parts, sqlite_parts
from holdfast.guards.settings import sql
from holdfast.guards.sql.identifiers import LEDGER_TABLE, TableNames, quoted

FENCE_TYPES: Final = {"sqlite": "INTEGER", "postgres": "BIGINT"}


class MigrationStep(NamedTuple):
    """One statement, and what it is for."""

    what: str
    sql: str


class Column(NamedTuple):
    """A column as the catalogue has it."""

    type: str
    nullable: bool = True
    default: str | None = None
    generated: bool = False


@dataclass(frozen=True, slots=True)
class Inspected:
    """A table, as it was found."""

    engine: str  # sqlite or postgres
    names: TableNames  # with the schema that the table is really in
    columns: Mapping[str, Column]
    unique: tuple[tuple[str, ...], ...]  # the columns of each unique index that covers all rows, byte by byte
    id_problem: str | None = None  # why the text of an id is not one and the same for guard and trigger
    ledger: tuple[str, ...] = ()  # the columns of the ledger; none: there is no ledger
    remembered: int = 0  # ledger entries of this table
    ledger_shared: bool = False  # another table has entries in it, or is prepared for it
    mark: bool = False
    mark_shared: bool = False
    parts: Mapping[str, str] = field(default_factory=dict)  # our triggers on the table, and how they are defined
    orphans: tuple[str, ...] = ()  # our functions without a trigger
    neighbours: tuple[str, ...] = ()  # triggers of others that may write to the table

    @property
    def trigger(self) -> Trigger:
        """The mode of the triggers that are there."""
        return mode_of(self.parts)

    @property
    def prepared(self) -> bool:
        """Whether a guard can be used on the table."""
        return self.names.fence_column in self.columns and bool(self.ledger)

    def wanted(self, mode: Trigger) -> tuple[TriggerPart, ...]:
        """The triggers of a mode on this table, in the order in which they are made."""
        if mode is Trigger.NONE:
            return ()
        if self.engine == "postgres":
            return postgres_parts(self.names, mode)
        others = tuple(each for each in self.unique if set(each) != set(self.names.id_columns))
        return sqlite_parts(self.names, mode, others)


def installing(found: Inspected, trigger: Trigger | None) -> tuple[MigrationStep, ...]:
    """The steps to a guarded table. `trigger` None: whatever mode there is stays, and is brought up to date."""
    mode = found.trigger if trigger is None else trigger
    _check_ids(found)
    return (
        *_column(found),
        *_ledger(found),
        *_mark(found, mode),
        *_triggers(found, found.wanted(mode)),
        *_without_mark(found, mode),
    )


def removing(found: Inspected, keep_ledger: bool) -> tuple[MigrationStep, ...]:
    """The steps back to a table that knows nothing of guards. A ledger that others use stays."""
    steps = list(_triggers(found, ()))
    steps += _without_mark(found, Trigger.NONE)
    if found.names.fence_column in found.columns:
        _check_ours(found)
        drop = f"ALTER TABLE {found.names.sql} DROP COLUMN {quoted(found.names.fence_column)}"
        steps.append(MigrationStep(f"drop the column {found.names.fence_column}", drop))
    if not found.ledger:
        return tuple(steps)
    if found.ledger_shared or keep_ledger:
        if found.remembered:
            forget = f"DELETE FROM {found.names.ledger_sql} WHERE place = '{found.names.table}'"
            steps.append(MigrationStep(f"forget the fences of {found.names.shown} in the ledger", forget))
    else:
        steps.append(
            MigrationStep("drop the ledger, which no other table uses", f"DROP TABLE {found.names.ledger_sql}")
        )
    return tuple(steps)


def problems(found: Inspected) -> tuple[str, ...]:
    """In what the triggers differ from those that an installation makes in their mode."""
    wanted = {part.name: part.definition for part in found.wanted(found.trigger)}
    missing = [f"{name} is missing" for name in wanted if name not in found.parts]
    return (*missing, *(f"{name} was changed" for name in found.parts if found.parts[name] != wanted.get(name)))


def fence_problem(engine: str, name: str, column: Column) -> str | None:
    """Why a column cannot keep fences; None: it can."""
    text = column.type.upper()
    fits = text == "BIGINT" if engine == "postgres" else "INT" in text
    if not fits:
        return f"the column {name} is {column.type or 'without a type'}, not {FENCE_TYPES[engine]}"
    if column.generated:
        return f"the column {name} is generated"
    if not column.nullable or column.default is not None:
        return f"the column {name} has a default or is NOT NULL, so a row that never met a fence would seem to have"
    return None


def _check_ids(found: Inspected) -> None:
    names = found.names
    for column in names.id_columns:
        if column not in found.columns:
            raise Misconfigured(f"{names.shown} has no column {column}; --id names the columns that identify a row")
    if not any(set(each) == set(names.id_columns) for each in found.unique):
        listed = ", ".join(names.id_columns)
        raise Misconfigured(
            f"{names.shown} has no primary key and no unique index on ({listed}), so a row is not one row; make "
            "one, or name the right columns with --id"
        )
    if found.id_problem is not None:
        raise Misconfigured(f"{names.shown} cannot be guarded by this id: {found.id_problem}")


def _column(found: Inspected) -> Iterator[MigrationStep]:
    name = found.names.fence_column
    column = found.columns.get(name)
    if column is None:
        statement = f"ALTER TABLE {found.names.sql} ADD COLUMN {quoted(name)} {FENCE_TYPES[found.engine]}"
        yield MigrationStep(f"add the column {name}; no row has met a fence yet", statement)
    elif problem := fence_problem(found.engine, name, column):
        raise Misconfigured(f"{found.names.shown} cannot be guarded: {problem}; choose another with --fence-column")


def _check_ours(found: Inspected) -> None:
    name = found.names.fence_column
    used = name in found.names.id_columns or any(name in each for each in found.unique)
    problem = fence_problem(found.engine, name, found.columns[name])
    if used or problem:
        raise Misconfigured(f"{found.names.shown}: {problem or f'{name} is part of an index'}; it is not dropped")


def _ledger(found: Inspected) -> Iterator[MigrationStep]:
    if not found.ledger:
        # The file makes it in the first schema of the search path; here it lies beside the table.
        statement = sql(f"ledger_{found.engine}").replace(f"EXISTS {LEDGER_TABLE}", f"EXISTS {found.names.ledger_sql}")
        yield MigrationStep("make the ledger, which remembers the fences of rows that are deleted", _bare(statement))
    elif not {"place", "resource", "fence"} <= set(found.ledger):
        raise Misconfigured(f"there is a table {LEDGER_TABLE} that is not Holdfast's; rename it")


def _mark(found: Inspected, mode: Trigger) -> Iterator[MigrationStep]:
    if found.engine == "sqlite" and mode is not Trigger.NONE and not found.mark:
        yield MigrationStep("make the scratch table of the triggers", _bare(sql("mark_sqlite")))


def _without_mark(found: Inspected, mode: Trigger) -> Iterator[MigrationStep]:
    if found.engine == "sqlite" and mode is Trigger.NONE and found.mark and not found.mark_shared:
        yield MigrationStep("drop the scratch table of the triggers", f"DROP TABLE {MARK_TABLE}")


def _triggers(found: Inspected, wanted: tuple[TriggerPart, ...]) -> Iterator[MigrationStep]:
    """Replace all if one of them differs: their order of making is their order of firing in SQLite."""
    there, there_should_be = list(found.parts.items()), [(part.name, part.definition) for part in wanted]
    ordered = found.engine == "sqlite"
    same = there == there_should_be if ordered else dict(there) == dict(there_should_be)
    if same and not found.orphans:
        return
    yield from _drops(found)
    for function in found.orphans:
        statement = f"DROP FUNCTION IF EXISTS {quoted(found.names.schema or '')}.{quoted(function)}()"
        yield MigrationStep(f"drop the function {function}", statement)
    for part in wanted:  # on Postgres a trigger is two statements: its function, and the trigger that calls it
        *before, last = part.create
        yield from (MigrationStep(f"make the function of the trigger {part.name}", statement) for statement in before)
        yield MigrationStep(f"make the trigger {part.name}", last)


def _drops(found: Inspected) -> Iterator[MigrationStep]:
    known = {part.name: part.drop for mode in (Trigger.STRICT, Trigger.RISING) for part in found.wanted(mode)}
    where = f" ON {found.names.sql}" if found.engine == "postgres" else ""
    for name in found.parts:
        first, *after = known.get(name, (f"DROP TRIGGER {quoted(name)}{where}",))
        yield MigrationStep(f"drop the trigger {name}", first)
        yield from (MigrationStep(f"drop the function of the trigger {name}", statement) for statement in after)


def _bare(statement: str) -> str:
    """Without the comments in front, which are for readers of the file."""
    lines = statement.strip().splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))
