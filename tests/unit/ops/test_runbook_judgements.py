"""The judgement of runbooks: pure functions over evidence, each finding reachable, each threshold where it is said."""

from __future__ import annotations

import json

import pytest

from holdfast.core.tuning.fleet_burstiness import GROUPS
from holdfast.errors import BadInput
from holdfast.observe.metrics.table import TABLE, MetricKind
from holdfast.ops.runbooks import RUNBOOKS, runbook
from holdfast.ops.runbooks.evidence.metrics import Aggregation, MetricsFact
from holdfast.ops.runbooks.evidence.plane import history_problems
from holdfast.ops.runbooks.examples import EXAMPLES, report_of
from holdfast.ops.runbooks.model import Finding, FindingSeverity
from holdfast.ops.runbooks.text import report_lines
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import JobEvent
from support.ops.runbook_cases import ARGUMENTS, CASES, UNREACHED, WELL_CASES
from support.ops.runbook_facts import Facts, numbers

S = JobState


def findings(book: str, facts: Facts) -> dict[str, Finding]:
    report = report_of(RUNBOOKS[book], facts, **ARGUMENTS.get(book, {}))
    return {each.rule: each for each in report.findings}


EVERY = [(book, rule) for book, rules in CASES.items() for rule in rules]


def test_every_rule_of_every_runbook_has_a_case() -> None:
    assert {book: set(rules) for book, rules in CASES.items()} == {
        book.name: {rule.name for rule in book.rules} for book in RUNBOOKS.values()
    }


@pytest.mark.requires("R25", "R36", "R40", "R59", "R60", "R61", "R93", "R96", "R154", "R158")
@pytest.mark.parametrize(("book", "rule"), EVERY)
def test_a_finding_is_reached_by_its_evidence_and_not_by_less(book: str, rule: str) -> None:
    told = CASES[book][rule]
    found = findings(book, told.enough)
    assert rule in found, found
    declared = next(each for each in RUNBOOKS[book].rules if each.name == rule)
    assert found[rule].severity is declared.severity
    assert told.words in found[rule].sentence
    assert set(found[rule].because) <= {step.name for step in RUNBOOKS[book].steps}
    assert rule not in findings(book, told.short)


@pytest.mark.requires("R154")
@pytest.mark.parametrize(
    ("per_second", "differs", "rule", "words"),
    [
        (1.0, 0.12, "waves", "over all processes together the variance in intervals of 50ms is 4.32 times the mean"),
        (1.0, 0.11, "busy, evenly", "(Fano factor 1 at most at a process, 3.63 over all): jitter would change nothing"),
        (0.01, 1.0, "busy, evenly", "too few were counted to exclude a wave"),
    ],
)
def test_waves_of_single_contenders_are_judged_by_the_sum(
    per_second: float, differs: float, rule: str, words: str
) -> None:
    """Half of the groups of intervals have more retries than the others."""
    groups = {f"{group:02}": per_second * (1 + differs * (-1) ** group) for group in range(GROUPS)}
    facts = CASES["retry-waves"]["busy, evenly"].enough
    found = findings("retry-waves", {**facts, "rates": rates_of_single_contenders(groups)})
    assert set(found) == {rule}
    assert words in found[rule].sentence


def rates_of_single_contenders(groups: dict[str, float]) -> MetricsFact:
    return numbers(
        "retry-waves", fano={"50ms": 1.0}, peak={"50ms": 1.5}, busy={"workflow.run": 20.0}, busy_by_group=groups
    )


@pytest.mark.parametrize("book", RUNBOOKS)
def test_where_all_is_well_that_is_said_and_nothing_else(book: str) -> None:
    (only,) = findings(book, WELL_CASES[book]).values()
    assert (only.rule, only.severity) == ("fine", FindingSeverity.FINE)


@pytest.mark.parametrize("book", RUNBOOKS)
def test_without_evidence_no_runbook_says_that_all_is_well(book: str) -> None:
    (nothing,) = findings(book, {}).values()
    assert nothing.severity is FindingSeverity.UNKNOWN
    for step in RUNBOOKS[book].essential:
        (short,) = findings(book, {**WELL_CASES[book], step: UNREACHED}).values()
        assert short.severity is FindingSeverity.UNKNOWN
        assert f"{step} (cannot be reached)" in short.sentence


@pytest.mark.parametrize("book", RUNBOOKS)
def test_a_finding_that_asks_for_action_says_what_to_type(book: str) -> None:
    """Except where no command helps: a bus that breaks its promise is a bug."""
    for rule in RUNBOOKS[book].rules:
        if rule.severity is FindingSeverity.ACT and rule.name != "delay not kept":
            found = findings(book, CASES[book][rule.name].enough)[rule.name]
            assert found.next, rule.name
            assert all(step.command and step.why for step in found.next)


@pytest.mark.parametrize("book", RUNBOOKS)
def test_a_report_is_the_same_for_people_and_programs(book: str) -> None:
    report = EXAMPLES[book]()
    said = json.loads(json.dumps(report.as_dict()))
    assert said["severity"] == str(report.severity)
    text = "\n".join(line.text for line in report_lines(report))
    for each in said["findings"]:
        assert each["sentence"] in text
    for each in said["next"]:
        assert f"$ {each['command']}" in text
    assert [each["what"] for each in said["evidence"]] == [step.name for step in report.runbook.steps]


@pytest.mark.requires("R62", "R63", "R64", "R92")
def test_every_query_asks_for_a_metric_that_exists_with_labels_that_it_has() -> None:
    metrics = {metric.name: metric for metric in TABLE}
    for book in RUNBOOKS.values():
        for query in (query for step in book.steps for query in step.queries):
            metric = metrics[query.metric]
            kinds = {Aggregation.RATE: MetricKind.COUNTER, Aggregation.NOW: MetricKind.GAUGE}
            assert metric.kind is kinds.get(query.how, MetricKind.HISTOGRAM), query
            labels = {*query.by, *(name for name, _ in query.where)} - {"instance"}
            assert labels <= set(metric.labels), query


def test_the_queries_are_those_that_operators_know() -> None:
    asked = {query.promql for book in RUNBOOKS.values() for step in book.steps for query in step.queries}
    assert {
        "histogram_quantile(0.99, sum by (le, part) (rate(holdfast_job_lock_wait_bucket[5m])))",
        "max by (state) (holdfast_stale_jobs)",
        "sum (rate(holdfast_orphan_replayed_total[5m]))",
        "sum (rate(holdfast_scheduler_input_fail_open_total[5m]))",
        "sum by (instance) (rate(holdfast_workflow_lock_fallback_total[5m]))",
    } <= asked


def test_a_runbook_that_is_not_there_is_refused_with_the_names_of_those_that_are() -> None:
    with pytest.raises(BadInput, match="use one of why, not-owned"):
        runbook("not-owed")


def moved(*moves: tuple[JobState, JobState, int, int | None]) -> list[JobEvent]:
    first = JobEvent("j", 1, 0, None, S.PENDING, 0, None, "ada")
    return [first, *(JobEvent("j", n, n, *move, "scheduler") for n, move in enumerate(moves, 2))]


WELL_DONE = (
    (S.PENDING, S.SCHEDULED, 1, 5),
    (S.SCHEDULED, S.DISPATCHED, 1, 5),
    (S.DISPATCHED, S.RUNNING, 1, 6),
    (S.RUNNING, S.SUCCEEDED, 1, 7),
)


@pytest.mark.requires("R59", "R131")
@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ((), None),
        (((S.SUCCEEDED, S.OUTPUT_QUARANTINED, 1, 8),), None),
        (((S.SUCCEEDED, S.FAILED, 1, 8),), "it ended 2 times"),
        (((S.SUCCEEDED, S.OUTPUT_QUARANTINED, 1, 6),), "fence 6 wrote after fence 7"),
        (((S.RUNNING, S.DISPATCHED, 1, 8),), "attempt 1 was dispatched 2 times"),
        (((S.RUNNING, S.RETRYING, 1, 8),), "it went from RUNNING to RETRYING when it was SUCCEEDED"),
        (((S.SUCCEEDED, S.OUTPUT_QUARANTINED, 4, 8),), "it had 4 attempts of at most 3"),
    ],
)
def test_the_history_of_a_job_is_checked_for_what_must_never_be(
    more: tuple[tuple[JobState, JobState, int, int | None], ...], problem: str | None
) -> None:
    problems = history_problems(moved(*WELL_DONE, *more), 3)
    assert (problem in problems) if problem else not problems
