"""The real guards of a simulated world: production code on a real SQLite file or folder, which alone decide.

A `Storage` is what runs at the far end of the network: `enter` registers a fence and reads, `write` writes under the
rule of a section. What is stored is one number, or nothing. `found` looks past the guard at what is really there.

To kill the process, copy its folder at that moment and open the copy: it contains what a new process finds after
`kill -9`, with half a transaction in the journal and drafts lying around. Loss of power is not simulated here, so
SQLite does not have to wait for the disk. Nothing here reads a clock of the simulation: a step takes no virtual time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Protocol, TypeVar

from holdfast.guards.bearer import CarriedFence
from holdfast.guards.files import GuardedFile
from holdfast.guards.files.flow import FileFlow, guarded_folder
from holdfast.guards.install import install
from holdfast.guards.install.triggers import Trigger
from holdfast.guards.messages import Inbox
from holdfast.guards.messaging.headers import stamped
from holdfast.guards.records import SqliteRecord
from holdfast.guards.settings import described
from holdfast.guards.sql.rows import ledger_id
from holdfast.guards.sql.table_flow import TableFlow
from holdfast.guards.sqlite import GuardedRow, SqliteRows
from holdfast.runtime.run_sync import run_now
from holdfast.testing.sim.worlds.faults import Guarding

V = TypeVar("V")

TABLE = "things"
NAME = "thing"
_MAKE = "CREATE TABLE things (id TEXT PRIMARY KEY, number INTEGER NOT NULL)"
_ROW = "SELECT number, holdfast_fence FROM things WHERE id = ?"
_LEDGER_FENCE = "SELECT fence FROM holdfast_guard_fence WHERE place = ? AND resource = ?"


class Found(NamedTuple):
    """What is really there."""

    number: int | None  # None: nothing
    fence: int | None  # the highest that is remembered, wherever


class Order(NamedTuple):
    """One write: the new number, or a deletion, made from the number that was read."""

    number: int
    deletes: bool
    based_on: int | None


class Storage(Protocol):
    """One guarded number."""

    points: ClassVar[tuple[str, ...]]
    """The failpoints that its steps come by."""

    repeatable: ClassVar[bool]
    """Whether a write may arrive twice: it looks for itself whether it was done already."""

    def enter(self, carried: CarriedFence) -> int | None:
        """Register the fence, and read. `FencedOut` if it is stale."""
        ...

    def write(self, carried: CarriedFence, order: Order) -> bool:
        """Write in the section that this fence has entered. False: it was done already, or its base is gone."""
        ...

    def found(self) -> Found:
        """Look past the guard."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class RowStorage:
    """A row of a guarded SQLite table."""

    points: ClassVar[tuple[str, ...]] = ("guard.admitted", "guard.reserved", "guard.written")
    repeatable: ClassVar[bool] = False
    trigger: ClassVar[Trigger] = Trigger.NONE

    def __init__(self, folder: Path, key: str) -> None:
        path = folder / "things.db"
        new = not path.exists()
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = OFF").close()
        if new:
            self._connection.execute(_MAKE).close()
            install(self._connection, TABLE, trigger=self.trigger)
        names, admission = described("sqlite", TABLE, {}, False)
        self._flow = TableFlow(SqliteRows(self._connection, names), names, admission)

    def enter(self, carried: CarriedFence) -> int | None:
        """See `Storage`."""
        row = run_now(self._flow.enter(carried, NAME))
        return None if row is None else int(row["number"])

    def write(self, carried: CarriedFence, order: Order) -> bool:
        """See `Storage`."""
        row = GuardedRow(self._flow, carried, NAME, None)
        if order.deletes:
            row.delete()
        elif order.based_on is None:
            row.insert(number=order.number)
        else:
            row.update(number=order.number)
        return True

    def found(self) -> Found:
        """See `Storage`."""
        if self._connection.in_transaction:
            raise RuntimeError("a guarded step has left its transaction open")
        number, fence = self._one(_ROW, (NAME,)) or (None, None)
        (noted,) = self._one(_LEDGER_FENCE, (TABLE, ledger_id(NAME))) or (None,)
        return Found(number, max((each for each in (fence, noted) if each is not None), default=None))

    def close(self) -> None:
        """See `Storage`."""
        self._connection.close()

    def _one(self, query: str, values: tuple[str, ...]) -> tuple[int | None, ...] | None:
        rows: list[tuple[int | None, ...]] = self._connection.execute(query, values).fetchall()
        return rows[0] if rows else None


class TriggeredStorage(RowStorage):
    """The same, with triggers that refuse clients which ignore the protocol."""

    trigger: ClassVar[Trigger] = Trigger.STRICT


class InboxStorage(RowStorage):
    """A consumer that keeps a record of fences at its door, and behind it the same row.

    Messages come at least once. A fence does not tell a repetition from a second write of the same holder, so the
    handler compares what the message was made from with what there is, inside the section.
    """

    points: ClassVar[tuple[str, ...]] = (*RowStorage.points, "guard.noted")
    repeatable: ClassVar[bool] = True

    def __init__(self, folder: Path, key: str) -> None:
        super().__init__(folder, key)
        self._key = key
        self._record = SqliteRecord(folder / "inbox.db")
        self._inbox = Inbox(self._record, place="inbox")

    def write(self, carried: CarriedFence, order: Order) -> bool:
        """See `Storage`."""
        with self._inbox.section(stamped(carried)) as admitted:
            if self.enter(admitted) != order.based_on:
                return False
            return super().write(admitted, order)

    def found(self) -> Found:
        """See `Storage`."""
        number, fence = super().found()
        noted = run_now(self._record.seen("inbox", self._key))
        return Found(number, max((each for each in (fence, noted) if each is not None), default=None))

    def close(self) -> None:
        """See `Storage`."""
        self._record.close()
        super().close()


class FileStorage:
    """A guarded file."""

    points: ClassVar[tuple[str, ...]] = (
        *("guard.admitted", "guard.reserved", "guard.generation"),
        *("guard.replaced", "guard.written"),
    )
    repeatable: ClassVar[bool] = False

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / "files"
        self._path.mkdir(exist_ok=True)
        self._flow: FileFlow = guarded_folder(self._path, _here, {}, False)

    def enter(self, carried: CarriedFence) -> int | None:
        """See `Storage`."""
        data = run_now(self._flow.enter(carried, NAME))
        return None if data is None else int(data)

    def write(self, carried: CarriedFence, order: Order) -> bool:
        """See `Storage`."""
        file = GuardedFile(self._flow, carried, NAME, None)
        if order.deletes:
            file.delete()
        else:
            file.replace(str(order.number))
        return True

    def found(self) -> Found:
        """See `Storage`."""
        path = self._path / NAME
        return Found(int(path.read_bytes()) if path.exists() else None, run_now(self._flow.seen(NAME)))

    def close(self) -> None:
        """See `Storage`: nothing is open between two steps."""


async def _here(step: Callable[[], V]) -> V:
    return step()


STORAGES: Final[dict[Guarding, Callable[[Path, str], Storage]]] = {
    Guarding.ROW: RowStorage,
    Guarding.TRIGGERED: TriggeredStorage,
    Guarding.FILE: FileStorage,
    Guarding.INBOX: InboxStorage,
}
"""How to open what stands behind each kind of guard: in a folder, for a key."""
