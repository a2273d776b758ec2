"""Approval rules, name patterns, and the judgement of a decision. Pure.

Patterns: `*` matches any text, including none; `?` matches one character; every other character matches itself, so
`job[1].*` needs no escapes. Case matters. Matching takes at most pattern length times text length steps.

Rules define which jobs need approval and which are refused. A waiting job stores a digest of its request and of the
rules at that time, and a decision applies to exactly these:

- If the request has changed, the decision is refused (`approval_stale_request`).
- If the rules have changed, they are evaluated again for the original requester. The decision is valid unless they now
  refuse the job (`approval_stale_snapshot`).

Requesters cannot decide about their own request, nor about a repetition of it: a re-run, or a retry of a dead letter,
adds its requester to the earlier ones. A job that has ended, is past its deadline, or belongs to a finished run cannot
be decided. A decision is final: repeating it reports the first one, and the opposite decision is a conflict.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from holdfast.errors import BadInput, HoldfastError
from holdfast.plane.model.job_states import JobState
from holdfast.plane.workflows.core.run import RunStatus
from holdfast.types import check_label


def matches(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole text."""
    at = read = 0
    star, resume = -1, 0  # the last `*`, and where the text after it starts
    while read < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, read
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[read]):
            at += 1
            read += 1
        elif star >= 0:
            resume += 1  # the last `*` takes one more character; earlier ones need no second try
            at, read = star + 1, resume
        else:
            return False
    return all(each == "*" for each in pattern[at:])


RULES_MAX: Final = 200
PATTERNS_MAX: Final = 100  # of one kind in one rule
PATTERN_CHARS_MAX: Final = 200
MESSAGE_CHARS_MAX: Final = 1000
REQUESTERS_MAX: Final = 16  # of one chain of repetitions


class RuleEffect(StrEnum):
    """What a rule does with the jobs that it matches."""

    REQUIRE = "require"  # a person must approve
    DENY = "deny"  # refused
    ALLOW = "allow"  # runs without approval; later rules do not apply


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """One rule. Patterns may use `*` and `?`; all that are given must match. The first rule that matches decides."""

    name: str
    effect: RuleEffect = RuleEffect.REQUIRE
    topics: tuple[str, ...] = ("*",)
    tenants: tuple[str, ...] = ("*",)
    labels: Mapping[str, str] = field(default_factory=dict)  # label to pattern
    message: str = ""  # for the approver

    def covers(self, topic: str, tenant: str, labels: Mapping[str, str]) -> bool:
        """Whether the rule applies to this job."""
        return self.concerns(topic, tenant) and all(
            name in labels and matches(each, labels[name]) for name, each in self.labels.items()
        )

    def concerns(self, topic: str, tenant: str) -> bool:
        """Whether the rule applies to jobs of this topic and tenant, given the right labels."""
        return any(matches(each, topic) for each in self.topics) and any(matches(each, tenant) for each in self.tenants)


@dataclass(frozen=True, slots=True)
class RuleEvaluation:
    """The effect of the rules on one job."""

    effect: RuleEffect
    rule: ApprovalRule | None = None


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """All rules, in order."""

    rules: tuple[ApprovalRule, ...] = ()

    def may_hold(self, topic: str, tenant: str) -> bool:
        """Whether some combination of labels makes a job of this topic wait for approval, or refuses it."""
        for rule in self.rules:
            if rule.concerns(topic, tenant):
                if rule.effect is not RuleEffect.ALLOW:
                    return True
                if not rule.labels:
                    return False
        return False

    def evaluate(self, topic: str, tenant: str, labels: Mapping[str, str]) -> RuleEvaluation:
        """The effect of the first matching rule. Without one the job is allowed."""
        for rule in self.rules:
            if rule.covers(topic, tenant, labels):
                return RuleEvaluation(rule.effect, rule)
        return RuleEvaluation(RuleEffect.ALLOW)

    @property
    def snapshot(self) -> str:
        """A digest of all rules. Equal rules have equal digests."""
        return digest(
            [[r.name, r.effect, r.topics, r.tenants, sorted(r.labels.items()), r.message] for r in self.rules]
        )


def parse_rules(table: object, where: str = "approvals.rules") -> ApprovalRules:
    """Rules from a list of tables, such as a file's `[[approvals.rules]]`, or `BadInput` that names the field."""
    if not isinstance(table, Sequence) or isinstance(table, str) or len(table) > RULES_MAX:
        raise BadInput(where, "is not a list of rules", f"write [[{where}]] for each, at most {RULES_MAX}")
    rules = tuple(_rule(entry, f"{where}[{number}]") for number, entry in enumerate(table))
    names = [rule.name for rule in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(where, f"has two rules called {twice!r}", "give each rule a different name")
    return ApprovalRules(rules)


def _rule(entry: object, where: str) -> ApprovalRule:
    known = ("name", "effect", "topics", "tenants", "labels", "message")
    if not isinstance(entry, Mapping):
        raise BadInput(where, "is not a table", f"give {', '.join(known)}")
    if unknown := next((name for name in entry if name not in known), None):
        raise BadInput(f"{where}.{unknown!s:.60}", "is not a field of a rule", f"use {', '.join(known)}")
    try:
        effect = RuleEffect(entry.get("effect", RuleEffect.REQUIRE))
    except ValueError:
        raise BadInput(
            f"{where}.effect", f"{entry['effect']!r:.60} is unknown", f"use {', '.join(RuleEffect)}"
        ) from None
    message = entry.get("message", "")
    if not isinstance(message, str) or len(message) > MESSAGE_CHARS_MAX:
        fix = f"write what the approver should know, in at most {MESSAGE_CHARS_MAX} characters"
        raise BadInput(f"{where}.message", "is not a short text", fix)
    name = check_label(f"{where}.name", entry.get("name"))
    topics, tenants = _patterns(entry, "topics", where), _patterns(entry, "tenants", where)
    return ApprovalRule(name, effect, topics, tenants, _labels(entry, where), message)


def _patterns(entry: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    given = entry.get(name, ["*"])
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, Sequence) or not 0 < len(given) <= PATTERNS_MAX or not all(map(_is_pattern, given)):
        fix = f'give 1 to {PATTERNS_MAX} texts such as "bank.*", each of 1 to {PATTERN_CHARS_MAX} characters'
        raise BadInput(f"{where}.{name}", "are not patterns", fix)
    return tuple(given)


def _labels(entry: Mapping[str, Any], where: str) -> dict[str, str]:
    given = entry.get("labels", {})
    if not isinstance(given, Mapping) or len(given) > PATTERNS_MAX:
        raise BadInput(f"{where}.labels", "are not a table", f"give at most {PATTERNS_MAX} names and patterns")
    for name, pattern in given.items():
        if not _is_pattern(name) or not _is_pattern(pattern):
            fix = f"give names and patterns of 1 to {PATTERN_CHARS_MAX} characters"
            raise BadInput(f"{where}.labels.{name!s:.60}", "is not a pattern", fix)
    return dict(given)


def _is_pattern(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= PATTERN_CHARS_MAX


def digest(value: Any) -> str:
    """A digest of a JSON value that does not depend on the order of names."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def all_requesters(earlier: Iterable[str], *names: str) -> tuple[str, ...]:
    """All requesters of something and of the requests that it repeats, each once. `BadInput` if there are too many."""
    found = tuple(dict.fromkeys(name for name in (*earlier, *names) if name))
    if len(found) > REQUESTERS_MAX:
        problem = f"this was repeated by {len(found)} different callers, and {REQUESTERS_MAX} is the most"
        raise BadInput("requesters", problem, "submit it as something new")
    return found


class ApprovalStatus(StrEnum):
    """The status of an approval."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    LAPSED = "lapsed"  # the job ended without a decision: cancelled, or past its deadline


class ApprovalVerdict(StrEnum):
    """The two possible decisions."""

    APPROVE = "approve"
    REJECT = "reject"

    @property
    def status(self) -> ApprovalStatus:
        """The status of the approval after this decision."""
        return ApprovalStatus.APPROVED if self is ApprovalVerdict.APPROVE else ApprovalStatus.REJECTED


class ConflictCode(StrEnum):
    """Why a decision was refused, for programs."""

    ALREADY_RESOLVED = "approval_already_resolved"
    RETRYABLE_LOCK = "approval_retryable_lock"
    TERMINAL_RUN = "approval_terminal_run"
    STALE_SNAPSHOT = "approval_stale_snapshot"
    STALE_REQUEST = "approval_stale_request"
    NOT_ACTIONABLE = "approval_not_actionable"


class ApprovalConflict(HoldfastError):
    """The decision does not fit the current state. Nothing was changed; `code` gives the reason."""

    def __init__(self, code: ConflictCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class SelfApproval(HoldfastError):
    """A requester tried to decide about their own request. Nothing was changed."""

    code: Final = "self_approval_denied"


@dataclass(frozen=True, slots=True)
class Approval:
    """The approval of one job or gate, open or decided."""

    job: str
    tenant: str
    gate: bool  # a step of a run that does nothing but wait for a decision
    status: ApprovalStatus
    risk: str
    rule: str  # the rule that requires approval; empty for a gate
    message: Any
    request: str  # digest of the request
    snapshot: str  # digest of the rules at that time
    requested_by: str
    revision: int
    created_ns: int
    run: str | None = None
    step: str | None = None
    expires_ns: int | None = None
    decided_by: str | None = None
    decided_ns: int | None = None
    note: str | None = None
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class DecisionFacts:
    """The facts by which a decision is judged."""

    approval: Approval
    state: JobState
    request: str  # digest of the current request
    snapshot: str  # digest of the current rules
    evaluation: RuleEvaluation  # of the current rules, for the original requester
    run: RunStatus | None  # of the run that the step belongs to
    now_ns: int
    requesters: tuple[str, ...] = ()  # of the requests that this one repeats: earlier runs, dead-lettered jobs


@dataclass(frozen=True, slots=True)
class ValidDecision:
    """The decision is valid."""

    revision: int
    snapshot: str  # digest of the rules that it was judged by


@dataclass(frozen=True, slots=True)
class RepeatedDecision:
    """The same decision was made before."""


def judge(
    verdict: ApprovalVerdict, actor: str, facts: DecisionFacts, *, revision: int | None = None
) -> ValidDecision | RepeatedDecision:
    """Judge a decision; raises `ApprovalConflict` or `SelfApproval`. `revision`: the one that the approver has seen."""
    approval = facts.approval
    if approval.status in (ApprovalStatus.APPROVED, ApprovalStatus.REJECTED):
        if approval.status is verdict.status:
            return RepeatedDecision()
        by = f" by {approval.decided_by}" if approval.decided_by else ""
        raise ApprovalConflict(ConflictCode.ALREADY_RESOLVED, f"it was {approval.status}{by} already")
    if facts.run is not None and facts.run.terminal:
        raise ApprovalConflict(ConflictCode.TERMINAL_RUN, f"its run has ended: {facts.run}")
    if approval.status is ApprovalStatus.LAPSED or facts.state is not JobState.APPROVAL_REQUIRED:
        raise ApprovalConflict(ConflictCode.NOT_ACTIONABLE, f"it does not wait for approval: {facts.state}")
    if approval.expires_ns is not None and facts.now_ns >= approval.expires_ns:
        raise ApprovalConflict(ConflictCode.NOT_ACTIONABLE, "its deadline has passed")
    if actor == approval.requested_by:
        raise SelfApproval(f"{actor} requested it; another person must decide")
    if actor in facts.requesters:
        raise SelfApproval(f"{actor} requested the run or job that this repeats; another person must decide")
    if facts.request != approval.request or (revision is not None and revision != approval.revision):
        raise ApprovalConflict(ConflictCode.STALE_REQUEST, "it has changed since it was read; read it again")
    drifted = facts.snapshot != approval.snapshot and not approval.gate
    if drifted and verdict is ApprovalVerdict.APPROVE and facts.evaluation.effect is RuleEffect.DENY:
        rule = facts.evaluation.rule
        raise ApprovalConflict(
            ConflictCode.STALE_SNAPSHOT, f"the rules have changed and now refuse it: {rule.name if rule else ''}"
        )
    return ValidDecision(approval.revision + 1, facts.snapshot)
