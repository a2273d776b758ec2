"""A look at what waits in a pool: one statement of Postgres finds what steps find, wherever one begins."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.plane.db.ports import Tx
from holdfast.plane.model.records import Submission
from holdfast.plane.scheduler import dispatch_queue
from holdfast.plane.scheduler.dispatch_queue import QueueQuery, QueueSnapshot, read_queue
from holdfast.plane.scheduler.fair_share import TenantQueue
from support.fixtures.scheduling import POOL, Planes, Replica, enqueue

pytestmark = pytest.mark.asyncio

TENANTS = ("a", "b", "c", "d", "e")


async def fill(plane: Replica, jobs: int) -> None:
    """Jobs of five tenants, more of the later ones; some wait for a time, some in another pool, some are dispatched."""
    for number in range(jobs):
        tenant = TENANTS[min(4, number % 7)]
        wanted = Submission("t", tenant=tenant, priority=number % 3, id=f"j{number:03}")
        await enqueue(plane.store, wanted, POOL if number % 5 else "elsewhere")
    changed = (
        "UPDATE plane_job SET not_before_ns = 9, queue = 'delayed' WHERE id = 'j008'",
        "UPDATE plane_job SET state = 'RETRYING' WHERE id = 'j009'",
        "UPDATE plane_job SET state = 'SUCCEEDED' WHERE id IN ('j011', 'j012')",
        "INSERT INTO plane_tenant (tenant, running, slots) VALUES ('a', 2, NULL), ('b', 3, 3), ('c', 1, 4)",
    )
    for statement in changed:
        await plane.database.write(lambda tx, each=statement: tx.query(each))  # type: ignore[misc]  # a default
    made = "INSERT INTO plane_pool (pool, running) VALUES (:pool, 6)"
    await plane.database.write(lambda tx: tx.query(made, {"pool": POOL}))


async def both(plane: Replica, at: QueueQuery) -> tuple[QueueSnapshot, QueueSnapshot]:
    """What is found by the engine's own way, and in steps, which every engine can."""

    async def work(tx: Tx) -> tuple[QueueSnapshot, QueueSnapshot]:
        own = await read_queue(tx, at)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dispatch_queue, "_in_one_query", dispatch_queue._in_steps)
            return own, await read_queue(tx, at)

    return await plane.database.read(work)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    capacity=st.integers(0, 60),
    batch=st.sampled_from([1, 2, 5, 64]),
    after=st.sampled_from(["", *TENANTS, "bb", "z"]),
    passed=st.sets(st.sampled_from([f"j{number:03}" for number in range(40)]), max_size=4),
    slots=st.sampled_from([None, 2, 5]),
    most=st.sampled_from([1, 2, 3, 256]),
)
async def test_one_statement_finds_what_steps_find(
    planes: Planes, capacity: int, batch: int, after: str, passed: set[str], slots: int | None, most: int
) -> None:
    plane = planes.replicas[0] if planes.replicas else await planes.open()
    if not await plane.query("SELECT 1 AS n FROM plane_pool"):
        await fill(plane, 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch_queue, "TENANTS", most)
        own, steps = await both(plane, QueueQuery(POOL, capacity, batch, after, frozenset(passed), slots))
    assert own == steps


async def test_a_pool_of_which_nothing_is_known_is_free_and_nobody_waits(plane: Replica) -> None:
    assert await plane.database.read(lambda tx: read_queue(tx, QueueQuery("nobody", 7, 64))) == QueueSnapshot(7)


async def test_a_full_pool_is_not_looked_at_any_further(plane: Replica) -> None:
    await fill(plane, 10)
    assert await plane.database.read(lambda tx: read_queue(tx, QueueQuery(POOL, 6, 64))) == QueueSnapshot(0)


async def test_a_line_is_in_the_order_of_its_going(plane: Replica) -> None:
    await fill(plane, 0)
    for number, priority in enumerate((1, 2, 2, 0)):
        await enqueue(plane.store, Submission("t", tenant="d", priority=priority, id=f"x{number}"), POOL)
    found = await plane.database.read(lambda tx: read_queue(tx, QueueQuery(POOL, 100, 64)))
    assert found == QueueSnapshot(94, (TenantQueue("d", ("x1", "x2", "x0", "x3")),), "d")
