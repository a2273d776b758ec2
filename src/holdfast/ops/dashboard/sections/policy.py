"""The row about the error policy: what happens when the lease store fails, and its consequences."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, PanelKind, PanelSteps, Row, Unit
from holdfast.ops.dashboard.promql import PanelQuery, most, rate, series, total
from holdfast.ops.dashboard.thresholds import PanelLimits

_NOW: Final = f"max by (risk, mode) ({series('policy_mode')} == 1)"
_REVISION: Final = series("policy_revision")

_MODES: Final = (
    Panel(
        "Risk classes now",
        "What each risk class does when the lease store fails. `holdfast policy set` switches one immediately.",
        (PanelQuery(_NOW, "{{risk}}: {{mode}}"),),
        kind=PanelKind.STAT,
        width=4,
        named=True,
    ),
    Panel(
        "Replicas with another policy",
        "How many policy revisions are in use beyond one. Usual: 0. For longer than a minute: a process cannot read "
        "the policy (below), and follows the last one that it has read.",
        (PanelQuery(f'count(count_values("revision", {_REVISION})) - 1'),),
        steps=PanelSteps.rising(1),
        kind=PanelKind.STAT,
        width=4,
    ),
)


_COST: Final = (
    Panel(
        "Duplicates",
        "Work done or sent twice; the second result was not used. Rising together with fallback: switch.",
        (
            PanelQuery(rate("duplicates_total", "kind"), "{{kind}}"),
            PanelQuery(rate("plane_duplicate_ends_total"), "refused by storage"),
        ),
        Unit.PER_SECOND,
    ),
    Panel(
        "Denied by risk class",
        "Leases denied because the store failed and a class fails closed. That work waits for the store.",
        (PanelQuery(rate("lock_denied_total", "risk"), "{{risk}}"),),
        Unit.PER_SECOND,
    ),
    Panel(
        "Degraded leases",
        "Leases that are held without the store now, and those that became full ones when it came back.",
        (
            PanelQuery(total("locks_degraded", "family"), "held: {{family}}"),
            PanelQuery(rate("lock_promoted_total", "family"), "promoted a second: {{family}}"),
        ),
    ),
    Panel(
        "Exercised fallback",
        "The share of acquisitions with an injected error, and their outcome: it proves that the "
        "fallback path works. `holdfast policy exercise`.",
        (
            PanelQuery(most("lock_exercise_share", "family"), "share: {{family}}"),
            PanelQuery(rate("lock_exercised_total", "family", "risk"), "per second: {{family}}, {{risk}}"),
        ),
    ),
    Panel(
        "Work under fallback",
        "Work that ran without the store: run locks, the jobs that such runs submitted, and job and run locks by "
        "component; and the steps that were delayed until the store is back.",
        (
            PanelQuery(rate("workflow_lock_fallback_total", "instance"), "run locks, {{instance}}"),
            PanelQuery(rate("scheduler_input_fail_open_total"), "jobs submitted"),
            PanelQuery(rate("job_lock_degraded_total", "part"), "job, {{part}}"),
            PanelQuery(rate("run_lock_degraded_total", "part"), "run, {{part}}"),
            PanelQuery(rate("engine_held_back_total"), "steps delayed"),
        ),
        Unit.PER_SECOND,
        width=12,
    ),
    Panel(
        "Switches",
        "Switches of a risk class as each process received them, automatic escalations (if the plane is armed), "
        "and failed reads or writes of the policy.",
        (
            PanelQuery(rate("policy_switches_total", "instance"), "received by {{instance}}"),
            PanelQuery(rate("policy_escalations_total"), "by escalation"),
            PanelQuery(most("policy_escalation_armed"), "armed"),
            PanelQuery(rate("policy_failed_total", "what"), "failed: {{what}}"),
        ),
        width=12,
    ),
)


def _fallback(limits: PanelLimits) -> tuple[Panel, ...]:
    """Leases without the store."""
    return (
        Panel(
            "Fallback by risk class",
            f"Leases granted without the store, per second. The line is at {limits.fallback_rate:g}: above it, with "
            "rising duplicates, make high-risk classes fail closed. After recovery it must return to 0.",
            (PanelQuery(rate("lock_fallback_total", "risk"), "{{risk}}"),),
            Unit.PER_SECOND,
            PanelSteps.rising(min(1e-6, limits.fallback_rate), limits.fallback_rate),
        ),
    )


def policy(limits: PanelLimits) -> Row:
    """The row."""
    question = "What happens when the lease store fails, and its consequences."
    return Row("Error policy", question, (*_MODES, *_fallback(limits), *_COST))
