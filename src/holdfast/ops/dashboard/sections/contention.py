"""The row about contention: who waits for locks, for how long, and whether retries come in waves."""

from __future__ import annotations

from typing import Final

from holdfast.ops.alerts.thresholds import ENVELOPE_SHARE
from holdfast.ops.dashboard.panels import Panel, Row, Steps, Unit
from holdfast.ops.dashboard.promql import QUANTILES, Query, items_only, most, quantile, rate, total
from holdfast.ops.dashboard.thresholds import Limits

_ITEMS: Final = items_only()
_BUSY: Final = rate("lock_busy_total", "family", where=_ITEMS)
_GRANTED: Final = rate("lock_granted_total", "family", where=_ITEMS)

_CROWDS: Final = (
    Panel(
        "Callers waiting",
        "Callers that wait for a lock now. A line that only rises: somebody holds a lock and does not let go, or there "
        "is more work than the locks let through. `holdfast runbook lock-debt`.",
        (Query(total("locks_waiting", "family", where=_ITEMS), "{{family}}"),),
        width=6,
        stacked=True,
    ),
    Panel(
        "Leases held",
        "Leases that are held now, by family. Loops hold one each.",
        (Query(total("locks_held", "family"), "{{family}}"),),
        width=6,
        stacked=True,
    ),
    Panel(
        "Attempts that found the lock held",
        "Of all times that the store was asked for a lock, those that found somebody else: the same work was wanted "
        "twice at once. Loops are left out: all replicas but one find somebody else, always.",
        (Query(f"{_BUSY} / ({_BUSY} + {_GRANTED} > 0)", "{{family}}"),),
        Unit.SHARE,
        width=6,
        top=1,
    ),
    Panel(
        "Waits that ended in vain",
        "Waits a second that ended without the lock, by family. The work comes again by itself.",
        (Query(rate("lock_timed_out_total", "family", where=_ITEMS), "{{family}}"),),
        Unit.PER_SECOND,
        width=6,
    ),
)


def _waits(limits: Limits) -> tuple[Panel, ...]:
    envelope = Steps.rising(ENVELOPE_SHARE * limits.envelope, limits.envelope)
    return tuple(
        Panel(
            f"Wait for locks, {p}",
            "How long callers waited, by family, whether they got the lock or not. Loops are left out: who does not "
            f"lead waits for ever. Handlers give up after {limits.envelope:g} s and come again later, so a line at "
            "that mark means that work is being put off. Which keys: `holdfast locks`.",
            (Query(quantile(share, "lock_wait_seconds", "family", where=_ITEMS), "{{family}}"),),
            Unit.SECONDS,
            envelope,
        )
        for p, share in QUANTILES.items()
    )


def _waves(limits: Limits) -> tuple[Panel, ...]:
    """Retries, and what they put off."""
    return (
        Panel(
            "Retry waves, Fano factor",
            "How bunched busy retries of the last minute were, worst process. About 1: at random. Far above 1 in "
            f"buckets of 50 ms: waves every {limits.busy_delay:g} s, and `scheduler.busy_jitter` spreads them. "
            "`holdfast runbook retry-waves`.",
            (Query(most("lock_busy_fano", "bucket"), "buckets of {{bucket}}"),),
            steps=None if limits.wave is None else Steps.rising(limits.wave),
            width=6,
        ),
        Panel(
            "Retry waves, peak to mean",
            "How much worse the worst bucket of the last minute was than an average one. Compare before and after a "
            "change of delays, under the same load.",
            (Query(most("lock_busy_peak_to_mean", "bucket"), "buckets of {{bucket}}"),),
            width=6,
        ),
        Panel(
            "Job and run locks: wait, p99",
            "The same waits, as the parts see them: schedulers, loops, engines. "
            "Runs: `holdfast runbook workflow-contention`.",
            (
                Query(quantile(0.99, "job_lock_wait", "part"), "job, {{part}}"),
                Query(quantile(0.99, "run_lock_wait", "part"), "run, {{part}}"),
            ),
            Unit.SECONDS,
            Steps.rising(ENVELOPE_SHARE * limits.envelope, limits.envelope),
            width=6,
        ),
        Panel(
            "Work put off",
            "Messages and items put off a second: the lock was busy, or a store failed.",
            (
                Query(rate("job_lock_busy_total", "part"), "job busy, {{part}}"),
                Query(rate("run_lock_busy_total", "part"), "run busy, {{part}}"),
                Query(rate("job_lock_backend_errors_total", "part"), "job store, {{part}}"),
                Query(rate("run_lock_backend_errors_total", "part"), "run store, {{part}}"),
            ),
            Unit.PER_SECOND,
            width=6,
        ),
    )


def contention(limits: Limits) -> Row:
    """The whole row."""
    question = "Who waits for locks, for how long, and whether retries come in waves."
    return Row("Contention", question, (*_waits(limits), *_CROWDS, *_waves(limits)))
