"""Ownership of a lease as a part of the caller's own transaction, in the database in which the lease lies.

Promises: a statement with the condition changes nothing after the lease was lost, released or broken. A transaction in
which the condition was true commits before another caller can acquire the lease, because both are in one database, and
its transactions keep them together. No clock is involved and no fence column is needed. In a SQL database the condition
is a predicate, in etcd it is a comparison of a transaction. Does not promise anything for
data in another database: that is what guards are for.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import BadInput, LeaseLost, Misconfigured
from holdfast.types import KeyOwnership, Ownership

if TYPE_CHECKING:
    import sqlite3  # at run time only where a connection is used: other engines do without it


class Condition:
    """A predicate for a `WHERE` clause. `str()` is its text, `parameters` its values by name.

    lease.condition() is cheap; make a new one for each transaction.
    """

    __slots__ = ("_lost", "_ownership")

    def __init__(self, ownership: Ownership, lost: LeaseLost) -> None:
        self._ownership = ownership
        self._lost = lost

    @property
    def sql(self) -> str:
        """The predicate, with named places (`:holdfast_key`, …)."""
        return self._ownership.sql

    @property
    def parameters(self) -> Mapping[str, str | int]:
        """The values of the places. None of them is a secret."""
        return dict(self._ownership.parameters)

    @property
    def compares(self) -> list[dict[str, str]]:
        """Comparisons for a transaction of etcd; see `KeyCondition`."""
        raise Misconfigured(f"the lease lies in a SQL database ({self._ownership.database}): use `sql`")

    def holds(self, connection: sqlite3.Connection) -> bool:
        """Whether it is true now, for this connection: inside its transaction, if it has one open."""
        _check_connection(connection)
        import sqlite3

        cursor = connection.cursor()
        cursor.row_factory = None
        try:
            ((true,),) = cursor.execute(f"SELECT {self.sql}", self._ownership.parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                raise self._elsewhere(connection) from error
            raise
        finally:
            cursor.close()
        return bool(true)

    def ensure(self, connection: sqlite3.Connection) -> None:
        """Return if the lease is ours in this connection's open transaction; raise `LeaseLost` otherwise."""
        _check_connection(connection)
        if not _open(connection):
            raise BadInput(
                "connection",
                "has no transaction open",
                "BEGIN IMMEDIATE first, or use transaction(); else it proves nothing",
            )
        if not self.holds(connection):
            raise self._lost

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        """A transaction that exists only while the lease is ours: begun, checked, committed, or rolled back."""
        _check_connection(connection)
        if _open(connection):
            raise BadInput("connection", "has a transaction open", "commit it first, or use ensure() inside it")
        connection.execute("BEGIN IMMEDIATE")
        try:
            self.ensure(connection)
            yield connection
            connection.execute("COMMIT")
        finally:
            if _open(connection):
                connection.execute("ROLLBACK")

    def _elsewhere(self, connection: sqlite3.Connection) -> Misconfigured:
        opened = [Path(row[2]).name or ":memory:" for row in connection.execute("PRAGMA database_list").fetchall()]
        return Misconfigured(
            f"the lease lies in {self._ownership.database}, which this connection ({', '.join(opened)}) does not have "
            "open; keep data and leases in one file, or ATTACH it and name the schema: lease.condition(schema=...)"
        )

    def __str__(self) -> str:
        return self.sql

    def __repr__(self) -> str:
        values = self._ownership.parameters
        return f"<Condition {values['holdfast_key']} fence={values['holdfast_at']}>"


class KeyCondition(Condition):
    """Comparisons for a transaction of etcd: add them to your own, and it fails once the lease has gone.

    `compares` is for the JSON gateway. Other clients compare that the key `key` has the value `value`, or that it was
    created at the revision `revision`. Each of the two is enough, and none is a secret.
    """

    __slots__ = ("_stored",)

    def __init__(self, stored: KeyOwnership, name: str, fence: int, lost: LeaseLost) -> None:
        super().__init__(Ownership("", {"holdfast_key": name, "holdfast_at": fence}, "etcd"), lost)
        self._stored = stored

    @property
    def sql(self) -> str:
        """Refused: the lease does not lie in a SQL database."""
        raise Misconfigured(
            "the lease lies in etcd: use `compares` in a transaction there, or give the fence to a guard"
        )

    @property
    def compares(self) -> list[dict[str, str]]:
        """The comparisons, for `compare` of `/v3/kv/txn`."""
        key, value = (b64encode(each).decode() for each in (self.key, self.value))
        return [{"key": key, "target": "VALUE", "result": "EQUAL", "value": value}]

    @property
    def key(self) -> bytes:
        """The key of the lease."""
        return self._stored.key

    @property
    def value(self) -> bytes:
        """Its value while the lease is ours."""
        return self._stored.value

    @property
    def revision(self) -> int:
        """The revision that created the key."""
        return self._stored.revision

    def __str__(self) -> str:
        return f"create({self.key.decode()}) = {self.revision}"


def _check_connection(connection: object) -> None:
    import sqlite3

    if not isinstance(connection, sqlite3.Connection):
        problem = f"{type(connection).__name__} is not a connection"
        raise BadInput("connection", problem, "give the sqlite3.Connection; elsewhere use `sql` and `parameters`")


def _open(connection: sqlite3.Connection) -> bool:
    return connection.in_transaction
