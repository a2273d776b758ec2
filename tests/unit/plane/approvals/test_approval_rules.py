"""Which jobs wait for a person, and which decisions stand: rules, digests, and every refusal."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.plane.approvals.rules import (
    MESSAGE_CHARS_MAX,
    PATTERN_CHARS_MAX,
    PATTERNS_MAX,
    RULES_MAX,
    Approval,
    ApprovalConflict,
    ApprovalRule,
    ApprovalRules,
    ApprovalStatus,
    ApprovalVerdict,
    ConflictCode,
    DecisionFacts,
    RepeatedDecision,
    RuleEffect,
    RuleEvaluation,
    SelfApproval,
    ValidDecision,
    digest,
    judge,
    matches,
    parse_rules,
)
from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.run import RunStatus

# Patterns.


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("*", "", True),
        ("", "", True),
        ("", "a", False),
        ("bank.*", "bank.pay", True),
        ("bank.*", "bank.", True),
        ("bank.*", "Bank.pay", False),
        ("bank.*", "my.bank.pay", False),
        ("*.pay", "bank.pay.pay", True),
        ("b?nk", "bank", True),
        ("b?nk", "bnk", False),
        ("a*b*c", "a.b.b.c", True),
        ("a*b*c", "a.c.b", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a+", "aa", False),
        ("*" * 30 + "b", "a" * 150, False),
    ],
)
def test_a_pattern_knows_stars_and_question_marks_and_nothing_else(pattern: str, text: str, fits: bool) -> None:
    assert matches(pattern, text) is fits


@given(st.text("ab*?[", max_size=8), st.text("ab[", max_size=10))
def test_a_pattern_matches_what_the_same_regular_expression_does(pattern: str, text: str) -> None:
    expression = "".join({"*": ".*", "?": "."}.get(each, re.escape(each)) for each in pattern)
    assert matches(pattern, text) is (re.fullmatch(expression, text, re.DOTALL) is not None)


# Rules.


def test_without_a_rule_that_matches_a_job_may_go() -> None:
    assert ApprovalRules().evaluate("any", "any", {}) == RuleEvaluation(RuleEffect.ALLOW)
    only = parse_rules([{"name": "payments", "topics": "bank.*"}])
    assert only.evaluate("crm.fetch", "acme", {}) == RuleEvaluation(RuleEffect.ALLOW)


def test_the_first_rule_that_matches_decides_whatever_comes_later() -> None:
    rules = parse_rules(
        [
            {"name": "small", "effect": "allow", "topics": ["bank.*"], "labels": {"size": "small"}},
            {"name": "frozen", "effect": "deny", "topics": ["bank.*"], "tenants": ["frozen-*"]},
            {"name": "payments", "topics": ["bank.*", "cards.pay"], "message": "Check the amount."},
        ]
    )

    def said(topic: str, tenant: str = "acme", **labels: str) -> tuple[RuleEffect, str]:
        found = rules.evaluate(topic, tenant, labels)
        return found.effect, found.rule.name if found.rule else ""

    assert said("bank.pay") == (RuleEffect.REQUIRE, "payments")
    assert said("cards.pay", size="small") == (RuleEffect.REQUIRE, "payments")
    assert said("bank.pay", size="small") == (RuleEffect.ALLOW, "small")
    assert said("bank.pay", "frozen-1") == (RuleEffect.DENY, "frozen")
    assert said("bank.pay", "frozen-1", size="small") == (RuleEffect.ALLOW, "small")
    assert said("crm.fetch", "frozen-1") == (RuleEffect.ALLOW, "")


def test_a_rule_about_a_label_is_not_about_jobs_without_it() -> None:
    rule = ApprovalRule("any-size", labels={"size": "*"})
    assert not rule.covers("t", "acme", {})
    assert rule.covers("t", "acme", {"size": ""})


def test_what_a_rule_does_not_say_has_a_meaning() -> None:
    assert parse_rules([{"name": "all"}]).rules == (ApprovalRule("all", RuleEffect.REQUIRE, ("*",), ("*",), {}, ""),)
    assert parse_rules([]) == parse_rules(()) == ApprovalRules()


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ({}, "approvals.rules"),
        ("all", "approvals.rules"),
        (None, "approvals.rules"),
        ([{"name": f"r{number}"} for number in range(RULES_MAX + 1)], "approvals.rules"),
        ([{"name": "a"}, {"name": "a"}], "approvals.rules"),
        (["all"], "approvals.rules[0]"),
        ([{"name": "a"}, {}], "approvals.rules[1].name"),
        ([{"name": "two words"}], "approvals.rules[0].name"),
        ([{"name": "a", "topic": "bank.*"}], "approvals.rules[0].topic"),
        ([{"name": "a", "effect": "maybe"}], "approvals.rules[0].effect"),
        ([{"name": "a", "effect": None}], "approvals.rules[0].effect"),
        ([{"name": "a", "effect": ["deny"]}], "approvals.rules[0].effect"),
        ([{"name": "a", "topics": []}], "approvals.rules[0].topics"),
        ([{"name": "a", "topics": [""]}], "approvals.rules[0].topics"),
        ([{"name": "a", "topics": [1]}], "approvals.rules[0].topics"),
        ([{"name": "a", "topics": ["*"] * (PATTERNS_MAX + 1)}], "approvals.rules[0].topics"),
        ([{"name": "a", "topics": "*" * (PATTERN_CHARS_MAX + 1)}], "approvals.rules[0].topics"),
        ([{"name": "a", "tenants": {"acme": 1}}], "approvals.rules[0].tenants"),
        ([{"name": "a", "labels": ["size"]}], "approvals.rules[0].labels"),
        ([{"name": "a", "labels": {"size": 3}}], "approvals.rules[0].labels.size"),
        ([{"name": "a", "labels": {"size": ""}}], "approvals.rules[0].labels.size"),
        ([{"name": "a", "message": 3}], "approvals.rules[0].message"),
        ([{"name": "a", "message": "x" * (MESSAGE_CHARS_MAX + 1)}], "approvals.rules[0].message"),
    ],
)
def test_what_cannot_be_a_rule_is_refused_by_its_field(table: object, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_rules(table)
    assert refused.value.field == field


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
_FIELD = st.sampled_from(["name", "effect", "topics", "tenants", "labels", "message"])


@settings(max_examples=50)
@given(_JSON | st.lists(st.dictionaries(_FIELD, _JSON | st.just("a"), max_size=6), max_size=3))
def test_whatever_a_file_says_there_are_rules_or_one_clear_answer(table: object) -> None:
    try:
        rules = parse_rules(table)
    except BadInput as refused:
        assert refused.field.startswith("approvals.rules")  # noqa: PT017 - either is right
    else:
        assert rules.evaluate("t", "acme", {}).effect in RuleEffect


def test_equal_rules_have_one_snapshot_and_every_difference_another() -> None:
    table: dict[str, Any] = {"name": "a", "topics": ["x", "y"], "labels": {"k": "1", "l": "2"}, "message": "m"}
    known = parse_rules([table]).snapshot
    assert known == parse_rules([dict(reversed(table.items())) | {"labels": {"l": "2", "k": "1"}}]).snapshot
    assert known == parse_rules([{**table, "effect": "require", "tenants": "*"}]).snapshot
    assert known == "376cdc9cefc8676aaf91e615aca439f48c1924436556d5616a94c4876b985ca5"  # kept by approvals that wait
    others = [
        {**table, "name": "b"},
        {**table, "effect": "deny"},
        {**table, "topics": ["y", "x"]},
        {**table, "tenants": ["acme"]},
        {**table, "labels": {"k": "1"}},
        {**table, "message": "n"},
    ]
    snapshots = {parse_rules([each]).snapshot for each in others}
    assert len(snapshots) == len(others)
    assert known not in snapshots


def test_a_digest_is_of_the_value_and_not_of_how_it_was_written() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest([1, 2]) != digest([2, 1])
    assert digest(1) != digest("1")
    assert digest("é\ud800") == digest("é\ud800")


# Decisions.

WAITS = Approval(
    job="j1",
    tenant="acme",
    gate=False,
    status=ApprovalStatus.WAITING,
    risk="",
    rule="payments",
    message="",
    request="what",
    snapshot="rules",
    requested_by="ada",
    revision=0,
    created_ns=1,
)
CALM = DecisionFacts(
    WAITS, JobState.APPROVAL_REQUIRED, "what", "rules", RuleEvaluation(RuleEffect.REQUIRE), run=None, now_ns=1_000
)
DENIES = RuleEvaluation(RuleEffect.DENY, ApprovalRule("frozen", RuleEffect.DENY))

BOTH = pytest.mark.parametrize("verdict", list(ApprovalVerdict))


def situation(*, approval: dict[str, Any] | None = None, **more: Any) -> DecisionFacts:
    return replace(CALM, approval=replace(WAITS, **(approval or {})), **more)


@BOTH
def test_a_decision_of_somebody_else_about_what_waits_stands(verdict: ApprovalVerdict) -> None:
    assert judge(verdict, "bob", CALM) == ValidDecision(1, "rules")
    assert judge(verdict, "bob", situation(approval={"revision": 7}), revision=7) == ValidDecision(8, "rules")
    assert judge(verdict, "bob", situation(run=RunStatus.WAITING)) == ValidDecision(1, "rules")
    assert judge(verdict, "bob", situation(approval={"expires_ns": 1_001})) == ValidDecision(1, "rules")


OVER = [ApprovalStatus.APPROVED, ApprovalStatus.REJECTED]


@BOTH
@pytest.mark.parametrize("status", OVER)
@pytest.mark.parametrize("actor", ["bob", "ada"])
def test_the_same_again_is_told_so_and_another_is_a_conflict(
    verdict: ApprovalVerdict, status: ApprovalStatus, actor: str
) -> None:
    # Whatever else has changed since: what was decided is the answer.
    known = situation(
        approval={"status": status, "decided_by": "bob"},
        state=JobState.SUCCEEDED,
        request="other",
        snapshot="new",
        evaluation=DENIES,
        run=RunStatus.CANCELLED,
    )
    if verdict.status is status:
        assert judge(verdict, actor, known, revision=3) == RepeatedDecision()
    else:
        with pytest.raises(ApprovalConflict, match="by bob already") as refused:
            judge(verdict, actor, known)
        assert refused.value.code == "approval_already_resolved"


@BOTH
@pytest.mark.parametrize(
    ("found", "code"),
    [
        *((situation(run=each), "approval_terminal_run") for each in RunStatus if each.terminal),
        *((situation(state=each), "approval_not_actionable") for each in JobState if each != "APPROVAL_REQUIRED"),
        (situation(approval={"status": ApprovalStatus.LAPSED}), "approval_not_actionable"),
        (situation(approval={"expires_ns": 1_000}), "approval_not_actionable"),
        (situation(approval={"expires_ns": 1}), "approval_not_actionable"),
        (situation(request="other"), "approval_stale_request"),
        (situation(approval={"revision": 4}), "approval_stale_request"),
    ],
)
def test_a_decision_about_what_is_over_or_has_changed_is_a_conflict(
    verdict: ApprovalVerdict, found: DecisionFacts, code: str
) -> None:
    with pytest.raises(ApprovalConflict) as refused:
        judge(verdict, "bob", found, revision=0)
    assert refused.value.code == code


@BOTH
def test_nobody_decides_about_what_they_asked_for(verdict: ApprovalVerdict) -> None:
    with pytest.raises(SelfApproval, match="ada requested it") as refused:
        judge(verdict, "ada", CALM)
    assert refused.value.code == "self_approval_denied"


@pytest.mark.parametrize("effect", list(RuleEffect))
@pytest.mark.parametrize("gate", [False, True])
@BOTH
def test_rules_that_have_changed_are_asked_again_for_approvals(
    verdict: ApprovalVerdict, gate: bool, effect: RuleEffect
) -> None:
    changed = situation(approval={"gate": gate}, snapshot="new", evaluation=RuleEvaluation(effect))
    if effect is RuleEffect.DENY and verdict is ApprovalVerdict.APPROVE and not gate:
        with pytest.raises(ApprovalConflict) as refused:
            judge(verdict, "bob", changed)
        assert refused.value.code == "approval_stale_snapshot"
    else:
        assert judge(verdict, "bob", changed) == ValidDecision(1, "new")


_SITUATIONS = st.builds(
    DecisionFacts,
    st.builds(
        replace,
        st.just(WAITS),
        gate=st.booleans(),
        status=st.sampled_from(ApprovalStatus),
        revision=st.integers(0, 2),
        expires_ns=st.none() | st.integers(0, 3),
    ),
    st.sampled_from(JobState),
    st.sampled_from(["what", "other"]),
    st.sampled_from(["rules", "new"]),
    st.builds(RuleEvaluation, st.sampled_from(RuleEffect)),
    st.none() | st.sampled_from(RunStatus),
    st.integers(0, 3),
)


@pytest.mark.threat("X12")
@given(st.sampled_from(ApprovalVerdict), st.sampled_from(["ada", "bob"]), _SITUATIONS, st.none() | st.integers(0, 2))
def test_no_decision_stands_that_should_not(
    verdict: ApprovalVerdict, actor: str, found: DecisionFacts, revision: int | None
) -> None:
    approval = found.approval
    try:
        outcome: object = judge(verdict, actor, found, revision=revision)
    except (ApprovalConflict, SelfApproval) as refused:
        outcome = refused
    may = (
        approval.status is ApprovalStatus.WAITING
        and found.state is JobState.APPROVAL_REQUIRED
        and (found.run is None or not found.run.terminal)
        and (approval.expires_ns is None or found.now_ns < approval.expires_ns)
        and actor != approval.requested_by
        and found.request == approval.request
        and revision in (None, approval.revision)
        and not (
            verdict is ApprovalVerdict.APPROVE
            and not approval.gate
            and found.snapshot != approval.snapshot
            and found.evaluation.effect is RuleEffect.DENY
        )
    )
    assert (outcome == ValidDecision(approval.revision + 1, found.snapshot)) is may
    assert (outcome == RepeatedDecision()) is (approval.status is verdict.status)


def test_the_codes_are_those_that_programs_know() -> None:
    assert set(ConflictCode) == {
        "approval_already_resolved",
        "approval_retryable_lock",
        "approval_terminal_run",
        "approval_stale_snapshot",
        "approval_stale_request",
        "approval_not_actionable",
    }
