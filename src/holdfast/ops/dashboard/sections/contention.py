"""The row about contention: who waits for locks, for how long, and whether retries come in waves."""

from __future__ import annotations

from typing import Final

from holdfast.ops.alerts.thresholds import ENVELOPE_SHARE
from holdfast.ops.dashboard.panels import Panel, PanelSteps, Row, Unit
from holdfast.ops.dashboard.promql import QUANTILES, PanelQuery, fano, items_only, most, quantile, rate, total
from holdfast.ops.dashboard.thresholds import PanelLimits

_ITEMS: Final = items_only()
_BUSY: Final = rate("lock_busy_total", "family", where=_ITEMS)
_GRANTED: Final = rate("lock_granted_total", "family", where=_ITEMS)

_CROWDS: Final = (
    Panel(
        "Callers waiting",
        "Callers that wait for a lock now. A series that only rises: a holder does not release its lock, or there "
        "is more work than the locks can serialize. `holdfast runbook lock-debt`.",
        (PanelQuery(total("locks_waiting", "family", where=_ITEMS), "{{family}}"),),
        width=6,
        stacked=True,
    ),
    Panel(
        "Leases held",
        "Leases that are held now, by family. Loops hold one each.",
        (PanelQuery(total("locks_held", "family"), "{{family}}"),),
        width=6,
        stacked=True,
    ),
    Panel(
        "Attempts that found the lock held",
        "Share of lock requests that found the lock held by another owner: the same work was requested twice at the "
        "same time. Loops are excluded: all replicas but one always find the lock held.",
        (PanelQuery(f"{_BUSY} / ({_BUSY} + {_GRANTED} > 0)", "{{family}}"),),
        Unit.SHARE,
        width=6,
        top=1,
    ),
    Panel(
        "Waits that timed out",
        "Waits per second that ended without the lock, by family. The work is retried automatically.",
        (PanelQuery(rate("lock_timed_out_total", "family", where=_ITEMS), "{{family}}"),),
        Unit.PER_SECOND,
        width=6,
    ),
)


def _waits(limits: PanelLimits) -> tuple[Panel, ...]:
    envelope = PanelSteps.rising(ENVELOPE_SHARE * limits.envelope, limits.envelope)
    return tuple(
        Panel(
            f"Wait for locks, {p}",
            "How long callers waited, by family, whether they got the lock or not. Loops are excluded: replicas that "
            f"do not lead wait forever. Handlers give up after {limits.envelope:g} s and are retried later; values at "
            "that mark mean that work is delayed. Which keys: `holdfast locks`.",
            (PanelQuery(quantile(share, "lock_wait_seconds", "family", where=_ITEMS), "{{family}}"),),
            Unit.SECONDS,
            envelope,
        )
        for p, share in QUANTILES.items()
    )


def _waves(limits: PanelLimits) -> tuple[Panel, ...]:
    """Retries, and the work that they delay."""
    return (
        Panel(
            "Retry waves, Fano factor",
            "How bunched busy retries of the last minute were, worst process; and those of all processes together in "
            "five minutes, for processes that retry in phase. About 1: random. Far above 1 in "
            f"buckets of 50 ms: waves every {limits.busy_delay:g} s, and `scheduler.busy_jitter` spreads them. "
            "`holdfast runbook retry-waves`.",
            (
                PanelQuery(most("lock_busy_fano", "bucket"), "buckets of {{bucket}}"),
                PanelQuery(fano("lock_busy_groups_total", "group"), "all processes"),
            ),
            steps=None if limits.wave is None else PanelSteps.rising(limits.wave),
            width=6,
        ),
        Panel(
            "Retry waves, peak to mean",
            "The worst bucket of the last minute compared with an average one. Compare before and after a "
            "change of delays, under the same load.",
            (PanelQuery(most("lock_busy_peak_to_mean", "bucket"), "buckets of {{bucket}}"),),
            width=6,
        ),
        Panel(
            "Job and run locks: wait, p99",
            "The same waits, by component: schedulers, loops, engines. Runs: `holdfast runbook workflow-contention`.",
            (
                PanelQuery(quantile(0.99, "job_lock_wait", "part"), "job, {{part}}"),
                PanelQuery(quantile(0.99, "run_lock_wait", "part"), "run, {{part}}"),
            ),
            Unit.SECONDS,
            PanelSteps.rising(ENVELOPE_SHARE * limits.envelope, limits.envelope),
            width=6,
        ),
        Panel(
            "Delayed work",
            "Messages and items delayed per second: the lock was busy, or a store failed.",
            (
                PanelQuery(rate("job_lock_busy_total", "part"), "job busy, {{part}}"),
                PanelQuery(rate("run_lock_busy_total", "part"), "run busy, {{part}}"),
                PanelQuery(rate("job_lock_backend_errors_total", "part"), "job store, {{part}}"),
                PanelQuery(rate("run_lock_backend_errors_total", "part"), "run store, {{part}}"),
            ),
            Unit.PER_SECOND,
            width=6,
        ),
    )


def contention(limits: PanelLimits) -> Row:
    """The row."""
    question = "Who waits for locks, for how long, and whether retries come in waves."
    return Row("Contention", question, (*_waits(limits), *_CROWDS, *_waves(limits)))
