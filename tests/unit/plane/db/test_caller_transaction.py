"""The plane writes into a transaction of the caller's own, and leaves its end to the caller."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from holdfast.plane.db import caller_transaction
from holdfast.plane.db.ports import Tx

IN_MEMORY = ("sqlite", "in memory")


@pytest.mark.asyncio
async def test_the_end_of_a_transaction_is_left_to_the_caller() -> None:
    async def work(tx: Tx) -> None:
        await tx.query("INSERT INTO jobs VALUES (:id)", {"id": 2})

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE jobs (id INTEGER)")
        connection.execute("INSERT INTO jobs VALUES (1)")
        await caller_transaction.write_within(connection, IN_MEMORY, work, awaited=True)
        assert connection.in_transaction
        assert connection.execute("SELECT id FROM jobs").fetchall() == [(1,), (2,)]
        connection.rollback()
        assert connection.execute("SELECT id FROM jobs").fetchall() == []
