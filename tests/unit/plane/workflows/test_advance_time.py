"""How a run continues in time: retries, limits, delays and deadlines, all on a virtual clock."""

from __future__ import annotations

import pytest

from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.definition import StepRetry
from holdfast.plane.workflows.core.run import EventOutcome, RunStatus
from holdfast.plane.workflows.core.step_attempts import TIME_MAX_NS, retry_delay_ns
from holdfast.types import NS
from support.harness.runs import START, Stage, approval, delay, job, lowest, sub, transform


def highest(bound: int) -> int:
    return bound - 1


# Retries.


def test_a_failed_step_is_tried_again_after_a_growing_capped_and_spread_delay() -> None:
    retry = StepRetry(retries=4, initial_ns=NS, multiplier=3.0, cap_ns=10 * NS, jitter=0.5)
    assert [retry_delay_ns(retry, attempt, lowest) for attempt in range(1, 6)] == [NS, 3 * NS, 9 * NS, 10 * NS, 10 * NS]
    assert [retry_delay_ns(retry, attempt, highest) / NS for attempt in (1, 2, 4)] == [1.5, 4.5, 15.0]
    stage = Stage(job("a", retry=retry))
    stage.look()
    stage.failed("a", "no luck")
    assert (stage.status("a"), stage.run.status, stage.last.wake_ns) == ("pending", "running", START + NS)
    assert [(note.kind, note.detail) for note in stage.last.notes] == [("retrying", "failed: no luck")]
    assert stage.look(NS - 1).outcome is EventOutcome.NOTHING
    stage.look(1)
    assert (stage.asked(), stage.state("a").attempt) == (["a@2"], 2)
    assert stage.state("a").error is None


@pytest.mark.parametrize("retry", [StepRetry(100, NS, 1e308), StepRetry(100, NS, 1.0), StepRetry(100, 90 * NS, 1.5)])
def test_the_delay_of_a_retry_is_bounded_whatever_is_configured(retry: StepRetry) -> None:
    for attempt in (1, 2, 50, 100):
        assert NS <= retry_delay_ns(retry, attempt, highest) <= 66 * NS


def test_r_retries_give_r_plus_one_attempts() -> None:
    stage = Stage(job("a", retry=StepRetry(retries=2)))
    stage.look()
    for _ in range(2):
        stage.failed("a")
        stage.wake()
    assert list(stage.made) == ["r:a@1", "r:a@2", "r:a@3"]
    stage.failed("a", "at last")
    assert (stage.run.status, stage.run.error) == ("failed", "a: at last")


@pytest.mark.parametrize(
    ("state", "retryable", "again"),
    [
        (JobState.FAILED, True, True),
        (JobState.FAILED, False, False),
        (JobState.TIMEOUT, True, True),
        (JobState.TIMEOUT, False, False),
        (JobState.DENIED, True, False),
        (JobState.CANCELLED, True, False),
        (JobState.OUTPUT_QUARANTINED, True, False),
    ],
)
def test_only_what_may_go_better_is_tried_again(state: JobState, retryable: bool, again: bool) -> None:
    stage = Stage(job("a", retry=StepRetry(retries=1)))
    stage.look()
    stage.ended("a", state, retryable=retryable)
    assert stage.status("a") == ("pending" if again else stage.status("a"))
    assert stage.run.status.terminal is not again


def test_a_quarantined_output_fails_the_step_and_is_not_used() -> None:
    stage = Stage(job("a"), job("b", "a"))
    stage.look()
    stage.ended("a", JobState.OUTPUT_QUARANTINED, {"secret": 1}, reason="it names a customer")
    assert (stage.status("a"), stage.codes()["a"], stage.state("a").output) == ("failed", "output_quarantined", None)
    assert stage.run.error == "a: it names a customer"


@pytest.mark.parametrize(
    ("status", "again"),
    [(RunStatus.FAILED, True), (RunStatus.TIMED_OUT, True), (RunStatus.DENIED, False), (RunStatus.CANCELLED, False)],
)
def test_a_child_run_is_started_again_unless_somebody_ended_it(status: RunStatus, again: bool) -> None:
    stage = Stage(sub("s", retry=StepRetry(retries=1)))
    stage.look()
    stage.child_ended("s", status)
    if again:
        stage.wake()
    assert stage.asked() == (["s@2"] if again else [])


# Limits.


@pytest.mark.parametrize("make", [job, approval, sub])
def test_an_attempt_that_runs_out_of_time_is_stopped_and_tried_again(make: object) -> None:
    stage = Stage(make("a", timeout_ns=5 * NS, retry=StepRetry(retries=1)))  # type: ignore[operator]  # one of three
    stage.look()
    assert stage.effect("a@1").deadline_ns == START + 5 * NS == stage.last.wake_ns
    stage.look(5 * NS)
    assert (stage.asked(), stage.status("a")) == (["-a@1"], "pending")
    stage.wake()
    assert stage.asked() == ["a@2"]
    stage.wake()
    assert (stage.asked(), stage.run.status, stage.codes()["a"]) == (["-a@2"], "timed_out", "timeout")


def test_the_result_of_an_attempt_that_was_stopped_comes_too_late() -> None:
    stage = Stage(job("a", timeout_ns=NS, retry=StepRetry(retries=1)), job("b"))
    stage.look()
    stage.look(NS)
    assert stage.ended("a@1").outcome is EventOutcome.OUTDATED
    stage.wake()
    assert stage.ended("a@1").outcome is EventOutcome.OUTDATED
    stage.wake()
    assert stage.ended("a@2").outcome is EventOutcome.OVER


def test_a_result_is_worth_more_than_a_limit_that_passed_unnoticed() -> None:
    stage = Stage(job("a", timeout_ns=NS))
    stage.look()
    stage.now += 2 * NS
    stage.ended("a")
    assert stage.run.status == "succeeded"


def test_a_step_that_timed_out_has_its_handler_run() -> None:
    stage = Stage(approval("ask", timeout_ns=NS, on_error="remind"), job("remind"))
    stage.look()
    stage.wake()
    assert stage.asked() == ["remind@1", "-ask@1"]


# Delays.


@pytest.mark.parametrize(
    ("step", "due_ns"),
    [
        (delay("d", delay_ns=3 * NS), START + 3 * NS),
        (delay("d", until="${ input }"), 1_010 * NS),
        (delay("d", until="input + 0.5"), 1_010 * NS + NS // 2),
        (delay("d", delay_ns=TIME_MAX_NS), TIME_MAX_NS),
    ],
)
def test_a_delay_is_over_when_its_time_has_come(step: object, due_ns: int) -> None:
    stage = Stage(step, job("a", "d"), input=1_010)  # type: ignore[arg-type]  # a step
    stage.look()
    assert (stage.run.status, stage.last.wake_ns, stage.made) == ("running", due_ns, {})
    stage.now = due_ns - 1
    assert stage.look().outcome is EventOutcome.NOTHING
    stage.look(1)
    assert stage.asked() == ["a@1"]


def test_a_delay_until_a_time_that_has_passed_is_over_at_once() -> None:
    stage = Stage(delay("d", until="${ 5 }"), delay("e", delay_ns=0))
    stage.look()
    assert stage.run.status == "succeeded"


def test_a_delay_may_have_a_limit_of_its_own() -> None:
    stage = Stage(delay("d", delay_ns=9 * NS, timeout_ns=NS), delay("e", delay_ns=NS, timeout_ns=NS))
    stage.look()
    stage.look(20 * NS)
    assert stage.statuses() == {"d": "timed_out", "e": "succeeded"}
    assert stage.asked() == []


# Deadlines.


def test_the_deadline_of_a_run_stops_everything() -> None:
    stage = Stage(job("a", on_error="h"), job("b", "a"), job("c", timeout_ns=60 * NS), job("h"), timeout_ns=5 * NS)
    assert stage.run.deadline_ns == START + 5 * NS
    stage.look()
    assert stage.effect("c@1").deadline_ns == START + 5 * NS
    stage.failed("a")
    stage.wake()
    assert (stage.run.status, stage.run.error) == ("timed_out", "the deadline of the run has passed")
    assert stage.asked() == ["-c@1", "-h@1"]
    assert stage.codes() == {"a": "failed", "b": "stopped", "c": "stopped", "h": "stopped"}


def test_the_earlier_of_two_deadlines_counts() -> None:
    assert Stage(job("a"), timeout_ns=9 * NS, deadline_ns=START + NS).run.deadline_ns == START + NS
    assert Stage(job("a"), timeout_ns=NS, deadline_ns=START + 9 * NS).run.deadline_ns == START + NS
    assert Stage(job("a"), deadline_ns=START + NS).run.deadline_ns == START + NS
    assert Stage(job("a")).run.deadline_ns is None


def test_after_the_deadline_nothing_begins_and_the_last_result_still_counts() -> None:
    ends, goes_on = Stage(job("a"), timeout_ns=NS), Stage(job("a"), transform("b", "a"), timeout_ns=NS)
    for stage in (ends, goes_on):
        stage.look()
        stage.now += 2 * NS
        stage.ended("a")
    assert ends.run.status == "succeeded"
    assert (goes_on.run.status, goes_on.statuses()) == ("timed_out", {"a": "succeeded", "b": "skipped"})


def test_after_the_deadline_a_failure_that_leaves_nothing_to_do_still_names_the_run() -> None:
    stage = Stage(job("a"), job("b", "a"), timeout_ns=NS)
    stage.look()
    stage.now += 2 * NS
    stage.failed("a")
    assert (stage.run.status, stage.codes()["b"]) == ("failed", "dependency_failed")


def test_what_an_error_says_is_bounded() -> None:
    stage = Stage(job("a"))
    stage.look()
    stage.failed("a", "x" * 1_000_000)
    assert stage.state("a").error == "x" * 2_000


def test_a_run_that_is_first_seen_after_its_deadline_never_begins() -> None:
    stage = Stage(job("a"), timeout_ns=NS)
    stage.look(NS)
    assert (stage.run.status, stage.made) == ("timed_out", {})
