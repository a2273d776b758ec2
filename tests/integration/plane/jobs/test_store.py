"""Jobs in the database, on SQLite and Postgres: made once, written under a fence, refused when stale."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast.core import failpoints
from holdfast.errors import BadInput, FencedOut
from holdfast.guards.bearer import CarriedFence, carried
from holdfast.plane.jobs.store import PoolFull, TenantFull, Writing
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.records import Change, Job, Message, Submission
from support.fixtures.scheduling import POOL, TOPIC, Planes, Replica, enqueue

pytestmark = pytest.mark.asyncio

DISPATCH = [Change(JobState.SCHEDULED, actor="s"), Change(JobState.DISPATCHED, actor="s")]


def fence_of(job: Job, fence: int) -> CarriedFence:
    return CarriedFence(families.SCHEDULER_JOB.key(job=job.id), fence)


async def test_a_job_is_made_with_its_message_and_its_first_event_in_one_step(plane: Replica) -> None:
    job = await plane.submit(payload={"page": 1}, tenant="acme", priority=7, labels={"a": "b"}, submitted_by="ada")
    assert (job.state, job.attempt, job.version, job.fence) == (JobState.PENDING, 0, 1, None)
    assert await plane.job(job) == job
    [event] = await plane.store.events(job.id)
    assert (event.before, event.after, event.actor) == (None, JobState.PENDING, "ada")
    [message] = await plane.staged(subjects.SUBMIT)
    assert message["id"] == f"job.submit:{job.id}:{job.created_ns}"


async def test_a_message_that_cannot_be_staged_takes_the_job_with_it(plane: Replica) -> None:
    job = await plane.submit()
    bad = [Message("x", "job.unheard-of", {})]
    with pytest.raises(BadInput):
        await enqueue(plane.store, Submission(TOPIC, id="never"), POOL, bad)
    assert await plane.store.get("never") is None
    with pytest.raises(BadInput):
        await plane.store.change(fence_of(job, 1), job.id, lambda _: Writing(DISPATCH, bad))
    assert await plane.job(job) == job
    assert len(await plane.store.events(job.id)) == 1
    assert await plane.running() == ({}, {})


@pytest.mark.parametrize("text", ["x = '\\u0000'", "\\\\u0000", "\\ud800"])
async def test_text_that_looks_like_an_escape_is_stored_as_it_is(plane: Replica, text: str) -> None:
    job = await plane.submit(payload={text: text}, labels={"source": text})
    found = await plane.job(job)
    assert (found.payload, found.labels) == ({text: text}, {"source": text})


async def test_an_idempotency_key_gives_the_first_job_again_also_to_those_who_come_at_once(planes: Planes) -> None:
    first, second = await planes.open(), await planes.open()
    wanted = Submission(TOPIC, {"n": 1}, tenant="acme", idempotency_key="order 7")
    calls = [enqueue(each.store, wanted, POOL, [subjects.submitted()]) for each in (first, second) * 8]
    answers = await asyncio.gather(*calls)
    assert len({job.id for job, _ in answers}) == 1
    assert sum(made for _, made in answers) == 1
    assert len(await first.staged(subjects.SUBMIT)) == 1
    other, made = await enqueue(first.store, Submission(TOPIC, tenant="other", idempotency_key="order 7"), POOL)
    assert made
    assert other.id != answers[0][0].id


async def test_an_id_is_one_job_and_never_shows_another_tenants(plane: Replica) -> None:
    job = await plane.submit(id="42", tenant="acme")
    again, made = await enqueue(plane.store, Submission(TOPIC, id="42", tenant="acme"), POOL)
    assert (again.id, made) == (job.id, False)
    with pytest.raises(InvalidTransition):
        await enqueue(plane.store, Submission(TOPIC, id="42", tenant="other"), POOL)


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("topic", {"topic": ""}),
        ("tenant", {"tenant": "a b"}),
        ("id", {"id": "../.."}),
        ("idempotency_key", {"idempotency_key": "\0"}),
        ("priority", {"priority": 101}),
        ("max_attempts", {"max_attempts": 0}),
        ("payload", {"payload": float("nan")}),
        ("payload", {"payload": "x" * 1_000_001}),
        ("labels", {"labels": {"a": 1}}),
    ],
)
async def test_what_cannot_be_a_job_is_refused_by_name(plane: Replica, field: str, wanted: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as refused:
        await enqueue(plane.store, Submission(**{"topic": TOPIC, **wanted}), POOL)
    assert refused.value.field == field
    assert await plane.query("SELECT id FROM plane_job") == []


@pytest.mark.parametrize("bad", ["", "a b", "\0", None, 7, "x" * 201])
async def test_what_is_no_id_is_refused_and_an_unknown_one_is_none(plane: Replica, bad: Any) -> None:
    with pytest.raises(BadInput):
        await plane.store.get(bad)
    with pytest.raises(BadInput):
        await plane.store.events(bad)
    assert await plane.store.get("unknown") is None
    assert await plane.store.events("unknown") == []


async def test_one_change_makes_several_moves_in_one_write(plane: Replica) -> None:
    job = await plane.submit(tenant="acme")
    lease = await plane.hold(job)
    changed = await plane.store.change(
        lease, job.id, lambda _: Writing(DISPATCH, lambda after: [subjects.dispatched(after, carried(lease))])
    )
    written = changed.after
    assert written is not None
    assert written.fence == lease.fence
    assert (written.state, written.attempt, written.version) == (JobState.DISPATCHED, 1, 2)
    assert [(each.version, each.after) for each in await plane.store.events(job.id)] == [
        (1, JobState.PENDING),
        (2, JobState.SCHEDULED),
        (2, JobState.DISPATCHED),
    ]
    assert await plane.running() == ({"acme": 1}, {POOL: 1})
    await lease.release()


@pytest.mark.requires("R71", "R124")
async def test_a_scheduler_whose_fence_was_overtaken_changes_nothing(plane: Replica) -> None:
    job = await plane.submit()
    for fence in (10, 11):
        assert (await plane.store.change(fence_of(job, fence), job.id, lambda _: Writing())).after is not None
    work = [Message("m", subjects.work_subject(POOL), {})]
    with pytest.raises(FencedOut) as refused:
        await plane.store.change(fence_of(job, 10), job.id, lambda _: Writing(DISPATCH, work))
    assert (refused.value.fence, refused.value.seen) == (10, 11)
    with pytest.raises(FencedOut):
        await plane.store.change(fence_of(job, 10), job.id, lambda _: Writing([Change(JobState.FAILED)], dead=True))
    with pytest.raises(FencedOut):
        await plane.store.change(fence_of(job, 10), job.id, lambda _: Writing())
    assert (await plane.job(job)).state is JobState.PENDING
    assert await plane.staged(subjects.WORK) == []
    assert await plane.running() == ({}, {})
    assert plane.store.statistics().refused == 3
    done = await plane.store.change(fence_of(job, 11), job.id, lambda _: Writing(DISPATCH))
    assert done.after is not None
    assert done.after.state is JobState.DISPATCHED


@pytest.mark.requires("R123", "R124")
async def test_a_scheduler_paused_right_before_its_write_is_refused_by_the_storage(planes: Planes) -> None:
    """W4, W5: the lease was held when it was checked, and lost a moment later; only the storage can tell."""
    slow = await planes.open()
    job = await slow.submit()
    lease = await slow.hold(job)
    overtaken: list[int] = []
    begun = threading.Event()  # an overtaking write passes the same point, and must not stop there

    async def overtake() -> None:
        elsewhere = Planes(planes.url, planes.locks_url)
        quick = await elsewhere.open()
        await quick.locks.force_release(lease.key, reason="its holder is paused for longer than its time")
        newer = await quick.hold(job)
        changed = await quick.store.change(newer, job.id, lambda _: Writing(DISPATCH))
        assert changed.after is not None
        overtaken.append(newer.fence)
        await newer.release()
        await elsewhere.close()

    def pause() -> None:  # the whole loop of the slow one stands still while another process takes over
        if not begun.is_set():
            begun.set()
            thread = threading.Thread(target=asyncio.run, args=(overtake(),))
            thread.start()
            thread.join()

    with failpoints.armed("guard.admitted", pause), pytest.raises(FencedOut) as refused:
        await slow.store.change(lease, job.id, lambda _: Writing([Change(JobState.FAILED)], dead=True))
    assert (refused.value.fence, refused.value.seen) == (lease.fence, overtaken[0])
    assert (await slow.job(job)).state is JobState.DISPATCHED
    assert await slow.letters.get(job.id) is None
    await lease.release()


async def test_the_lease_of_another_job_opens_nothing(plane: Replica) -> None:
    job, other = await plane.submit(), await plane.submit()
    with pytest.raises(BadInput):
        await plane.store.change(fence_of(other, 5), job.id, lambda _: Writing(DISPATCH))
    with pytest.raises(BadInput):
        await plane.store.change(CarriedFence(families.WORKER_JOB.key(job=job.id), 5), job.id, lambda _: Writing())


async def test_a_job_ends_once_and_a_second_end_is_refused_and_counted(plane: Replica) -> None:
    job = await plane.submit()
    await plane.store.change(fence_of(job, 1), job.id, lambda _: Writing([Change(JobState.CANCELLED)]))
    for end in (JobState.SUCCEEDED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED):
        with pytest.raises(InvalidTransition, match=f"invalid transition CANCELLED -> {end}"):
            await plane.store.change(fence_of(job, 2), job.id, lambda _, end=end: Writing([Change(end)]))  # type: ignore[misc]  # a lambda with a default
    assert plane.store.duplicate_ends == 4
    assert sum(each.after.terminal for each in await plane.store.events(job.id)) == 1


async def test_an_output_that_is_unfit_is_not_a_second_end(plane: Replica) -> None:
    job = await plane.submit()
    await plane.store.change(fence_of(job, 1), job.id, lambda _: Writing([Change(JobState.SUCCEEDED, result=1)]))
    await plane.store.change(fence_of(job, 2), job.id, lambda _: Writing([Change(JobState.OUTPUT_QUARANTINED)]))
    assert (await plane.job(job)).state is JobState.OUTPUT_QUARANTINED
    assert plane.store.duplicate_ends == 0


@pytest.mark.parametrize("limit", ["tenant", "pool"])
async def test_whoever_finds_no_place_changes_nothing(planes: Planes, limit: str) -> None:
    plane = await planes.open(slots=1 if limit == "tenant" else None)
    first, second = await plane.submit(tenant="acme"), await plane.submit(tenant="acme")

    def writing(_: Job) -> Writing:
        return Writing(DISPATCH, capacity=1 if limit == "pool" else None)

    await plane.store.change(fence_of(first, 1), first.id, writing)
    with pytest.raises(TenantFull if limit == "tenant" else PoolFull):
        await plane.store.change(fence_of(second, 1), second.id, writing)
    assert (await plane.job(second)).version == 1
    assert await plane.running() == ({"acme": 1}, {POOL: 1})
    await plane.store.change(fence_of(first, 2), first.id, lambda _: Writing([Change(JobState.SUCCEEDED)]))
    await plane.store.change(fence_of(second, 2), second.id, writing)
    assert await plane.running() == ({"acme": 1}, {POOL: 1})


async def test_the_deadline_falls_away_and_a_dead_letter_stays_when_a_job_ends(plane: Replica) -> None:
    job = await plane.submit(deadline_ns=plane.now_ns + 10**12, payload={"n": 1})
    end = Change(JobState.FAILED, reason="boom", code="fatal")
    changed = await plane.store.change(fence_of(job, 1), job.id, lambda _: Writing([end], dead=True))
    assert changed.after is not None
    assert changed.after.deadline_ns is None
    letter = await plane.letters.get(job.id)
    assert letter is not None
    assert (letter.job, letter.reason, letter.code, letter.last_state) == (job.id, "boom", "fatal", JobState.PENDING)
