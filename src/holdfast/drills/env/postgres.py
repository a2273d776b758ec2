"""The Postgres database of a deployment: a drill has its own schema in it. See `backends`.

The mark is a row with an expiry, in a table of a reserved schema (`holdfast_drill.allowed`), judged by the clock of the
server. So it belongs to one database, is not copied with the tables of a plane, and psql lists it. The role of the
URL must be allowed to create schemas in the database, which the role of a production plane need not be.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final, TypeVar
from urllib.parse import unquote

from holdfast.drills.env.backends import Backend, with_option
from holdfast.drills.permission import check_length
from holdfast.errors import Misconfigured
from holdfast.guards.sql.identifiers import quoted
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Tx, Work

T = TypeVar("T")

SCHEMAS: Final = "holdfast_drill"

_LOOK: Final = """
    SELECT 1 AS one FROM holdfast_drill.allowed
    WHERE until_ns > (extract(epoch FROM clock_timestamp()) * 1000000000)::BIGINT
"""
_MARK: Final = (
    "CREATE SCHEMA IF NOT EXISTS holdfast_drill",
    "CREATE TABLE IF NOT EXISTS holdfast_drill.allowed (until_ns BIGINT NOT NULL)",
    "DELETE FROM holdfast_drill.allowed",
)
_MARK_UNTIL: Final = """
    INSERT INTO holdfast_drill.allowed
    VALUES ((extract(epoch FROM clock_timestamp()) * 1000000000)::BIGINT + :length)
"""


class SchemaBackend(Backend):
    """See the module."""

    def is_marked(self) -> bool:
        """See `Backend`."""

        async def look(tx: Tx) -> bool:
            if not await _has_marks(tx):
                return False
            return bool(await tx.query(_LOOK))

        return self._read(look)

    def mark(self, seconds: float) -> None:
        """See `Backend`."""
        length_ns = check_length(seconds)

        async def set_mark(tx: Tx) -> None:
            for statement in _MARK:
                await tx.query(statement)
            await tx.query(_MARK_UNTIL, {"length": length_ns})

        self._write(set_mark)

    def unmark(self) -> bool:
        """See `Backend`."""

        async def take_mark(tx: Tx) -> bool:
            there = await _has_marks(tx)
            if there:
                await tx.query("DROP SCHEMA holdfast_drill CASCADE")
            return there

        return self._write(take_mark)

    def quarter(self, name: str) -> str:
        """See `Backend`."""
        pairs = (pair.partition("=") for pair in self._url.partition("?")[2].split("&"))
        given = next((unquote(value) for option, _, value in pairs if option == "options"), None)
        before = os.environ.get("PGOPTIONS", "") if given is None else given
        return with_option(self._url, "options", f"{before} -c search_path={_schema(name)}".strip())

    def called(self, name: str) -> str:
        """See `Backend`."""
        return f"schema {_schema(name)}"

    def prepare(self, name: str) -> None:
        """See `Backend`."""

        async def make(tx: Tx) -> None:
            await tx.query(f"CREATE SCHEMA {quoted(_schema(name))}")

        async def look(tx: Tx) -> str | None:
            found: str | None = (await tx.query("SELECT current_schema()::text AS name"))[0]["name"]
            return found

        self._write(make)
        if self._read(look, self.quarter(name)) != _schema(name):
            raise Misconfigured(
                f"{self.shown} does not let a connection choose its schema (a pooler that drops `options`, for "
                "example), so the drill would not stay in its schema; use the server itself in the settings"
            )

    def clear(self, name: str) -> None:
        """See `Backend`."""

        async def drop(tx: Tx) -> None:
            await tx.query(f"DROP SCHEMA IF EXISTS {quoted(_schema(name))} CASCADE")

        self._write(drop)

    def sweep(self) -> list[str]:
        """See `Backend`."""

        async def look(tx: Tx) -> list[str]:
            statement = "SELECT nspname::text AS name FROM pg_namespace WHERE nspname ~ :pattern ORDER BY 1"
            found = await tx.query(statement, {"pattern": f"^{SCHEMAS}_[0-9a-f]{{8}}$"})
            return [row["name"].removeprefix(f"{SCHEMAS}_") for row in found]

        names = self._read(look)
        for name in names:
            self.clear(name)
        return [self.called(name) for name in names]

    def _read(self, work: Work[T], url: str | None = None) -> T:
        async def run() -> T:
            database = open_database(self._url if url is None else url)
            try:
                return await database.read(work)
            finally:
                await database.close()

        return asyncio.run(run())

    def _write(self, work: Work[T]) -> T:
        async def run() -> T:
            database = open_database(self._url)
            try:
                return await database.write(work)
            finally:
                await database.close()

        return asyncio.run(run())


async def _has_marks(tx: Tx) -> bool:
    found = await tx.query("SELECT to_regclass(:name) IS NOT NULL AS there", {"name": "holdfast_drill.allowed"})
    return bool(found[0]["there"])


def _schema(name: str) -> str:
    return f"{SCHEMAS}_{name}"
