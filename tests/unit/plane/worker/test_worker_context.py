"""What a job function gets: the same names in both colors, judged at the moment of asking."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.aio.lease import Lease
from holdfast.errors import BadInput
from holdfast.guards.bearer import CarriedFence
from holdfast.plane import App, BlockingContext, Context
from holdfast.plane.locks import registry as families
from holdfast.plane.worker import context
from holdfast.plane.worker.context import LeaseView
from holdfast.runtime.system import SystemClock
from holdfast.types import NS
from support.fixtures.workers import WorkerStage

pytestmark = pytest.mark.asyncio


async def inside(work_stage: WorkerStage, colour: str, look: Any, **fields: Any) -> tuple[str, Any]:
    """Run a job that looks around, and return its id and what it saw."""
    app = App("billing")
    seen: list[Any] = []

    @app.job("async")
    async def on_loop(ctx: Context, payload: Any) -> None:
        seen.append(look(ctx))

    @app.job("sync")
    def in_thread(payload: Any, *, ctx: BlockingContext) -> None:
        seen.append(look(ctx))

    await work_stage.worker(app, name="w")
    job = await work_stage.send(colour, {"n": 1}, **fields)
    body = (await work_stage.result(job)).body
    assert body["status"] == "succeeded", body["error"]
    return job, seen[0]


COLOURS = pytest.mark.parametrize("colour", ["async", "sync"])


@COLOURS
async def test_a_function_knows_its_job(work_stage: WorkerStage, colour: str) -> None:
    def look(ctx: Any) -> Any:
        return (
            ctx.attempt,
            ctx.tenant,
            ctx.topic,
            dict(ctx.labels),
            ctx.trace,
            ctx.worker,
            ctx.job,
            ctx.fence,
            repr(ctx),
        )

    job, seen = await inside(work_stage, colour, look, attempt=4, labels={"a": "b"}, trace="t1")
    kind = "Context" if colour == "async" else "BlockingContext"
    assert seen[:-2] == (4, "acme", colour, {"a": "b"}, "t1", "w", job)
    assert seen[-1] == f"<{kind} {job!r} attempt=4 fence={seen[-2]}>"


@COLOURS
async def test_a_function_holds_its_lease_and_can_pass_on_its_fence(work_stage: WorkerStage, colour: str) -> None:
    def look(ctx: Any) -> Any:
        ctx.ensure_held(1)
        ctx.lease.ensure_held()
        lease = ctx.lease
        assert isinstance(lease, Lease if colour == "async" else LeaseView)
        assert 0 < lease.remaining() <= lease.ttl == 30
        assert 0 < ctx.remaining() <= 30
        assert lease.owner
        assert (lease.held, lease.lost.is_set(), bool(lease.lost), lease.lost.reason) == (True, False, False, None)
        assert "fence" in repr(lease)
        return lease.key, lease.fence, ctx.fence, ctx.carried

    job, (key, fence, same, carried) = await inside(work_stage, colour, look)
    assert key == families.WORKER_JOB.key(job=job)
    assert (fence, carried) == (same, CarriedFence(key, same))


@COLOURS
@pytest.mark.parametrize("limit", ["timeout", "deadline", "both"])
async def test_what_remains_is_the_least_of_lease_limit_and_deadline(
    work_stage: WorkerStage, colour: str, limit: str
) -> None:
    timeout = {"timeout_ns": 20 * NS if limit == "timeout" else 3600 * NS}
    deadline = {"deadline_ns": SystemClock().now().wall + 20 * NS}
    fields: dict[str, Any] = timeout if limit == "timeout" else deadline if limit == "deadline" else timeout | deadline
    _, seen = await inside(work_stage, colour, lambda ctx: (ctx.remaining(), ctx.lease.remaining()), **fields)
    assert 0 < seen[0] <= 20 < seen[1]


@COLOURS
async def test_progress_is_kept_and_nonsense_is_refused(work_stage: WorkerStage, colour: str) -> None:
    def look(ctx: Any) -> Any:
        ctx.progress()
        ctx.progress("half-way", 0.5)
        ctx.lease.progress()
        refused = []
        for note, fraction in [("", None), ("x" * 201, None), (0.5, "half"), (None, 1.5), (None, "half"), (None, True)]:
            with pytest.raises(BadInput) as error:
                ctx.progress(note, fraction)
            refused.append(error.value.field)
        return ctx.note, ctx.fraction, refused

    _, seen = await inside(work_stage, colour, look)
    assert seen == ("half-way", 0.5, ["note", "note", "note", "fraction", "fraction", "fraction"])


@COLOURS
async def test_what_cannot_be_emitted_is_refused_with_the_reason(
    work_stage: WorkerStage, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "EMITS_MAX", 2)

    def look(ctx: Any) -> Any:
        refused = []
        for value in (object(), "x" * 16_000, float("nan"), 1, None, 2):
            try:
                ctx.emit(value)
            except BadInput as error:
                refused.append((error.field, error.problem))
        return ctx.has_emitted, refused

    _, (emitted, refused) = await inside(work_stage, colour, look)
    assert emitted
    assert [field for field, _ in refused] == ["value"] * 4
    assert [problem.partition(" (")[0] for _, problem in refused] == [
        *("cannot be written as JSON", "is 16002 bytes long", "cannot be written as JSON", "is one too many"),
    ]


@COLOURS
async def test_log_lines_carry_the_job_and_what_the_caller_adds(
    work_stage: WorkerStage, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "holdfast.plane.job"):

        def look(ctx: Any) -> int:
            ctx.log.info("charging %s", "x", extra={"amount": 3})
            return int(ctx.fence)

        job, fence = await inside(work_stage, colour, look)
    line = next(each for each in caplog.records if each.getMessage() == "charging x")
    known = {name: line.__dict__[name] for name in ("job", "attempt", "tenant", "topic", "fence", "amount")}
    assert known == {"job": job, "attempt": 1, "tenant": "acme", "topic": colour, "fence": fence, "amount": 3}


class Broken(logging.Handler):
    """A handler that raises, as one whose reader has gone."""

    def emit(self, record: logging.LogRecord) -> None:
        raise BrokenPipeError(32, "Broken pipe")


@COLOURS
async def test_what_a_log_handler_raises_does_not_fail_the_function_that_logs(
    work_stage: WorkerStage, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    log, broken = logging.getLogger("holdfast.plane.job"), Broken()
    log.addHandler(broken)
    try:
        with caplog.at_level(logging.INFO, "holdfast.plane.job"):
            job, seen = await inside(work_stage, colour, lambda ctx: ctx.log.info("charging") or "logged")
    finally:
        log.removeHandler(broken)
    assert seen == "logged"
    (told,) = [each for each in caplog.records if each.name == "holdfast.plane.worker"]
    assert told.__dict__["holdfast_event"] == "a line of a job could not be logged"
    assert (told.__dict__["holdfast"]["job"], told.__dict__["holdfast"]["error"]) == (
        job,
        "BrokenPipeError: [Errno 32] Broken pipe",
    )


async def test_what_a_log_handler_raises_does_not_keep_a_failure_from_being_told(work_stage: WorkerStage) -> None:
    app, log, broken = App("billing"), logging.getLogger("holdfast.plane"), Broken()

    @app.job("fails")
    def fails(payload: Any) -> None:
        raise ValueError("on purpose")

    log.addHandler(broken)
    try:
        await work_stage.worker(app)
        job = await work_stage.send("fails")
        assert (await work_stage.result(job)).body["error"] == "ValueError: on purpose"
        assert await work_stage.end(job) is None
    finally:
        log.removeHandler(broken)


@COLOURS
async def test_a_line_of_a_job_is_known_by_the_place_that_logged_it(
    work_stage: WorkerStage, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    def charging(ctx: Any) -> None:
        ctx.log.warning("charging")

    await inside(work_stage, colour, charging)
    assert {each.funcName for each in caplog.records if each.getMessage() == "charging"} == {"charging"}


@COLOURS
async def test_a_function_that_is_not_interrupted_is_not_cancelled(work_stage: WorkerStage, colour: str) -> None:
    _, seen = await inside(work_stage, colour, lambda ctx: (ctx.cancelled.is_set(), ctx.cancelled.reason))
    assert seen == (False, None)
