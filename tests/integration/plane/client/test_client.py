"""The client of a plane: one contract for three transports, in both colors, on running planes."""

from __future__ import annotations

import asyncio
import itertools
import os
from datetime import UTC
from typing import Any

import pytest

from holdfast.errors import BadInput, Closed, RowExists, RowMissing
from holdfast.plane import (
    Client,
    JobCancelled,
    JobFailed,
    JobRequest,
    JobState,
    RunNotSucceeded,
    SubmitRefused,
    UpdateKind,
)
from holdfast.plane.model.caller import NotAllowed
from support.client_app import Order, Receipt, accept, charge, echo, hopeless, lookup, send, sum_parts, tell, wait

pytestmark = pytest.mark.asyncio

LIMIT_S = 60
_numbers = itertools.count()


def unique(name: str) -> str:
    """An id that no other test uses: the planes are shared."""
    return f"{name}-{os.getpid()}-{next(_numbers)}"


async def test_a_function_is_submitted_with_its_arguments_and_the_result_has_its_type(client: Any) -> None:
    job = await client.submit(charge, invoice=7, amount=100)
    assert await job.result(timeout=LIMIT_S) == Receipt(7, 100)
    seen = await job.status()
    assert (seen.state, seen.payload, seen.result) == (
        JobState.SUCCEEDED,
        {"invoice": 7, "amount": 100},
        {"invoice": 7, "amount": 100},
    )
    assert (seen.topic, seen.max_attempts, seen.waiting, seen.created_at.tzinfo) == ("invoice.charge", 6, None, UTC)
    again = client.job(job.id, charge)
    assert await again.result(timeout=LIMIT_S) == Receipt(7, 100)


async def test_arguments_have_the_types_that_are_declared(client: Any) -> None:
    sent = await client.submit(send, to={"city": "Rome"}, express=True)
    accepted = await client.submit(accept, Order(id=3, tags=["new"]))
    named = await client.submit(accept, order=Order(id=4))
    assert await sent.result(timeout=LIMIT_S) == "Rome True"
    assert await accepted.result(timeout=LIMIT_S) == Order(id=4, tags=["new", "accepted"])
    assert await named.result(timeout=LIMIT_S) == Order(id=5, tags=["accepted"])


async def test_a_topic_is_submitted_with_a_payload(client: Any) -> None:
    job = await client.submit("echo", [1, None, {"a": "ü"}], labels={"size": "small"})
    assert await job.result(timeout=LIMIT_S) == {
        "payload": [1, None, {"a": "ü"}],
        "labels": {"size": "small"},
        "tenant": "default",
    }


async def test_one_idempotency_key_is_one_job(client: Any) -> None:
    key = unique("order")
    first = await client.submit(charge, invoice=1, idempotency_key=key)
    again = await client.submit(charge, invoice=1, idempotency_key=key)
    assert (first.new, again.new, again.id) == (True, False, first.id)
    with pytest.raises(RowExists):
        await client.submit(charge, invoice=2, idempotency_key=key)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"invoice": "seven"}, "invoice"),
        ({}, "invoice"),
        ({"invoice": 1, "currency": "EUR"}, "currency"),
        ({"invoice": 1, "delay": -1}, "delay"),
        ({"invoice": 1, "priority": 1000}, "priority"),
        ({"invoice": 1, "id": "a b"}, "id"),
        ({"invoice": 1, "timeout": 0}, "timeout"),
        ({"invoice": 1, "pool": "a pool"}, "pool"),
        ({"invoice": 1, "labels": {"size": 3}}, "labels"),
    ],
)
async def test_bad_input_names_the_field_and_sends_nothing(client: Any, given: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        await client.submit(charge, **given)
    assert refused.value.field == field
    assert refused.value.fix


async def test_what_is_no_job_is_refused(client: Any) -> None:
    with pytest.raises(BadInput, match="decorate it"):
        await client.submit(len, 3)
    with pytest.raises(BadInput, match="a topic has no parameters"):
        await client.submit("echo", invoice=3)
    with pytest.raises(BadInput, match="topic"):
        await client.submit("no topic", 3)


async def test_a_failed_job_raises_its_reason_and_can_be_submitted_again(client: Any) -> None:
    job = await client.submit(hopeless, None)
    with pytest.raises(JobFailed, match="this will never work") as failed:
        await job.result(timeout=LIMIT_S)
    assert (failed.value.job.state, failed.value.job.attempt) == (JobState.FAILED, 1)
    retried = await job.retry()
    assert retried.id != job.id
    with pytest.raises(JobFailed):
        await retried.result(timeout=LIMIT_S)


async def test_a_failed_job_raises_the_end_of_the_traceback(client: Any) -> None:
    job = await client.submit(lookup, invoice=7)
    with pytest.raises(JobFailed, match="KeyError: 7") as failed:
        await job.result(timeout=LIMIT_S)
    assert failed.value.traceback is not None
    first, file, last = failed.value.traceback.split("\n")
    assert (first, last) == ("Traceback (most recent call last):", "KeyError: 7")
    assert file.startswith('  File "support/client_app.py", line ')
    assert file.endswith(", in lookup")
    assert failed.value.traceback in failed.value.__notes__[0]


async def test_a_job_is_followed_and_cancelled(client: Any) -> None:
    job = await client.submit(wait, None)
    states, progress = [], []
    async for update in job.events():
        assert update.job == job.id
        if update.progress is None:
            states.append(update.state)
            continue
        progress.append((update.progress.note, update.progress.fraction))
        assert await job.cancel("enough")
    assert progress == [("waiting", 0.25)]
    assert states[0] is JobState.PENDING
    assert states[-1] is JobState.CANCELLED
    assert JobState.RUNNING in states
    with pytest.raises(JobCancelled, match="enough"):
        await job.result(timeout=LIMIT_S)
    assert not await job.cancel()


async def test_emitted_values_reach_every_reader_in_order_before_the_end(client: Any) -> None:
    words = [f"word {number}" for number in range(250)]  # more than one page
    job = await client.submit(tell, words=words)
    live = [update async for update in job.events()]
    late = [update async for update in client.job(job.id).events()]
    for updates in (live, late):
        values = [update for update in updates if update.kind is UpdateKind.VALUE]
        assert [update.value["word"] for update in values] == words
        assert [update.number for update in values] == list(range(1, 251))
        assert {update.attempt for update in values} == {1}
        assert (updates[-1].kind, updates[-1].state) == (UpdateKind.STATE, JobState.SUCCEEDED)
    assert [each.progress.fraction for each in late if each.kind is UpdateKind.PROGRESS] == [1.0]


async def test_values_of_each_attempt_are_kept_and_have_its_number(client: Any) -> None:
    job = await client.submit(tell, words=["once", "fail", "end"])
    assert await job.result(timeout=LIMIT_S) == 3
    updates = [update async for update in job.events() if update.kind is not UpdateKind.PROGRESS]
    told = [(each.attempt, each.value["word"]) for each in updates if each.kind is UpdateKind.VALUE]
    assert told == [(1, "once"), (1, "fail"), (2, "once"), (2, "fail"), (2, "end")]
    retried = next(at for at, each in enumerate(updates) if each.state is JobState.RETRYING)
    assert [each.attempt for each in updates[:retried] if each.kind is UpdateKind.VALUE] == [1, 1]


async def test_a_parent_that_is_tried_again_has_the_same_children(client: Any) -> None:
    job = await client.submit(sum_parts, numbers=[1, 2, 3])
    result = await job.result(timeout=LIMIT_S)
    assert result == {"sum": 6, "tenant": "default", "ids": [f"{job.id}/{number}" for number in (1, 2, 3)]}
    seen = await job.status()
    assert seen.attempt == 2
    child = await client.job(f"{job.id}/named").status()
    assert (child.parent, child.payload) == (job.id, {"by": job.id})


async def test_children_of_a_cancelled_job_are_cancelled_unless_they_are_detached(client: Any) -> None:
    job = await client.submit("family.wait", None)
    async for update in job.events():
        if update.kind is UpdateKind.PROGRESS:
            await job.cancel("enough")
    attached, detached = client.job(f"{job.id}/attached"), client.job(f"{job.id}/detached")
    with pytest.raises(JobCancelled, match="its parent was cancelled"):
        await attached.result(timeout=LIMIT_S)
    assert not (await detached.status()).state.terminal
    assert await detached.cancel()


async def test_a_result_that_does_not_come_in_time_is_a_timeout_and_the_job_goes_on(client: Any) -> None:
    job = await client.submit(wait, None)
    with pytest.raises(TimeoutError, match="has not ended within"):
        await job.result(timeout=0.2)
    assert not (await job.status()).state.terminal
    assert await job.cancel()
    with pytest.raises(JobCancelled):
        await job.result(timeout=LIMIT_S)


async def test_a_wait_that_outlasts_one_request_goes_on(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.plane.client.client.WATCH_NS", 50_000_000)
    job = await client.submit(charge, invoice=1, delay=0.5)
    assert await job.result(timeout=LIMIT_S) == Receipt(1, 1)


async def test_a_job_that_does_not_exist_is_missing(client: Any) -> None:
    ghost = client.job("ghost")
    for ask in (ghost.status, ghost.result, ghost.cancel, ghost.retry):
        with pytest.raises(RowMissing):
            await ask()


async def test_many_jobs_are_submitted_together_and_waited_for_together(client: Any) -> None:
    requests: list[JobRequest[Any]] = [JobRequest(charge, invoice=number) for number in range(60)]
    jobs = await client.submit_many(requests)
    results = await asyncio.gather(*(job.result(timeout=LIMIT_S) for job in jobs))
    assert [each.invoice for each in results] == list(range(60))
    assert [job.id for job in await client.submit_many(requests)] == [job.id for job in jobs]
    assert await client.submit_many([]) == []


async def test_of_many_jobs_those_that_are_refused_are_named(client: Any) -> None:
    key = unique("key")
    first = await client.submit(echo, 1, idempotency_key=key)
    with pytest.raises(SubmitRefused, match="1 of 3 jobs were refused") as refused:
        await client.submit_many(
            [JobRequest(echo, 1, idempotency_key=key), JobRequest(echo, 2, idempotency_key=key), JobRequest(echo, 3)]
        )
    same, conflict, other = refused.value.answers
    assert same.id == first.id
    assert isinstance(conflict, RowExists)
    assert (await client.job(other.id).result(timeout=LIMIT_S))["payload"] == 3
    with pytest.raises(BadInput, match="requests"):
        await client.submit_many([charge])


async def test_a_delayed_job_says_why_it_waits(client: Any) -> None:
    job = await client.submit(charge, invoice=1, delay=600, deadline=1200)
    assert "to start at" in str((await job.status()).waiting)
    assert await job.cancel()
    with pytest.raises(JobCancelled):
        await job.result(timeout=LIMIT_S)


async def test_a_run_is_started_and_has_an_output(client: Any) -> None:
    run = await client.start("charge-twice", invoice=5)
    assert await run.result(timeout=LIMIT_S) == {"amounts": [1, 1], "last": {"invoice": 5, "amount": 1}}
    seen = await run.status()
    assert dict(seen.steps) == {"first": "succeeded", "second": "succeeded"}
    same = client.run(run.id)
    assert (await same.result(timeout=LIMIT_S))["last"]["invoice"] == 5
    assert not await run.cancel()
    with pytest.raises(RowMissing):
        await client.start("no-such-workflow")


async def test_a_run_that_is_cancelled_has_no_output(client: Any) -> None:
    run = await client.start("asks", ticket="T-1", idempotency_key=unique("run"))
    assert await run.cancel("not needed")
    with pytest.raises(RunNotSucceeded, match="cancelled"):
        await run.result(timeout=LIMIT_S)


async def test_a_person_decides_and_the_run_goes_on(client: Any, where: dict[str, Any]) -> None:
    """Without tokens an API has one caller, who may not approve its own request: the boss uses the database."""
    ticket = unique("T")
    run = await client.start("asks", ticket=ticket)
    seen = await gate_of(client, ticket)
    assert (seen.run, seen.step) == (run.id, "agreed")
    if "plane" in where:
        with pytest.raises(NotAllowed):
            await client.approve(seen.job, "fine")
        assert await run.cancel()
        return
    async with Client(**where, name="boss") as boss:
        await boss.approve(seen.job, "fine")
    assert await run.result(timeout=LIMIT_S) == {"paid": 1}


async def gate_of(client: Any, ticket: str) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while True:
            for each in await client.approvals():
                if ticket in each.about:
                    return each
            await asyncio.sleep(0.02)


async def test_a_client_that_is_not_open_says_so(where: dict[str, Any]) -> None:
    client = Client(**where)
    with pytest.raises(Closed, match="not open"):
        await client.submit(echo, 1)
    async with client:
        with pytest.raises(BadInput, match="opened before"):
            await client.open()
    with pytest.raises(Closed, match="closed"):
        await client.submit(echo, 1)
    await client.close()
