"""`holdfast runbook not-owned`: leases are lost, or releases are refused because another owner holds the key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from holdfast.core.history.events import EventKind
from holdfast.ops.runbooks.collectors.locks import (
    FORCED_STEP,
    HELD_STEP,
    LATE_SHARE,
    ledger_step,
    metrics_step,
)
from holdfast.ops.runbooks.collectors.servers import STORE_STEP
from holdfast.ops.runbooks.evidence.ledger import CAUSES, Cause, LedgerFact, Loss
from holdfast.ops.runbooks.evidence.locks import ForcedFact, HeldFact, StoreFact, number, span
from holdfast.ops.runbooks.evidence.metrics import Aggregation, MetricQuery, MetricsFact
from holdfast.ops.runbooks.model import Case, Conclusion, FindingRule, FindingSeverity, NextStep, Runbook, typed
from holdfast.plane.settings.inventory import inventory

BURST: Final = 3
RATIO: Final = 0.05
KEEPER_BEHIND_S: Final = 1.0
SLOW_SHARE: Final = 0.1
"""The safety margin of a lease: how slow a renewal may be before the holder stops, as a share of the TTL."""


def _unexplained(case: Case, ledger: LedgerFact) -> list[Loss]:
    """Losses that no operator has caused."""
    forced = case.fact("forced", ForcedFact)
    broken = {each.key for each in forced.records} if forced is not None else set()
    return [each for each in ledger.losses if not (each.cause is Cause.TAKEN and each.key in broken)]


def _many(losses: list[Loss], ledger: LedgerFact) -> bool:
    return len(losses) >= BURST and len(losses) >= RATIO * max(1, ledger.count(EventKind.GRANTED))


def _main_cause(losses: list[Loss]) -> Cause:
    known = Counter(each.cause for each in losses if each.cause is not Cause.OTHER)
    return known.most_common(1)[0][0] if known else Cause.OTHER


def _burst(cause: Cause, advice: Callable[[Loss], tuple[NextStep, ...]]) -> FindingRule:
    def judge(case: Case) -> Conclusion | None:
        ledger = case.fact("losses", LedgerFact)
        losses = [] if ledger is None else _unexplained(case, ledger)
        if ledger is None or not _many(losses, ledger) or _main_cause(losses) is not cause:
            return None
        own = [each for each in losses if each.cause is cause]
        families = Counter(each.family for each in own)
        who = Counter(_host(each.owner) for each in own)
        sentence = (
            f"{number(len(losses), 'lease was', 'leases were')} lost or refused in {span(ledger.window_s)} "
            f"({len(own)} alike: {', '.join(f'{name} {times}' for name, times in families.most_common(3))}), "
            f"by {CAUSES[cause]}. Most belong to {who.most_common(1)[0][0]}."
        )
        newest = own[0]
        history = typed("holdfast", "history", newest.key)
        follow = (NextStep(f"{history} --ledger LEDGER", "the events of the newest one"),)
        return Conclusion(sentence, ("losses", "forced"), (*advice(newest), *follow))

    when = (
        f"at least {BURST} leases were lost or refused in the window, which is at least {RATIO:.0%} of the grants, "
        f"and most by {CAUSES[cause]}"
    )
    return FindingRule(f"burst: {cause}", FindingSeverity.ACT, when, judge)


def _host(owner: str) -> str:
    return owner.partition(":")[0] or "?"


def _tune(loss: Loss) -> NextStep:
    return NextStep(
        typed("holdfast", "tune", "--family", loss.family), "the TTL and renewal interval that the data suggests"
    )


_BEFORE: Final = NextStep("holdfast runbook before-ttl-change", "before any TTL is changed")


def _after_pause(loss: Loss) -> tuple[NextStep, ...]:
    look = f"ssh {_host(loss.owner).partition('@')[2] or _host(loss.owner)} 'dmesg -T | tail; cat /proc/pressure/cpu'"
    return (
        NextStep(look, "whether the host was suspended, starved or throttled"),
        _tune(loss),
        _BEFORE,
    )


def _after_network(loss: Loss) -> tuple[NextStep, ...]:
    return NextStep("holdfast runbook store-outage", "whether the store is slow or down"), _tune(loss)


def _after_outliving(loss: Loss) -> tuple[NextStep, ...]:
    return _tune(loss), _BEFORE


def _after_taking(_loss: Loss) -> tuple[NextStep, ...]:
    return (
        NextStep("holdfast audit", "whether an operator broke locks by force"),
        NextStep("holdfast runbook store-outage", "whether the store was restarted, evicts keys or has failed over"),
    )


def _forced(case: Case) -> Conclusion | None:
    ledger, forced = case.fact("losses", LedgerFact), case.fact("forced", ForcedFact)
    if ledger is None or forced is None or not ledger.losses or _unexplained(case, ledger):
        return None
    actors = ", ".join(sorted({each.actor for each in forced.records}))
    sentence = (
        f"{number(len(ledger.losses), 'lease was', 'leases were')} lost, each of a lock that was broken by force "
        f"({actors}): not owned is the correct result, and the timing is fine."
    )
    return Conclusion(sentence, ("losses", "forced"), (NextStep("holdfast audit", "who broke which lock, and why"),))


def _few(case: Case) -> Conclusion | None:
    ledger = case.fact("losses", LedgerFact)
    losses = [] if ledger is None else _unexplained(case, ledger)
    if ledger is None or not losses or _many(losses, ledger):
        return None
    share = len(losses) / max(1, ledger.count(EventKind.GRANTED))
    sentence = (
        f"{number(len(losses), 'lease was', 'leases were')} lost or refused in {span(ledger.window_s)}, {share:.1%} of "
        f"the grants. Restarts and failovers cost that much; it is no reason to page."
    )
    return Conclusion(sentence, ("losses",), (), "sure, for this window; a lasting rise would be different")


def _ratio(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None or case.fact("losses", LedgerFact) is not None:
        return None
    granted = found.total("granted") or 0.0
    gone = (found.total("not owned") or 0.0) + (found.total("lost") or 0.0)
    if gone <= 0 or gone < RATIO * max(granted, gone):
        return None
    family, rate = max(found.worst("not owned"), found.worst("lost"), key=lambda each: each[1])
    sentence = (
        f"{gone:.3g} leases per second are lost or refused while {granted:.3g} are granted, {found.over}; most of "
        f"{family or '?'} ({rate:.3g}). Metrics do not show the cause."
    )
    sure = "likely: give --ledger DIR for the cause"
    if not found.long:
        sure += f"; {found.over} is short, --prometheus URL covers 5 minutes"
    step = NextStep("holdfast runbook not-owned --ledger DIR", "the cause of each loss is in the audit ledger")
    return Conclusion(sentence, ("rates",), (step,), sure)


def _keeper(case: Case) -> Conclusion | None:
    found = case.fact("rates", MetricsFact)
    if found is None:
        return None
    instance, behind = found.worst("keeper behind")
    if behind < KEEPER_BEHIND_S:
        return None
    sentence = f"The renewer of {instance or 'a process'} is {span(behind)} late: its leases will be lost next."
    steps = (NextStep(f"curl -s http://{instance}/healthz", "liveness fails as well, and a restart helps"),)
    return Conclusion(sentence, ("rates",), steps if instance else ())


def _behind(case: Case) -> Conclusion | None:
    found = case.fact("held", HeldFact)
    late = [lock for family in found.families for lock in family.late] if found is not None else []
    if not late:
        return None
    first = min(late, key=lambda each: each.remaining or 0.0)
    sentence = (
        f"{number(len(late), 'lease has', 'leases have')} missed a renewal: {first.key} of {first.owner} expires in "
        f"{span(first.remaining)}. Its holder has crashed, is paused, or cannot reach the store."
    )
    step = NextStep(typed("holdfast", "inspect", first.key), "whether it was renewed meanwhile")
    return Conclusion(
        sentence, ("held",), (step,), "likely: a holder that has just crashed looks the same, and is harmless"
    )


def _store_down(case: Case) -> Conclusion | None:
    found = case.fact("store", StoreFact)
    if found is None or not found.down:
        return None
    sentence = f"The lease store does not answer ({found.error}): every lease that is held now will be lost."
    step = NextStep("holdfast runbook store-outage", "what each risk class does now, and how to react")
    return Conclusion(sentence, ("store",), (step,))


def _slow(case: Case) -> Conclusion | None:
    found = case.fact("store", StoreFact)
    lines = [line for line in inventory(case.settings) if line.renew_every is not None]
    shortest = min(lines, key=lambda line: line.ttl)
    if found is None or found.slowest is None or found.slowest < SLOW_SHARE * shortest.ttl:
        return None
    sentence = (
        f"A PING took {span(found.slowest)}: leases of {shortest.family} last {span(shortest.ttl)} and stop when a "
        f"renewal is {span(SLOW_SHARE * shortest.ttl)} late."
    )
    return Conclusion(sentence, ("store",), (NextStep("holdfast runbook store-outage", "details about the store"),))


RUNBOOK: Final = Runbook(
    name="not-owned",
    title="Leases are lost, or releases are refused: lock not owned",
    when="`lock not owned` or `lock release skipped: token mismatch` in logs, or lost leases in metrics, in any path: "
    "jobs, workflows, approvals, loops",
    needs="--ledger for the cause of each loss; metrics for how many; the lease store",
    over="no loss is newer than the repair: run it again with `--since` set to the time of the repair, "
    "such as `--since 14:03`; it exits 0",
    steps=(
        metrics_step(
            "rates",
            "how often leases are lost or refused, by family, and whether renewals are slow",
            MetricQuery("not owned", "holdfast_lock_not_owned_total", by=("family",)),
            MetricQuery("lost", "holdfast_lock_lost_total", by=("family", "reason")),
            MetricQuery("granted", "holdfast_lock_granted_total", by=("family",)),
            MetricQuery("unconfirmed renewals", "holdfast_lock_unconfirmed_total", by=("family",)),
            MetricQuery(
                "slowest renewals",
                "holdfast_lock_renew_tail_seconds",
                Aggregation.NOW,
                ("instance",),
                worst=True,
                unit=" s",
            ),
            MetricQuery(
                "keeper behind",
                "holdfast_keeper_heartbeat_age_seconds",
                Aggregation.NOW,
                ("instance",),
                worst=True,
                unit=" s",
            ),
        ),
        ledger_step("losses", "each recent loss, and its cause from its autopsy"),
        FORCED_STEP,
        HELD_STEP,
        STORE_STEP,
    ),
    rules=(
        FindingRule("store down", FindingSeverity.ACT, "the lease store answers no PING", _store_down),
        _burst(Cause.PAUSE, _after_pause),
        _burst(Cause.NETWORK, _after_network),
        _burst(Cause.OUTLIVED, _after_outliving),
        _burst(Cause.TAKEN, _after_taking),
        _burst(Cause.CLOCK, _after_pause),
        FindingRule(
            "ratio",
            FindingSeverity.ACT,
            f"no ledger was given, and losses and refusals are at least {RATIO:.0%} of the grants",
            _ratio,
        ),
        FindingRule("keeper behind", FindingSeverity.ACT, f"a renewer is {KEEPER_BEHIND_S:g} s late or more", _keeper),
        FindingRule(
            "slow store",
            FindingSeverity.ACT,
            f"a PING takes {SLOW_SHARE:.0%} of the shortest renewed TTL or longer",
            _slow,
        ),
        FindingRule("forced", FindingSeverity.WATCH, "every loss is of a lock that an operator broke", _forced),
        FindingRule(
            "few", FindingSeverity.WATCH, f"fewer than {BURST} losses, or less than {RATIO:.0%} of the grants", _few
        ),
        FindingRule(
            "renewals behind",
            FindingSeverity.WATCH,
            f"a lease that is renewed has less than {LATE_SHARE:.0%} of its TTL left",
            _behind,
        ),
    ),
    fine="No lease was lost or refused, and renewals are in time.",
    essential=("losses", "store"),
)
