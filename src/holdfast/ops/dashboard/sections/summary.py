"""The first row: whether anything is wrong. Every number in it is green when nobody has to get up."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Kind, Panel, Row, Steps, Unit
from holdfast.ops.dashboard.promql import CHOSEN, Query, most, rate, series, total, within_range, zero_if_none
from holdfast.ops.dashboard.thresholds import Limits

_LEADING: Final = series("loop_leader", 'loop="reconciler"')
STALE_NOW: Final = f"{series('stale_jobs')} and on (job, instance) {_LEADING} == 1"  # who led before remembers its own


def summary(limits: Limits) -> Row:
    """The whole row."""
    return Row("Is anything wrong?", "Whether somebody has to do something now.", (*_first(), *_second(limits)))


def _stat(title: str, text: str, expression: str, steps: Steps, unit: Unit = Unit.NUMBER) -> Panel:
    return Panel(title, text, (Query(expression),), unit, steps, Kind.STAT, width=3, height=4)


def _first() -> tuple[Panel, ...]:
    one = Steps.none_allowed()
    return (
        _stat(
            "Alerts firing",
            "Alerts of Holdfast that fire now. Each says which runbook to run. They come from `holdfast alerts`; "
            "without those rules in Prometheus this is always 0.",
            zero_if_none('count(ALERTS{alertname=~"Holdfast.*", alertstate="firing"})'),
            one,
        ),
        _stat(
            "Processes not answering",
            "Processes that Prometheus cannot scrape. Usual: 0. Look whether they run; others take over their work.",
            zero_if_none(f"count(up{{{CHOSEN}}} == 0)"),
            one,
        ),
        _stat(
            "Parts not running",
            "Parts of living processes that do not do their work. Usual: 0. `/healthz` of the process says why; a "
            "restart helps.",
            zero_if_none(f"count({series('part_running')} == 0)"),
            one,
        ),
        _stat(
            "Loops without one leader",
            "Loops that no process leads, or two. Usual: 0, but for the time that it takes to take over. If it stays: "
            "see the row Loops, and `holdfast locks holdfast:`.",
            zero_if_none(f"count({total('loop_leader', 'loop')} != 1)"),
            one,
        ),
        Panel(
            "Lease store",
            "Whether any process takes the lease store to be down. Then new locks follow the policy of their risk "
            "class: see the row Error policy. `holdfast runbook store-outage`.",
            (Query(most("store_breaker_open")),),
            steps=one,
            kind=Kind.STAT,
            width=3,
            height=4,
            words={0: "up", 1: "down"},
        ),
        _stat(
            "Leases abandoned",
            "Leases given up in the time shown because renewal failed. Usual: 0. The store or the network was too "
            "slow: see Holds and margins, and `holdfast history KEY` for one of them.",
            within_range("lock_abandoned_total"),
            one,
        ),
        _stat(
            "Leases lost",
            "Leases lost in the time shown, for any reason. A few after a crash or a pause are usual; their writers "
            "are refused by their fence. Which reason: see Holds and margins.",
            within_range("lock_lost_total"),
            Steps.rising(1),
        ),
        _stat(
            "Duplicate ends",
            "Second ends of a job that storage refused, in the time shown. There should be none: two processes "
            "believed to own a job. `holdfast runbook duplicate-dispatch`, and `holdfast check` over the audit ledger.",
            within_range("plane_duplicate_ends_total"),
            one,
        ),
    )


def _second(limits: Limits) -> tuple[Panel, ...]:
    one = Steps.none_allowed()
    refused = 'outcome="refused"'
    both = " + ".join(within_range(name, where=refused) for name in ("guard_steps_total", "run_guard_steps_total"))
    not_owned, released = rate("lock_not_owned_total"), rate("lock_released_total")
    return (
        _stat(
            "Fallback grants",
            "Leases given without the store, a second. Usual: 0. While it is not, races are possible. From "
            f"{limits.fallback_rate:g} a second for {limits.fallback_window:g} s with rising duplicates, switch "
            "high-risk classes to fail closed: `holdfast policy set`. `holdfast runbook store-outage`.",
            rate("lock_fallback_total"),
            Steps.rising(min(1e-6, limits.fallback_rate), limits.fallback_rate),
            Unit.PER_SECOND,
        ),
        _stat(
            "Stale writes refused",
            "Writes to jobs and runs that storage refused as stale, in the time shown. Nothing was harmed; somebody "
            "had lost a lease and did not know. Many: look at pauses, in the row Process.",
            both,
            Steps.rising(1),
        ),
        _stat(
            "Releases of others' locks",
            "Of all releases, those refused because somebody else had the lock by then. Usual: 0. A lasting share is "
            "a matter of timing: TTLs too short for the work, or pauses. `holdfast runbook not-owned`.",
            f"{not_owned} / ({not_owned} + {released} > 0) or vector(0)",
            Steps.rising(0.001, 0.01),
            Unit.SHARE,
        ),
        _stat(
            "Keeper behind by",
            "How long the slowest process is late with renewals. Usual: 0. Beyond the shortest renewal interval, "
            f"{limits.renew_every:.3g} s, leases will be lost and `/healthz` fails: the process is starved or paused.",
            most("keeper_heartbeat_age_seconds"),
            Steps.rising(limits.renew_every / 2, limits.renew_every),
            Unit.SECONDS,
        ),
        _stat(
            "Stale jobs",
            "Jobs that are overdue in their state, by the leading reconciler. Usual: 0; it ends them at its tick. If "
            "it stays: see the row Jobs and runs.",
            zero_if_none(f"sum({STALE_NOW})"),
            Steps.rising(1),
        ),
        _stat(
            "Dead letters",
            "Messages given up in the time shown. `holdfast jobs dead` lists them.",
            within_range("bus_dead_letters_total"),
            Steps.rising(1),
        ),
        _stat(
            "Workers stuck",
            "Functions that were told to stop and still run. They keep their place until they end; only a restart of "
            "the worker helps.",
            total("worker_stuck"),
            Steps.rising(1),
        ),
        _stat(
            "Audit records lost",
            "Records that the audit ledger could not write, in the time shown. There should be none: look at the disk.",
            within_range("audit_dropped_total"),
            one,
        ),
    )
