"""The row about the error policy: what happens when the lease store fails, and what it has cost."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Kind, Panel, Row, Steps, Unit
from holdfast.ops.dashboard.promql import Query, most, rate, series, total
from holdfast.ops.dashboard.thresholds import Limits

_NOW: Final = f"max by (risk, mode) ({series('policy_mode')} == 1)"
_REVISION: Final = series("policy_revision")

_MODES: Final = (
    Panel(
        "Risk classes now",
        "What each risk class does when the lease store fails. `holdfast policy set` switches one, at once.",
        (Query(_NOW, "{{risk}}: {{mode}}"),),
        kind=Kind.STAT,
        width=4,
        named=True,
    ),
    Panel(
        "Replicas of another opinion",
        "How many policies are followed beyond one. Usual: 0. For longer than a minute: a process cannot read "
        "the policy (below), and does what it last heard.",
        (Query(f'count(count_values("revision", {_REVISION})) - 1'),),
        steps=Steps.rising(1),
        kind=Kind.STAT,
        width=4,
    ),
)


_COST: Final = (
    Panel(
        "Duplicates",
        "Work done or sent a second time, and not used. Rising together with fallback: switch.",
        (
            Query(rate("duplicates_total", "kind"), "{{kind}}"),
            Query(rate("plane_duplicate_ends_total"), "refused by storage"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Denied by risk class",
        "Leases denied because the store failed and a class fails closed. That work waits for the store.",
        (Query(rate("lock_denied_total", "risk"), "{{risk}}"),),
        Unit.PER_SECOND,
    ),
    Panel(
        "Degraded leases",
        "Leases that are held without the store now, and those that became full ones when it came back.",
        (
            Query(total("locks_degraded", "family"), "held: {{family}}"),
            Query(rate("lock_promoted_total", "family"), "promoted a second: {{family}}"),
        ),
    ),
    Panel(
        "Fallback on purpose",
        "The share of acquisitions that meet a pretended error, and what came of it: how one knows that the "
        "fallback path works. `holdfast policy exercise`.",
        (
            Query(most("lock_exercise_share", "family"), "share: {{family}}"),
            Query(rate("lock_exercised_total", "family", "risk"), "a second: {{family}}, {{risk}}"),
        ),
    ),
    Panel(
        "Work under fallback",
        "What ran without the store: run locks, the jobs that such runs submitted, and job and run locks by part; "
        "and the steps that were put off until it is back.",
        (
            Query(rate("workflow_lock_fallback_total", "instance"), "run locks, {{instance}}"),
            Query(rate("scheduler_input_fail_open_total"), "jobs submitted"),
            Query(rate("job_lock_degraded_total", "part"), "job, {{part}}"),
            Query(rate("run_lock_degraded_total", "part"), "run, {{part}}"),
            Query(rate("engine_held_back_total"), "steps put off"),
        ),
        Unit.PER_SECOND,
        width=12,
    ),
    Panel(
        "Switches",
        "Switches of a risk class as each process heard of them, those that the rule made by itself (armed: it "
        "may), and reads or writes of the policy in vain.",
        (
            Query(rate("policy_switches_total", "instance"), "heard by {{instance}}"),
            Query(rate("policy_escalations_total"), "by the rule"),
            Query(most("policy_escalation_armed"), "armed"),
            Query(rate("policy_failed_total", "what"), "in vain: {{what}}"),
        ),
        width=12,
    ),
)


def _fallback(limits: Limits) -> tuple[Panel, ...]:
    """Leases without the store."""
    return (
        Panel(
            "Fallback by risk class",
            f"Leases given without the store, a second. The line is at {limits.fallback_rate:g}: above it, with "
            "rising duplicates, make high-risk classes fail closed. After recovery it must return to 0.",
            (Query(rate("lock_fallback_total", "risk"), "{{risk}}"),),
            Unit.PER_SECOND,
            Steps.rising(min(1e-6, limits.fallback_rate), limits.fallback_rate),
        ),
    )


def policy(limits: Limits) -> Row:
    """The whole row."""
    question = "What happens when the lease store fails, and what it has cost."
    return Row("Error policy", question, (*_MODES, *_fallback(limits), *_COST))
