"""Names of tables and columns: validated, and quoted by the rules of the dialect. Never pasted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.errors import BadInput

FENCE_COLUMN: Final = "holdfast_fence"
LEDGER_TABLE: Final = "holdfast_guard_fence"
NAME_CHARS_MAX: Final = 63  # Postgres cuts longer names silently, and two names become one

_PLAIN: Final = re.compile(r"[^\W\d]\w*\Z")  # letters, digits and underscores, not a digit first


def check_name(field: str, name: object) -> str:
    """A name of a table or a column, as the database has it, or `BadInput`.

    Letters, digits and underscores; case is kept, so write it as the database stores it. What needs more than that
    (spaces, quotes, dots, percent signs) is refused rather than escaped.
    """
    if not isinstance(name, str) or _PLAIN.match(name) is None:
        shown = repr(name) if len(repr(name)) <= 60 else repr(name)[:57] + "…"
        raise BadInput(
            field, f"{shown} is not a usable name", "use letters, digits and underscores, as the database has it"
        )
    if len(name.encode()) > NAME_CHARS_MAX:
        raise BadInput(field, f"{name!r} is too long", f"use at most {NAME_CHARS_MAX} bytes")
    return name


def quoted(name: str) -> str:
    """The name between the quotes of standard SQL; both dialects take them."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class TableNames:
    """A guarded table: where it is, which columns name a row, where the fence is kept."""

    table: str
    id_columns: tuple[str, ...] = ("id",)
    fence_column: str = FENCE_COLUMN
    updated_column: str | None = None  # set to the database's time with every accepted write
    schema: str | None = None

    @classmethod
    def checked(
        cls,
        table: object,
        id: str | tuple[str, ...] = "id",
        fence_column: object = FENCE_COLUMN,
        updated_column: object = None,
        schema: object = None,
    ) -> TableNames:
        """Validate everything that will become part of a statement. `table` may be `schema.table`."""
        if isinstance(table, str) and schema is None and table.count(".") == 1:
            schema, _, table = table.partition(".")
        columns = id if isinstance(id, tuple) else (id,)
        if not columns:
            raise BadInput("id", "is empty", "name the column, or the columns, that identify a row")
        names = cls(
            check_name("table", table),
            tuple(check_name("id", column) for column in columns),
            check_name("fence_column", fence_column),
            None if updated_column is None else check_name("updated_column", updated_column),
            None if schema is None else check_name("schema", schema),
        )
        reserved = [*names.id_columns, names.fence_column, *([names.updated_column] if names.updated_column else [])]
        if len(set(reserved)) < len(reserved):
            raise BadInput("id", "one column has two tasks", "id, fence and update time need columns of their own")
        return names

    @property
    def shown(self) -> str:
        """For people."""
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    @property
    def sql(self) -> str:
        """The quoted name of the table."""
        return quoted(self.table) if self.schema is None else f"{quoted(self.schema)}.{quoted(self.table)}"

    @property
    def ledger_sql(self) -> str:
        """The quoted name of the ledger: it lies in the same schema as the table."""
        return quoted(LEDGER_TABLE) if self.schema is None else f"{quoted(self.schema)}.{quoted(LEDGER_TABLE)}"

    def check_values(self, values: object) -> dict[str, object]:
        """Column values of a write, or `BadInput`: the columns that the guard keeps cannot be set by hand."""
        if not isinstance(values, Mapping):
            raise BadInput(
                "values", f"{type(values).__name__} is not a set of columns", "give a dict of column and value"
            )
        for column in values:
            check_name("values", column)
            if column in self.id_columns or column in (self.fence_column, self.updated_column):
                raise BadInput("values", f"{column!r} is kept by the guard", "leave it out")
        return dict(values)

    def check_changes(self, values: object) -> dict[str, object]:
        """Column values of a write to a row that may exist: at least one."""
        checked = self.check_values(values)
        if not checked:
            raise BadInput("values", "is empty", "name at least one column to write")
        return checked

    def of_row(self, row: object) -> dict[str, object]:
        """The id columns of a row by name, as the template of the lock's name sees them."""
        return dict(zip(self.id_columns, row if isinstance(row, tuple) else (row,), strict=True))
