"""A decision under the lock of its job: a short wait, a time limit, and always a release, which is not the outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import BackendError, Timeout, Unavailable
from holdfast.plane.approvals.rules import ApprovalStatus, ApprovalVerdict
from holdfast.plane.approvals.service import LIMIT_SHARE, ApprovalBusy
from holdfast.plane.jobs.store import Writing
from holdfast.plane.locks.job_lock import job_lock
from holdfast.plane.locks.registry import APPROVAL, SCHEDULER_JOB
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.components import open_components
from holdfast.plane.settings.settings import Settings
from holdfast.testing.proxy import FaultProxy
from support.fixtures.workflows import ASKER, FlowReplica, FlowStage, holds
from support.harness.approvals import (
    PAYMENTS,
    asked,
    decide,
    going_on,
    held_up,
    stage_of,
    staged,
    told,
    untouched,
    waiting,
)
from support.servers.redis import RedisServer

pytestmark = pytest.mark.asyncio


@pytest.mark.requires("R9", "R10", "R12")
async def test_the_lock_is_the_schedulers_own_and_busy_is_an_answer_of_its_own(flow_stage: FlowStage) -> None:
    replica, other = await stage_of(flow_stage), await stage_of(flow_stage)
    job = await asked(replica)
    quick = staged(replica.components, family=replace(APPROVAL, acquire_timeout=0.1))
    async with job_lock(other.components.locks, job.id):
        with pytest.raises(ApprovalBusy, match=r"^approval lock busy$") as busy:
            await quick.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")
    assert str(busy.value.code) == "approval_retryable_lock"
    assert 0 < busy.value.retry_after <= 0.5  # the holder's lease lasts a minute, its work does not
    assert quick.refused == {"approval_retryable_lock": 1}
    await untouched(replica, job.id)
    never = staged(replica.components, family=replace(APPROVAL, acquire_timeout=0.0))
    taken = await never.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")  # one attempt is always made
    assert taken.taken
    assert never.lease is not None
    assert (never.lease.key, never.lease.family, never.lease.ttl) == (SCHEDULER_JOB.key(job=job.id), "approval", 10)
    assert (taken.approval.fence, taken.job.fence) == (never.lease.fence, never.lease.fence)


@pytest.mark.requires("R10")
async def test_who_waits_for_the_lock_gets_it_when_it_is_free(flow_stage: FlowStage) -> None:
    replica, other = await stage_of(flow_stage), await stage_of(flow_stage)
    job = await asked(replica)
    async with job_lock(other.components.locks, job.id):
        deciding = asyncio.ensure_future(decide(replica, job.id))
        await holds(lambda: _waits(replica), "a decision waits")
    assert (await deciding).taken


async def _waits(replica: FlowReplica) -> bool:
    return replica.components.locks.statistics().busy > 0


@pytest.mark.requires("R11")
async def test_trouble_with_the_store_of_leases_is_an_error_at_once(flow_stage: FlowStage, nowhere: str) -> None:
    replica = await stage_of(flow_stage)
    cut_off = await flow_stage.replica(leases=nowhere, serve=False)
    job = await asked(replica)
    with pytest.raises(Unavailable, match=r"^lock acquire: "):
        await decide(cut_off, job.id)
    assert cut_off.components.locks.statistics().store_errors == 1  # it is not tried again
    await untouched(replica, job.id)


@pytest.fixture
def nowhere(unused_tcp_port: int) -> str:
    return f"redis://127.0.0.1:{unused_tcp_port}"


@pytest.mark.requires("R13")
async def test_a_release_that_fails_is_a_warning_and_never_the_outcome(
    tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultProxy(redis_server.port) as proxy:
        settings = Settings(
            database=f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal", leases=f"redis://{proxy.address}"
        )
        async with open_components(settings) as components:
            components.approvals.rules = PAYMENTS
            approvals = staged(components)
            job, _ = await components.service.submit(ASKER, Submission("bank.pay", None))

            async def cut() -> None:
                proxy.refuse()
                proxy.reset()

            approvals.committed = cut
            with caplog.at_level(logging.WARNING, "holdfast"):
                decision = await approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")
            proxy.refuse(False)
            assert (decision.taken, decision.job.state) == (True, JobState.PENDING)
            assert (await components.approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")).taken is False
    (line,) = [each.getMessage() for each in caplog.records if "release" in each.getMessage()]
    assert line.startswith("approval lock release failed: ")
    assert f" job={job.id} " in line
    assert " error=" in line


ENVELOPE_S = 2.0
OVERSHOOT_S = 0.05
TRIES = 12  # load delays some of them, a second time limit all of them


async def ended_within_the_envelope(once: Callable[[], Awaitable[float]]) -> None:
    """Measure until one try keeps the limit. A try that ended much too early was not held up at all."""
    took: list[float] = []
    while len(took) < TRIES and not any(each < ENVELOPE_S + OVERSHOOT_S for each in took):
        took.append(await once())
        assert took[-1] > 0.75 * ENVELOPE_S, str(took)
    assert min(took) < ENVELOPE_S + OVERSHOOT_S, str(took)


async def ends(work: Awaitable[object]) -> float:
    """Wait for the end of something, but not for much longer than the envelope; how long that took."""
    began = time.monotonic()
    async with going_on(work) as task:
        done, _ = await asyncio.wait({task}, timeout=1.25 * ENVELOPE_S)
        took = time.monotonic() - began
        for each in done:
            each.result()
    return took


@pytest.mark.requires("R10", "R14")
async def test_a_decision_on_a_hung_lease_store_ends_within_the_envelope(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    with FaultProxy(redis_server.port) as proxy:
        settings = Settings(
            database=f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal", leases=f"redis://{proxy.address}"
        )
        async with open_components(settings) as components:
            components.approvals.rules = PAYMENTS
            job, _ = await components.service.submit(ASKER, Submission("bank.pay", None))
            await components.locks.ping()

            async def refused() -> None:
                with pytest.raises(BackendError, match=r"^lock acquire: "):
                    await components.approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")

            proxy.stall("to_client")
            await ended_within_the_envelope(lambda: ends(refused()))
            proxy.resume()
            approval = await components.approvals.get(job.id)
            assert approval is not None
            assert (approval.status, approval.revision) == (ApprovalStatus.WAITING, 0)


@pytest.mark.requires("R13", "R14")
async def test_a_release_on_a_hung_lease_store_ends_within_two_seconds_and_is_never_the_outcome(
    tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with FaultProxy(redis_server.port) as proxy:
        settings = Settings(
            database=f"sqlite:///{tmp_path / 'plane.db'}?synchronous=normal", leases=f"redis://{proxy.address}"
        )
        async with open_components(settings) as components:
            components.approvals.rules = PAYMENTS
            approvals, jobs = staged(components), []

            async def hang() -> None:
                proxy.stall("to_client")

            approvals.committed = hang

            async def decided() -> float:
                job, _ = await components.service.submit(ASKER, Submission("bank.pay", None))
                jobs.append(job.id)
                took = await ends(approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss"))
                proxy.resume()
                found = await components.approvals.get(job.id)
                assert found is not None
                assert found.status is ApprovalStatus.APPROVED
                return took

            await ended_within_the_envelope(decided)
    said = [each.getMessage() for each in caplog.records if each.getMessage().startswith("approval lock release")]
    assert f" job={jobs[-1]} " in said[-1]


async def test_a_lease_that_is_lost_on_the_way_decides_nothing_and_one_lost_later_changes_nothing(
    flow_stage: FlowStage,
) -> None:
    replica = await stage_of(flow_stage)
    job = await asked(replica)
    locks, approvals = replica.components.locks, staged(replica.components)

    async def overtake() -> None:
        """The lock is lost, and a newer holder has written."""
        await locks.force_release(SCHEDULER_JOB.key(job=job.id), reason="the test takes it away")
        async with job_lock(replica.helper.locks, job.id) as newer:
            changed = await replica.helper.store.change(newer, job.id, lambda _: Writing())
            assert changed.after is not None

    approvals.looked = overtake
    with pytest.raises(ApprovalBusy, match="approval lock busy"):
        await approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")
    assert (await told(replica, job.id), await waiting(replica)) == ([], [job.id])
    approvals.looked, approvals.lease, approvals.committed = None, None, overtake
    assert (await approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")).taken


@pytest.mark.requires("R13")
async def test_who_has_gone_before_the_commit_left_nothing_behind(flow_stage: FlowStage) -> None:
    """W46: the release was tied to the request, and the lock leaked when the client had gone."""
    replica = await stage_of(flow_stage)
    job = await asked(replica)
    stopped, approvals = asyncio.Event(), staged(replica.components)

    async def stop() -> None:
        stopped.set()
        await asyncio.Event().wait()

    approvals.looked = stop
    async with going_on(approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")) as request:
        await stopped.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    await untouched(replica, job.id)
    assert (await decide(replica, job.id)).taken


@pytest.mark.requires("R14")
async def test_a_database_that_hangs_does_not_keep_the_lock_and_the_outcome_is_unknown(
    flow_stage: FlowStage,
) -> None:
    """W13: the lock was held across calls that nothing bounded."""
    assert APPROVAL.ttl - APPROVAL.renew_every > APPROVAL.ttl / LIMIT_SHARE
    replica = await stage_of(flow_stage)
    job = await asked(replica)
    slow = staged(replica.components, limit=0.1)
    with held_up(flow_stage.database, job.id):
        with pytest.raises(Timeout, match=r"took longer than 0\.1 s; read the approval, or repeat it"):
            await slow.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")
        assert not (await replica.components.locks.inspect(SCHEDULER_JOB.key(job=job.id))).held

    # What was sent is not taken back: it is done meanwhile, or the repetition does it. Either way it is done once.
    assert (await decide(replica, job.id)).approval.status is ApprovalStatus.APPROVED
    assert await told(replica, job.id) == [subjects.SUBMIT]
    assert len(await replica.components.store.events(job.id)) == 2


async def test_the_lock_is_renewed_while_a_decision_takes_its_time(flow_stage: FlowStage) -> None:
    """W13: it ran out after ten seconds, whatever the holder was doing."""
    replica = await stage_of(flow_stage)
    job = await asked(replica)
    approvals = staged(replica.components, family=APPROVAL.timed(0.6), limit=5.0)

    async def renewed() -> bool:
        return replica.components.locks.statistics().renewed >= 3

    approvals.looked = lambda: holds(renewed, "the lock is renewed")
    assert (await approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")).taken


async def test_a_database_that_fails_is_not_called_busy(flow_stage: FlowStage) -> None:
    replica = await stage_of(flow_stage)
    job = await asked(replica)
    approvals = staged(replica.components)

    async def broken() -> None:
        raise Unavailable("the database is gone")

    approvals.looked = broken
    with pytest.raises(BackendError, match=r"^the database is gone$"):
        await approvals.decide(job.id, ApprovalVerdict.APPROVE, actor="boss")
    await untouched(replica, job.id)
