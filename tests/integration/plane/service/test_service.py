"""The service: what people and programs may ask of the plane, and what each tenant sees of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.errors import BadInput, RowExists, RowMissing
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.jobs.store import Writing
from holdfast.plane.locks.registry import FAMILIES, SCHEDULER_JOB
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.messages import pool_channel
from holdfast.plane.model.records import Change, Heartbeat, Job, Submission
from holdfast.plane.service.service import SNAPSHOT, Caller, NotAllowed, Service
from holdfast.types import NS

UNBOUND = Caller("ann")
BLUE = Caller("bob", "blue")
RED = Caller("cyd", "red")


async def pending(service: Service, subject: str, number: int) -> None:
    """Return when so many messages wait for a scheduler. One that is just being relayed is counted twice."""
    async with asyncio.timeout(30):
        while await service.parts.bus.pending(subject, subjects.SCHEDULER) != number:  # noqa: ASYNC110 - in a server
            await asyncio.sleep(0.01)


async def dead(service: Service, tenant: str = "blue") -> Job:
    """A job that has failed permanently."""
    job, _ = await service.submit(UNBOUND, Submission("sum", {"n": 1}, tenant))
    lease = CarriedFence(SCHEDULER_JOB.key(job=job.id), 1)
    change = Change(JobState.FAILED, reason="broken", code="broken", actor="scheduler")
    await service.parts.store.change(lease, job.id, lambda _: Writing([change], dead=True))
    return job


@pytest.mark.asyncio
async def test_a_submission_is_a_row_and_a_message_in_one(every_service: Service) -> None:
    job, made = await every_service.submit(BLUE, Submission("sum", [1], "blue", submitted_by="bob"))
    assert made
    assert job.state is JobState.PENDING
    await pending(every_service, subjects.SUBMIT, 1)
    assert [event.actor for event in await every_service.events(BLUE, job.id)] == ["bob"]


@pytest.mark.asyncio
async def test_a_job_that_can_go_and_finds_no_place_stands_in_line_and_its_pool_is_rung_for(
    every_service: Service,
) -> None:
    """No message is needed for what a dispatcher finds by looking; one that has to wait for its time needs one."""
    parts = every_service.parts
    beat = Heartbeat("w1", "default", ("sum",), 1, 0, parts.store.clock.now().wall)
    assert await parts.workers.record(beat)
    await parts.workers.view(fresh=True)
    await every_service.submit(BLUE, Submission("sum", 0, "blue"))  # has the only place, or waits for it
    listener = parts.database.listen(pool_channel("default"))
    try:
        while await listener.wait(0):  # whatever the worker's coming has notified for
            pass
        job, made = await every_service.submit(BLUE, Submission("sum", 1, "blue"))
        assert (made, job.state, job.pool) == (True, JobState.PENDING, "default")
        assert await listener.wait(30 * NS)
        again, made = await every_service.submit(BLUE, Submission("sum", 1, "blue", job.id))
        assert (again.id, made) == (job.id, False)
    finally:
        listener.close()
    await every_service.submit(BLUE, Submission("sum", 2, "blue", not_before_ns=beat.at_ns + 3600 * NS))
    await every_service.submit(BLUE, Submission("unheard-of", 3, "blue"))
    await pending(every_service, subjects.SUBMIT, 2)


@pytest.mark.asyncio
async def test_a_worker_that_has_just_come_is_known_to_whoever_submits_next(every_service: Service) -> None:
    """The view of the workers may be stale; before a topic counts as unserved, the workers are read again."""
    workers = every_service.parts.workers
    before, _ = await every_service.submit(BLUE, Submission("sum", 1, "blue"))
    await workers.record(Heartbeat("w1", "fast", ("sum",), 4, 0, every_service.parts.store.clock.now().wall))
    after, _ = await every_service.submit(BLUE, Submission("sum", 2, "blue"))
    assert (before.pool, after.pool) == ("default", "fast")
    await pending(every_service, subjects.SUBMIT, 1)


@pytest.mark.asyncio
async def test_many_submissions_at_once_each_get_their_own_answer(every_service: Service) -> None:
    once = Submission("sum", 1, "blue", idempotency_key="once")
    wanted = [Submission("sum", 0, "blue"), once, Submission("sum", 2, "red"), Submission("", 3, "blue"), once]
    answers = await every_service.submit_many(BLUE, wanted)
    made = [each for each in answers if isinstance(each, tuple)]
    assert [type(each) for each in answers] == [tuple, tuple, NotAllowed, BadInput, tuple]
    assert len({job.id for job, _ in made}) == 2
    assert sum(fresh for _, fresh in made) == 2
    await pending(every_service, subjects.SUBMIT, 2)


@pytest.mark.asyncio
async def test_an_idempotency_key_makes_one_job_however_many_ask_at_once(every_service: Service) -> None:
    wanted = Submission("sum", {"a": 1, "b": True}, "blue", idempotency_key="once")
    answers = await asyncio.gather(*(every_service.submit(BLUE, wanted) for _ in range(25)))
    assert len({job.id for job, _ in answers}) == 1
    assert sum(made for _, made in answers) == 1
    await pending(every_service, subjects.SUBMIT, 1)
    other, made = await every_service.submit(RED, Submission("sum", {}, "red", idempotency_key="once"))
    assert made
    assert other.id != answers[0][0].id


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "other",
    [
        Submission("sum", {"a": 2}, "blue", idempotency_key="once"),
        Submission("sum", {"a": True}, "blue", idempotency_key="once"),
        Submission("sum", {"a": 1.0}, "blue", idempotency_key="once"),
        Submission("other", {"a": 1}, "blue", idempotency_key="once"),
        Submission("sum", {"a": 1}, "blue", idempotency_key="once", priority=1),
        Submission("sum", {"a": 1}, "blue", idempotency_key="once", id="another"),
    ],
)
async def test_an_idempotency_key_is_not_for_another_job(plane_service: Service, other: Submission) -> None:
    await plane_service.submit(BLUE, Submission("sum", {"a": 1}, "blue", idempotency_key="once", id="first"))
    with pytest.raises(RowExists, match=r"another job, first \(sum, PENDING\); repeat"):
        await plane_service.submit(BLUE, other)


@pytest.mark.asyncio
async def test_an_id_that_another_tenant_has_is_taken_and_nothing_more_is_said(plane_service: Service) -> None:
    await plane_service.submit(RED, Submission("sum", 1, "red", id="mine"))
    with pytest.raises(RowExists) as refused:
        await plane_service.submit(BLUE, Submission("sum", 1, "blue", id="mine"))
    assert "PENDING" not in str(refused.value)
    assert "red" not in str(refused.value)


@pytest.mark.asyncio
async def test_nobody_submits_for_another_tenant(plane_service: Service) -> None:
    with pytest.raises(NotAllowed):
        await plane_service.submit(BLUE, Submission("sum", 1, "red"))
    assert (await plane_service.jobs(UNBOUND)).items == []


@pytest.mark.asyncio
async def test_things_of_another_tenant_do_not_exist(every_service: Service) -> None:
    job = await dead(every_service, "red")
    asked = [
        every_service.job(BLUE, job.id),
        every_service.events(BLUE, job.id),
        every_service.cancel(BLUE, job.id),
        every_service.retry(BLUE, job.id),
        every_service.dead_letter(BLUE, job.id),
        every_service.retry_dead_letter(BLUE, job.id),
        every_service.forget_dead_letter(BLUE, job.id),
        every_service.tenant(BLUE, "red"),
    ]
    for each in asked:
        with pytest.raises(RowMissing) as refused:
            await each
        # The same text as for an object that does not exist.
        assert str(refused.value).startswith("there is no ")
    assert (await every_service.jobs(BLUE)).items == []
    assert (await every_service.dead_letters(BLUE)).items == []
    assert sum((await every_service.counts(BLUE)).values()) == 0
    for listing in (every_service.jobs(BLUE, tenant="red"), every_service.dead_letters(BLUE, tenant="red")):
        with pytest.raises(NotAllowed):
            await listing
    assert (await every_service.dead_letter(UNBOUND, job.id)).tenant == "red"
    await pending(every_service, subjects.CANCEL, 0)


@pytest.mark.asyncio
async def test_a_cancel_is_kept_for_a_scheduler_and_a_job_that_is_over_stays_as_it_is(every_service: Service) -> None:
    job, _ = await every_service.submit(BLUE, Submission("sum", 1, "blue"))
    for number in (1, 2):
        found, asked = await every_service.cancel(BLUE, job.id, reason="enough")
        assert (found.state, asked) == (JobState.PENDING, True)
        await pending(every_service, subjects.CANCEL, number)
    over = await dead(every_service)
    found, asked = await every_service.cancel(BLUE, over.id)
    assert (found.state, asked) == (JobState.FAILED, False)
    await pending(every_service, subjects.CANCEL, 2)


@pytest.mark.asyncio
async def test_a_dead_job_is_tried_again_once_however_often_it_is_asked_for(every_service: Service) -> None:
    job = await dead(every_service)
    asked = [every_service.retry(BLUE, job.id) for _ in range(5)] + [every_service.retry_dead_letter(BLUE, job.id)]
    answers = await asyncio.gather(*asked)
    assert len({made.id for made, _ in answers}) == 1
    assert sum(new for _, new in answers) == 1
    again = answers[0][0]
    assert again.id.startswith(f"{job.id}-retry-")
    assert (again.state, again.payload, again.submitted_by) == (JobState.PENDING, job.payload, "bob")


@pytest.mark.asyncio
async def test_a_job_without_a_dead_letter_is_not_tried_again(plane_service: Service) -> None:
    job, _ = await plane_service.submit(BLUE, Submission("sum", 1, "blue"))
    with pytest.raises(InvalidTransition):
        await plane_service.retry(BLUE, job.id)


@pytest.mark.asyncio
async def test_a_dead_letter_can_be_forgotten_once(plane_service: Service) -> None:
    job = await dead(plane_service)
    await plane_service.forget_dead_letter(BLUE, job.id)
    with pytest.raises(RowMissing):
        await plane_service.forget_dead_letter(BLUE, job.id)
    assert (await plane_service.job(BLUE, job.id)).state is JobState.FAILED


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_pages_are_complete_and_without_repeats_while_jobs_arrive(plane_service: Service, limit: int) -> None:
    before = {(await plane_service.submit(BLUE, Submission("sum", n, "blue")))[0].id for n in range(10)}
    seen: list[str] = []
    page = await plane_service.jobs(BLUE, limit=limit)
    while True:
        seen += [job.id for job in page.items]
        if page.after is None:
            break
        await plane_service.submit(BLUE, Submission("sum", "meanwhile", "blue"))
        page = await plane_service.jobs(BLUE, limit=limit, after=page.after)
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


@pytest.mark.asyncio
async def test_a_job_goes_to_the_pool_that_takes_its_topic(plane_service: Service) -> None:
    now_ns = plane_service.parts.store.clock.now().wall
    await plane_service.parts.workers.record(Heartbeat("w1", "money", ("charge",), 4, 0, now_ns))
    await plane_service.parts.workers.record(Heartbeat("w2", "old", ("report",), 4, 0, now_ns - 3_600 * 10**9))
    pools = [
        (await plane_service.submit(UNBOUND, Submission(topic)))[0].pool for topic in ("charge", "report", "unheard")
    ]
    assert pools == ["money", "old", "default"]  # no live worker takes `report`: its last worker was in `old`
    job, _ = await plane_service.submit(UNBOUND, Submission("charge"), pool="elsewhere")
    assert job.pool == "elsewhere"
    with pytest.raises(BadInput, match="pool"):
        await plane_service.submit(UNBOUND, Submission("charge"), pool="a.b")


@pytest.mark.asyncio
async def test_workers_are_shown_alive_or_not(plane_service: Service) -> None:
    now_ns = plane_service.parts.store.clock.now().wall
    await plane_service.parts.workers.record(Heartbeat("here", "default", ("sum",), 4, 0, now_ns))
    await plane_service.parts.workers.record(Heartbeat("gone", "default", ("sum",), 4, 0, now_ns - 3_600 * 10**9))
    assert {each.heartbeat.worker: each.alive for each in await plane_service.workers()} == {
        "here": True,
        "gone": False,
    }


@pytest.mark.asyncio
async def test_the_snapshot_is_what_its_writer_wrote(plane_service: Service) -> None:
    with pytest.raises(RowMissing):
        await plane_service.snapshot()
    row = {"name": SNAPSHOT, "body": json.dumps({"workers": []}), "writer": "w", "at_ns": 5, "fence": 9}
    insert = (
        "INSERT INTO plane_document (name, body, writer, at_ns, holdfast_fence) "
        "VALUES (:name, :body, :writer, :at_ns, :fence)"
    )
    await plane_service.parts.database.write(lambda tx: tx.query(insert, row))
    found = await plane_service.snapshot()
    assert (found.body, found.writer, found.at_ns, found.fence) == ({"workers": []}, "w", 5, 9)


@pytest.mark.asyncio
async def test_a_tenants_limit_is_its_own_or_the_default(plane_service: Service) -> None:
    assert not (await plane_service.tenant(BLUE, "blue")).own
    await plane_service.limit_tenant("blue", 3)
    found = await plane_service.tenant(BLUE, "blue")
    assert (found.slots, found.own) == (3, True)


@pytest.mark.asyncio
async def test_locks_are_shown_with_their_holder_and_the_inventory_names_every_family(every_service: Service) -> None:
    async with SCHEDULER_JOB.lock(every_service.parts.locks, job="42") as lease:
        (seen,), following = await every_service.locks()
        assert (seen.key, seen.fence, seen.family) == (lease.key, lease.fence, "scheduler.job")
        assert following is None
        assert await every_service.locks(prefix="elsewhere") == ([], None)
    assert [line["family"] for line in every_service.inventory()] == list(FAMILIES)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (Submission(""), "topic"),
        (Submission("sum", tenant="a b"), "tenant"),
        (Submission("sum", id="../etc"), "id"),
        (Submission("sum", trace="a\nb"), "trace"),
        (Submission("sum", labels={"a": "b\0"}), "labels"),
        (Submission("sum", labels={str(n): "x" for n in range(51)}), "labels"),
        (Submission("sum", float("nan")), "payload"),
        (Submission("sum", "x" * 1_000_001), "payload"),
    ],
)
async def test_a_submission_that_cannot_be_right_is_refused_by_name(
    plane_service: Service, wanted: Submission, field: str
) -> None:
    with pytest.raises(BadInput) as refused:
        await plane_service.submit(UNBOUND, wanted)
    assert refused.value.field == field


@pytest.mark.asyncio
async def test_each_part_can_be_asked_whether_it_answers(every_service: Service) -> None:
    for part in ("database", "bus", "leases"):
        await every_service.check(part)
    with pytest.raises(BadInput, match="part"):
        await every_service.check("weather")
