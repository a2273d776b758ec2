"""A worker and its messages: what it takes, what it says and in which order, and what it gives back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast.errors import BadInput, LockBusy, RetryLater, Unavailable
from holdfast.guards.bearer import CarriedFence
from holdfast.plane import App, BlockingContext, Context
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import Message
from holdfast.plane.worker.worker import Worker
from support.fixtures.databases import until
from support.fixtures.workers import Gate, WorkerStage, ordered

pytestmark = pytest.mark.asyncio


async def test_an_async_function_runs_and_its_result_is_said_under_its_fence(work_stage: WorkerStage) -> None:
    app = App("billing")

    @app.job("charge")
    async def charge(ctx: Context, payload: Any) -> Any:
        return {"amount": payload["amount"] * 2, "fence": ctx.fence}

    worker = await work_stage.worker(app)
    job = await work_stage.send("charge", {"amount": 21})
    result = await work_stage.result(job)
    started = work_stage.said(subjects.STARTED, job)[0]
    assert result.body["status"] == "succeeded"
    assert result.body["result"] == {"amount": 42, "fence": result.fence.fence if result.fence else None}
    assert result.fence == started.fence == CarriedFence(families.WORKER_JOB.key(job=job), started.fence.fence)  # type: ignore[union-attr]
    assert (started.body["worker"], started.body["attempt"]) == (worker.name, 1)
    assert await work_stage.end(job) is None
    assert (worker.statistics().taken, worker.statistics().succeeded) == (1, 1)


async def test_a_plain_function_runs_in_a_thread_and_does_not_block_the_loop(work_stage: WorkerStage) -> None:
    app = App("billing")
    loop = asyncio.get_running_loop()

    @app.job("charge")
    def charge(ctx: BlockingContext, payload: Any) -> Any:
        # It needs the loop: on the loop itself it would wait forever.
        return asyncio.run_coroutine_threadsafe(asyncio.sleep(0, payload), loop).result(30)

    await work_stage.worker(app)
    assert (await work_stage.result(await work_stage.send("charge", "x"))).body["result"] == "x"


async def test_the_result_is_said_before_the_lease_ends_and_that_before_the_message_is_acknowledged(
    work_stage: WorkerStage,
) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: payload)
    seen: list[tuple[str, bool, int]] = []

    async def look(message: Message) -> None:
        held = await work_stage.locks.lock(families.WORKER_JOB.key(job=job)).locked()
        seen.append((message.subject, held, len(work_stage.bus.ends)))

    work_stage.bus.before = look
    job = "job-in-order"
    await work_stage.worker(app)
    await work_stage.send("charge", 1, job=job)
    assert await work_stage.end(job) is None
    assert seen == [(subjects.STARTED, True, 0), (subjects.RESULT, True, 0)]
    assert not await work_stage.locks.lock(families.WORKER_JOB.key(job=job)).locked()


async def test_a_topic_that_is_over_at_once_says_its_start_only_when_it_takes_longer(work_stage: WorkerStage) -> None:
    app, gate = App("billing"), Gate()

    @app.job("charge")
    async def charge(payload: Any) -> Any:
        if payload == "slow":
            await gate.passed()
        return payload

    await work_stage.worker(app)
    first = await work_stage.send("charge", "quick")
    assert (await work_stage.result(first)).body["status"] == "succeeded"
    assert len(work_stage.said(subjects.STARTED, first)) == 1, "it was not known to be brief"
    # How long an attempt takes is not ours to say on a busy machine: now and then one is found to be slow.
    quick = [await work_stage.send("charge", "quick") for _ in range(20)]
    for job in quick:
        await work_stage.result(job)
    assert any(not work_stage.said(subjects.STARTED, job) for job in quick)
    slow = await work_stage.send("charge", "slow")
    await gate.come.wait()
    await until(lambda: work_stage.said(subjects.STARTED, slow))
    assert not work_stage.said(subjects.RESULT, slow), "while the function runs"
    gate.go.set()
    result = await work_stage.result(slow)
    assert result.fence == work_stage.said(subjects.STARTED, slow)[0].fence
    after = await work_stage.send("charge", "quick")
    await work_stage.result(after)
    assert len(work_stage.said(subjects.STARTED, after)) == 1, "the last one was slow"


async def test_a_start_that_cannot_be_said_keeps_the_result_until_it_is(
    work_stage: WorkerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of what is said about an attempt does not depend on when it is said."""
    monkeypatch.setattr("holdfast.plane.worker.worker.BRIEF_NS", 1)  # the start is said while the function runs
    app, gate = App("billing"), Gate()

    @app.job("charge")
    async def charge(payload: Any) -> Any:
        await gate.passed()

    worker = await work_stage.worker(app)
    worker._worker_pools[0]._shared.brief.add("charge")
    tries = 0

    async def refused(message: Message) -> None:
        nonlocal tries
        if message.subject == subjects.STARTED and tries < 2:
            tries += 1
            gate.go.set()
            raise Unavailable("no bus")

    work_stage.bus.before = refused
    job = await work_stage.send("charge")
    await work_stage.result(job)
    assert tries == 2
    assert [each.subject for each in work_stage.bus.published] == [subjects.STARTED, subjects.RESULT]
    assert await work_stage.end(job) is None


async def test_a_job_that_somebody_runs_is_given_back_for_half_a_second(work_stage: WorkerStage) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: payload)
    worker = await work_stage.worker(app)
    other = await families.WORKER_JOB.lock(work_stage.locks, job="j").acquire(1)
    await work_stage.send("charge", job="j")
    error = await work_stage.end("j")
    assert isinstance(error, RetryLater)
    assert (error.delay, isinstance(error.__cause__, LockBusy)) == (0.5, True)
    assert work_stage.bus.published == []
    await other.release()
    assert (await work_stage.result("j")).body["status"] == "succeeded"
    assert worker.statistics().busy >= 1


async def test_when_the_lease_store_fails_the_message_is_given_back_for_a_second(
    work_stage: WorkerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: payload)
    worker = await work_stage.worker(app)

    async def away(*_: object) -> object:
        raise Unavailable("no store")

    with monkeypatch.context() as patch:
        patch.setattr(type(work_stage.locks.ports.store), "acquire_many", away)
        job = await work_stage.send("charge")
        error = await work_stage.end(job)
    assert isinstance(error, RetryLater)
    assert (error.delay, isinstance(error.__cause__, Unavailable)) == (1.0, True)
    assert (await work_stage.result(job)).body["status"] == "succeeded"
    assert worker.statistics().unreachable == 1


async def test_an_attempt_of_a_topic_that_this_worker_does_not_know_goes_back_to_the_scheduler(
    work_stage: WorkerStage,
) -> None:
    knows, does_not = App("knows"), App("other")
    knows.job("charge")(lambda payload: "done")
    does_not.job("else")(lambda payload: None)
    ignorant = await work_stage.worker(does_not)
    job = await work_stage.send("charge", by_topic=False)  # as an older scheduler sends it, for any worker of the pool
    said = await work_stage.result(job)
    assert (said.body["status"], said.body["took_ns"]) == ("returned", None)
    assert said.body["error"] == f"worker {ignorant.name} does not know charge"
    assert await work_stage.end(job) is None
    await ignorant.drain(0)
    await work_stage.worker(knows)
    again = await work_stage.send("charge", job=job, fence=2)  # as the scheduler sends it
    assert again == job
    assert (await work_stage.result(job, 2)).body["result"] == "done"
    assert ignorant.statistics().refused == 1
    assert work_stage.dead == []


async def test_an_attempt_reaches_only_workers_that_serve_its_topic(work_stage: WorkerStage) -> None:
    knows, does_not = App("knows"), App("other")
    knows.job("charge")(lambda payload: "done")
    does_not.job("else")(lambda payload: "done")
    ignorant = await work_stage.worker(does_not)
    jobs = [await work_stage.send("charge") for _ in range(5)]
    own = await work_stage.send("else")  # staged after the others, and taken before them
    assert (await work_stage.result(own)).body["result"] == "done"
    assert work_stage.said(subjects.RESULT, jobs[0]) == []
    await work_stage.worker(knows)
    for job in jobs:
        assert (await work_stage.result(job)).body["status"] == "succeeded"
    assert ignorant.statistics().refused == 0


async def test_a_message_that_is_no_attempt_counts_as_a_failure_of_its_own(work_stage: WorkerStage) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: payload)
    await work_stage.worker(app)
    await work_stage.bus.inner.publish([Message("bad", subjects.work_subject("default"), {"job": "bad"})])
    assert isinstance(await work_stage.end("bad"), BadInput)
    job = await work_stage.send("charge")
    assert (await work_stage.result(job)).body["status"] == "succeeded"


async def test_no_more_of_a_topic_run_at_once_than_it_allows(work_stage: WorkerStage) -> None:
    app = App("billing")
    gate = Gate()
    most = 0

    @app.job("charge", max_concurrency=1)
    async def charge(payload: Any) -> None:
        nonlocal most
        most = max(most, sum(each.assignment.topic == "charge" for each in worker.running()))
        await gate.passed()

    app.job("else")(lambda payload: payload)
    worker = await work_stage.worker(app, concurrency=4)
    first = await work_stage.send("charge")
    await asyncio.wait_for(gate.come.wait(), 60)
    second = await work_stage.send("charge")
    said = await work_stage.result(second)
    assert (said.body["status"], said.body["error"]) == (
        "returned",
        f"worker {worker.name} has no slot for another charge",
    )
    assert await work_stage.end(second) is None
    assert (await work_stage.result(await work_stage.send("else"))).body["status"] == "succeeded"
    gate.go.set()
    await work_stage.result(first)
    await work_stage.send("charge", job=second, fence=2)
    assert (await work_stage.result(second, 2)).body["status"] == "succeeded"
    assert most == 1
    assert worker.statistics().full == 1


async def test_attempts_that_are_over_at_once_wait_for_others_of_their_topic_and_go_nowhere(
    work_stage: WorkerStage,
) -> None:
    app = App("billing")
    at_once = most = 0

    @app.job("charge", max_concurrency=1)
    async def charge(payload: Any) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1

    worker = await work_stage.worker(app, concurrency=4)
    await work_stage.result(await work_stage.send("charge"))  # from here on it is known to be brief
    jobs = [await work_stage.send("charge") for _ in range(40)]
    said = [(await work_stage.result(job)).body["status"] for job in jobs]
    # What was said is counted a moment later.
    await until(lambda: worker.statistics().succeeded + worker.statistics().full >= 41)
    assert (most, worker.statistics().succeeded + worker.statistics().full) == (1, 41)
    assert said.count("succeeded") + said.count("returned") == 40  # on a machine that stood still, some went back
    assert said.count("succeeded") == worker.statistics().succeeded - 1


async def test_nothing_goes_back_while_somebody_runs_the_job(work_stage: WorkerStage) -> None:
    """The word would be about an attempt that is under way."""
    app = App("other")
    app.job("else")(lambda payload: None)
    await work_stage.worker(app)
    async with work_stage.locks.lock(await work_stage.key("busy"), ttl=30):
        await work_stage.send("charge", job="busy", by_topic=False)
        error = await work_stage.end("busy")
        assert isinstance(error, RetryLater)
        assert (error.delay, isinstance(error.__cause__, LockBusy)) == (0.5, True)
        assert work_stage.said(subjects.RESULT, "busy") == []
    assert (await work_stage.result("busy")).body["status"] == "returned"


async def test_each_pool_has_places_and_a_name_of_its_own(work_stage: WorkerStage) -> None:
    app = App("billing")
    gate = Gate()

    @app.job("slow", pool="slow")
    async def slow(payload: Any) -> None:
        await gate.passed()

    app.job("quick", pool="quick")(lambda payload: payload)
    worker = await work_stage.worker(app, name="w1", concurrency=1)
    busy = await work_stage.send("slow", pool="slow")
    await asyncio.wait_for(gate.come.wait(), 60)
    quick = await work_stage.send("quick", pool="quick")
    assert (await work_stage.result(quick)).body["worker"] == "w1:quick"
    gate.go.set()
    assert (await work_stage.result(busy)).body["worker"] == "w1:slow"
    assert {(each.worker, each.pool, each.topics) for each in work_stage.registry.heard} == {
        ("w1:quick", "quick", ("quick",)),
        ("w1:slow", "slow", ("slow",)),
    }
    assert worker.name == "w1"


async def test_a_worker_may_serve_some_of_the_pools_only(work_stage: WorkerStage) -> None:
    app = App("billing")
    app.job("a", pool="one")(lambda payload: payload)
    app.job("b", pool="two")(lambda payload: payload)
    await work_stage.worker(app, pools=["two"], name="w")
    job = await work_stage.send("b", pool="two")
    await work_stage.result(job)
    assert set(work_stage.bus.consumers) == {"work.two", "stop.w"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"pools": ["other"]}, "pools"),
        ({"pools": []}, "pools"),
        ({"pools": ["a.b"]}, "pool"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"name": "a.b"}, "name"),
        ({"heartbeat": 0}, "heartbeat"),
        ({"lease_ttl": 0}, "lease_ttl"),
        ({"cancel_grace": -1}, "cancel_grace"),
    ],
)
async def test_bad_settings_are_refused_by_name(work_stage: WorkerStage, options: dict[str, Any], field: str) -> None:
    app = App("billing")
    app.job("a")(lambda payload: payload)
    chosen: dict[str, Any] = {
        "bus": work_stage.bus,
        "locks": work_stage.locks,
        "registry": work_stage.registry,
        **options,
    }
    with pytest.raises(BadInput) as refused:
        Worker(app, **chosen)
    assert refused.value.field == field


async def test_a_worker_without_jobs_is_refused_and_one_is_started_once(work_stage: WorkerStage) -> None:
    with pytest.raises(BadInput, match="has no jobs"):
        Worker(App("empty"), bus=work_stage.bus, locks=work_stage.locks, registry=work_stage.registry)
    app = App("billing")
    app.job("a")(lambda payload: payload)
    worker = await work_stage.worker(app)
    with pytest.raises(BadInput, match="started before"):
        await worker.start()


async def test_a_hundred_jobs_over_three_workers_are_each_run_once(work_stage: WorkerStage) -> None:
    app = App("billing")
    runs: Counter[int] = Counter()

    @app.job("count")
    async def count(payload: int) -> int:
        runs[payload] += 1
        return payload

    workers = [await work_stage.worker(app, concurrency=4) for _ in range(3)]
    await work_stage.bus.inner.publish([ordered(f"job-{n}", "count", n) for n in range(100)])
    await until(lambda: len(work_stage.bus.ends) >= 100)
    assert runs == dict.fromkeys(range(100), 1)
    assert sorted(each.body["result"] for each in work_stage.said(subjects.RESULT)) == list(range(100))
    assert [error for _, error in work_stage.bus.ends] == [None] * 100
    assert sum(each.statistics().succeeded for each in workers) == 100
