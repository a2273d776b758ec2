"""One transaction in Postgres, as a work sees it.

Promises: rows are mappings, whole numbers are BIGINT, and each call is one statement: a script is refused. A statement
that failed spoils the transaction, as the server sees it too: also when the work swallows the error, nothing of it is
committed. Whoever keeps the transaction longer than the work runs gets `Closed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import psycopg
from psycopg.rows import dict_row

from holdfast.errors import BadInput, Closed, HoldfastError
from holdfast.plane.bells import check_channel
from holdfast.plane.ports import Row
from holdfast.plane.postgres_errors import before_commit
from holdfast.plane.postgres_pool import Connection
from holdfast.plane.statements import compiled


class PostgresTx:
    """See `ports.Tx`."""

    dialect: Literal["postgres"] = "postgres"

    def __init__(self, connection: Connection, shown: str, *, reads: bool) -> None:
        self._connection: Connection | None = connection
        self._shown = shown
        self._reads = reads
        self.failure: HoldfastError | None = None
        self.cause: Exception | None = None  # the driver's own error behind it
        self.rings: set[str] = set()

    async def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """See `ports.Tx`."""
        ready = compiled(statement, "postgres")
        values = ready.ordered(parameters)
        cursor = psycopg.AsyncRawCursor(self._live(), row_factory=dict_row)
        try:
            await cursor.execute(ready.text.encode(), values)
            return list(await cursor.fetchall()) if cursor.description is not None else []
        except (psycopg.Error, UnicodeError) as error:
            raise self._spoilt(error) from error

    async def query_many(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        """See `ports.Tx`. The driver sends them all before it waits for the first answer."""
        ready = compiled(statement, "postgres")
        values = [ready.ordered(each) for each in parameters]
        cursor = psycopg.AsyncRawCursor(self._live())
        try:
            if values:
                await cursor.executemany(ready.text.encode(), values)
        except (psycopg.Error, UnicodeError) as error:
            raise self._spoilt(error) from error

    def ring(self, channel: str) -> None:
        """See `ports.Tx`. A work that changes nothing has nothing to tell."""
        if self._reads:
            raise BadInput("work", "rings, and was given to `read`", "give it to `write`")
        self.rings.add(check_channel(channel))

    def end(self) -> None:
        """The work is over."""
        self._connection = None

    def _live(self) -> Connection:
        if self._connection is None:
            raise Closed("this transaction is over; a work must not keep it")
        if self.failure is not None:
            raise self.failure
        return self._connection

    def _spoilt(self, error: Exception) -> HoldfastError:
        found = before_commit(error, self._shown, reads=self._reads)
        if self.failure is None:
            self.failure, self.cause = found, error
        return found
