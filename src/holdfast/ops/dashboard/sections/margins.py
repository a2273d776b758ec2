"""The row about holds: how long leases are held, how much time is left at renewal, and how leases end."""

from __future__ import annotations

from typing import Final

from holdfast.ops.dashboard.panels import Panel, PanelSteps, Row, Unit
from holdfast.ops.dashboard.promql import PanelQuery, by_family, most, quantile, quantiles, rate
from holdfast.ops.dashboard.thresholds import PanelLimits
from holdfast.plane.settings.inventory import LockEntry

_LEAST: Final = 0.01  # of renewals: those with the smallest margin

_HOLDS: Final = (
    Panel(
        "Hold by job class",
        "How long workers hold a job, by topic. Choose TTLs and time limits by the p99.",
        quantiles("worker_hold_seconds", "topic"),
        Unit.SECONDS,
        width=12,
    ),
    Panel(
        "Hold by component, p99",
        "How long schedulers, loops and engines hold the lock of one job or run. Usual: milliseconds. Seconds: the "
        "database is slow, see its row.",
        (
            PanelQuery(quantile(0.99, "job_lock_hold", "part"), "job, {{part}}"),
            PanelQuery(quantile(0.99, "run_lock_hold", "part"), "run, {{part}}"),
        ),
        Unit.SECONDS,
        width=12,
    ),
)


_ENDS: Final = (
    Panel(
        "Leases lost, by reason",
        "expired: it was not renewed, or the process was paused. unconfirmed: the store did not answer in time. "
        "stolen: broken by force, or the store lost it. max_hold, stalled: the work took too long. `holdfast "
        "history KEY` prints the events of a lock.",
        (PanelQuery(rate("lock_lost_total", "reason"), "{{reason}}"),),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Leases lost, by family",
        "The same losses, by family. Loops: another process leads by now. Items: another process does the work, and "
        "storage refuses late writes of the old holder.",
        (PanelQuery(rate("lock_lost_total", "family"), "{{family}}"),),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Abandoned",
        "Leases abandoned because renewal failed, by family, and job and run locks lost while the work ran.",
        (
            PanelQuery(rate("lock_abandoned_total", "family"), "{{family}}"),
            PanelQuery(rate("job_lock_abandoned_total", "part"), "job, {{part}}"),
            PanelQuery(rate("run_lock_abandoned_total", "part"), "run, {{part}}"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
    Panel(
        "Releases",
        "How leases end. Refused: another owner held it by then. Unanswered: they expire. Broken: by an operator "
        "(`holdfast audit`). Released late: granted too late to be used.",
        (
            PanelQuery(rate("lock_released_total"), "released"),
            PanelQuery(rate("lock_not_owned_total"), "refused"),
            PanelQuery(rate("lock_release_failures_total"), "unanswered"),
            PanelQuery(rate("lock_forced_total"), "broken"),
            PanelQuery(rate("lock_compensated_total"), "released late"),
        ),
        Unit.PER_SECOND,
        width=6,
    ),
)


def _held(line: LockEntry) -> Panel:
    renewed = line.ttl / 3 if line.renew_every is None else line.renew_every
    return Panel(
        f"Hold of {line.family}",
        f"How long these leases are held (TTL {line.ttl:g} s, renewed every {renewed:g} s). Above the first line they "
        "were renewed; above the second they would have expired without renewal. Usual for workers; for "
        "others a sign of a slow dependency. Before a change of TTL: `holdfast runbook before-ttl-change`, "
        "`holdfast tune`.",
        quantiles("lock_hold_seconds", where=f'family="{line.family}"'),
        Unit.SECONDS,
        PanelSteps.rising(renewed, line.ttl),
        width=6,
    )


def _renewals(limits: PanelLimits) -> tuple[Panel, ...]:
    """How narrowly leases are kept."""
    nearest = quantile(_LEAST, "lock_renew_remaining_seconds", "family")
    left = f"({nearest}) / on (family) ({by_family(limits.ttl)})"
    return (
        Panel(
            "Least left at renewal",
            "The smallest part of the TTL left at a renewal, by family. Usual: above half, as leases are renewed at a "
            "third. Below a third, a renewal was missed; below "
            f"{limits.loss_share:.0%} the holder stops. Check the store's latency and pauses.",
            (PanelQuery(left, "{{family}}"),),
            Unit.SHARE,
            PanelSteps.falling(limits.loss_share, 1 / 3),
            top=1,
        ),
        Panel(
            "Renewal requests",
            "How long the store takes to renew, and about the slowest of a thousand. Everything else depends on this: "
            "safety margins grow with it.",
            (
                *quantiles("lock_renew_seconds", where='outcome="answered"'),
                PanelQuery(most("lock_renew_tail_seconds"), "slowest"),
            ),
            Unit.SECONDS,
            PanelSteps.rising(limits.slow_renewal, 2 * limits.slow_renewal),
        ),
        Panel(
            "Renewals",
            "Renewals per second that the store confirmed, and those that it did not. A lease survives some "
            "unconfirmed ones, because it has several tries.",
            (
                PanelQuery(rate("lock_renewed_total"), "confirmed"),
                PanelQuery(rate("lock_unconfirmed_total"), "not confirmed"),
                PanelQuery(rate("lock_store_errors_total"), "acquisitions without an answer"),
            ),
            Unit.PER_SECOND,
        ),
    )


def margins(limits: PanelLimits) -> Row:
    """The row."""
    question = "How long leases are held, and how much time is left when they are renewed."
    panels = (*map(_held, limits.items), *_HOLDS, *_renewals(limits), *_ENDS)
    return Row("Holds and margins", question, panels)
