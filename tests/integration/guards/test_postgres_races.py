"""Guarded rows under real concurrency: one session has a transaction open, another is seen to wait for it.

Nothing here is left to chance: the server reports that a session waits, and how the
first transaction ends. `test_postgres_storms.py` is the counterpart that leaves the order to chance.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.errors import FencedOut, Misconfigured, NotEntered, RowExists
from support.fixtures.guards import carried
from support.fixtures.postgres import every_postgres
from support.harness.postgres_tables import Stage, Waits

A, B, C = carried(1), carried(2), carried(3)


class Duel:
    """Two sessions: the first has a transaction open, the second takes one step that has to wait for it."""

    def __init__(self, pg: Stage, waits: Waits, first: Any, second: Any) -> None:
        self.first, self.second = pg.table(first), pg.table(second)
        self._pg, self._waits, self._sessions = pg, waits, (first, second)

    @classmethod
    async def begin(cls, pg: Stage, waits: Waits) -> Duel:
        first, second = await pg.connect(), await pg.connect()
        await pg.run(first, "BEGIN")
        return cls(pg, waits, first, second)

    async def waiting(self, step: Any) -> Any:
        """Begin the second one's step, and return when it waits."""
        started = self._pg.start(step)
        await self._pg.blocked(self._waits, self._sessions[1], self._sessions[0])
        return started

    async def end(self, how: str) -> None:
        await self._pg.run(self._sessions[0], how)

    async def content(self) -> list[tuple[Any, ...]]:
        return await self._pg.content(self._sessions[0])


async def given(pg: Stage, *rows: int, deleted: bool = False) -> None:
    """Rows that carry the fence 1, or are remembered with it."""
    table = pg.table(await pg.connect())
    for row in rows:
        await table.insert(A, row, {"total": 1})
        if deleted:
            await table.delete(A, row)


def call(table: Any, step: str, bearer: Any, row: int = 42) -> Any:
    values = () if step in {"enter", "delete"} else ({"total": 9},)
    return getattr(table, step)(bearer, row, *values)


@every_postgres
@pytest.mark.requires("R47", "R65", "R69")
@pytest.mark.parametrize("step", ["enter", "update", "upsert", "delete"])
async def test_a_stale_step_waits_for_a_newer_holder_that_has_entered_and_is_then_refused(
    pg: Stage, waits: Waits, step: str
) -> None:
    await given(pg, 42)
    duel = await Duel.begin(pg, waits)
    async with duel.first.section(B, 42) as row:
        late = await duel.waiting(call(duel.second, step, A))
        await row.update(total=row["total"] + 4)
    await duel.end("COMMIT")
    with pytest.raises(FencedOut) as refused:
        await late
    assert refused.value.seen == 2
    assert await duel.content() == [(42, 5, 2)]


@pytest.mark.parametrize("step", ["enter", "update", "upsert", "delete"])
async def test_a_step_that_waited_is_done_when_the_newer_holder_rolls_back(pg: Stage, waits: Waits, step: str) -> None:
    await given(pg, 42)
    duel = await Duel.begin(pg, waits)
    async with duel.first.section(B, 42) as row:
        late = await duel.waiting(call(duel.second, step, A))
        await duel.end("ROLLBACK")
        await late
        before = await duel.content()
        assert before == {"enter": [(42, 1, 1)], "delete": [("invoices", "42", 1)]}.get(step, [(42, 9, 1)])
        with pytest.raises(NotEntered):  # its own registration is gone, and it is told so
            await row.upsert(total=7)
    assert await duel.content() == before


@every_postgres
@pytest.mark.requires("R69")
@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("step", ["enter", "insert", "upsert"])
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_a_holder_that_makes_a_row_waits_for_a_newer_one_that_enters_it(
    pg: Stage, waits: Waits, step: str, ending: str, remembered: bool
) -> None:
    await given(pg, *[42] * remembered, deleted=True)
    duel = await Duel.begin(pg, waits)
    assert await duel.first.enter(B, 42) is None
    late = await duel.waiting(call(duel.second, step, A))
    await duel.end(ending)
    if ending == "COMMIT":
        with pytest.raises(FencedOut):
            await late
        assert await duel.content() == [("invoices", "42", 2)]
    else:
        await late
        assert await duel.content() == ([("invoices", "42", 1)] if step == "enter" else [(42, 9, 1)])


@every_postgres
@pytest.mark.requires("R69")
@pytest.mark.parametrize("remembered", [False, True])
async def test_a_newer_holder_that_enters_while_the_row_is_being_made_reads_that_row(
    pg: Stage, waits: Waits, remembered: bool
) -> None:
    await given(pg, *[42] * remembered, deleted=True)
    duel = await Duel.begin(pg, waits)
    await duel.first.insert(A, 42, {"total": 5})
    entering = await duel.waiting(duel.second.enter(B, 42))
    await duel.end("COMMIT")
    assert (await entering)["total"] == 5
    assert await duel.content() == [(42, 5, 2)]
    with pytest.raises(FencedOut):
        await duel.first.update(A, 42, {"total": 6})


@pytest.mark.parametrize("remembered", [False, True])
async def test_a_newer_holder_that_enters_while_a_row_is_made_and_undone_finds_none_and_holds_its_place(
    pg: Stage, waits: Waits, remembered: bool
) -> None:
    await given(pg, *[42] * remembered, deleted=True)
    duel = await Duel.begin(pg, waits)
    await duel.first.insert(A, 42, {"total": 5})
    entering = await duel.waiting(duel.second.enter(B, 42))
    await duel.end("ROLLBACK")
    assert await entering is None
    assert await duel.content() == [("invoices", "42", 2)]


@every_postgres
@pytest.mark.parametrize("step", ["enter", "insert", "upsert"])
async def test_a_stale_holder_is_refused_by_the_row_that_was_made_while_it_waited(
    pg: Stage, waits: Waits, step: str
) -> None:
    duel = await Duel.begin(pg, waits)
    await duel.first.insert(B, 42, {"total": 5})
    late = await duel.waiting(call(duel.second, step, A))
    await duel.end("COMMIT")
    with pytest.raises(FencedOut) as refused:
        await late
    assert refused.value.seen == 2
    assert await duel.content() == [(42, 5, 2)]


async def test_the_insert_of_a_section_is_refused_by_a_newer_insert_that_it_waited_for(pg: Stage, waits: Waits) -> None:
    duel = await Duel.begin(pg, waits)
    async with duel.second.section(A, 42) as row:
        await duel.first.insert(B, 42, {"total": 5})
        late = await duel.waiting(row.insert(total=6))
        await duel.end("COMMIT")
        with pytest.raises(FencedOut) as refused:  # and not NotEntered: a newer holder is the reason
            await late
        assert refused.value.seen == 2
    assert await duel.content() == [(42, 5, 2)]


@every_postgres
@pytest.mark.requires("R58")
@pytest.mark.parametrize("step", ["enter", "insert", "update", "upsert", "delete"])
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_a_stale_step_waits_for_a_newer_delete(pg: Stage, waits: Waits, step: str, ending: str) -> None:
    await given(pg, 42)
    duel = await Duel.begin(pg, waits)
    await duel.first.delete(B, 42)
    late = await duel.waiting(call(duel.second, step, A))
    await duel.end(ending)
    if ending == "COMMIT":
        with pytest.raises(FencedOut) as refused:
            await late
        assert refused.value.seen == 2
        assert await duel.content() == [("invoices", "42", 2)]
    elif step == "insert":
        with pytest.raises(RowExists):
            await late
        assert await duel.content() == [(42, 1, 1)]
    else:
        await late


@every_postgres
async def test_a_newer_holder_that_waited_for_a_delete_carries_on_where_nothing_is(pg: Stage, waits: Waits) -> None:
    await given(pg, 42)
    duel = await Duel.begin(pg, waits)
    await duel.first.delete(B, 42)
    late = await duel.waiting(duel.second.enter(C, 42))
    await duel.end("COMMIT")
    assert await late is None
    assert await duel.content() == [("invoices", "42", 3)]


@every_postgres
async def test_a_holder_that_deletes_what_it_has_entered_is_not_in_a_deadlock_with_a_stale_delete(
    pg: Stage, waits: Waits
) -> None:
    await given(pg, 42)
    duel = await Duel.begin(pg, waits)
    async with duel.first.section(B, 42) as row:
        late = await duel.waiting(duel.second.delete(A, 42))
        await row.delete()  # the ledger entry is free: a session that waits for a row holds none
    await duel.end("COMMIT")
    with pytest.raises(FencedOut):
        await late
    assert await duel.content() == [("invoices", "42", 2)]


@pytest.mark.parametrize("exists", [True, False])
async def test_an_unfenced_step_that_waits_for_a_fence_keeps_its_memory(
    pg: Stage, waits: Waits, degraded: holdfast.DegradedLease, exists: bool
) -> None:
    await given(pg, *[42] * exists)
    first, second = await pg.connect(), await pg.connect()
    duel, lax = Duel(pg, waits, first, second), pg.table(second, allow_degraded=True)
    await pg.run(first, "BEGIN")
    await duel.first.enter(C, 42)
    late = await duel.waiting(lax.delete(degraded, 42) if exists else lax.insert(degraded, 42, {"total": 9}))
    await duel.end("COMMIT")
    await late
    assert await duel.content() == ([("invoices", "42", 3)] if exists else [(42, 9, 3)])
    with pytest.raises(FencedOut):
        await duel.second.upsert(B, 42, {"total": 7})


async def test_waiting_ends_with_the_lock_timeout_of_the_session_and_nothing_is_changed(pg: Stage) -> None:
    await given(pg, 42)
    first, second = await pg.connect(), await pg.connect(options="-c lock_timeout=1ms")
    await pg.run(first, "BEGIN")
    await pg.table(first).enter(B, 42)
    await pg.table(first).enter(B, 43)
    table = pg.table(second)
    for step in (call(table, "update", C), call(table, "delete", C), call(table, "insert", C, 43)):
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await step
        assert second.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    await pg.run(first, "COMMIT")
    assert await pg.content(second) == [(42, 1, 2), ("invoices", "43", 2)]


@pytest.mark.parametrize("pg", ["asyncio"], indirect=True)
@pytest.mark.parametrize("step", ["enter", "update", "delete"])
async def test_a_step_that_is_cancelled_while_it_waits_has_changed_nothing(pg: Stage, waits: Waits, step: str) -> None:
    await given(pg, 42)
    duel = await Duel.begin(pg, waits)
    await duel.first.enter(B, 42)
    late = await duel.waiting(call(duel.second, step, C))
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    await duel.end("COMMIT")
    assert await duel.content() == [(42, 1, 2)]
    await duel.second.update(C, 42, {"total": 3})  # the connection is as good as before


@every_postgres
@pytest.mark.requires("R69")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("step", ["enter", "update", "upsert", "delete"])
@pytest.mark.parametrize("change", ["enter", "delete"])
async def test_a_snapshot_from_before_a_newer_holder_ends_in_the_databases_own_error(
    pg: Stage, level: str, step: str, change: str
) -> None:
    await given(pg, 42)
    first, second = await pg.connect(), await pg.connect()
    await pg.run(second, f"BEGIN ISOLATION LEVEL {level}")
    await pg.run(second, "SELECT * FROM invoices")
    await call(pg.table(first), change, B)
    before = await pg.content(first)
    with pytest.raises(psycopg.errors.SerializationFailure):
        await call(pg.table(second), step, A)
    await pg.run(second, "ROLLBACK")
    assert await pg.content(first) == before


@every_postgres
@pytest.mark.requires("R69")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("bearer", [A, C], ids=["stale", "newer"])
@pytest.mark.parametrize("step", ["insert", "upsert", "enter"])
async def test_a_row_that_was_made_after_the_snapshot_is_neither_made_again_nor_entered_as_missing(
    pg: Stage, level: str, bearer: Any, step: str
) -> None:
    first, second = await pg.connect(), await pg.connect()
    await pg.run(second, f"BEGIN ISOLATION LEVEL {level}")
    await pg.run(second, "SELECT * FROM invoices")
    await pg.table(first).insert(B, 42, {"total": 5})
    with pytest.raises((psycopg.errors.SerializationFailure, Misconfigured)) as refused:
        await call(pg.table(second), step, bearer)
    assert ("READ COMMITTED" if step == "enter" else "could not serialize access") in str(refused.value)
    await pg.run(second, "ROLLBACK")
    assert await pg.content(first) == [(42, 5, 2)]


@every_postgres
@pytest.mark.requires("R69")
@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_stricter_default_of_the_session_does_not_hide_a_row_from_an_entering_holder(
    pg: Stage, waits: Waits, level: str, autocommit: bool
) -> None:
    first = await pg.connect()
    strict = await pg.connect(autocommit=autocommit)
    await pg.run(strict, f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
    await pg.run(strict, "COMMIT") if not autocommit else None
    duel = Duel(pg, waits, first, strict)
    await pg.run(first, "BEGIN")
    await duel.first.insert(A, 42, {"total": 5})
    entering = await duel.waiting(duel.second.enter(B, 42))
    await duel.end("COMMIT")
    assert (await entering)["total"] == 5
    assert await duel.content() == [(42, 5, 2)]


@every_postgres
@pytest.mark.requires("R69")
@pytest.mark.parametrize("step", ["section", "update", "delete"])
async def test_a_row_that_is_made_while_its_memory_is_looked_up_refuses_the_older_holder(pg: Stage, step: str) -> None:
    """The older one finds no row, then the newer one makes it, then the older one finds that nothing is remembered."""
    first, second = await pg.connect(), await pg.connect()
    newer, older = pg.table(first), pg.table(second)
    rows = older._flow._rows
    note, ask = rows.note, rows.noted

    async def noted(row: Any) -> Any:
        rows.noted = ask
        await newer.upsert(B, 42, {"total": 5})
        return await ask(row)

    async def noted_too_late(*words: Any) -> Any:
        rows.note, rows.noted = note, noted
        await newer.enter(B, 42)
        return await note(*words)

    async with older.section(A, 42) as row:
        if step == "section":
            rows.note, late = noted_too_late, row.upsert(total=9)
        else:
            await newer.enter(B, 42)
            rows.noted, late = noted, call(older, step, A)
        with pytest.raises(FencedOut) as refused:
            await late
    assert (type(refused.value), refused.value.seen) == (FencedOut, 2)
    assert await pg.content(first) == [(42, 5, 2)]
