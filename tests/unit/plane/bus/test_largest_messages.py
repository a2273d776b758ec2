"""What is accepted can be carried: the longest payload, labels and results fit into messages, on every bus."""

from __future__ import annotations

import pytest

from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.plane.bus.envelope import rows_of, wire_of
from holdfast.plane.locks.registry import SCHEDULER_JOB, WORKER_JOB
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import LABELS_MAX
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import ID_CHARS_MAX, LABELS_BYTES_MAX, PAYLOAD_BYTES_MAX, Submission
from support.fixtures.scheduling import FakeWorkers, Planes, submitted

NATS_TAKES = 2**20  # by default, with the headers

LONGEST = "é" * ((PAYLOAD_BYTES_MAX - 2) // 2)
LONG_ID = "j" * ID_CHARS_MAX
LABELS = {f"{n:03}" + "é" * 95: "é" * 97 for n in range(LABELS_MAX)}


def wire_bytes(message: object) -> int:
    """The size of a message on the wire of NATS."""
    [row] = rows_of([message], 2**62)  # type: ignore[list-item]  # a message
    data, headers = wire_of(row)
    return len(data) + sum(len(name) + len(value) + 4 for name, value in headers.items())


@pytest.mark.asyncio
async def test_the_longest_payload_is_dispatched_and_the_longest_result_is_written(sqlite_planes: Planes) -> None:
    plane = await sqlite_planes.open()
    await plane.beat()
    job = await plane.submit(payload=LONGEST, labels=LABELS, id=LONG_ID)
    await plane.scheduler.on_submit(submitted(job))
    sent = await plane.job(job)
    assert sent.state is JobState.DISPATCHED
    assert wire_bytes(subjects.dispatched(sent, CarriedFence(SCHEDULER_JOB.key(job=job.id), 2**62))) < NATS_TAKES
    workers = FakeWorkers(plane, lambda _: {"status": "succeeded", "result": LONGEST})
    async with plane.scheduler.serving(), workers.serving():
        await plane.in_state(job, JobState.SUCCEEDED)
    assert (await plane.job(job)).result == LONGEST
    assert plane.dead == []


def test_the_longest_result_fits_into_the_message_of_a_worker() -> None:
    run = CarriedFence(WORKER_JOB.key(job=LONG_ID), 2**62)
    said = {"status": "succeeded", "result": LONGEST, "error": None, "retryable": False, "retry_after_ns": None}
    assert wire_bytes(subjects.finished(LONG_ID, 50, "w" * ID_CHARS_MAX, run, said)) < NATS_TAKES


def test_labels_that_would_not_fit_beside_the_longest_payload_are_refused() -> None:
    Submission("sum", LONGEST, labels=LABELS).check()
    with pytest.raises(BadInput, match=f"labels.*{LABELS_BYTES_MAX}"):
        Submission("sum", 1, labels={**LABELS, "more": "x" * 500}).check()
