"""A guarded table through psycopg: what is accepted, what is refused, and whose transaction it is. In both colors."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

import holdfast
from holdfast.errors import FencedOut, LeaseLost, NotEntered, RowExists, RowMissing, Unfenced
from holdfast.guards.admission import GuardStatistics
from support.fixtures.guards import carried
from support.fixtures.postgres import every_postgres
from support.harness.postgres_tables import Stage

A, B, C = carried(1), carried(2), carried(3)
STEPS = ["enter", "insert", "update", "upsert", "delete"]


def values_of(step: str, total: int = 9) -> tuple[Any, ...]:
    return () if step in {"enter", "delete"} else ({"total": total},)


@every_postgres
@pytest.mark.requires("R58", "R47")
async def test_writes_are_accepted_in_order_and_again_under_the_same_fence(pg: Stage) -> None:
    table = pg.table(await pg.connect())
    await table.insert(A, 42, {"total": 1})
    await table.update(A, 42, {"total": 2})
    await table.upsert(A, 42, {"total": 3})
    assert await table.update(B, 42, {"total": 4}) == {"id": 42, "total": 4, "note": None, "holdfast_fence": 2}
    assert await table.seen(42) == 2
    assert await table.delete(C, 42) == {"id": 42, "total": 4, "note": None, "holdfast_fence": 3}
    assert await table.seen(42) == 3
    assert table.statistics() == GuardStatistics(accepted=5)


@every_postgres
@pytest.mark.requires("R58", "R65")
@pytest.mark.parametrize("step", STEPS)
async def test_a_lower_fence_is_refused_and_changes_nothing(pg: Stage, step: str) -> None:
    connection = await pg.connect()
    table = pg.table(connection)
    await table.insert(B, 42, {"total": 1})
    before = await pg.content(connection)
    with pytest.raises(FencedOut) as refused:
        await getattr(table, step)(A, 42, *values_of(step))
    assert (refused.value.fence, refused.value.seen, refused.value.resource) == (1, 2, "invoices 42")
    assert await pg.content(connection) == before
    assert table.statistics() == GuardStatistics(accepted=1, refused=1)


@every_postgres
@pytest.mark.requires("R58")
@pytest.mark.parametrize("step", STEPS)
async def test_a_row_that_a_newer_holder_deleted_cannot_be_brought_back(pg: Stage, step: str) -> None:
    connection = await pg.connect()
    table = pg.table(connection)
    await table.insert(B, 42, {"total": 1})
    await table.delete(B, 42)
    before = await pg.content(connection)
    assert before == [("invoices", "42", 2)]
    with pytest.raises(FencedOut) as refused:
        await getattr(table, step)(A, 42, *values_of(step))
    assert refused.value.seen == 2
    assert await pg.content(connection) == before
    await table.insert(B, 42, {"total": 5})  # the same grant may, and then the row carries the memory itself
    assert await pg.content(connection) == [(42, 5, 2)]


@every_postgres
@pytest.mark.requires("R58")
async def test_a_missing_row_is_told_apart_from_a_stale_writer(pg: Stage) -> None:
    table = pg.table(await pg.connect())
    with pytest.raises(RowMissing):
        await table.update(A, 42, {"total": 1})
    with pytest.raises(RowMissing):
        await table.delete(A, 42)
    await table.insert(A, 42, {"total": 1})
    with pytest.raises(RowExists):
        await table.insert(B, 42, {"total": 2})
    assert table.statistics() == GuardStatistics(accepted=1, missing=2, existing=1)


@every_postgres
@pytest.mark.requires("R69", "R71")
async def test_nothing_can_come_between_the_read_of_a_section_and_its_write(pg: Stage) -> None:
    table = pg.table(await pg.connect())
    await table.insert(A, 42, {"total": 10})
    async with table.section(A, 42) as old:
        async with table.section(B, 42) as new:
            with pytest.raises(FencedOut):
                await old.update(total=old["total"] + 1)
            await new.update(total=new["total"] + 5)
        with pytest.raises(FencedOut):
            await old.delete()
    assert (await table.enter(B, 42))["total"] == 15


@every_postgres
@pytest.mark.requires("R69")
async def test_a_section_on_a_row_that_does_not_exist_holds_its_place(pg: Stage) -> None:
    connection = await pg.connect()
    table = pg.table(connection)
    async with table.section(B, 42) as row:
        assert not row.exists
        for step in ("insert", "upsert", "enter"):
            with pytest.raises(FencedOut):
                await getattr(table, step)(A, 42, *values_of(step))
        await row.insert(total=1)
        assert row["holdfast_fence"] == 2
        await row.delete()
        await row.upsert(total=7)
    assert await pg.content(connection) == [(42, 7, 2)]


@every_postgres
@pytest.mark.parametrize("fence", [0, 2**31, 2**53, 2**53 + 1, 2**63 - 1])
async def test_fences_of_every_size_are_kept_to_the_last_digit(pg: Stage, fence: int) -> None:
    table = pg.table(await pg.connect())
    await table.upsert(carried(fence), 42, {"total": 1})
    await table.enter(carried(fence), 42)
    await table.delete(carried(fence), 42)
    assert await table.seen(42) == fence
    if fence:
        with pytest.raises(FencedOut) as refused:
            await table.insert(carried(fence - 1), 42, {"total": 1})
        assert refused.value.seen == fence


@pytest.mark.parametrize("autocommit", [True, False])
async def test_without_a_transaction_each_step_is_committed_and_the_connection_is_idle_again(
    pg: Stage, autocommit: bool
) -> None:
    other = await pg.connect()
    connection = await pg.connect(autocommit=autocommit)
    table = pg.table(connection)

    def idle() -> bool:
        return bool(connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE)

    await table.enter(B, 42)
    assert idle()
    assert await pg.content(other) == [("invoices", "42", 2)]
    await table.upsert(B, 42, {"total": 1})
    assert idle()
    assert await pg.content(other) == [(42, 1, 2)]
    for step in STEPS:
        with pytest.raises(FencedOut):
            await getattr(table, step)(A, 42, *values_of(step))
        assert idle()
    assert await table.seen(42) == 2
    assert idle()
    await table.delete(B, 42)
    assert idle()
    assert await pg.content(other) == [("invoices", "42", 2)]


@every_postgres
@pytest.mark.requires("R58")
@pytest.mark.parametrize("autocommit", [True, False])
async def test_in_a_transaction_of_the_caller_every_step_is_part_of_it(pg: Stage, autocommit: bool) -> None:
    other = await pg.connect()
    connection = await pg.connect(autocommit=autocommit)
    table = pg.table(connection)
    await table.insert(A, 1, {"total": 1})
    await pg.run(connection, "BEGIN") if autocommit else None
    await pg.run(connection, "INSERT INTO invoices (id, total) VALUES (99, 99)")
    await table.insert(B, 2, {"total": 2})
    await table.update(B, 1, {"total": 7})
    await table.enter(B, 3)
    await table.upsert(B, 4, {"total": 4})
    await table.delete(B, 4)
    assert await pg.content(other) == [(1, 1, 1)]
    await pg.run(connection, "ROLLBACK")
    assert await pg.content(other) == [(1, 1, 1)]
    assert await table.seen(4) is None


async def test_a_refusal_in_a_transaction_leaves_the_rest_of_it_alone(pg: Stage) -> None:
    connection = await pg.connect()
    table = pg.table(connection)
    await table.insert(B, 42, {"total": 1})
    await table.insert(B, 43, {"total": 1})
    await table.delete(B, 43)
    await pg.run(connection, "BEGIN")
    await pg.run(connection, "INSERT INTO invoices (id, total) VALUES (99, 99)")
    for row in (42, 43):
        for step in STEPS:
            with pytest.raises(FencedOut):
                await getattr(table, step)(A, row, *values_of(step))
    with pytest.raises(RowExists):
        await table.insert(C, 42, {"total": 5})
    await table.update(C, 42, {"total": 3})
    await pg.run(connection, "COMMIT")
    assert await pg.content(connection) == [(42, 3, 3), (99, 99, None), ("invoices", "43", 2)]


@every_postgres
@pytest.mark.requires("R69")
@pytest.mark.parametrize("exists", [True, False])
async def test_a_section_that_was_entered_in_a_transaction_that_was_rolled_back_cannot_write(
    pg: Stage, exists: bool
) -> None:
    connection = await pg.connect()
    table = pg.table(connection)
    if exists:
        await table.insert(A, 42, {"total": 1})
    await pg.run(connection, "BEGIN")
    async with table.section(B, 42) as row:
        await pg.run(connection, "ROLLBACK")
        before = await pg.content(connection)
        with pytest.raises(NotEntered) as refused:
            await row.upsert(total=2)
    assert (refused.value.fence, refused.value.seen) == (2, 1 if exists else None)
    assert await pg.content(connection) == before
    assert table.statistics().not_entered == 1


@pytest.mark.parametrize("step", STEPS)
async def test_in_a_transaction_that_has_failed_psycopg_says_so(pg: Stage, step: str) -> None:
    connection = await pg.connect()
    table = pg.table(connection)
    await table.insert(A, 42, {"total": 1})
    await pg.run(connection, "BEGIN")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await pg.run(connection, "SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        await getattr(table, step)(A, 42, *values_of(step))
    await pg.run(connection, "ROLLBACK")
    await table.update(A, 42, {"total": 2})
    assert await pg.content(connection) == [(42, 2, 1)]


async def test_a_step_that_fails_half_way_is_undone_and_the_error_is_psycopgs_own(pg: Stage) -> None:
    connection = await pg.connect()
    await pg.run(connection, "ALTER TABLE invoices ADD CHECK (total < 100), ADD UNIQUE (note)")
    table = pg.table(connection)
    await table.insert(A, 1, {"note": "taken"})
    before = await pg.content(connection)
    with pytest.raises(psycopg.errors.CheckViolation):
        await table.insert(B, 42, {"total": 100})
    with pytest.raises(psycopg.errors.UniqueViolation):
        await table.upsert(B, 42, {"note": "taken"})
    with pytest.raises(psycopg.errors.UndefinedColumn, match="nosuch"):
        await table.update(B, 1, {"nosuch": 1})
    assert await pg.content(connection) == before
    await pg.run(connection, "BEGIN")  # in the caller's transaction only the step's own savepoint is lost
    await table.insert(B, 2, {"total": 2})
    with pytest.raises(psycopg.errors.CheckViolation):
        await table.insert(B, 42, {"total": 100})
    await pg.run(connection, "COMMIT")
    assert await pg.content(connection) == [*before, (2, 2, 2)]


async def test_the_callers_row_and_cursor_factories_do_not_matter(pg: Stage) -> None:
    cursors = psycopg.AsyncClientCursor if pg.colour == "asyncio" else psycopg.ClientCursor
    connection = await pg.connect(row_factory=namedtuple_row, cursor_factory=cursors)
    table = pg.table(connection)
    assert await table.enter(A, 42) is None
    assert (await table.upsert(A, 42, {"total": 1}))["total"] == 1
    async with table.section(A, 42) as row:
        assert row["total"] == 1
        await row.update(total=2)
    assert (await table.delete(A, 42))["total"] == 2
    assert connection.row_factory is namedtuple_row


@pytest.mark.parametrize("threshold", [0, 1, None])
async def test_steps_work_with_prepared_statements_and_without(pg: Stage, threshold: int | None) -> None:
    table = pg.table(await pg.connect(prepare_threshold=threshold))
    for fence in (1, 40_000, 2**40):  # numbers of every width that psycopg knows
        bearer = carried(fence)
        for total in range(3):
            await table.upsert(bearer, 42, {"total": total * 2**33})
            await table.enter(bearer, 42)
            with pytest.raises(FencedOut):
                await table.update(carried(fence - 1), 42, {"total": 0})
            await table.delete(bearer, 42)
            await table.enter(bearer, 42)
    assert await table.seen(42) == 2**40


@pytest.mark.requires("R28")
async def test_full_leases_are_taken_and_lost_ones_are_refused(pg: Stage, lease: holdfast.Lease) -> None:
    connection = await pg.connect()
    table = pg.table(connection, key="invoice:{id}")
    async with table.section(lease, 42) as row:
        await row.insert(total=1)
    assert await table.seen(42) == lease.fence
    lease.release()
    before = await pg.content(connection)
    with pytest.raises(LeaseLost):
        await table.update(lease, 42, {"total": 2})
    await table.enter(carried(lease.fence + 1), 42)
    with pytest.raises(FencedOut):
        await table.update(lease, 42, {"total": 2})
    assert await pg.content(connection) == [(42, 1, lease.fence + 1)]
    assert before == [(42, 1, lease.fence)]


@every_postgres
async def test_a_lease_without_a_fence_writes_unchecked_and_loses_no_memory(
    pg: Stage, degraded: holdfast.DegradedLease
) -> None:
    connection = await pg.connect()
    table = pg.table(connection)
    with pytest.raises(Unfenced):
        await table.update(degraded, 42, {"total": 1})
    lax = pg.table(connection, allow_degraded=True)
    await lax.insert(degraded, 42, {"total": 1})
    assert await pg.content(connection) == [(42, 1, None)]
    await lax.delete(degraded, 42)
    assert await pg.content(connection) == []
    await table.insert(B, 42, {"total": 2})
    await lax.update(degraded, 42, {"total": 3})
    assert await pg.content(connection) == [(42, 3, 2)]
    await lax.delete(degraded, 42)
    assert await pg.content(connection) == [("invoices", "42", 2)]
    await lax.upsert(degraded, 42, {"total": 4})
    assert await pg.content(connection) == [(42, 4, 2)]  # it comes back with what is remembered
    with pytest.raises(FencedOut):
        await table.update(A, 42, {"total": 5})
