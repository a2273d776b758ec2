"""Schedules in the database: one job for each due time, whatever fires it; changes, pauses and declarations."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from holdfast.core import failpoints
from holdfast.errors import BadInput, RowExists, RowMissing, Unavailable
from holdfast.plane.approvals.rules import ApprovalRule, ApprovalRules, RuleEffect
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import requesters_in
from holdfast.plane.schedules import store
from holdfast.plane.schedules.declaration import DeclaredSchedule
from holdfast.plane.schedules.model import ScheduleConflict, ScheduleSpec, ScheduleState, made_spec
from holdfast.plane.schedules.rules import DECLARED_NS, Decision
from holdfast.plane.schedules.store import DueRow, ScheduleCursor, Schedules
from holdfast.plane.service.overview import Overview
from holdfast.testing.faults import fail
from holdfast.types import NS
from support.fixtures.scheduling import Planes, Replica

pytestmark = pytest.mark.asyncio

PERIOD_S = 100 * 86_400  # so long that none ends in the real time of a test
PERIOD = PERIOD_S * NS


def spec(name: str = "regular", **options: Any) -> ScheduleSpec:
    return made_spec(**{"name": name, "topic": "render", "every": PERIOD_S, **options})


async def of(replica: Replica, *rules: ApprovalRule) -> Schedules:
    approvals = Approvals(replica.database, replica.store, replica.locks, ApprovalRules(rules=rules))
    await approvals.prepare()
    schedules = Schedules(replica.database, approvals, replica.clock)
    await schedules.prepare()
    return schedules


@pytest_asyncio.fixture
async def schedules(plane: Replica) -> Schedules:
    return await of(plane)


async def outage(plane: Replica, periods: int, name: str = "regular") -> None:
    """As if no loop had run for so many due times: the clock of the database cannot be set."""
    moved = """
        UPDATE plane_schedule SET done_ns = done_ns - :by, next_ns = next_ns - :by, submit_ns = submit_ns - :by
        WHERE name = :name
    """
    await plane.database.write(lambda tx: tx.query(moved, {"by": periods * PERIOD, "name": name}))


async def jobs(plane: Replica) -> list[str]:
    return [row["id"] for row in await plane.query("SELECT id FROM plane_job ORDER BY id")]


async def end(plane: Replica, job: str | None) -> None:
    await plane.database.write(
        lambda tx: tx.query("UPDATE plane_job SET state = :state WHERE id = :id", {"state": "SUCCEEDED", "id": job})
    )


async def test_a_due_time_becomes_one_job_with_the_options_of_the_schedule(
    plane: Replica, schedules: Schedules
) -> None:
    made, new = await schedules.put(spec(payload={"n": 1}, priority=5, labels={"team": "x"}), actor="ann")
    assert new
    assert made.next_ns is not None
    assert await schedules.due(None, 10) == []
    assert await schedules.fire("default", "regular") is None
    await outage(plane, 1)
    (row,) = await schedules.due(None, 10)
    assert (row.tenant, row.name) == ("default", "regular")
    decision = await schedules.fire("default", "regular")
    assert decision is not None
    assert decision.fired == (made.next_ns - PERIOD,)
    known = await schedules.get("default", "regular")
    job = await plane.job(known.last_job or "")
    assert job.id == await one_job(plane)
    assert (job.payload, job.priority, job.state, job.submitted_by) == ({"n": 1}, 5, JobState.PENDING, "ann")
    assert job.labels["team"] == "x"
    assert job.labels["holdfast.schedule"] == "regular"
    assert (known.fired, known.skipped, known.missed, known.next_ns) == (1, 0, 0, made.next_ns)
    assert await schedules.fire("default", "regular") is None


async def one_job(plane: Replica) -> str:
    (job,) = await jobs(plane)
    return job


async def test_many_processes_that_fire_together_submit_each_due_time_once(planes: Planes) -> None:
    replicas = [await planes.open() for _ in range(3)]
    stores = [await of(each) for each in replicas]
    await stores[0].put(spec(overlap="allow", catch_up="all"), actor="ann")
    await outage(replicas[0], 5)
    decisions = await asyncio.gather(*(each.fire("default", "regular") for each in stores for _ in range(4)))
    done = [each for each in decisions if each is not None]
    assert len(done) == 1
    assert len(done[0].fired) == 5
    assert len(await jobs(replicas[0])) == 5
    assert (await stores[1].get("default", "regular")).fired == 5


async def test_a_process_that_dies_before_the_commit_has_submitted_nothing_and_after_it_everything(
    plane: Replica, schedules: Schedules
) -> None:
    await schedules.put(spec(), actor="ann")
    await outage(plane, 1)
    with failpoints.armed("plane.schedule.fire", fail(Unavailable("killed"))), pytest.raises(Unavailable):
        await schedules.fire("default", "regular")
    assert await jobs(plane) == []
    with failpoints.armed("plane.schedule.fired", fail(Unavailable("killed"))), pytest.raises(Unavailable):
        await schedules.fire("default", "regular")
    assert await schedules.fire("default", "regular") is None
    assert len(await jobs(plane)) == 1


async def test_a_schedule_that_is_deleted_and_created_again_does_not_submit_a_due_time_again(
    plane: Replica, schedules: Schedules
) -> None:
    for _ in range(2):
        await schedules.put(spec(overlap="allow"), actor="ann")
        await outage(plane, 1)
        decision = await schedules.fire("default", "regular")
        assert decision is not None
        assert len(decision.fired) == 1
        await schedules.delete("default", "regular")
    assert len(await jobs(plane)) == 1
    with pytest.raises(RowMissing):
        await schedules.get("default", "regular")


async def test_a_queued_due_time_waits_for_the_end_of_the_job(plane: Replica, schedules: Schedules) -> None:
    await schedules.put(spec(overlap="queue"), actor="ann")
    running, _ = await schedules.run("default", "regular", actor="ann")
    await outage(plane, 1)
    decision = await schedules.fire("default", "regular")
    assert decision is not None
    assert (decision.fired, decision.skipped) == ((), 0)
    queued_ns = decision.state.queued_ns
    assert queued_ns is not None
    assert await schedules.due(None, 10) == []  # the job has not finished
    assert await schedules.fire("default", "regular") is None
    await end(plane, running.id)
    assert await schedules.due(None, 10) == [DueRow(0, "default", "regular")]
    decision = await schedules.fire("default", "regular")
    assert decision is not None
    assert decision.fired == (queued_ns,)
    assert len(await jobs(plane)) == 2


async def test_a_skipped_due_time_is_counted(plane: Replica, schedules: Schedules) -> None:
    await schedules.put(spec(), actor="ann")
    job, made = await schedules.run("default", "regular", actor="ann")
    assert made
    await outage(plane, 1)
    decision = await schedules.fire("default", "regular")
    assert decision is not None
    assert (decision.fired, decision.skipped) == ((), 1)
    assert await jobs(plane) == [job.id]
    assert (await schedules.get("default", "regular")).skipped == 1


async def test_a_run_now_can_be_repeated_and_does_not_move_the_due_times(plane: Replica, schedules: Schedules) -> None:
    made, _ = await schedules.put(spec(), actor="ann")
    for new in (True, False):
        job, inserted = await schedules.run("default", "regular", actor="bob", identity="my-run")
        assert (job.id, inserted, job.submitted_by) == ("my-run", new, "bob")
    known = await schedules.get("default", "regular")
    assert (known.next_ns, known.last_job, known.fired) == (made.next_ns, "my-run", 0)
    await plane.submit(id="other", topic="something.else")
    with pytest.raises(RowExists):
        await schedules.run("default", "regular", actor="bob", identity="other")


async def test_a_paused_schedule_does_not_fire_and_goes_on_with_the_next_due_time(
    plane: Replica, schedules: Schedules
) -> None:
    made, _ = await schedules.put(spec(catch_up="all", overlap="allow"), actor="ann")
    paused, changed = await schedules.pause("default", "regular", actor="bob", reason="incident 7")
    assert changed
    assert (paused.state, paused.paused_by, paused.paused_reason) == (ScheduleState.PAUSED, "bob", "incident 7")
    assert (await schedules.pause("default", "regular", actor="eve"))[1] is False
    await outage(plane, 3)
    assert await schedules.due(None, 10) == []
    assert await schedules.fire("default", "regular") is None
    resumed, changed = await schedules.resume("default", "regular", actor="bob")
    assert changed
    assert (resumed.state, resumed.paused_by) == (ScheduleState.ACTIVE, None)
    assert resumed.next_ns == made.next_ns
    assert await schedules.fire("default", "regular") is None
    assert (await schedules.resume("default", "regular", actor="bob"))[1] is False
    assert await jobs(plane) == []


async def test_other_due_times_begin_now_and_other_options_keep_them(plane: Replica, schedules: Schedules) -> None:
    await schedules.put(spec(), actor="ann")
    await outage(plane, 2)
    changed, new = await schedules.put(spec(payload=3), actor="ann")
    assert not new
    assert len(await schedules.due(None, 10)) == 1  # it is still due
    changed, _ = await schedules.put(spec(every="200d"), actor="ann")
    assert await schedules.due(None, 10) == []
    same, new = await schedules.put(spec(every="200d"), actor="eve")
    assert (same, new) == (changed, False)
    with pytest.raises(ScheduleConflict, match="already"):
        await schedules.put(spec(every="300d"), actor="ann", replaces=False)
    assert await schedules.put(spec(every="200d"), actor="ann", replaces=False) == (changed, False)


async def test_a_clock_that_is_set_forward_and_back_fires_no_due_time_twice(sqlite_planes: Planes) -> None:
    plane = await sqlite_planes.open()
    schedules = await of(plane)
    await schedules.put(spec(overlap="allow"), actor="ann")
    fired: list[int] = []
    for periods in (1, 5, -5, 1, 3, -1, 2, 2):
        plane.clock.push(periods * PERIOD_S)
        decision: Decision | None = await schedules.fire("default", "regular")
        fired += () if decision is None else decision.fired
    assert len(fired) == len(set(fired)) == len(await jobs(plane))
    assert fired == sorted(fired)
    known = await schedules.get("default", "regular")
    assert known.fired + known.missed == 8  # the highest that the clock has come to


async def test_a_refused_job_is_shown_and_the_schedule_goes_on(plane: Replica) -> None:
    schedules = await of(plane, ApprovalRule("never", RuleEffect.DENY, topics=("render",)))
    await schedules.put(spec(), actor="ann")
    await outage(plane, 1)
    decision = await schedules.fire("default", "regular")
    assert decision is not None
    known = await schedules.get("default", "regular")
    assert known.problem is not None
    assert "never" in known.problem
    assert (known.fired, await jobs(plane)) == (0, [])
    assert await schedules.due(None, 10) == []


async def test_the_author_of_a_schedule_is_a_requester_of_its_jobs_also_when_others_pause_or_run_it(
    plane: Replica,
) -> None:
    schedules = await of(plane, ApprovalRule("ask", RuleEffect.REQUIRE, topics=("render",)))
    await schedules.put(spec(), actor="ann")
    await schedules.pause("default", "regular", actor="bob")
    await schedules.resume("default", "regular", actor="bob")
    await outage(plane, 1)
    await schedules.fire("default", "regular")
    known = await schedules.get("default", "regular")
    assert known.author == "ann"
    fired = await plane.job(known.last_job or "")
    by_hand, _ = await schedules.run("default", "regular", actor="bob")
    assert (fired.state, by_hand.state) == (JobState.APPROVAL_REQUIRED, JobState.APPROVAL_REQUIRED)
    assert fired.submitted_by == "ann"
    assert {by_hand.submitted_by, *requesters_in(by_hand.labels)} == {"ann", "bob"}


async def test_pages_and_counts(plane: Replica, schedules: Schedules) -> None:
    for tenant in ("acme", "globex"):
        for name in ("a", "b", "c"):
            await schedules.put(spec(name, tenant=tenant), actor="ann")
    await schedules.pause("acme", "b", actor="ann")
    first = await schedules.page(None, most=4)
    assert [(each.tenant, each.spec.name) for each in first] == [("acme", n) for n in "abc"] + [("globex", "a")]
    place = ScheduleCursor.parsed(ScheduleCursor("globex", "a").text)
    assert [each.spec.name for each in await schedules.page(None, place, 4)] == ["b", "c"]
    assert [each.spec.name for each in await schedules.page("acme", ScheduleCursor("acme", "a"))] == ["b", "c"]
    overview = await Overview(plane.database, plane.workers, plane.clock).read()
    assert (overview.late_schedules, len(overview.paused_schedules)) == ([], 1)
    await outage(plane, 2, "c")
    late = (await Overview(plane.database, plane.workers, plane.clock).read()).late_schedules
    assert {(each.name, each.tenant) for each in late} == {("c", "acme"), ("c", "globex")}
    assert all(each.age * NS > PERIOD for each in late)
    with pytest.raises(BadInput, match="not a cursor"):
        ScheduleCursor.parsed("acme")


# Declarations of apps.


def declared(*specs: ScheduleSpec) -> list[DeclaredSchedule]:
    return [DeclaredSchedule(each) for each in specs]


async def forget(plane: Replica, seconds: float) -> None:
    """As if the running versions had given no sign for so long."""
    moved = "UPDATE plane_schedule_version SET seen_ns = seen_ns - :by"
    await plane.database.write(lambda tx: tx.query(moved, {"by": round(seconds * NS)}))


async def test_two_versions_of_an_app_side_by_side_do_not_change_schedules_to_and_fro(
    plane: Replica, schedules: Schedules
) -> None:
    old, new = declared(spec("kept"), spec("gone")), declared(spec("kept", every="200d"), spec("added"))
    assert await schedules.declare("billing", old) == ["gone", "kept"]
    assert await schedules.declare("billing", old) == []
    assert await schedules.declare("billing", new) == ["added", "gone", "kept"]
    before = await schedules.page(None)
    for _ in range(3):  # a process of the old version starts again, and both go on
        assert await schedules.declare("billing", old) == []
        assert await schedules.declare("billing", new) == []
    assert await schedules.page(None) == before
    states = {each.spec.name: each.state for each in before}
    assert states == {
        "added": ScheduleState.ACTIVE,
        "gone": ScheduleState.UNDECLARED,
        "kept": ScheduleState.ACTIVE,
    }
    await outage(plane, 5, "gone")
    assert await schedules.due(None, 10) == []
    assert await schedules.fire("default", "gone") is None


async def test_a_rollback_takes_effect_when_the_newer_version_is_gone(plane: Replica, schedules: Schedules) -> None:
    old, new = declared(spec("a")), declared(spec("b"))
    await schedules.declare("billing", old)
    await schedules.declare("billing", new)
    assert await schedules.declare("billing", old) == []
    await forget(plane, DECLARED_NS / NS + 1)
    assert await schedules.declare("billing", old) == ["a", "b"]
    states = {each.spec.name: each.state for each in await schedules.page(None)}
    assert states == {"a": ScheduleState.ACTIVE, "b": ScheduleState.UNDECLARED}


async def test_an_operators_pause_survives_deployments(schedules: Schedules) -> None:
    await schedules.declare("billing", [DeclaredSchedule(spec("a")), DeclaredSchedule(spec("b"), paused=True)])
    await schedules.pause("default", "a", actor="ann")
    await schedules.resume("default", "b", actor="ann")
    await schedules.declare("billing", [DeclaredSchedule(spec("a", payload=1)), DeclaredSchedule(spec("b", payload=1))])
    paused = {each.spec.name: each.paused for each in await schedules.page(None)}
    assert paused == {"a": True, "b": False}


async def test_a_declared_schedule_is_changed_in_its_app_and_deleted_when_it_is_not_declared_any_more(
    plane: Replica, schedules: Schedules
) -> None:
    await schedules.declare("billing", declared(spec("a")))
    with pytest.raises(ScheduleConflict, match="declared by the app billing"):
        await schedules.put(spec("a", every="200d"), actor="ann")
    with pytest.raises(ScheduleConflict, match="declared by the app billing"):
        await schedules.delete("default", "a")
    assert await schedules.has_declared("billing")
    await schedules.declare("billing", [])
    await outage(plane, 3, "a")
    taken, new = await schedules.put(spec("a"), actor="ann")
    assert (taken.state, taken.app, new) == (ScheduleState.ACTIVE, None, False)
    assert await schedules.due(None, 10) == []  # what passed meanwhile is not caught up
    await schedules.delete("default", "a")
    assert not await schedules.has_declared("billing")


async def test_a_name_belongs_to_one_app_and_a_declaration_takes_over_a_schedule_made_at_run_time(
    schedules: Schedules,
) -> None:
    await schedules.put(spec("a"), actor="ann")
    assert await schedules.declare("billing", declared(spec("a"))) == ["a"]
    assert await schedules.declare("other", declared(spec("a", every="50d"))) == []
    known = await schedules.get("default", "a")
    assert (known.app, known.spec) == ("billing", spec("a"))


async def test_versions_that_start_together_leave_the_schedules_of_one_of_them(planes: Planes) -> None:
    stores = [await of(await planes.open()) for _ in range(2)]
    apps = [declared(spec("a", payload=n), spec(f"only-{n}")) for n in range(2)]
    for _ in range(3):
        await asyncio.gather(*(store.declare("billing", app) for store in stores for app in apps))
    active = [each.spec for each in await stores[0].page(None) if each.state is ScheduleState.ACTIVE]
    assert active in [[each.spec for each in app] for app in apps]


async def test_an_invalid_schedule_is_not_stored(schedules: Schedules) -> None:
    with pytest.raises(BadInput):
        await schedules.put(replace(spec(), every_ns=1), actor="ann")
    assert await schedules.page(None) == []


async def test_a_tenant_has_a_limited_number_of_schedules(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SCHEDULES_MAX", 2)
    for name in ("a", "b"):
        await schedules.put(spec(name), actor="ann")
    with pytest.raises(BadInput, match="the limit is 2"):
        await schedules.put(spec("c"), actor="ann")
    await schedules.put(spec("a", payload=1), actor="ann")
    await schedules.put(spec("c", tenant="acme"), actor="ann")
    assert await schedules.declare("billing", declared(spec("d"))) == ["d"]
