"""The database of a simulated plane: real SQLite and the plane's own statements, at the far end of the network.

`DatabaseServer` runs each transaction to its end when its request arrives, through the plane's own `SqliteTx`; nothing
of it is simulated. What is simulated is the way there: a request may be late or lost (nothing happened), its reply may
be lost after the commit (outcome unknown), and the server may be down, ailing, or stopped for a while.

`SimDatabase` is `ports.Database` as one process sees it. Its listeners are the plane's own; notifications between
processes are messages that may be lost, as hints are.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar

from holdfast.errors import Closed
from holdfast.plane.db.notifier import ChannelSubscription, DatabaseNotifier
from holdfast.plane.db.ports import Work
from holdfast.plane.db.sqlite.connection import SqliteTx
from holdfast.testing.sim.environment.loop import SimLoop
from holdfast.testing.sim.environment.network import Network, Server
from holdfast.testing.sim.environment.store import answered
from holdfast.testing.sim.plane.row_history import CommitHistory

T = TypeVar("T")

_CLOSED: Final = "this database is closed; open it again"


class _Done(NamedTuple):
    """The outcome of a work at the server."""

    result: Any = None
    error: BaseException | None = None
    channels: tuple[str, ...] = ()
    calls: tuple[Callable[[], None], ...] = ()


class DatabaseServer(Server):
    """The engine. One transaction at a time, each as a whole."""

    def __init__(self, loop: SimLoop, ledger: CommitHistory) -> None:
        super().__init__("database")
        self.loop = loop
        self.ledger = ledger
        self.connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=512)
        self.connection.execute("PRAGMA foreign_keys = ON")
        self.commits = 0
        self.clients: dict[str, SimDatabase] = {}  # those that listen, by host
        self._watched = False

    def watch(self) -> None:
        """The tables are there: from now on every commit is seen."""
        self.ledger.watch(self.connection)
        self._watched = True

    def run(self, work: Work[Any], *, reads: bool) -> _Done:
        """Run a work in a transaction of its own."""
        connection = self.connection
        connection.execute("BEGIN" if reads else "BEGIN IMMEDIATE")
        tx = SqliteTx(connection, self.name, reads=reads)
        try:
            result = tx.run(work)
            if reads:
                return _Done(result)
            seen = self.ledger.pending(connection) if self._watched else []
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - it belongs to the one who asked
            return _Done(error=error)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        self.commits += 1
        self.ledger.committed(self.loop.now_ns, seen)
        return _Done(result, channels=tuple(sorted(tx.channels)), calls=tuple(tx.calls))

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Look at it from outside of the world. The plane does not see this."""
        return self.connection.execute(statement, values).fetchall()

    def close(self) -> None:
        """Give back the memory."""
        self.connection.close()


class SimDatabase:
    """See `ports.Database`, and the module."""

    dialect: Literal["sqlite"] = "sqlite"
    file: None = None

    def __init__(self, network: Network, server: DatabaseServer, host: str, patience_ns: int) -> None:
        """`patience_ns`: after which an answer that has not come is given up, and the outcome is unknown."""
        self.host = host
        self._network = network
        self._server = server
        self._patience_ns = patience_ns
        self._notifier = DatabaseNotifier()
        self._closed = False
        self._counts = {"works": 0, "failed": 0}
        self.failpoint: Callable[[str], bool] = lambda _: False  # True: the process is stopped at its next step
        server.clients[host] = self

    async def write(self, work: Work[T], *, checked: bool = False, lasting: bool = True) -> T:
        """See `ports.Database`."""
        result: T = await self._ask(work, reads=False)
        return result

    async def read(self, work: Work[T], *, one_view: bool = True, lasting: bool = True) -> T:
        """See `ports.Database`."""
        result: T = await self._ask(work, reads=True)
        return result

    async def _ask(self, work: Work[Any], *, reads: bool) -> Any:
        if self._closed:
            raise Closed(_CLOSED)
        self._counts["works"] += 1
        what = "read" if reads else "write"
        if self.failpoint(f"before {what}"):
            await asyncio.sleep(0)  # a process that has checked its lease is paused just before it writes
        try:
            answer = self._network.call(
                self.host, self._server, what, lambda: self._server.run(work, reads=reads), once=True
            )
            done: _Done = await answered(self._network.loop, answer, f"{what} at the database", self._patience_ns)
            if done.error is not None:
                raise done.error
        except BaseException:
            self._counts["failed"] += 1
            raise
        if self.failpoint(f"after {what}"):
            await asyncio.sleep(0)
        for call in done.calls:
            call()
        if done.channels:
            self.notify(done.channels)
            for client in list(self._server.clients.values()):
                if client is not self:
                    self._network.tell(self.host, client.host, lambda to=client: to.notify(done.channels))  # type: ignore[misc]  # bound now
        return done.result

    def notify(self, channels: tuple[str, ...]) -> None:
        """A process has committed a change that others wait for."""
        if not self._closed:
            self._notifier.notify(channels)

    def listen(self, channel: str) -> ChannelSubscription:
        """See `ports.Database`."""
        if self._closed:
            raise Closed(_CLOSED)
        return self._notifier.listen(channel)

    def statistics(self) -> dict[str, int]:
        """See `ports.Database`."""
        return {**self._counts, "bells": len(self._notifier)}

    def hang_up(self) -> None:
        """The process is gone: it receives and sends nothing any more."""
        self._closed = True
        self._server.clients.pop(self.host, None)

    async def close(self) -> None:
        """See `ports.Database`."""
        self.hang_up()
        self._notifier.close()
