"""One transaction in Postgres, as a work sees it.

Promises: rows are mappings, whole numbers are BIGINT, and each call is one statement: a script is refused. After a
failed statement nothing of the transaction is committed, even if the work catches the error. Work that uses the
transaction after its end gets `Closed`.

The cost of a transaction is its round trips. So BEGIN is sent with the first query. Statements of `put` are collected,
and sent as one (`combined_statement`) before the next query or at the end. A work without queries is that one
statement: it needs no BEGIN and no COMMIT, because a single statement is a transaction.

The statements of `checked` work go `apart`: each query is a transaction of its own, and all collected statements are
another, which writes nothing unless every row is as it was read. If a work needs more (`must_hold`), it is run again in
one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import psycopg
from psycopg.rows import dict_row

from holdfast.errors import BadInput, Closed, HoldfastError, RowMissing, Unavailable
from holdfast.plane.db.notifier import check_channel
from holdfast.plane.db.ports import Row
from holdfast.plane.db.postgres.combined_statement import REFUSED, TOGETHER_MAX, Put, together
from holdfast.plane.db.postgres.errors import before_commit
from holdfast.plane.db.postgres.pool import Connection
from holdfast.plane.db.statements import compiled

_BEGIN_WRITE: Final = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_BEGIN_READ: Final = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresTx:
    """See `ports.Tx`."""

    dialect: Literal["postgres"] = "postgres"

    def __init__(self, connection: Connection, shown: str, *, reads: bool, apart: bool = False) -> None:
        self._connection: Connection | None = connection
        self._shown = shown
        self._reads = reads
        self._apart = apart
        self._kept: list[Put] = []
        self.begun = False  # BEGIN was sent
        self.must_hold = False  # it cannot be done apart
        self.failure: HoldfastError | None = None
        self.cause: Exception | None = None  # the driver's own error behind it
        self.channels: set[str] = set()
        self.calls: list[Callable[[], None]] = []

    @property
    def holds(self) -> bool:
        """See `ports.Tx`."""
        return not self._apart

    async def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """See `ports.Tx`."""
        ready = compiled(statement, "postgres")
        values = ready.ordered(parameters)
        if not (self._apart and ready.reads and not self._kept and not self.begun):
            await self._asking()
        return await self._ask(ready.text, values)

    async def query_many(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> int:
        """See `ports.Tx`. The driver sends them all before it waits for the first answer."""
        ready = compiled(statement, "postgres")
        values = [ready.ordered(each) for each in parameters]
        await self._asking()
        if not values:
            return 0
        cursor = psycopg.AsyncRawCursor(self._live())
        try:
            await cursor.executemany(ready.text.encode(), values)
            return max(0, cursor.rowcount)
        except (psycopg.Error, UnicodeError) as error:
            raise self._spoilt(error) from error

    async def put(
        self, statement: str, parameters: Mapping[str, Any] | None = None, *, rows: int | None = None
    ) -> None:
        """See `ports.Tx`."""
        self._live()
        self._kept.append(Put(statement, compiled(statement, "postgres").ordered(parameters), rows))
        if len(self._kept) >= TOGETHER_MAX:
            await self._asking()

    @property
    def is_one_statement(self) -> bool:
        """Whether nothing was written so far, and all that is to be sent is one statement that needs no other look."""
        unsent = bool(self._kept) and not self.begun and not self._reads
        return unsent and (self._apart or all(each.rows is None for each in self._kept))

    async def flush(self) -> None:
        """Send what is kept, within the transaction, or `RowMissing`."""
        if self._kept:
            await self._asking()

    async def whole(self) -> None:
        """Send what is kept as a transaction of its own. Raises errors of the server as they are."""
        kept, self._kept = self._kept, []
        text, values = together(kept, checked=True)
        try:
            await psycopg.AsyncRawCursor(self._live()).execute(text.encode(), values)
        except (UnicodeError, psycopg.DataError) as error:
            if getattr(error, "sqlstate", None) is None:  # the driver refuses it, and has sent nothing
                raise self._spoilt(error) from error
            self.must_hold = self._apart and getattr(error, "sqlstate", None) == REFUSED
            raise

    async def _asking(self) -> None:
        """Be inside the transaction, with everything sent that was put before."""
        connection = self._live()
        if self._apart and not self._reads:
            self.must_hold = True
            self.failure = self.failure or Unavailable("this work is one transaction, and is run again as one")
            raise self.failure
        if not self.begun:
            self.begun = True
            try:
                await connection.execute(_BEGIN_READ if self._reads else _BEGIN_WRITE)
            except psycopg.Error as error:
                raise self._spoilt(error) from error
        if not self._kept:
            return
        kept, self._kept = self._kept, []
        text, values = together(kept)
        found = await self._ask(text, values)
        for each, row in zip(kept, found, strict=True):
            if each.rows is not None and row["number"] != each.rows:
                missing = RowMissing(f"{row['number']} rows were written where there should have been {each.rows}")
                self.failure = self.failure or missing
                raise missing

    async def _ask(self, text: str, values: Sequence[Any]) -> list[Row]:
        cursor = psycopg.AsyncRawCursor(self._live(), row_factory=dict_row)
        try:
            await cursor.execute(text.encode(), values)
            return list(await cursor.fetchall()) if cursor.description is not None else []
        except (psycopg.Error, UnicodeError) as error:
            raise self._spoilt(error) from error

    def notify(self, channel: str) -> None:
        """See `ports.Tx`. A work that changes nothing has nothing to tell."""
        if self._reads:
            raise BadInput("work", "notifies, and was given to `read`", "give it to `write`")
        self.channels.add(check_channel(channel))

    def after(self, call: Callable[[], None]) -> None:
        """See `ports.Tx`."""
        self.calls.append(call)

    def end(self) -> None:
        """The work has ended."""
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
