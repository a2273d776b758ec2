"""A step for each item of a list."""

from __future__ import annotations

import pytest

from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core import run_draft
from holdfast.plane.workflows.core.definition import FAN_OUT_MAX, StepRetry
from holdfast.plane.workflows.core.run import EventOutcome, RequestApproval, RunStatus
from holdfast.types import NS
from support.harness.runs import START, Stage, approval, delay, job, sub, transform


def test_every_item_has_a_child_and_the_output_is_the_list_of_theirs() -> None:
    step = job("f", for_each="${ input }", input=["${ item }", "${ index }"], output="${ result + index }")
    stage = Stage(step, input=["x", "y"])
    stage.look()
    assert stage.asked() == ["f[0]@1", "f[1]@1"]
    assert stage.effect("f[1]@1").payload == ["y", 1]
    assert stage.effect("f[1]@1").step == "f[1]"
    stage.ended("f[1]", result=10)
    stage.ended("f[0]", result=20)
    assert (stage.run.status, stage.state("f").output) == ("succeeded", [20, 11])


@pytest.mark.parametrize("wanted", [[], "${ [] }", "${ input }"])
def test_an_empty_list_succeeds_at_once(wanted: object) -> None:
    stage = Stage(job("f", for_each=wanted), transform("t", "f", input="${ steps.f.output }"), input=[])
    stage.look()
    assert (stage.run.status, stage.run.output) == ("succeeded", {"t": []})


def test_the_items_are_read_once() -> None:
    stage = Stage(transform("t", input=[1]), job("f", "t", for_each="${ steps.t.output }"), job("g"))
    stage.look()
    assert stage.state("f").items == (1,)
    stage.ended("g")
    assert stage.state("f").items == (1,)


@pytest.mark.parametrize("more", [0, 1])
def test_a_list_that_is_too_long_fails_its_step(more: int) -> None:
    stage = Stage(delay("f", delay_ns=NS, for_each=f"${{ range({FAN_OUT_MAX + more}) }}"))
    stage.look()
    assert stage.status("f") == ("failed" if more else "running")
    assert stage.codes()["f"] == ("too_many_items" if more else None)


def test_a_list_that_the_run_has_no_room_for_fails_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_draft, "RUN_BYTES_MAX", 10)
    stage = Stage(
        transform("a", input="12345"), job("f", "a", for_each=["${ steps.a.output }"], on_error="h"), job("h")
    )
    stage.look()
    assert (stage.status("f"), stage.codes()["f"], stage.asked()) == ("failed", "too_many_items", ["h@1"])


def test_the_items_and_the_outputs_of_children_count_for_what_a_run_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_draft, "RUN_BYTES_MAX", 16)
    stage = Stage(job("f", for_each=[1, 2, 3], max_parallel=1))  # 7 bytes of items
    stage.look()
    stage.ended("f[0]", result="12")
    stage.ended("f[1]", result="34")
    assert [stage.run.steps["f"].size, *(child.size for child in stage.run.steps["f"].children)] == [7, 4, 4, 0]
    stage.ended("f[2]", result="56")
    assert (stage.status("f"), stage.codes()["f"], stage.state("f").size) == ("failed", "output_too_large", 7)


def test_children_that_are_over_at_once_take_no_place() -> None:
    stage = Stage(transform("f", for_each=[1, 2, 3], max_parallel=1, input="${ item }"))
    stage.look()
    assert (stage.run.status, stage.state("f").output) == ("succeeded", [1, 2, 3])


def test_so_many_children_run_at_once_and_one_between_two_attempts_takes_no_place() -> None:
    stage = Stage(job("f", for_each=[0, 1, 2, 3], max_parallel=2, retry=StepRetry(retries=1)))
    stage.look()
    assert stage.asked() == ["f[0]@1", "f[1]@1"]
    stage.failed("f[0]")
    assert stage.asked() == ["f[2]@1"]
    stage.wake()
    assert stage.asked() == []  # it is due, and there is no place
    assert stage.last.wake_ns is None
    stage.ended("f[1]")
    assert stage.asked() == ["f[0]@2"]
    stage.ended("f[2]")
    assert stage.asked() == ["f[3]@1"]


def test_a_child_that_fails_for_good_fails_the_step_and_stops_the_others() -> None:
    stage = Stage(
        job("f", for_each=[0, 1, 2, 3, 4], max_parallel=3, retry=StepRetry(retries=1), on_error="h"),
        *(job("h", input="${ error }"), job("g")),
    )
    stage.look()
    stage.ended("f[2]", result="fine")
    stage.failed("f[1]")  # it waits for its second attempt
    stage.failed("f[0]", "broke", retryable=False)
    assert stage.asked() == ["h@1", "-f[3]@1", "-f[4]@1"]
    assert [child.status.value for child in stage.state("f").children] == [
        *("failed", "cancelled", "succeeded", "cancelled", "cancelled")
    ]
    assert (stage.status("f"), stage.state("f").error, stage.codes()["f"]) == ("failed", "f[0]: broke", "failed")
    assert stage.effect("h@1").payload["message"] == "f[0]: broke"
    assert stage.ended("f[3]@1").outcome is EventOutcome.OUTDATED
    assert stage.ended("f[2]@1").outcome is EventOutcome.REPEATED
    stage.ended("h")
    stage.ended("g")
    assert stage.run.status == "succeeded"


@pytest.mark.parametrize(
    ("state", "status"), [(JobState.DENIED, "denied"), (JobState.TIMEOUT, "timed_out"), (JobState.CANCELLED, "failed")]
)
def test_the_step_ends_as_its_child_did(state: JobState, status: str) -> None:
    stage = Stage(job("f", for_each=[0, 1], max_parallel=1))
    stage.look()
    stage.ended("f[0]", state)
    assert stage.run.status == status
    assert stage.status("f[1]") == "skipped"


def test_a_child_that_is_begun_and_fails_in_one_breath_makes_nothing() -> None:
    stage = Stage(job("f", for_each=[{"x": 1}, 2], input="${ item.x }"))
    stage.look()
    assert (stage.run.status, stage.made) == ("failed", {})
    assert stage.run.error is not None
    assert stage.run.error.startswith("f: f[1]: ")
    assert stage.status("f[0]") == "skipped"


def test_children_have_their_own_time_limits() -> None:
    stage = Stage(job("f", for_each=[0, 1], timeout_ns=NS, retry=StepRetry(retries=1)))
    stage.look()
    stage.ended("f[0]")
    stage.wake()
    assert stage.asked() == ["-f[1]@1"]
    stage.wake()
    assert stage.asked() == ["f[1]@2"]
    stage.wake()
    assert (stage.asked(), stage.run.status) == (["-f[1]@2"], "timed_out")


def test_of_several_children_that_run_out_of_time_together_the_first_fails_the_step() -> None:
    stage = Stage(job("f", for_each=[0, 1], timeout_ns=NS))
    stage.look()
    stage.wake()
    assert stage.asked() == ["-f[0]@1", "-f[1]@1"]
    assert (stage.run.status, stage.status("f[1]")) == ("timed_out", "cancelled")


def test_people_can_be_asked_about_every_item() -> None:
    stage = Stage(approval("f", for_each=["x", "y"], message="${ item }?"), job("g"))
    stage.look()
    assert (stage.run.status, stage.status("f")) == ("waiting", "waiting")
    assert stage.effect("f[1]@1") == RequestApproval("r:f[1]@1", "f[1]", "y?", "low", 1)
    stage.ended("f[0]")
    assert stage.run.status == "waiting"
    stage.ended("f[1]")
    assert (stage.run.status, stage.status("f")) == ("running", "succeeded")


def test_a_step_that_waits_for_people_and_for_nothing_else_is_running_between_two_questions() -> None:
    stage = Stage(approval("f", for_each=["x"], timeout_ns=NS, retry=StepRetry(retries=1)))
    stage.look()
    stage.wake()
    assert (stage.run.status, stage.status("f"), stage.status("f[0]")) == ("running", "running", "pending")
    stage.wake()
    assert (stage.run.status, stage.status("f")) == ("waiting", "waiting")


def test_there_can_be_a_run_a_delay_and_a_value_for_every_item() -> None:
    stage = Stage(
        sub("s", for_each=[1, 2], input="${ item }"),
        delay("d", for_each=[5, 7], until="${ 1000 + item }"),
        transform("t", for_each=[1, 2], input="${ item * 2 }"),
    )
    stage.look()
    assert stage.asked() == ["s[0]@1", "s[1]@1"]
    assert stage.state("t").output == [2, 4]
    assert stage.last.wake_ns == START + 5 * NS
    stage.wake()
    assert stage.status("d[0]") == "succeeded"
    stage.wake()
    assert (stage.status("d"), stage.state("d").output) == ("succeeded", [None, None])
    stage.child_ended("s[0]", output="a")
    stage.child_ended("s[1]", RunStatus.FAILED, reason="inside")
    assert (stage.run.status, stage.run.error) == ("failed", "s: s[1]: inside")


def test_children_are_held_back_by_the_class_of_their_step() -> None:
    stage = Stage(job("f", for_each=[0, 1, 2], max_parallel=1, risk="high"))
    stage.may_start = lambda risk: False
    stage.look()
    assert (stage.last.held_back, stage.status("f")) == (("f",), "pending")
    stage.may_start = lambda risk: True
    stage.look()
    stage.may_start = lambda risk: False
    stage.ended("f[0]")
    assert (stage.last.held_back, stage.asked()) == (("f",), [])
    stage.may_start = lambda risk: True
    stage.look()
    assert stage.asked() == ["f[1]@1"]


def test_a_fan_out_is_stopped_with_its_run() -> None:
    stage = Stage(job("f", for_each=[0, 1, 2], max_parallel=2))
    stage.look()
    stage.ended("f[0]")
    stage.cancel()
    assert stage.asked() == ["-f[1]@1", "-f[2]@1"]
    assert [child.status.value for child in stage.state("f").children] == ["succeeded", "cancelled", "cancelled"]
    assert stage.status("f") == "cancelled"


def test_a_thousand_children_are_heard_one_by_one() -> None:
    stage = Stage(job("f", for_each=f"${{ range({FAN_OUT_MAX}) }}", max_parallel=40))
    stage.look()
    assert len(stage.last.effects) == 40
    for n in range(3):
        stage.ended(f"f[{n}]")
        assert stage.asked() == [f"f[{40 + n}]@1"]
