"""The plane's tables in a database: made, recognised, brought up to date, or refused.

Promises: the tables of a database are changed only when they are ours or are not there yet; each change is one
transaction, so that a crash leaves the old ones or the new ones; any number of processes may start together, and one of
them does it; a newer version is left alone. Each migration states the oldest version of the code that works with its
tables, and the database keeps that number: such older code goes on working, all other older code refuses to start, and
notices a migration while it runs (`outgrown`). Tables of others live beside them undisturbed, except that names which
begin with `plane_` are ours.

Clock: the event loop's, for the pauses of `outgrown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Final

from holdfast.errors import BackendError, Misconfigured
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.read_only import ReadOnlyDatabase, SchemaMissing
from holdfast.plane.db.statements import script, split
from holdfast.types import NS, check_label

FORMAT: Final = "holdfast-plane"
META: Final = "plane_meta"
VERSION: Final = 1
VERSIONS: Final[Mapping[str, int]] = {
    "schema": 9,
    "run_schema": 5,
    "approval_schema": 3,
    "policy_schema": 2,
}  # of those that are not at the first any more
OLDEST: Final[Mapping[str, int]] = {"schema": 6, "run_schema": 4, "approval_schema": 2}
"""The oldest version of the code that works with the tables of `VERSIONS`, where that is not this version itself.

A migration that only adds what older code never reads and never has to write may leave older code working. Then the
version before it, or the one that stands here already, goes here; a later migration that breaks it removes the entry.
"""

CHANNEL: Final = "plane.schema"
"""Where a process notifies the others that it has changed tables."""

INSPECT_NS: Final = 5 * NS

_SQL: Final = files("holdfast.plane") / "sql"
_OWN_BEFORE: Final = frozenset((META, "plane_listener"))  # may be there before anything was prepared
_LOCK: Final = 0x686F6C6466617374  # "holdfast" in ASCII: a number that no other program is likely to lock


class Outgrown(Misconfigured):
    """A newer Holdfast has changed the tables, and this code must not use them any more."""


async def prepare(
    database: Database,
    name: str = "schema",
    *,
    text: str | None = None,
    version: int | None = None,
    migrations: Mapping[int, str] | None = None,
    oldest: int | None = None,
) -> bool:
    """Make sure that the database has the tables of that name in this version, or raise `Misconfigured`.

    True: something was made or changed. `text` is the script itself, when it is not one of the plane's files, and
    `migrations` are those that lead from each version to the next; else they are the files `<name>_<next version>.sql`.
    `oldest` is the oldest version of the code that works with these tables, by default as `OLDEST` says.
    """
    check_label("name", name)
    version = VERSIONS.get(name, VERSION) if version is None else version
    oldest = OLDEST.get(name, version) if oldest is None else oldest

    async def look(tx: Tx) -> int | None:
        return await _found(tx, name, version)

    async def make(tx: Tx) -> bool:
        await _lock(tx)
        found = await _found(tx, name, version)  # another process may have been quicker
        if found == version:
            return False
        if found is None:
            await _make_meta(tx)
            await _run(tx, script(name, tx.dialect) if text is None else text)
        for step in range(version if found is None else found, version):
            if migrations is not None and step not in migrations:
                raise Misconfigured(
                    f"the database has version {found} of {name}, which this version of Holdfast cannot bring up to "
                    f"{version}; open it once with a version in between"
                )
            leads = script(f"{name}_{step + 1}", tx.dialect) if migrations is None else migrations[step]
            await _run(tx, leads)
        for key, value in (("version", version), ("oldest", oldest)):
            await tx.query(script("meta_put", tx.dialect), {"name": f"{key}.{name}", "value": str(value)})
        tx.notify(CHANNEL)
        return True

    found = await database.read(look)
    if found == version:
        return False
    if found is not None and isinstance(database, ReadOnlyDatabase):
        raise SchemaMissing(
            f"the database has version {found} of {name}, made by an older Holdfast, where this one has {version}"
        )
    return await database.write(make)


async def _found(tx: Tx, name: str, version: int) -> int | None:
    """The version that is there; None: none. A newer one that this code works with counts as its own."""
    names = await _tables(tx)
    foreign = "the database has tables named plane_… that are not Holdfast's ({}); use another database"
    if META not in names:
        strangers = sorted(names - _OWN_BEFORE)
        if strangers:
            raise Misconfigured(foreign.format(strangers[0]))
        return None
    if not {"name", "value"} <= await _columns(tx):
        raise Misconfigured(foreign.format(META))
    meta = await _meta(tx)
    if meta.get("format") != FORMAT:
        raise Misconfigured(foreign.format(META))
    return _usable(meta, name, version)


async def _meta(tx: Tx) -> dict[str, str]:
    return {row["name"]: row["value"] for row in await tx.query("SELECT name, value FROM plane_meta")}


def _usable(meta: Mapping[str, str], name: str, version: int) -> int | None:
    """The version of these tables as this code may treat it; None: there are none. `Outgrown`: it must not."""
    found = meta.get(f"version.{name}")
    if found is None:
        return None
    oldest = meta.get(f"oldest.{name}", found)
    for number in (found, oldest):
        if not number.isdecimal():
            raise Misconfigured(f"the database says that {name} has version {number!r}, which is no number")
    if int(oldest) > version:
        raise Outgrown(
            f"the database has version {found} of {name}, made by a newer Holdfast; this one knows {version}: "
            "upgrade it too"
        )
    return min(int(found), version)


async def outgrown(database: Database, names: Collection[str], *, every_ns: int = INSPECT_NS) -> Outgrown:
    """Return when a newer Holdfast has changed one of these tables so that this code must not use them: the reason.

    Notices within `every_ns`, and mostly immediately, because a migration notifies. While the database does not answer
    nothing is known, and nothing is returned. `Closed` when the database is closed.
    """

    async def inspect(tx: Tx) -> None:
        meta = await _meta(tx)
        for name in names:
            _usable(meta, name, VERSIONS.get(name, VERSION))

    listener = database.listen(CHANNEL)
    try:
        while True:  # ends with the process, or when the tables have been changed
            try:
                await database.read(inspect)
            except Outgrown as reason:
                return reason
            except BackendError:
                await asyncio.sleep(every_ns / NS)
            else:
                await listener.wait(every_ns)
    finally:
        listener.close()


async def _tables(tx: Tx) -> set[str]:
    if tx.dialect == "sqlite":
        rows = await tx.query("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name GLOB 'plane_*'")
    else:
        rows = await tx.query(
            "SELECT relname::text AS name FROM pg_class WHERE relnamespace = current_schema()::regnamespace "
            "AND relkind IN ('r', 'p', 'v', 'm', 'f') AND starts_with(relname::text, 'plane_')"
        )
    return {row["name"] for row in rows}


async def _columns(tx: Tx) -> set[str]:
    if tx.dialect == "sqlite":
        rows = await tx.query("SELECT name FROM pragma_table_info(:table)", {"table": META})
    else:
        rows = await tx.query(
            "SELECT attname::text AS name FROM pg_attribute WHERE attrelid = to_regclass(:table)", {"table": META}
        )
    return {row["name"] for row in rows}


async def _lock(tx: Tx) -> None:
    """In Postgres transactions run side by side; in SQLite this one has the write lock already."""
    if tx.dialect == "postgres":
        await tx.query("SELECT pg_advisory_xact_lock(:number)", {"number": _LOCK})


async def _make_meta(tx: Tx) -> None:
    await tx.query("CREATE TABLE IF NOT EXISTS plane_meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    await tx.query(
        "INSERT INTO plane_meta (name, value) VALUES ('format', :value) ON CONFLICT (name) DO NOTHING",
        {"value": FORMAT},
    )


async def _run(tx: Tx, text: str) -> None:
    for statement in split(text, tx.dialect):
        await tx.query(statement)
