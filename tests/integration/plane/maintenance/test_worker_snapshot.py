"""The worker snapshot: what it says, who writes it, and that a writer that was replaced writes no more."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import BadInput, FencedOut, LeaseLost, NotEntered
from holdfast.guards.bearer import CarriedFence, carried
from holdfast.plane.db.ports import Tx
from holdfast.plane.locks import registry as families
from holdfast.plane.locks.registry import RECONCILER, SNAPSHOT_WRITER
from holdfast.plane.loops.cadence import Mode
from holdfast.plane.loops.leader_document import Document
from holdfast.plane.loops.loop import Tick
from holdfast.plane.maintenance.worker_snapshot import (
    NAME,
    PoolCount,
    Snapshots,
    SnapshotWriter,
    TopicCount,
    snapshot_of,
)
from holdfast.plane.model.records import Heartbeat
from holdfast.types import NS
from support.fixtures.scheduling import Planes, Replica
from support.harness.loop_ticks import one_tick

pytestmark = pytest.mark.asyncio


def writer(plane: Replica) -> SnapshotWriter:
    return SnapshotWriter(plane.workers, Snapshots(plane.database, plane.clock), plane.locks, plane.clock)


def snapshots(plane: Replica) -> Snapshots:
    return Snapshots(plane.database, plane.clock)


async def test_a_snapshot_adds_up_what_live_workers_say() -> None:
    live = [
        Heartbeat("b", "gpu", ("render",), 4, 1, 10),
        Heartbeat("a", "gpu", ("render", "mail"), 2, 5, 10),  # more than it has places for: nothing is available
        Heartbeat("c", "gpu", ("render",), 8, 3, 10, draining=True),
        Heartbeat("d", "cpu", ("mail",), 1, 0, 10, host="h", pid=7),
    ]
    made = snapshot_of(live, 20, "me")
    assert made.pools == (PoolCount("cpu", 1, 0, 1), PoolCount("gpu", 3, 9, 6))
    assert made.topics == (
        TopicCount("mail", "cpu", 1, 1, 1),
        TopicCount("mail", "gpu", 1, 2, 0),
        TopicCount("render", "gpu", 2, 6, 3),
    )
    assert [each.worker for each in made.workers] == ["a", "b", "c", "d"]
    assert snapshot_of([], 20, "me").pools == ()


@pytest.mark.requires("R61")
async def test_a_reader_gets_the_last_snapshot_with_its_age_its_writer_and_its_fence(plane: Replica) -> None:
    """The leadership check: who holds the writer's key, and how long the snapshot has been idle."""
    assert await snapshots(plane).latest() is None
    await plane.beat("w1", 4, "render", active=1, host="büro", pid=3)
    async with SNAPSHOT_WRITER.lock(plane.locks) as lease:
        await writer(plane).tick(Tick(lease))
        held = await plane.locks.inspect(SNAPSHOT_WRITER.key())
        captured_ns = plane.now_ns
        plane.clock.push(7)
        found = await snapshots(plane).latest()
        assert found is not None
        assert 7 * NS <= found.age_ns < 60 * NS
        assert found.captured_ns <= captured_ns
        assert (found.writer, found.fence) == (held.owner, held.fence) == (lease.owner, lease.fence)
        assert found.workers == tuple(await plane.workers.live())
        assert found.topics == (TopicCount("render", "default", 1, 4, 3),)
    (row,) = await plane.query("SELECT * FROM plane_document")
    assert row["name"] == NAME == "sys:workers:snapshot"
    assert '"captured_at":"20' in row["body"]


async def test_a_silent_worker_leaves_the_snapshot_after_thirty_seconds_and_its_topics_stay_known(
    plane: Replica,
) -> None:
    await plane.beat("old", 4, "render")
    plane.clock.push(20)
    await plane.beat("new", 4, "mail")
    for seconds, names in ((5, ["new", "old"]), (10, ["new"]), (30, [])):
        plane.clock.push(seconds)
        await one_tick(plane, SNAPSHOT_WRITER, writer(plane).tick)
        found = await snapshots(plane).latest()
        assert found is not None
        assert [each.worker for each in found.workers] == names
    assert (await plane.workers.view(fresh=True)).known_topics == {"render", "mail"}


async def test_a_writer_that_was_replaced_is_refused_and_changes_nothing(plane: Replica) -> None:
    """W29."""
    old = await SNAPSHOT_WRITER.lock(plane.locks).acquire()
    stale = carried(old)
    await old.release()
    await plane.beat("w1")
    document = snapshots(plane).document
    await document.put(stale, {"by": "old"}, writer="old")
    await one_tick(plane, SNAPSHOT_WRITER, writer(plane).tick)
    before = await snapshots(plane).latest()
    with pytest.raises(FencedOut) as refused:
        await document.put(stale, {"by": "old"}, writer="old")
    assert before is not None
    assert (refused.value.fence, refused.value.seen) == (stale.fence, before.fence)
    with pytest.raises(FencedOut):
        await document.enter(stale, writer="old")
    after = await snapshots(plane).latest()
    assert after is not None
    assert (after.captured_ns, after.writer, after.fence) == (before.captured_ns, before.writer, before.fence)
    assert document.statistics().refused == 2


async def test_a_lease_that_is_known_to_be_lost_or_belongs_to_another_loop_is_refused_before_anything_is_sent(
    plane: Replica,
) -> None:
    document = snapshots(plane).document
    lease = await SNAPSHOT_WRITER.lock(plane.locks).acquire()
    await lease.release()
    with pytest.raises(LeaseLost):
        await document.put(lease, {}, writer="me")
    async with RECONCILER.lock(plane.locks) as other:
        with pytest.raises(BadInput, match="is not the lock of"):
            await document.put(other, {}, writer="me")
    with pytest.raises(BadInput, match="writer"):
        await document.put(CarriedFence(SNAPSHOT_WRITER.key(), 1), {}, writer="")
    assert await document.read() is None


async def test_a_document_that_is_read_and_written_back_needs_the_very_fence_it_was_entered_under(
    plane: Replica,
) -> None:
    document = Document(plane.database, "loop:test", families.DEAD_LETTER_CLEANUP, plane.clock)
    key = families.DEAD_LETTER_CLEANUP.key()
    old, new = CarriedFence(key, 5), CarriedFence(key, 6)

    async def work(tx: Tx) -> tuple[str, dict[str, int]]:
        await tx.query("INSERT INTO plane_tenant (tenant, running) VALUES ('acme', 0)")
        return "done", {"place": 7}

    with pytest.raises(NotEntered):
        await document.write(old, work, writer="old")  # it was not entered
    assert (await document.enter(old, writer="old")).body == {}
    assert (await document.enter(new, writer="new")).fence == 6
    with pytest.raises(FencedOut):
        await document.write(old, work, writer="old")
    assert await plane.query("SELECT * FROM plane_tenant") == [], "what came with a refused write is undone"
    assert await document.write(new, work, writer="new") == "done"
    found = await document.enter(new, writer="new")
    assert (found.body, found.writer, found.fence) == ({"place": 7}, "new", 6)
    assert len(await plane.query("SELECT * FROM plane_tenant")) == 1


@pytest.mark.parametrize("mode", Mode)
async def test_of_several_replicas_one_writes_and_the_next_takes_over_when_it_stops(planes: Planes, mode: Mode) -> None:
    replicas = [await planes.open() for _ in range(3)]
    await replicas[0].beat("w1")
    loops = [writer(replica).loop(interval=0.5, mode=mode) for replica in replicas]
    for loop in loops:
        await loop.start()
    reader = snapshots(replicas[0])

    async def written_after(fence: int, by: int) -> int:
        async with asyncio.timeout(60):
            while sum(loop.statistics().ticks for loop in loops) < by:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            while (found := await reader.latest()) is None or (found.fence or 0) <= fence:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        return found.fence or 0

    first = await written_after(0, 1)
    if mode is Mode.STICKY:
        for loop in loops:
            if loop.statistics().leader:
                await loop.stop()
    assert await written_after(first, 2) > first
    for loop in loops:
        await loop.stop()
