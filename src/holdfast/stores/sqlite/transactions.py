"""Leases in transactions on the SQLite file: many at a time, in an own transaction or in one of another writer.

A file has one write lock. A program that stores its own tables in the file of its leases, as the plane does, has one
thread that writes; without this module, that thread and the lease thread would wait for each other. So:

- `LeaseBatch` grants or releases many leases in one transaction: each as it would be alone, and all of them or none.
- `TransactionHost`: a writer that runs these steps in its own transactions.
- `SqliteTransactionLocks`: locks that are needed for the length of one transaction. No other connection can write
  meanwhile. So such a lock only checks that its key is free and raises the fence. It writes no row, and a process that
  dies leaves nothing behind. It refuses a key that any process holds, removes the row of a dead process, and its fence
  is above every earlier one of the file. All of it is undone with the transaction.

Clock: that of the leases (`liveness`). The monotonic clock of the event loop, for time limits only.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar, runtime_checkable

from holdfast.core.ports import Query
from holdfast.errors import BackendError, Timeout
from holdfast.stores.sqlite.errors import damaged, is_busy, translated
from holdfast.stores.sqlite.lease_table import (
    ACQUIRE,
    RELEASE,
    LeaseTable,
    commit,
    digest,
    grant_parameters,
    release_parameters,
)
from holdfast.stores.sqlite.liveness import LivenessJudge
from holdfast.stores.sqlite.schema import sql
from holdfast.types import NS, AcquireRequest, Busy, Grant

T = TypeVar("T")


@runtime_checkable
class TransactionHost(Protocol):
    """A writer to a SQLite file, driven from an event loop, that runs other steps in its transactions."""

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        ...

    @property
    def durable(self) -> bool:
        """Whether what it has committed survives a loss of power."""
        ...

    async def carry(self, step: Callable[[sqlite3.Connection], T], *, lasting: bool = True) -> T:
        """Run a step in a transaction with whatever else is being written. Returns when it is committed.

        `lasting`: and as durable as what it writes itself. If not, it is so before anything later is.
        An error of the step is raised here, and undoes that step alone. Raises what a write of the carrier does.
        """
        ...


async def carried(
    carrier: TransactionHost, step: Callable[[sqlite3.Connection], T], timeout_ns: int, *, lasting: bool = True
) -> T:
    """Have a step carried, within a time limit. `Timeout`: it is unknown whether it was, or will be."""
    try:
        async with asyncio.timeout(timeout_ns / NS):
            return await carrier.carry(step, lasting=lasting)
    except TimeoutError as error:
        if isinstance(error, BackendError):
            raise
        raise Timeout(f"{carrier.path} did not answer within {timeout_ns / NS:.2g} s") from None


class LeaseBatch:
    """Steps for many leases of one file."""

    def __init__(self, leases: LeaseTable) -> None:
        self._leases = leases

    def alone(self, step: Callable[[sqlite3.Connection], T], timeout_ns: int) -> T:
        """Run a step in a transaction of its own. Blocks."""

        def whole(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            result = step(connection)
            commit(connection)
            return result

        return self._leases.file.run(whole, timeout_ns)

    def granting(self, asks: Sequence[AcquireRequest]) -> Callable[[sqlite3.Connection], list[Grant | Busy]]:
        """A step: grant each of some keys that differ, without tickets, or say who has it."""
        leases, tokens = self._leases, [digest(ask.token) for ask in asks]

        def step(connection: sqlite3.Connection) -> list[Grant | Busy]:
            now, host = leases.judge.now(), leases.judge.host
            answers: list[Grant | Busy] = []
            for ask, token in zip(asks, tokens, strict=True):
                granted = connection.execute(ACQUIRE, grant_parameters(ask, token, now, host)).fetchall()
                answers.append(
                    Grant(ask.key, ask.token, granted[0][0], "")
                    if granted
                    else leases.judged(connection, ask, token, "", now)
                )
            return answers

        return self._translated(step)

    def returning(self, grants: Sequence[Grant]) -> Callable[[sqlite3.Connection], list[tuple[bool, list[str]]]]:
        """A step: compare and delete each. Whether it was ours, and whom to wake."""
        leases = self._leases

        def step(connection: sqlite3.Connection) -> list[tuple[bool, list[str]]]:
            now, host = leases.judge.now(), leases.judge.host
            batch = (release_parameters(grant.key, grant.token, now, host) for grant in grants)
            return [leases.released(connection.execute(RELEASE, each).fetchall(), now) for each in batch]

        return self._translated(step)

    def _translated(self, step: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
        """The step, with errors in terms of leases, whichever transaction it runs in."""

        def run_step(connection: sqlite3.Connection) -> T:
            try:
                return step(connection)
            except sqlite3.Error as error:
                if is_busy(error):
                    raise  # the owner of the transaction tries again
                raise translated(error, self._leases.file.path) from error
            except UnicodeDecodeError as error:  # SQLite's message about a damaged file may quote the damage
                raise damaged(self._leases.file.path) from error

        return run_step


_HOLDERS: Final = sql("holders")
_DROP: Final = sql("drop")
_RAISE: Final = sql("raise_fences")


class SqliteTransactionLocks:
    """See `ports.TransactionLocks`."""

    def __init__(self, judge: LivenessJudge) -> None:
        self._judge = judge

    async def take(self, query: Query, keys: Sequence[str], *, unheard: bool = False) -> list[int | Busy]:
        """See `ports.TransactionLocks`."""
        now = self._judge.now()
        busy: dict[str, Busy] = {}
        dead: list[str] = []
        for row in () if unheard else await query(_HOLDERS, {"keys": json.dumps(keys)}):
            expiry = (row["clock"], row["process"], row["expires_ns"], row["expires_wall_ns"])
            if (left := self._judge.left_ns(expiry, now)) > 0:
                busy[row["key"]] = Busy(row["key"], row["owner"], left)
            else:
                dead.append(row["key"])
        for key in dead:
            await query(_DROP, {"key": key})
        free = len(keys) - len(busy)
        if not free:
            return [busy[key] for key in keys]
        raised = await query(_RAISE, {"fence_floor": now.wall // 1000, "more": free - 1})
        fence = raised[0]["value"] - free
        answers: list[int | Busy] = []
        for key in keys:
            if key in busy:
                answers.append(busy[key])
            else:
                fence += 1
                answers.append(fence)
        return answers
