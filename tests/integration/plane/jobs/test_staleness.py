"""Whether an attempt is still wanted, as the database says."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.model.job_states import WITH_WORKERS, JobState
from holdfast.plane.model.records import Heartbeat, Submission
from holdfast.plane.worker.staleness import Attempts, Staleness
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.types import NS
from support.fixtures.scheduling import enqueue

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("attempt", [1, 2, 3])
async def test_an_attempt_is_wanted_while_its_job_is_with_workers_at_that_attempt_and_no_longer(
    database: Database, state: JobState, attempt: int
) -> None:
    await prepare(database)
    bus = EmbeddedBus(database, SystemClock(), SystemEntropy())
    await bus.prepare()
    await enqueue(JobStore(database, bus, SystemClock(), SystemEntropy()), Submission("t", id="j"))
    statement = "UPDATE plane_job SET state = :state, attempt = 2 WHERE id = 'j'"
    await database.write(lambda tx: tx.query(statement, {"state": str(state)}))
    found = await Attempts(database).check(("j", 0, attempt), 7, 0)
    assert found == Staleness(state in WITH_WORKERS and attempt == 2)
    await bus.close()


async def test_an_attempt_of_a_job_that_is_not_known_may_be_run(database: Database) -> None:
    await prepare(database)
    await prepare(database, "bus_schema")
    assert await Attempts(database).check(("nobody", 0, 1), 7, 0) == Staleness(wanted=True)


async def test_an_attempt_is_outdated_when_another_job_has_its_id(database: Database) -> None:
    await prepare(database)
    bus = EmbeddedBus(database, SystemClock(), SystemEntropy())
    await bus.prepare()
    store = JobStore(database, bus, SystemClock(), SystemEntropy())
    job, _ = await enqueue(store, Submission("t", id="j"), "default")
    await database.write(lambda tx: tx.query("UPDATE plane_job SET state = 'DISPATCHED', attempt = 1 WHERE id = 'j'"))
    for made_ns, wanted in ((job.created_ns, True), (job.created_ns - 1, False), (0, True)):
        assert await Attempts(database).check(("j", made_ns, 1), 7, 0) == Staleness(wanted)
    await bus.close()


async def test_an_attempt_that_was_handed_out_once_more_is_wanted_by_its_newest_message(database: Database) -> None:
    await prepare(database)
    bus = EmbeddedBus(database, SystemClock(), SystemEntropy())
    await bus.prepare()
    await enqueue(JobStore(database, bus, SystemClock(), SystemEntropy()), Submission("t", id="j"))
    await database.write(lambda tx: tx.query("UPDATE plane_job SET state = 'DISPATCHED', attempt = 1 WHERE id = 'j'"))
    sent = "INSERT INTO plane_event VALUES ('j', :version, 1, 0, NULL, 'DISPATCHED', 1, :fence, 'me', NULL, NULL)"
    times = [{"version": version, "fence": fence} for version, fence in ((2, 11), (9, 15), (10, 22))]
    await database.write(lambda tx: tx.query_many(sent, times))
    # 23: the same once more, as the replayer sends it; None: from a scheduler that does not say it.
    asked: list[tuple[int | None, bool]] = [(11, False), (15, False), (22, True), (23, True), (None, True)]
    for fence, wanted in asked:
        assert await Attempts(database).check(("j", 0, 1), 7, 0, fence) == Staleness(wanted)
    await bus.close()


SILENT: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"now": 12.0}, True),
    ({"now": 11.9}, False),  # it may be late by two heartbeats
    ({"state": "DISPATCHED"}, False),  # no worker had begun it
    ({"state": "RETRYING", "attempt": 2}, False),
    ({"attempt": 2}, False),  # it is about another attempt
    ({"run_fence": 7}, False),  # that is this very run
    ({"run_fence": None}, False),
    ({"draining": 1}, False),  # it was leaving, and gave back what it had
    ({"worker": "forgotten"}, False),
]


async def test_a_worker_is_silent_that_had_begun_the_attempt_and_has_missed_two_heartbeats(database: Database) -> None:
    await prepare(database)
    bus = EmbeddedBus(database, SystemClock(), SystemEntropy())
    await bus.prepare()
    await enqueue(JobStore(database, bus, SystemClock(), SystemEntropy()), Submission("t", id="j"))
    await Workers(database, SystemClock()).record(Heartbeat("w", "default", ("t",), 1, 1, 2 * NS))
    attempts = Attempts(database, heartbeat=5.0)
    for differs, silent in SILENT:
        said = {"state": "RUNNING", "attempt": 1, "run_fence": 3, "worker": "w", "draining": 0, "now": 60.0, **differs}
        now_ns, leaving = round(said.pop("now") * NS), {"draining": said.pop("draining")}

        async def work(tx: Tx, job: dict[str, Any] = said, worker: dict[str, int] = leaving) -> None:
            await tx.query("UPDATE plane_worker SET draining = :draining", worker)
            row = "UPDATE plane_job SET state = :state, attempt = :attempt, run_fence = :run_fence, worker = :worker"
            await tx.query(row, job)

        await database.write(work)
        found = await attempts.check(("j", 0, 1), 7, now_ns)
        assert found.silent_since_ns == (2 * NS if silent else None), differs
    await bus.close()


@pytest.mark.parametrize(
    ("state", "attempt", "run_fence", "overtaken"),
    [
        ("RUNNING", 1, 8, True),
        ("RUNNING", 1, 7, False),  # its own run
        ("RUNNING", 1, 6, False),
        ("DISPATCHED", 1, None, False),
        ("DISPATCHED", 1, 8, True),  # a worker rejected it, and it was sent again
        ("RETRYING", 1, 8, False),  # the end of the other run was heard of
        ("SUCCEEDED", 1, 8, False),
        ("RUNNING", 2, 8, False),  # that is another attempt
    ],
)
async def test_a_run_is_overtaken_when_another_one_of_the_same_attempt_is_under_way(
    database: Database, state: str, attempt: int, run_fence: int | None, overtaken: bool
) -> None:
    await prepare(database)
    bus = EmbeddedBus(database, SystemClock(), SystemEntropy())
    await bus.prepare()
    await enqueue(JobStore(database, bus, SystemClock(), SystemEntropy()), Submission("t", id="j"))
    values = {"state": state, "attempt": attempt, "run_fence": run_fence}
    row = "UPDATE plane_job SET state = :state, attempt = :attempt, run_fence = :run_fence"
    await database.write(lambda tx: tx.query(row, values))
    assert (await Attempts(database).check(("j", 0, 1), 7, 0)).overtaken is overtaken
    await bus.close()


async def begun(database: Database, job: str, attempt: int, times: int, *, version: int) -> None:
    """So many runs of an attempt are written down."""
    line = "INSERT INTO plane_event VALUES (:job, :version, 0, 0, NULL, 'RUNNING', :attempt, 1, 'w', NULL, NULL)"
    rows = [{"job": job, "version": version + number, "attempt": attempt} for number in range(times)]
    await database.write(lambda tx: tx.query_many(line, rows))


async def test_runs_of_this_attempt_are_lost_that_were_begun_and_not_given_back(database: Database) -> None:
    await prepare(database)
    bus = EmbeddedBus(database, SystemClock(), SystemEntropy())
    await bus.prepare()
    store = JobStore(database, bus, SystemClock(), SystemEntropy())
    job, _ = await enqueue(store, Submission("t", id="j"), "default")
    await enqueue(store, Submission("t", id="other"), "default")
    await database.write(lambda tx: tx.query("UPDATE plane_job SET state = 'RUNNING', attempt = 2, run_fence = 5"))
    attempts, name = Attempts(database), ("j", job.created_ns, 2)
    for owner, attempt, times, version in (("j", 1, 7, 10), ("j", 2, 4, 20), ("other", 2, 7, 10)):
        await begun(database, owner, attempt, times, version=version)
    assert (await attempts.check(name, 7, 0)).lost == 4
    # Of another attempt, another job, and an earlier job of the same id, nothing is held for this one.
    for other in (("j", job.created_ns, 1), ("other", 0, 2), ("j", job.created_ns - 1, 2), ("nobody", 0, 2)):
        await attempts.returned(other, 0)
    assert (await attempts.check(name, 7, 0)).lost == 4
    await attempts.returned(name, 0)
    await attempts.returned(("j", 0, 2), 0)  # by a worker that was not told when the job was made
    assert (await attempts.check(name, 7, 0)).lost == 2
    for _ in range(5):
        await attempts.returned(name, 0)
    assert (await attempts.check(name, 7, 0)).lost == 0
    await bus.close()


@pytest.mark.parametrize(("state", "run_fence"), [("DISPATCHED", None), ("RUNNING", 7), ("RUNNING", 8)])
async def test_a_run_that_is_our_own_or_a_newer_one_is_not_lost(
    database: Database, state: str, run_fence: int | None
) -> None:
    await prepare(database)
    bus = EmbeddedBus(database, SystemClock(), SystemEntropy())
    await bus.prepare()
    await enqueue(JobStore(database, bus, SystemClock(), SystemEntropy()), Submission("t", id="j"))
    row = "UPDATE plane_job SET attempt = 1, state = :state, run_fence = :run_fence"
    await database.write(lambda tx: tx.query(row, {"state": state, "run_fence": run_fence}))
    await begun(database, "j", 1, 4, version=10)
    assert (await Attempts(database).check(("j", 0, 1), 7, 0)).lost == 0
    await bus.close()
