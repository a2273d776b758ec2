"""The settings that the guarded tables of all drivers share."""

from __future__ import annotations

from importlib.resources import files
from typing import TypedDict

from holdfast.core.ports import Observer
from holdfast.errors import BadInput
from holdfast.guards.admission import Admission
from holdfast.guards.sql.identifiers import FENCE_COLUMN, TableNames

_SQL = files("holdfast.guards") / "sql"


class TableSettings(TypedDict, total=False):
    """Settings of a guarded table; all have a default."""

    id: str | tuple[str, ...]
    """The column, or the columns, that identify a row (`"id"`). They need a unique index."""

    key: str | None
    """The name of the lock that a row belongs to, with its id columns as places: `"invoice:{id}"`. Leases of other
    locks are refused then, for the fences of two locks do not compare."""

    fence_column: str
    """Where the fence is kept (`"holdfast_fence"`)."""

    updated_column: str | None
    """A column that is set to the database's time with every accepted write."""

    observer: Observer | None
    """Receives an event for every read, write and refusal."""


def described(
    engine: str, table: object, settings: TableSettings, allow_degraded: bool
) -> tuple[TableNames, Admission]:
    """The names and the door of a guarded table, or `BadInput` that names the setting."""
    if unknown := sorted(set(settings) - set(TableSettings.__annotations__)):
        known = ", ".join(TableSettings.__annotations__)
        raise BadInput(unknown[0], "is not a setting of a guarded table", f"there is {known}, allow_degraded")
    names = TableNames.checked(
        table,
        settings.get("id", "id"),
        settings.get("fence_column", FENCE_COLUMN),
        settings.get("updated_column"),
    )
    admission = Admission(
        f"{engine}:{names.shown}",
        key=settings.get("key"),
        names=names.id_columns,
        allow_degraded=allow_degraded,
        observer=settings.get("observer"),
    )
    return names, admission


def sql(name: str) -> str:
    """One statement or script, as it stands in the file of that name."""
    return (_SQL / f"{name}.sql").read_text(encoding="utf-8")
