"""What expressions cost: everything that Python code does for them is charged, and an advance of a run is bounded.

The oracle is a counter of function calls, not a clock: an evaluation may make only a few calls for each unit that it
was charged, and a charge has an upper limit.
"""

from __future__ import annotations

from typing import Any

import pytest

from fuzzing.call_count import CALLS_PER_UNIT, costs_what_it_is_charged
from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.advance import advance, advance_all
from holdfast.plane.workflows.core.run import CheckRun, EventOutcome, GiveUp, JobEnded, RunStatus
from holdfast.plane.workflows.core.run_draft import ADVANCE_COST_MAX
from holdfast.plane.workflows.expressions import evaluate, render
from holdfast.plane.workflows.expressions.builtins import COMPARISONS, COST_MAX, Budget, OverBudget
from support.harness.runs import Stage, job, lowest, transform

pytestmark = pytest.mark.threat("X20")

LARGE: dict[str, Any] = {
    "nulls": [None] * 80_000,
    "same": [None] * 80_000,
    "lists": [[] for _ in range(40_000)],
    "table": {str(number): number for number in range(20_000)},
    "other": {str(number): number for number in range(20_000)},
    "long": "x" * 300_000 + "y",
    "longer": "x" * 300_000 + "z",
    "pieces": "a," * 100_000,
}
HOSTILE = [
    "text(input.nulls)",
    "[len(text(input.nulls)) for i in range(1000)]",
    "[len(text(input.lists)) for i in range(1000)]",
    "[input.nulls == input.same for i in range(1000)]",
    "[input.table == input.other for i in range(1000)]",
    "[input.nulls for i in range(1000)]",
    "[min(input.long, input.longer) for i in range(5000)]",
    "[default(input.x, flag(input.long)) for i in range(5000)]",
    "[len(split(input.pieces, ',')) for i in range(1000)]",
    "[len(split(input.pieces)) for i in range(1000)]",
    "[len(input.nulls[1:]) for i in range(5000)]",
    "[len(input.nulls + input.nulls) for i in range(5000)]",
    "[input.long in input.longer for i in range(5000)]",
    "[null in input.lists for i in range(5000)]",
    "[input.long == input.longer for i in range(5000)]",
    "[upper(input.long) == 1 for i in range(5000)]",
    "join(input.nulls)",
    "join([text(x) for x in input.lists])",
    "[len(keys(input.table)) for i in range(5000)]",
    "[sum(values(input.table)) for i in range(5000)]",
    "[[y for y in range(100)] for x in range(1000)]",
    "[x for x in input.nulls if x == input.table]",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_expression_is_charged_for_all_that_it_does_and_ends_soon(text: str) -> None:
    costs_what_it_is_charged(lambda budget: evaluate(text, {"input": LARGE}, budget))
    costs_what_it_is_charged(lambda budget: render({"a": text, "b": f"x ${{ {text} }} y"}, {"input": LARGE}, budget))


def test_text_is_charged_by_items_and_not_by_characters() -> None:
    budget = Budget()
    evaluate("len(text(input))", {"input": [None] * 10_000}, budget)
    assert budget.spent >= 10_000


@pytest.mark.parametrize(
    "text", ["input.part in input.whole", "contains(input.whole, input.part)", "split(input.whole, input.part)"]
)
@pytest.mark.parametrize(("part", "whole"), [(1_200, 2_400), (99, 29_000)])
def test_a_search_is_charged_for_its_comparisons_and_not_for_the_length_of_the_text(
    text: str, part: int, whole: int
) -> None:
    half = "a" * (part // 2)
    values = {"part": f"{half}b{half}"[:part], "whole": "a" * whole}  # fails in the middle, at every character
    budget = Budget()
    evaluate(text, {"input": values}, budget)
    assert budget.spent >= part * (whole - part) // COMPARISONS
    budget = Budget()
    evaluate(text, {"input": {"part": "abc", "whole": "a" * 200}}, budget)
    assert budget.spent < 200, "a short search is cheap"


def test_a_template_is_charged_for_its_plain_parts_too() -> None:
    budget = Budget()
    render({"rows": [0] * 10_000}, {}, budget)
    assert budget.spent >= 10_000


def test_a_budget_ends_an_evaluation_without_blaming_the_expression() -> None:
    with pytest.raises(OverBudget):
        evaluate("[x for x in range(1000)]", {}, Budget(5_000))


COSTLY = "${ len([0 for i in range(5000)]) }"
SUM_OF_STEPS = 500


def test_an_advance_with_costly_expressions_goes_on_in_the_next_one() -> None:
    run = Stage(*(transform(f"s{number}", input=COSTLY) for number in range(SUM_OF_STEPS))).run
    ended = 0
    while not run.status.terminal:
        budget = Budget()
        found = advance(run, CheckRun(), run.created_ns, lowest, budget=budget)
        run = found.run
        over = sum(state.status.terminal for state in run.steps.values())
        assert 0 < over - ended <= ADVANCE_COST_MAX // 50_000, "steps of one advance"
        assert budget.spent <= ADVANCE_COST_MAX + 2 * COST_MAX
        assert len(found.held_back) == SUM_OF_STEPS - over
        ended = over
    assert run.status is RunStatus.SUCCEEDED


def test_events_whose_outputs_are_costly_are_left_for_the_next_change() -> None:
    stage = Stage(*(job(f"s{number}", output=COSTLY) for number in range(100)))
    stage.look()
    events = [JobEnded(f"{stage.run.id}:s{number}@1", JobState.SUCCEEDED) for number in range(100)]
    budget = Budget()
    found, heard = advance_all(stage.run, events, stage.run.created_ns, lowest, budget=budget)
    assert heard == [EventOutcome.APPLIED] * len(heard)
    assert 0 < len(heard) <= ADVANCE_COST_MAX // 50_000
    assert budget.spent <= ADVANCE_COST_MAX + 2 * COST_MAX
    ended = [name for name, state in found.run.steps.items() if state.status.terminal]
    assert ended == [f"s{number}" for number in range(len(heard))]
    whole, all_heard = advance_all(stage.run, events[:3], stage.run.created_ns, lowest)
    assert (whole.outcome, len(all_heard)) == (EventOutcome.APPLIED, 3)


def test_many_cheap_steps_are_one_advance() -> None:
    stage = Stage(
        *(transform(f"s{number}", input="${ input.x + 1 }") for number in range(SUM_OF_STEPS)), input={"x": 1}
    )
    stage.look()
    assert stage.run.status is RunStatus.SUCCEEDED


def test_a_run_that_is_given_up_fails_with_the_reason() -> None:
    stage = Stage(transform("s", input=COSTLY))
    stage.hear(GiveUp("handling its message failed 5 times"))
    assert (stage.run.status, stage.run.error) == (RunStatus.FAILED, "handling its message failed 5 times")


def test_the_oracle_sees_work_that_is_not_charged() -> None:
    with pytest.raises(AssertionError, match="calls"):
        costs_what_it_is_charged(lambda budget: [len(str(number)) for number in range(CALLS_PER_UNIT * 10_000)])
