"""Patterns for names: `*` stands for any text, also none, `?` for one character, and all else for itself. Pure.

Nothing is special but these two, so that a name can be written down as it is: `job[1].*` means what it says. Capitals
count. Whatever the pattern, matching takes at most its length times that of the text.

What waits for a person: which jobs must, what a decision needs to be valid, and what it brings. Pure.

Rules say which jobs need somebody's approval, and which are refused outright. A job that waits carries a digest of what
was asked for and of the rules at that time. A decision is about exactly that: if the request has changed it is refused
(`approval_stale_request`); if the rules have changed since, they are asked again on behalf of the original requester,
and the decision stands unless they now refuse the job (`approval_stale_snapshot`).

Nobody decides about what they asked for themselves, nor about what repeats that: a re-run or a second try of a dead
letter has all earlier requesters besides the new one. Nobody decides about what is over: ended, out of time, or part of
a run that has ended. A decision that was made stays: the same one again is told so, and another is a conflict.
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
    """Whether the whole text is what the pattern describes."""
    at = read = 0
    star, resume = -1, 0  # the last `*`, and how much of the text is left to what follows it
    while read < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, read
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[read]):
            at += 1
            read += 1
        elif star >= 0:
            resume += 1  # the `*` takes one more character; an earlier one need never be asked again
            at, read = star + 1, resume
        else:
            return False
    return all(each == "*" for each in pattern[at:])


RULES_MAX: Final = 200
PATTERNS_MAX: Final = 100  # of one kind in one rule
PATTERN_CHARS_MAX: Final = 200
MESSAGE_CHARS_MAX: Final = 1000
REQUESTERS_MAX: Final = 16  # of one chain of repetitions


class Effect(StrEnum):
    """What a rule does with the jobs that it matches."""

    REQUIRE = "require"  # a person must approve
    DENY = "deny"  # refused
    ALLOW = "allow"  # nothing further is asked, whatever later rules say


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """One rule. Patterns may use `*` and `?`; all that are given must match. The first rule that matches decides."""

    name: str
    effect: Effect = Effect.REQUIRE
    topics: tuple[str, ...] = ("*",)
    tenants: tuple[str, ...] = ("*",)
    labels: Mapping[str, str] = field(default_factory=dict)  # label to pattern
    message: str = ""  # for whoever decides

    def covers(self, topic: str, tenant: str, labels: Mapping[str, str]) -> bool:
        """Whether the rule is about this job."""
        return self.concerns(topic, tenant) and all(
            name in labels and matches(each, labels[name]) for name, each in self.labels.items()
        )

    def concerns(self, topic: str, tenant: str) -> bool:
        """Whether the rule covers jobs of this topic and tenant, if they have the labels it wants."""
        return any(matches(each, topic) for each in self.topics) and any(matches(each, tenant) for each in self.tenants)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the rules say of a job."""

    effect: Effect
    rule: ApprovalRule | None = None


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """All rules, in order."""

    rules: tuple[ApprovalRule, ...] = ()

    def may_hold(self, topic: str, tenant: str) -> bool:
        """Whether a job of this topic may have to wait for a person, or be refused, with some labels or other."""
        for rule in self.rules:
            if rule.concerns(topic, tenant):
                if rule.effect is not Effect.ALLOW:
                    return True
                if not rule.labels:
                    return False
        return False

    def evaluate(self, topic: str, tenant: str, labels: Mapping[str, str]) -> Evaluation:
        """What the first matching rule says; without one, the job may go."""
        for rule in self.rules:
            if rule.covers(topic, tenant, labels):
                return Evaluation(rule.effect, rule)
        return Evaluation(Effect.ALLOW)

    @property
    def snapshot(self) -> str:
        """A digest: equal rules have equal ones."""
        said = [[r.name, r.effect, r.topics, r.tenants, sorted(r.labels.items()), r.message] for r in self.rules]
        return digest(said)


def parse_rules(table: object, where: str = "approvals.rules") -> ApprovalRules:
    """Rules from a list of tables, such as a file's `[[approvals.rules]]`, or `BadInput` that names the field."""
    if not isinstance(table, Sequence) or isinstance(table, str) or len(table) > RULES_MAX:
        raise BadInput(where, "is not a list of rules", f"write [[{where}]] for each, at most {RULES_MAX}")
    rules = tuple(_rule(entry, f"{where}[{number}]") for number, entry in enumerate(table))
    names = [rule.name for rule in rules]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(where, f"has two rules called {twice!r}", "give each a name of its own")
    return ApprovalRules(rules)


def _rule(entry: object, where: str) -> ApprovalRule:
    known = ("name", "effect", "topics", "tenants", "labels", "message")
    if not isinstance(entry, Mapping):
        raise BadInput(where, "is not a table", f"give {', '.join(known)}")
    if unknown := next((name for name in entry if name not in known), None):
        raise BadInput(f"{where}.{unknown!s:.60}", "is not a field of a rule", f"use {', '.join(known)}")
    try:
        effect = Effect(entry.get("effect", Effect.REQUIRE))
    except ValueError:
        raise BadInput(f"{where}.effect", f"{entry['effect']!r:.60} is unknown", f"use {', '.join(Effect)}") from None
    message = entry.get("message", "")
    if not isinstance(message, str) or len(message) > MESSAGE_CHARS_MAX:
        fix = f"say what whoever decides should know, in at most {MESSAGE_CHARS_MAX} characters"
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
    """A digest of a JSON value, in which the order of names says nothing."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def all_requesters(earlier: Iterable[str], *names: str) -> tuple[str, ...]:
    """Everybody who asked for something or for what it repeats, each once; `BadInput` if they are too many to keep."""
    found = tuple(dict.fromkeys(name for name in (*earlier, *names) if name))
    if len(found) > REQUESTERS_MAX:
        problem = f"this was repeated by {len(found)} different callers, and {REQUESTERS_MAX} is the most"
        raise BadInput("requesters", problem, "submit it as something new")
    return found


class ApprovalStatus(StrEnum):
    """How something that needs approval is."""

    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    LAPSED = "lapsed"  # the job ended before anybody decided: cancelled, or out of time


class Verdict(StrEnum):
    """What somebody decides."""

    APPROVE = "approve"
    REJECT = "reject"

    @property
    def status(self) -> ApprovalStatus:
        """What it makes of the approval."""
        return ApprovalStatus.APPROVED if self is Verdict.APPROVE else ApprovalStatus.REJECTED


class ConflictCode(StrEnum):
    """Why a decision was not taken, for programs."""

    ALREADY_RESOLVED = "approval_already_resolved"
    RETRYABLE_LOCK = "approval_retryable_lock"
    TERMINAL_RUN = "approval_terminal_run"
    STALE_SNAPSHOT = "approval_stale_snapshot"
    STALE_REQUEST = "approval_stale_request"
    NOT_ACTIONABLE = "approval_not_actionable"


class ApprovalConflict(HoldfastError):
    """The decision does not fit what is there. Nothing was changed; `code` says why."""

    def __init__(self, code: ConflictCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class SelfApproval(HoldfastError):
    """Whoever asked for something may not decide about it. Nothing was changed."""

    code: Final = "self_approval_denied"


@dataclass(frozen=True, slots=True)
class Approval:
    """Something that waits, or waited, for a person."""

    job: str
    tenant: str
    gate: bool  # a step of a run, with nothing to do but to be decided
    status: ApprovalStatus
    risk: str
    rule: str  # which rule wants it; empty for a gate
    message: Any
    request: str  # digest of what was asked for
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
class Situation:
    """What a decision is judged by."""

    approval: Approval
    state: JobState
    request: str  # digest of the request as it is now
    snapshot: str  # digest of the rules as they are now
    evaluation: Evaluation  # what they say now, on behalf of the original requester
    run: RunStatus | None  # of the run whose step it is
    now_ns: int
    requesters: tuple[str, ...] = ()  # who asked for what this repeats: earlier runs, jobs with a dead letter


@dataclass(frozen=True, slots=True)
class Taken:
    """The decision stands."""

    revision: int
    snapshot: str  # of the rules by which it was judged


@dataclass(frozen=True, slots=True)
class Already:
    """The same was decided before. Nothing is to be done."""


def judge(verdict: Verdict, actor: str, situation: Situation, *, revision: int | None = None) -> Taken | Already:
    """Whether a decision stands, or `ApprovalConflict`, or `SelfApproval`. `revision`: the one that was looked at."""
    approval = situation.approval
    if approval.status in (ApprovalStatus.APPROVED, ApprovalStatus.REJECTED):
        if approval.status is verdict.status:
            return Already()
        by = f" by {approval.decided_by}" if approval.decided_by else ""
        raise ApprovalConflict(ConflictCode.ALREADY_RESOLVED, f"it was {approval.status}{by} already")
    if situation.run is not None and situation.run.terminal:
        raise ApprovalConflict(ConflictCode.TERMINAL_RUN, f"its run is over: {situation.run}")
    if approval.status is ApprovalStatus.LAPSED or situation.state is not JobState.APPROVAL_REQUIRED:
        raise ApprovalConflict(ConflictCode.NOT_ACTIONABLE, f"it does not wait for anybody: {situation.state}")
    if approval.expires_ns is not None and situation.now_ns >= approval.expires_ns:
        raise ApprovalConflict(ConflictCode.NOT_ACTIONABLE, "its time is over")
    if actor == approval.requested_by:
        raise SelfApproval(f"{actor} asked for it; somebody else must decide")
    if actor in situation.requesters:
        raise SelfApproval(f"{actor} asked for the run or job that this repeats; somebody else must decide")
    if situation.request != approval.request or (revision is not None and revision != approval.revision):
        raise ApprovalConflict(ConflictCode.STALE_REQUEST, "it is not what was looked at; look again")
    drifted = situation.snapshot != approval.snapshot and not approval.gate
    if drifted and verdict is Verdict.APPROVE and situation.evaluation.effect is Effect.DENY:
        rule = situation.evaluation.rule
        raise ApprovalConflict(
            ConflictCode.STALE_SNAPSHOT, f"the rules have changed, and refuse it now: {rule.name if rule else ''}"
        )
    return Taken(approval.revision + 1, situation.snapshot)
