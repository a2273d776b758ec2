"""The tables of the SQLite store in a file: made, recognised, brought up to date, or refused.

Promises: a file is changed only when it is ours or has none of our tables yet; every change of the schema is one
transaction, so that a crash leaves the old one or the new one; a newer schema than ours is left alone. Tables of a user
live in the same file undisturbed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from importlib.resources import files

from holdfast.errors import Misconfigured

FORMAT = "holdfast"
VERSION = 1
GUARDS = "holdfast_guard_"  # objects of the guards, which may have been in a user's file before our tables

_SQL = files("holdfast.stores.sqlite") / "sql"

# From which version a script leads to the next. There has been one version so far.
MIGRATIONS: Mapping[int, str] = {}


def sql(name: str) -> str:
    """One statement or script, as it stands in the file of that name."""
    return (_SQL / f"{name}.sql").read_text(encoding="utf-8")


def ensure(
    connection: sqlite3.Connection,
    path: str,
    *,
    version: int = VERSION,
    migrations: Mapping[int, str] = MIGRATIONS,
) -> None:
    """Make sure that the file has our tables in this version, or raise `Misconfigured`, or an error of SQLite."""
    if _found(connection, path, version) == version:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _found(connection, path, version)  # another process may have been quicker
        if found is None:
            _run(connection, sql("schema"))
        else:
            for step in range(found, version):
                if step not in migrations:
                    raise Misconfigured(
                        f"{path} has schema version {found}, which this version of Holdfast cannot bring up to "
                        f"{version}; open it once with a version in between"
                    )
                _run(connection, migrations[step])
            connection.execute("UPDATE holdfast_meta SET value = ? WHERE name = 'schema'", (str(version),))
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def present(connection: sqlite3.Connection) -> bool:
    """Whether the file has tables of a lease store, of whatever version. Changes nothing."""
    found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'holdfast_meta'").fetchone()
    return bool(found[0])


def _found(connection: sqlite3.Connection, path: str, version: int) -> int | None:
    """Return the schema version in the file; None: it has none of our tables. Refuses what is foreign or newer."""
    names = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name GLOB 'holdfast_*' ORDER BY name")
        if not name.startswith(GUARDS)
    ]
    if not names:
        return None
    foreign = f"{path} has tables named holdfast_… that are not Holdfast's ({names[0]}); use another file"
    if "holdfast_meta" not in names:
        raise Misconfigured(foreign)
    try:
        meta = dict(connection.execute("SELECT name, value FROM holdfast_meta").fetchall())
    except sqlite3.OperationalError as error:
        if "no such column" in str(error):
            raise Misconfigured(foreign) from error
        raise
    found = str(meta.get("schema", ""))
    if meta.get("format") != FORMAT or not found.isdecimal():
        raise Misconfigured(foreign)
    if int(found) > version:
        raise Misconfigured(
            f"{path} has schema version {found}, made by a newer Holdfast; this one knows {version}: upgrade it too"
        )
    return int(found)


def _run(connection: sqlite3.Connection, script: str) -> None:
    for statement in _statements(script):
        connection.execute(statement)


def _statements(script: str) -> Iterator[str]:
    """Split a script, for `executescript` would commit the transaction that it runs in."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
