"""What a worker says about an attempt that has ended, and that it says it once, and that it is run once where known."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from holdfast.core.strict_parsers import DEPTH_MAX
from holdfast.errors import RetryLater, Unavailable
from holdfast.plane import App, BlockingContext, Fatal
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.records import Message
from holdfast.plane.worker.staleness import Staleness
from support.fixtures.databases import until
from support.fixtures.workers import WorkerStage, ordered

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such account"), ("ValueError: no such account", True, None)),
        (RetryLater(2.5, "quota"), ("RetryLater: retry after 2500ms: quota", True, 2_500_000_000)),
        (Fatal("the account is closed"), ("the account is closed", False, None)),
        (SystemExit(3), ("SystemExit: 3", True, None)),
        (asyncio.CancelledError(), ("the function cancelled itself", True, None)),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else "",
)
@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_error_is_told_by_type_and_message_in_both_colours(
    work_stage: WorkerStage, error: BaseException, said: tuple[str, bool, int | None], colour: str
) -> None:
    app = App("billing")

    def fail(payload: Any) -> None:
        raise error

    async def fail_on_loop(payload: Any) -> None:
        raise error

    app.job("charge")(fail_on_loop if colour == "async" else fail)
    worker = await work_stage.worker(app)
    job = await work_stage.send("charge")
    body = (await work_stage.result(job)).body
    assert (body["error"], body["retryable"], body["retry_after_ns"]) == said
    assert (body["status"], body["result"]) == ("failed", None)
    assert await work_stage.end(job) is None
    assert (worker.statistics().retried, worker.statistics().failed) == ((1, 0) if said[1] else (0, 1))


async def test_the_source_lines_of_a_traceback_are_in_the_log_and_nowhere_else(
    work_stage: WorkerStage, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("billing")

    @app.job("charge")
    def charge(payload: Any) -> None:
        raise ValueError(f"wrong {len('hunter2')}")

    await work_stage.worker(app)
    with caplog.at_level(logging.WARNING, "holdfast.plane"):
        job = await work_stage.send("charge")
        body = (await work_stage.result(job)).body
    assert body["error"] == "ValueError: wrong 7"
    assert body["traceback"].endswith("in charge\nValueError: wrong 7")
    assert "hunter2" not in str(body)
    assert "hunter2" in caplog.text  # the source line of the traceback
    record = next(each for each in caplog.records if each.exc_info)
    assert (record.__dict__["job"], record.__dict__["attempt"], record.__dict__["tenant"]) == (job, 1, "acme")


async def coroutine() -> None: ...


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "cannot be written as JSON"),
        (float("nan"), "cannot be written as JSON"),
        ("x" * 1_000_001, "bytes long"),
        ({"a": {1, 2}}, "cannot be written as JSON"),
        ("\0", "zero character"),
        (nested(DEPTH_MAX + 1), "nested too deeply"),
        (coroutine, "declare it with async def"),
    ],
    ids=["object", "nan", "large", "set", "zero", "deep", "awaitable"],
)
async def test_a_result_that_cannot_be_kept_is_a_failure_for_good(
    work_stage: WorkerStage, value: Any, reason: str
) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: value() if value is coroutine else value)
    await work_stage.worker(app)
    body = (await work_stage.result(await work_stage.send("charge"))).body
    assert (body["status"], body["retryable"], body["result"]) == ("failed", False, None)
    assert reason in body["error"]


@pytest.mark.parametrize("text", ["x = '\\u0000'", "\\\\u0000", "\\ud800"])
async def test_text_that_looks_like_an_escape_arrives_and_comes_back_as_a_result(
    work_stage: WorkerStage, text: str
) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: {"src": payload})
    await work_stage.worker(app)
    body = (await work_stage.result(await work_stage.send("charge", text))).body
    assert (body["status"], body["result"]) == ("succeeded", {"src": text})


async def test_the_deepest_payload_arrives_and_comes_back_as_a_result(work_stage: WorkerStage) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: payload)
    await work_stage.worker(app)
    body = (await work_stage.result(await work_stage.send("charge", nested(DEPTH_MAX)))).body
    assert (body["status"], body["result"]) == ("succeeded", nested(DEPTH_MAX))


async def test_a_job_that_has_the_id_of_one_that_was_finished_here_is_run_and_gets_its_own_result(
    work_stage: WorkerStage,
) -> None:
    app = App("billing")
    app.job("charge")(lambda payload: payload)
    worker = await work_stage.worker(app)
    for number, payload in enumerate(("one", "two"), 1):
        job = await work_stage.send("charge", payload, job="j", fence=number, made_ns=number)
        said = await work_stage.result(job, number)
        assert (said.body["result"], said.body["made_ns"]) == (payload, number)
        await work_stage.end(job, number)
    assert worker.statistics().repeated == 0


async def test_an_attempt_that_was_finished_here_is_said_again_and_not_run_again(work_stage: WorkerStage) -> None:
    app = App("billing")
    runs: Counter[int] = Counter()

    @app.job("charge")
    def charge(ctx: BlockingContext, payload: Any) -> int:
        runs[ctx.attempt] += 1
        return ctx.attempt

    worker = await work_stage.worker(app)
    job = await work_stage.send("charge", job="j")
    first = await work_stage.result(job)
    await work_stage.end(job)
    await work_stage.bus.inner.publish([ordered(job, "charge", fence=2)])  # the same attempt, dispatched once more
    again = await work_stage.result(job, 2)
    assert (again.body, again.fence) == (first.body, first.fence)
    assert again.id == f"{first.id}:2"  # another message, which no bus takes for the first
    assert await work_stage.end(job, 2) is None
    assert len(work_stage.said(subjects.STARTED, job)) == 1
    await work_stage.send("charge", job="j", attempt=2)
    assert (await work_stage.result(job, 3)).body["result"] == 2
    assert runs == {1: 1, 2: 1}
    assert worker.statistics().repeated == 1


class Known:
    """Knows which attempts have ended, or is out of order."""

    def __init__(self, *over: tuple[str, int]) -> None:
        self.over = set(over)
        self.asked: list[tuple[str, int]] = []
        self.trouble: Exception | None = None

    async def check(self, name: tuple[str, int, int], fence: int, now_ns: int, sent: int | None = None) -> Staleness:
        job, _, attempt = name
        self.asked.append((job, attempt))
        if self.trouble is not None:
            raise self.trouble
        return Staleness((job, attempt) not in self.over)

    async def returned(self, name: tuple[str, int, int], now_ns: int) -> None:
        return


async def test_a_result_that_is_known_here_is_repeated_only_while_somebody_wants_it(work_stage: WorkerStage) -> None:
    app, runs, known = App("billing"), list[Any](), Known()
    app.job("charge")(runs.append)
    worker = await work_stage.worker(app, currency=known)
    job = await work_stage.send("charge", job="j")
    first = await work_stage.result(job)
    await work_stage.end(job)

    known.trouble = Unavailable("no database")
    await work_stage.bus.inner.publish([ordered(job, "charge", fence=2)])
    assert isinstance(await work_stage.end(job, 2), RetryLater)
    known.trouble = None
    assert (await work_stage.result(job, 2)).body == first.body

    known.over.add((job, 1))
    await work_stage.bus.inner.publish([ordered(job, "charge", fence=3)])
    await until(lambda: worker.statistics().outdated == 1)
    assert len(work_stage.said(subjects.RESULT, job)) == 2
    assert (len(runs), worker.statistics().repeated) == (1, 1)


async def test_a_message_that_was_delivered_before_is_run_only_if_it_is_still_wanted(work_stage: WorkerStage) -> None:
    app = App("billing")
    runs: list[str] = []
    app.job("charge")(runs.append)
    known = Known(("over", 1))
    worker = await work_stage.worker(app, currency=known)
    others = [await families.WORKER_JOB.lock(work_stage.locks, job=job).acquire(1) for job in ("over", "wanted")]
    for job in ("over", "wanted"):
        await work_stage.send("charge", job, job=job)
        assert isinstance(await work_stage.end(job), RetryLater)
    assert known.asked == []  # a first delivery is not checked
    for lease in others:
        await lease.release()
    await until(lambda: worker.statistics().outdated and worker.statistics().succeeded)
    assert (runs, set(known.asked)) == (["wanted"], {("over", 1), ("wanted", 1)})
    assert work_stage.said(subjects.STARTED, "over") == []
    async with families.SCHEDULER_JOB.lock(work_stage.locks, job="new") as lease:
        await work_stage.send("charge", "new", job="new", fence=lease.fence)
    await work_stage.result("new")
    assert ("new", 1) not in known.asked


async def test_a_late_copy_of_a_message_is_run_only_if_it_is_still_wanted(work_stage: WorkerStage) -> None:
    """A bus forgets the ids of old messages: a copy that is published late looks like the first."""
    app = App("billing")
    runs: list[str] = []
    app.job("charge")(runs.append)
    known = Known(("over", 1))
    worker = await work_stage.worker(app, currency=known)
    for job in ("over", "wanted"):
        await work_stage.send("charge", job, job=job, at_ns=1)
    await until(lambda: worker.statistics().outdated and worker.statistics().succeeded)
    assert (runs, set(known.asked)) == (["wanted"], {("over", 1), ("wanted", 1)})
    assert work_stage.said(subjects.STARTED, "over") == []


async def test_when_nobody_can_say_whether_a_message_is_wanted_it_is_given_back(work_stage: WorkerStage) -> None:
    app, known = App("billing"), Known()
    app.job("charge")(lambda payload: payload)
    await work_stage.worker(app, currency=known)
    other = await families.WORKER_JOB.lock(work_stage.locks, job="j").acquire(1)
    await work_stage.send("charge", job="j")
    assert isinstance(await work_stage.end("j"), RetryLater)
    known.trouble = Unavailable("no database")
    await other.release()

    def refusals() -> list[float]:
        """The delays of nacks because the database did not answer."""
        ends = [error for _, error in work_stage.bus.ends]
        return [each.delay for each in ends if isinstance(each, RetryLater) and isinstance(each.__cause__, Unavailable)]

    await until(refusals)
    assert set(refusals()) == {1.0}
    assert work_stage.said(subjects.STARTED) == []
    known.trouble = None
    assert (await work_stage.result("j")).body["status"] == "succeeded"


async def test_a_result_is_published_until_the_bus_is_back_and_the_function_runs_once(work_stage: WorkerStage) -> None:
    app = App("billing")
    runs: list[int] = []
    app.job("charge")(runs.append)
    refused: list[str] = []

    async def away(message: Message) -> None:
        if message.subject == subjects.RESULT and len(refused) < 2:
            refused.append(message.id)
            raise Unavailable("no bus")

    work_stage.bus.before = away
    worker = await work_stage.worker(app)
    job = await work_stage.send("charge", 7)
    result = await work_stage.result(job)
    assert (runs, refused) == ([7], [result.id, result.id])
    assert await work_stage.end(job) is None
    assert worker.statistics().unreachable == 2
