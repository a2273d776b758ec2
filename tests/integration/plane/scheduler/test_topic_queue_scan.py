"""A look at who waits for a place of its topic: one statement of Postgres finds what steps find, wherever it begins."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.plane.db.ports import Tx
from holdfast.plane.jobs.insert import CheckedSubmission
from holdfast.plane.model.records import Submission
from holdfast.plane.scheduler import topic_backlog
from holdfast.plane.scheduler.dispatch_queue import QueueQuery, QueueSnapshot, read_queue
from holdfast.plane.scheduler.topic_backlog import TopicBacklog, TopicQuery, TopicSlots, read_topic_queues
from support.fixtures.scheduling import POOL, Planes, Replica
from support.harness.topics import waiting_in

pytestmark = pytest.mark.asyncio

TENANTS = ("A", "a", "a-b", "ab", "b")
TOPICS = ("t1", "t2", "t3")
SERVED = frozenset(TOPICS)


async def fill(plane: Replica, jobs: int) -> None:
    """Jobs of three topics and five tenants, most of them aside; some with workers, some over, some elsewhere."""
    for number in range(jobs):
        topic, tenant = TOPICS[number * number % 3], TENANTS[number % 5]
        wanted = Submission(topic, tenant=tenant, priority=number % 3, id=f"j{number:03}")
        pool = POOL if number % 7 else "elsewhere"
        await plane.store.submit_all([plane.store.new(CheckedSubmission(wanted, pool, (), waiting_in(number % 4 > 0)))])
    changed = (
        "UPDATE plane_job SET state = 'RETRYING' WHERE id = 'j009'",
        "UPDATE plane_job SET state = 'RUNNING' WHERE id IN ('j010', 'j013', 'j016')",
        "UPDATE plane_job SET state = 'SUCCEEDED' WHERE id IN ('j011', 'j017')",
        "INSERT INTO plane_tenant (tenant, running, slots) VALUES ('a', 2, NULL), ('b', 3, 3), ('ab', 1, 4)",
    )
    for statement in changed:
        await plane.database.write(lambda tx, each=statement: tx.query(each))  # type: ignore[misc]  # a default


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    free=st.integers(1, 30),
    last=st.dictionaries(st.sampled_from(TOPICS), st.sampled_from(["", *TENANTS, "aa", "z"])),
    places=st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6)),
    served=st.frozensets(st.sampled_from(TOPICS)),
    passed=st.frozensets(st.sampled_from([f"j{number:03}" for number in range(40)]), max_size=4),
    slots=st.sampled_from([None, 2, 5]),
    most=st.sampled_from([1, 2, 64]),
)
async def test_one_statement_finds_what_steps_find(
    planes: Planes,
    free: int,
    last: dict[str, str],
    places: dict[str, int],
    served: frozenset[str],
    passed: frozenset[str],
    slots: int | None,
    most: int,
) -> None:
    plane = planes.replicas[0] if planes.replicas else await planes.open()
    if not await plane.query("SELECT 1 AS n FROM plane_job LIMIT 1"):
        await fill(plane, 40)
    at, topic_slots = TopicQuery(POOL, free, passed, slots), TopicSlots(places, served, last)

    async def work(tx: Tx) -> tuple[TopicBacklog, TopicBacklog]:
        own = await read_topic_queues(tx, at, topic_slots)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(topic_backlog, "_in_one_query", topic_backlog._in_steps)
            return own, await read_topic_queues(tx, at, topic_slots)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_backlog, "TENANTS", most)
        own, steps = await plane.database.read(work)
    assert own == steps
    assert own.waiting or served != SERVED
    assert served or not own.waiting, "topics that no worker serves are not looked at"
    assert passed.isdisjoint(own.selected)
    assert {each.topic for each in own.selected.values()} <= served


async def test_tenants_have_their_turns_in_one_order_whatever_they_wait_for(planes: Planes) -> None:
    """A tenant with jobs in topic queues only is between the others, and not before or behind all of them."""
    plane = await planes.open()
    for tenant in TENANTS:
        for aside in (True, False):
            if tenant != "b" if aside else tenant not in ("a", "ab"):
                wanted = Submission("t1", tenant=tenant, id=f"{tenant}.{aside:d}")
                await plane.store.submit_all([plane.store.new(CheckedSubmission(wanted, POOL, (), waiting_in(aside)))])
    topic_slots = TopicSlots({"t1": 9}, SERVED)
    for after in ("", "a", "ab", "b"):
        at = QueueQuery(POOL, 100, 64, after, topics=topic_slots)
        found: QueueSnapshot = await plane.database.read(lambda tx, at=at: read_queue(tx, at))  # type: ignore[misc]  # a default
        order = "SELECT DISTINCT tenant, tenant <= :after AS turn FROM plane_job ORDER BY turn, tenant"
        wanted_order = [row["tenant"] for row in await plane.query(order, after=after)]
        assert [queue.tenant for queue in found.queues] == wanted_order
        assert {queue.tenant: len(queue.jobs) for queue in found.queues} == {"A": 2, "a": 1, "a-b": 2, "ab": 1, "b": 1}
        assert set(found.backlog.selected) == {"A.1", "a.1", "a-b.1", "ab.1"}


async def test_who_waits_aside_behind_the_end_of_a_page_has_its_turn_with_a_later_one(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = await planes.open()
    for tenant, aside in (("a", False), ("b", True), ("c", False), ("d", True)):
        wanted = Submission("t1", tenant=tenant, id=tenant)
        await plane.store.submit_all([plane.store.new(CheckedSubmission(wanted, POOL, (), waiting_in(aside)))])
    monkeypatch.setattr("holdfast.plane.scheduler.dispatch_queue.TENANTS", 2)
    found = await plane.database.read(
        lambda tx: read_queue(tx, QueueQuery(POOL, 100, 64, topics=TopicSlots({"t1": 9}, SERVED)))
    )
    assert [queue.tenant for queue in found.queues] == ["a", "b", "c"]


async def test_nobody_is_looked_for_who_could_not_go(plane: Replica) -> None:
    await fill(plane, 12)

    async def found(pool: str, topic_slots: TopicSlots) -> TopicBacklog:
        at = TopicQuery(pool, 9, frozenset(), None)
        return await plane.database.read(lambda tx: read_topic_queues(tx, at, topic_slots))

    assert await found(POOL, TopicSlots(dict.fromkeys(TOPICS, 0), SERVED)) == TopicBacklog(waiting=True)
    assert await found(POOL, TopicSlots({}, frozenset())) == TopicBacklog(), (
        "topics that no worker serves are not looked at"
    )
    assert await found("nobody", TopicSlots({}, SERVED)) == TopicBacklog()
