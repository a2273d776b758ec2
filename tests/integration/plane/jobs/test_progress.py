"""Progress of jobs: reported by functions, stored at a bounded rate, shown with the job; and attempts that stall."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import testing
from holdfast.cli.output.jobs import job_rows
from holdfast.errors import BadInput, Unavailable
from holdfast.plane import App, BlockingContext, Context, Flow, Quarantine
from holdfast.plane.db.ports import Tx
from holdfast.plane.jobs import progress
from holdfast.plane.jobs.progress import EmitReport, Progress, ProgressReport, ProgressReporter, ProgressStore
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Submission
from holdfast.plane.process.plane import Plane
from holdfast.plane.service.service import Service
from holdfast.testing import MovableClock
from holdfast.testing.jobs import TestContext
from holdfast.types import NS
from holdfast.web.schemas.jobs import JobShown
from integration.plane.maintenance.test_retention import clean, cleanup, done
from integration.plane.process.test_components import ME, OWN, over, quick
from support.fixtures.databases import until
from support.fixtures.scheduling import Replica, holds
from support.fixtures.workers import Gate, WorkerStage

pytestmark = pytest.mark.asyncio


def at(fence: int, fraction: float, *, made_ns: int = 1, attempt: int = 1) -> ProgressReport:
    return ProgressReport("j", made_ns, Progress(attempt, fence, 7, fraction, f"fence {fence}"))


async def test_the_newest_report_counts_and_a_stale_worker_does_not_overwrite_it(plane: Replica) -> None:
    store = ProgressStore(plane.database)
    assert await store.get("j", 1) is None
    for report in (at(5, 0.1), at(5, 0.2), at(4, 0.9)):
        await store.record([report])
    assert await store.get("j", 1) == Progress(1, 5, 7, 0.2, "fence 5")
    await store.record([at(6, 0.0, attempt=2)])
    assert await store.get("j", 1) == Progress(2, 6, 7, 0.0, "fence 6")
    await store.record([at(1, 0.3, made_ns=2)])  # another job has the id by now, whatever its fence
    await store.record([at(9, 0.8)])
    assert (await store.get("j", 1), await store.get("j", 2)) == (None, Progress(1, 1, 7, 0.3, "fence 1"))


async def test_reports_from_many_threads_are_few_writes_and_the_last_one_is_kept(plane: Replica) -> None:
    written: list[int] = []

    class Counted(ProgressStore):
        async def record(self, reports: Any, emitted: Any = ()) -> None:
            written.append(len(reports))
            await super().record(reports)

    reporter = ProgressReporter(Counted(plane.database))

    def report(fence: int) -> None:
        for number in range(1000):
            reporter.report(at(fence, number / 1000))

    await asyncio.gather(*(asyncio.to_thread(report, fence) for fence in (1, 2, 3)))
    reporter.report(at(4, 1.0))
    await reporter.close()
    assert sum(written) == len(written) <= 3  # each had one job in it; the first immediately, then later ones together
    assert await ProgressStore(plane.database).get("j", 1) == Progress(1, 4, 7, 1.0, "fence 4")


async def test_a_database_that_does_not_answer_costs_reports_and_nothing_else(plane: Replica) -> None:
    class Away(ProgressStore):
        async def record(self, reports: Any, emitted: Any = ()) -> None:
            raise Unavailable("it is away")

    reporter = ProgressReporter(Away(plane.database))
    reporter.report(at(1, 0.5))
    await until(lambda: reporter.dropped == 1)
    await reporter.close()


async def test_reports_that_wait_are_bounded(plane: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PENDING_MAX", 2)
    reporter = ProgressReporter(ProgressStore(plane.database))
    for job in ("a", "b", "c"):
        reporter.report(ProgressReport(job, 1, Progress(1, 1, 1)))
    await reporter.close()
    assert reporter.dropped == 1


def value(number: int, *, job: str = "j", fence: int = 1) -> EmitReport:
    return EmitReport(job, 1, 1, fence, number, 7, str(number))


async def test_values_wait_for_a_database_that_does_not_answer_and_are_stored_in_order() -> None:
    class Flaky(ProgressStore):
        away = True
        stored: tuple[int, ...] = ()

        def __init__(self) -> None: ...

        async def record(self, reports: Any, emitted: Any = ()) -> None:
            if self.away:
                raise Unavailable("it is away")
            self.stored += tuple(each.number for each in emitted)

    store = Flaky()
    reporter = ProgressReporter(store)
    for number in (1, 2, 3):
        reporter.emit(value(number))
    with pytest.raises(Unavailable):
        await reporter.flush("j", 1)
    await reporter.flush("j", 2)  # of another attempt there are none
    store.away = False
    reporter.emit(value(4))
    await reporter.flush("j", 1)
    assert store.stored == (1, 2, 3, 4)
    await reporter.close()


async def test_an_attempt_that_emits_faster_than_values_are_stored_is_refused(plane: Replica) -> None:
    reporter = ProgressReporter(ProgressStore(plane.database))
    for number in range(progress.PENDING_VALUES_MAX):
        reporter.emit(value(number))
    with pytest.raises(BadInput, match="sooner than earlier values can be stored"):
        reporter.emit(value(progress.PENDING_VALUES_MAX))
    reporter.emit(value(1, fence=2))  # another attempt has its own limit
    await reporter.flush("j", 1)
    reporter.emit(value(progress.PENDING_VALUES_MAX))
    await reporter.close()


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_running_job_shows_what_its_function_reports(tmp_path: Path, colour: str) -> None:
    app = App("crawler")
    gate, door = Gate(), threading.Event()

    @app.job("async")
    async def on_loop(payload: Any, *, ctx: Context) -> None:
        ctx.progress("page 3 of 4", 0.75)
        await gate.passed()

    @app.job("sync")
    def in_thread(payload: Any, *, ctx: BlockingContext) -> None:
        ctx.progress("page 3 of 4", 0.75)
        door.wait(60)

    async with Plane(quick(tmp_path), OWN, app=app) as plane:
        service = plane.components.service
        job, _ = await service.submit(ME, Submission(colour))
        assert await service.progress(job) is None
        await holds(partial(service.progress, job))
        found = await service.progress(job)
        assert found is not None
        assert (found.attempt, found.fraction, found.note) == (1, 0.75, "page 3 of 4")
        shown = JobShown.whole(job, found).model_dump()["progress"]
        assert (shown["attempt"], shown["fraction"], shown["note"]) == (1, 0.75, "page 3 of 4")
        await holds(partial(_brief_says, service, job.id, (0.75, "page 3 of 4")))
        assert job_rows(job, found)["progress"].plain.startswith("75%, page 3 of 4 (attempt 1, ")
        gate.go.set()
        door.set()
        assert (await over(plane.components, job)).state is JobState.SUCCEEDED


async def _brief_says(service: Service, job: str, wanted: tuple[float, str]) -> bool:
    return any(each.id == job and (each.fraction, each.note) == wanted for each in await service.briefs(ME))


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_attempt_without_progress_is_stopped_and_tried_again(work_stage: WorkerStage, colour: str) -> None:
    app = App("crawler")
    ends: list[str] = []

    @app.job("async", stall_after=0.03)
    async def on_loop(payload: Any, *, ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(str(ctx.cancelled.reason))

    @app.job("sync", stall_after=0.03)
    def in_thread(payload: Any, *, ctx: BlockingContext) -> None:
        ctx.cancelled.wait()
        ends.append(str(ctx.cancelled.reason))
        raise RuntimeError("stopped")

    worker = await work_stage.worker(app)
    job = await work_stage.send(colour)
    body = (await work_stage.result(job)).body
    assert (body["status"], body["retryable"]) == ("failed", True)
    assert body["error"] == "stalled: it reported no progress for 0.03 s"
    assert ends == ["it reported no progress for 0.03 s"]
    assert (worker.statistics().stalled, worker.statistics().timed_out) == (1, 0)


@pytest.mark.parametrize("report", [lambda ctx: ctx.progress(), lambda ctx: ctx.emit(1)], ids=["progress", "emit"])
async def test_what_a_function_reports_begins_the_time_of_stall_after_again(report: Callable[[Context], None]) -> None:
    clock = MovableClock()
    async with testing.context() as made:
        ctx = TestContext(made._assignment, made.lease, clock)
        clock.pause(20)
        assert ctx.idle_ns() >= 20 * NS
        report(ctx)
        assert ctx.idle_ns() < 20 * NS


async def test_bad_limits_are_refused_where_they_are_declared() -> None:
    app = App("crawler")
    with pytest.raises(BadInput, match="stall_after"):
        app.job("a", stall_after=0)
    with pytest.raises(BadInput, match="quarantine"):
        app.job("b", quarantine="no")  # type: ignore[arg-type]

    async def judge(value: Any) -> str | None:
        return None

    with pytest.raises(BadInput, match="quarantine"):
        app.job("c", quarantine=judge)  # type: ignore[arg-type]


async def test_progress_and_values_are_removed_with_their_job(plane: Replica) -> None:
    job = await done(plane)
    fence = (job.run_fence or 0) + 1
    report = ProgressReport(job.id, job.created_ns, Progress(1, fence, 1, 0.5))
    emitted = EmitReport(job.id, job.created_ns, 1, fence, 1, 1, "7")
    await ProgressStore(plane.database).record([report], [emitted])

    async def count(tx: Tx) -> int:
        return int((await tx.query("SELECT COUNT(*) AS n FROM plane_emitted"))[0]["n"])

    assert await plane.database.read(count) == 1
    plane.clock.push(8 * 86_400.0)
    await clean(plane, cleanup(plane))
    assert await ProgressStore(plane.database).get(job.id, job.created_ns) is None
    assert await plane.database.read(count) == 0


def secret(value: Any) -> str | None:
    return "it names a customer" if value == "secret" else None


@pytest.mark.parametrize("how", ["async", "sync", "raised"])
async def test_an_output_that_is_quarantined_is_stored_nowhere(tmp_path: Path, how: str) -> None:
    app = App("agents")

    @app.job("async", quarantine=secret)
    async def on_loop(payload: str) -> str:
        return payload

    @app.job("sync", quarantine=secret)
    def in_thread(payload: str) -> str:
        return payload

    @app.job("raised")
    def by_itself(payload: str) -> str:
        if payload == "secret":
            raise Quarantine("it names a customer")
        return payload

    async with Plane(quick(tmp_path), OWN, app=app) as plane:
        service = plane.components.service
        fine, _ = await service.submit(ME, Submission(how, "fine"))
        job, _ = await service.submit(ME, Submission(how, "secret"))
        assert (await over(plane.components, fine)).result == "fine"
        ended = await over(plane.components, job)
        assert (ended.state, ended.result) == (JobState.OUTPUT_QUARANTINED, None)
        assert (ended.reason, ended.code, ended.attempt) == ("it names a customer", "output_quarantined", 1)
        letter = await service.dead_letter(ME, job.id)
        assert (letter.code, letter.reason) == ("output_quarantined", "it names a customer")
        assert "result" not in letter.body


async def test_a_judge_that_fails_lets_no_output_pass(work_stage: WorkerStage) -> None:
    app = App("agents")

    @app.job("broken", quarantine=lambda value: 1 / 0)  # type: ignore[arg-type, return-value]
    async def broken(payload: Any) -> str:
        return "output"

    @app.job("vague", quarantine=lambda value: True)  # type: ignore[arg-type, return-value]
    async def vague(payload: Any) -> str:
        return "output"

    await work_stage.worker(app)
    for topic, error in (("broken", "ZeroDivisionError"), ("vague", "return a reason, or None")):
        body = (await work_stage.result(await work_stage.send(topic))).body
        assert (body["status"], body["result"]) == ("failed", None)
        assert error in body["error"]


async def test_a_run_does_not_go_on_with_a_quarantined_output(tmp_path: Path) -> None:
    app = App("agents")
    seen: list[Any] = []

    @app.job("draft", quarantine=secret)
    async def draft(payload: Any) -> str:
        return "secret"

    @app.job("send")
    async def send(payload: Any) -> None:
        seen.append(payload)

    @app.workflow("letter")
    def letter(flow: Flow) -> None:
        written = flow.job("write", topic="draft")
        flow.job("post", topic="send", input={"text": written.output}, after=written)

    async with Plane(quick(tmp_path), OWN, app=app) as plane:
        flows = plane.components.service.flows
        started, _ = await flows.start(ME, "letter")

        async def ended() -> bool:
            return (await flows.run(ME, started.run.id)).run.status.terminal

        await holds(ended)
        run = (await flows.run(ME, started.run.id)).run
        assert (str(run.status), seen) == ("failed", [])
        failed = [(each.code, each.output) for each in run.steps.values() if each.code]
        assert failed == [("output_quarantined", None), ("dependency_failed", None)]
