"""The first row: whether anything is wrong. Every number in it is green when no operator has to act."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, PanelKind, PanelSteps, Row, Unit
from holdfast.ops.dashboard.promql import CHOSEN, PanelQuery, most, rate, series, total, within_range, zero_if_none
from holdfast.ops.dashboard.thresholds import PanelLimits

_LEADING: Final = series("loop_leader", 'loop="reconciler"')
STALE_NOW: Final = f"{series('stale_jobs')} and on (job, instance) {_LEADING} == 1"  # former leaders keep old numbers


def summary(limits: PanelLimits) -> Row:
    """The row."""
    return Row("Is anything wrong?", "Whether an operator has to act now.", (*_first(), *_second(limits)))


def _stat(title: str, text: str, expression: str, steps: PanelSteps, unit: Unit = Unit.NUMBER) -> Panel:
    return Panel(title, text, (PanelQuery(expression),), unit, steps, PanelKind.STAT, width=3, height=4)


def _first() -> tuple[Panel, ...]:
    one = PanelSteps.none_allowed()
    return (
        _stat(
            "Alerts firing",
            "Alerts of Holdfast that fire now. Each names its runbook. They come from `holdfast alerts`; "
            "without those rules in Prometheus this is always 0.",
            zero_if_none('count(ALERTS{alertname=~"Holdfast.*", alertstate="firing"})'),
            one,
        ),
        _stat(
            "Processes not answering",
            "Processes that Prometheus cannot scrape. Usual: 0. Check whether they run; others take over their work.",
            zero_if_none(f"count(up{{{CHOSEN}}} == 0)"),
            one,
        ),
        _stat(
            "Components not running",
            "Components of live processes that do not work. Usual: 0. `/healthz` of the process prints the reason; a "
            "restart helps.",
            zero_if_none(f"count({series('part_running')} == 0)"),
            one,
        ),
        _stat(
            "Loops without one leader",
            "Loops with no leader, or with two. Usual: 0, except during a takeover. If it stays: "
            "see the row Loops, and `holdfast locks holdfast:`.",
            zero_if_none(f"count({total('loop_leader', 'loop')} != 1)"),
            one,
        ),
        Panel(
            "Lease store",
            "Whether any process considers the lease store down. Then new locks follow the policy of their risk "
            "class: see the row Error policy. `holdfast runbook store-outage`.",
            (PanelQuery(most("store_breaker_open")),),
            steps=one,
            kind=PanelKind.STAT,
            width=3,
            height=4,
            words={0: "up", 1: "down"},
        ),
        _stat(
            "Leases abandoned",
            "Leases abandoned in the time range because renewal failed. Usual: 0. The store or the network was too "
            "slow: see Holds and margins, and `holdfast history KEY` for one of them.",
            within_range("lock_abandoned_total"),
            one,
        ),
        _stat(
            "Leases lost",
            "Leases lost in the time range, for any reason. A few after a crash or a pause are usual; storage refuses "
            "late writes by their fences. For the reasons, see Holds and margins.",
            within_range("lock_lost_total"),
            PanelSteps.rising(1),
        ),
        _stat(
            "Duplicate ends",
            "Duplicate ends of jobs that storage refused in the time range. There should be none: two processes "
            "believed to own a job. `holdfast runbook duplicate-dispatch`, and `holdfast check` over the audit ledger.",
            within_range("plane_duplicate_ends_total"),
            one,
        ),
    )


def _second(limits: PanelLimits) -> tuple[Panel, ...]:
    one = PanelSteps.none_allowed()
    refused = 'outcome="refused"'
    both = " + ".join(within_range(name, where=refused) for name in ("guard_steps_total", "run_guard_steps_total"))
    not_owned, released = rate("lock_not_owned_total"), rate("lock_released_total")
    return (
        _stat(
            "Fallback grants",
            "Leases granted without the store, per second. Usual: 0. Otherwise races are possible. From "
            f"{limits.fallback_rate:g} per second for {limits.fallback_window:g} s with rising duplicates, switch "
            "high-risk classes to fail closed: `holdfast policy set`. `holdfast runbook store-outage`.",
            rate("lock_fallback_total"),
            PanelSteps.rising(min(1e-6, limits.fallback_rate), limits.fallback_rate),
            Unit.PER_SECOND,
        ),
        _stat(
            "Stale writes refused",
            "Stale writes to jobs and runs that storage refused in the time range. No data was damaged; an owner "
            "had lost its lease without noticing. Many: check for pauses, in the row Process.",
            both,
            PanelSteps.rising(1),
        ),
        _stat(
            "Releases of others' locks",
            "Share of releases that were refused because another owner held the lock by then. Usual: 0. A lasting "
            "share is a matter of timing: TTLs too short for the work, or pauses. `holdfast runbook not-owned`.",
            f"{not_owned} / ({not_owned} + {released} > 0) or vector(0)",
            PanelSteps.rising(0.001, 0.01),
            Unit.SHARE,
        ),
        _stat(
            "Renewal delay",
            "How late the slowest process is with renewals. Usual: 0. Beyond the shortest renewal interval, "
            f"{limits.renew_every:.3g} s, leases will be lost and `/healthz` fails: the process is starved or paused.",
            most("keeper_heartbeat_age_seconds"),
            PanelSteps.rising(limits.renew_every / 2, limits.renew_every),
            Unit.SECONDS,
        ),
        _stat(
            "Stale jobs",
            "Overdue jobs by state, from the leading reconciler. Usual: 0; it ends them at its tick. If "
            "it stays: see the row Jobs and runs.",
            zero_if_none(f"sum({STALE_NOW})"),
            PanelSteps.rising(1),
        ),
        _stat(
            "Dead letters",
            "Messages dead-lettered in the time range. `holdfast jobs dead-letters` lists them.",
            within_range("bus_dead_letters_total"),
            PanelSteps.rising(1),
        ),
        _stat(
            "Workers stuck",
            "Functions that were asked to stop and still run. They keep their slot until they end; only a restart of "
            "the worker helps.",
            total("worker_stuck"),
            PanelSteps.rising(1),
        ),
        _stat(
            "Audit records lost",
            "Records that the audit ledger could not write, in the time range. There should be none: check the disk.",
            within_range("audit_dropped_total"),
            one,
        ),
    )
