"""A SQLite file that was changed by hand, or by a disk: leases come from what makes sense in it, or not at all.

Every column of every row is given values that it cannot have, and bytes of the file are turned over by chance. What
follows is a grant with a fence above all before it, a busy lock, or an error of ours; never a grant beside a holder
whose row cannot be read, never another exception, and never a fence that goes back.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.ports import Store
from holdfast.errors import BackendError
from holdfast.runtime.run_sync import run_now
from holdfast.stores.sqlite.engine import open_engine
from holdfast.types import NS, Grant, Renewal
from support.harness.redis_requests import ask, take

pytestmark = pytest.mark.threat("X17")

COLUMNS = {
    "holdfast_lease": (
        "token",
        "owner",
        "family",
        "granted_wall_ns",
        "expires_ns",
        "expires_wall_ns",
        "clock",
        "process",
    ),
    "holdfast_ticket": ("ticket", "address", "expires_ns", "expires_wall_ns", "clock", "process"),
    "holdfast_listener": ("address", "place", "expires_wall_ns"),
}
STRANGE: list[Any] = ["soon", b"\x00\xff", b"", 1e300, 2**63 - 1, "9" * 400, "\0"]
SOON = 2 * NS
FLIPS = 40


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "leases.db"


def written(connection: sqlite3.Connection, table: str, column: str, value: Any) -> None:
    connection.execute(f"UPDATE {table} SET {column} = ?", (value,))


def rows_of(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in COLUMNS}


def restored(connection: sqlite3.Connection, rows: dict[str, list[Any]]) -> None:
    for table, found in rows.items():
        connection.execute(f"DELETE FROM {table}")
        for row in found:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


async def everything(store: Store, token: str) -> list[object]:
    """Each thing that a store is asked, and what it answers or raises."""
    lease = Renewal("job", token, "", NS)
    asked = (
        lambda: store.acquire(ask("job"), SOON),
        lambda: store.acquire(ask("job", ticket="t2"), SOON),
        lambda: store.renew_many([lease, lease], SOON),
        lambda: store.inspect("job", SOON),
        lambda: store.holdings("", 10, SOON),
        lambda: store.audit(10, SOON),
        lambda: store.leave("job", "t2", SOON),
        lambda: store.release("other", token, None, 0, SOON),
    )
    found: list[object] = []
    for each in asked:
        try:
            found.append(await each())
        except BackendError as error:
            found.append(error)
    return found


def damaged() -> Iterator[tuple[str, str, Any]]:
    for table, columns in COLUMNS.items():
        for column in columns:
            for value in STRANGE:
                yield table, column, value


def test_no_damaged_row_grants_a_key_beside_its_holder(file: Path) -> None:
    engine = open_engine(f"sqlite:///{file}")
    store = engine.blocking
    held = run_now(take(store, "job", ttl_ns=600 * NS))
    run_now(store.acquire(ask("job", ticket="t1"), SOON))
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("INSERT INTO holdfast_listener VALUES (1, 'job', 'a', 'p', 9)")
        before = rows_of(connection)
        for table, column, value in damaged():
            written(connection, table, column, value)
            answers = run_now(everything(store, held.token))
            granted = [each for each in answers if isinstance(each, Grant)]
            # Under a clock of another boot, or with a process that is gone, a lease is over by right.
            assert not granted or (column in {"clock", "process"} and isinstance(value, str)), (table, column, value)
            assert all(each.fence > held.fence for each in granted)
            restored(connection, before)
    engine.close()


def test_bytes_that_a_disk_has_turned_over_give_no_fence_that_went_back(file: Path) -> None:
    engine = open_engine(f"sqlite:///{file}")
    fences = [run_now(take(engine.blocking, f"job:{number}", ttl_ns=600 * NS)).fence for number in range(50)]
    engine.close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole, chance = file.read_bytes(), random.Random(7)
    granted = refused = 0
    for _ in range(FLIPS):
        spoiled = bytearray(whole)
        for _ in range(chance.choice((1, 3, 30, 300))):
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        for each in file.parent.glob(f"{file.name}*"):
            each.unlink()
        file.write_bytes(spoiled)
        engine = open_engine(f"sqlite:///{file}")
        for key in ("job:7", "new"):
            try:
                answer = run_now(engine.blocking.acquire(ask(key), SOON))
            except BackendError:
                refused += 1
                continue
            if isinstance(answer, Grant):
                granted += 1
                assert type(answer.fence) is int
                assert max(fences) < answer.fence < 2**63
        engine.close()
    assert granted
    assert refused


def test_on_an_event_loop_the_same_row_is_the_same_error(file: Path) -> None:
    engine = open_engine(f"sqlite:///{file}")
    run_now(take(engine.blocking, "job", ttl_ns=600 * NS))
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        written(connection, "holdfast_lease", "expires_ns", "soon")

    async def scenario() -> None:
        store = engine.asynchronous()
        try:
            with pytest.raises(BackendError, match="by hand"):
                await store.acquire(ask("job"), SOON)
        finally:
            await store.close()

    asyncio.run(scenario())
    with pytest.raises(BackendError, match="by hand"):
        run_now(engine.blocking.acquire(ask("job"), SOON))
    engine.close()
