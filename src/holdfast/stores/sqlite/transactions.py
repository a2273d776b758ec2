"""Many leases in one transaction on the SQLite file: one of our own, or one of another writer in this process.

Promises: each key is granted, refused or released as it would be alone; all of it is done, or nothing.

The write lock of a file is one for all. A program that keeps its own tables in the file of its leases, as the plane
does, has one thread that writes; leases that are taken by another thread wait for that one, and it for them. So a
thread that writes to the file may carry our steps in its own transactions: see `TransactionHost`.

Clock: that of the leases; see `sqlite_judge`. The monotonic clock of the event loop, for time limits only.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

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
    """Steps that concern many leases of one leases."""

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

        return self._told(step)

    def returning(self, grants: Sequence[Grant]) -> Callable[[sqlite3.Connection], list[tuple[bool, list[str]]]]:
        """A step: compare and delete each. Whether it was ours, and whom to wake."""
        leases = self._leases

        def step(connection: sqlite3.Connection) -> list[tuple[bool, list[str]]]:
            now, host = leases.judge.now(), leases.judge.host
            batch = (release_parameters(grant.key, grant.token, now, host) for grant in grants)
            return [leases.given_back(connection.execute(RELEASE, each).fetchall(), now) for each in batch]

        return self._told(step)

    def _told(self, step: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
        """The step, with errors in terms of leases, whichever transaction it runs in."""

        def told(connection: sqlite3.Connection) -> T:
            try:
                return step(connection)
            except sqlite3.Error as error:
                if is_busy(error):
                    raise  # the owner of the transaction tries again
                raise translated(error, self._leases.file.path) from error
            except UnicodeDecodeError as error:  # SQLite's message about a damaged file may quote the damage
                raise damaged(self._leases.file.path) from error

        return told
