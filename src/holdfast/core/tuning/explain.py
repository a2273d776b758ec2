"""A recommendation in sentences: why this TTL, what an SLO costs, and what to do when it cannot be kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.core.lease import timing as arithmetic
from holdfast.core.lease.timing import DEFAULT_FAILURES, Timing
from holdfast.core.tuning.percentiles import shown
from holdfast.core.tuning.ttl import USUAL_PARTS, Binding, FamilyDemand, Recommendation, margin_ns

NEGLIGIBLE: Final = 1e-9
RENEWAL = "renew the lease while the work runs, with a TTL that the SLO allows; the length of the work no longer counts"
SHORTER_WORK = "cut the work under the lock into shorter pieces, each with a lock of its own"
MECHANISMS = (
    "a supervisor that knows of the death breaks the lock immediately: holdfast release NAME --reason …",
    "leases in a SQLite file: those of a process that died on the same host are free immediately, whatever their TTL",
    "a store that ends leases with the session of their holder",
    "take over before the lease is over, under a higher fence, where guarded storage refuses the old holder's writes",
)


def sentences(demand: FamilyDemand, found: Recommendation) -> list[str]:
    """What a person should know, most important first."""
    return list(_sentences(demand, found))


def mechanisms(renewed: bool) -> tuple[str, ...]:
    """What could keep an SLO that expiry cannot."""
    return MECHANISMS if renewed else (RENEWAL, SHORTER_WORK, *MECHANISMS)


def added(found: Recommendation) -> str:
    """The sum that the TTL, or the silence that it must outlive, was made of."""
    total = sum(term.ns for term in found.terms)
    whole = f" = {shown(total)}" if len(found.terms) > 1 else ""
    return _parts(found) + whole


def _parts(found: Recommendation) -> str:
    return " + ".join(f"{term.name} {shown(term.ns)}" for term in found.terms)


def _sentences(demand: FamilyDemand, found: Recommendation) -> Iterator[str]:
    if found.refused is not None:
        yield f"no recommendation: {found.refused}"
    yield from _slo(demand, found)
    if found.timing is not None:
        yield from _because(demand, found)
        yield from _trust(found)
    for each in found.too_long:
        yield (
            f"a pause of {shown(each.ns)} was seen ({each.source}): within the takeover SLO it cannot be told "
            "from a death, so no TTL budgets for it; fences keep its late writes out"
        )
    if demand.slo is None:
        yield (
            "there is no takeover SLO, and without one a TTL is a guess: state it in seconds, with --slo or as "
            "takeover in the settings"
        )


def _slo(demand: FamilyDemand, found: Recommendation) -> Iterator[str]:
    slo, present = demand.slo, demand.present
    if slo is None:
        return
    refused = False
    if present is not None:
        bound = present.ns + demand.detection.of(present.ns)
        refused = bound > slo.ns
        if refused:
            yield (
                f"a takeover SLO of {shown(slo.ns)} is impossible with a TTL of {shown(present.ns)} unless something "
                f"else than expiry detects the crash: TTL + detection = {shown(present.ns)} + "
                f"{shown(bound - present.ns)} = {shown(bound)}; it allows at most {shown(found.longest_ns or 0)}"
            )
    if found.timing is not None and not found.possible and found.takeover_ns is not None:
        needed = f"pauses and the store's tail need {shown(found.timing.ttl_ns)}" if found.renewed else added(found)
        yield (
            f"no TTL keeps a takeover SLO of {shown(slo.ns)} here: {needed}, "
            f"and that is taken over after up to {shown(found.takeover_ns)}"
        )
    if not found.possible or (refused and found.timing is None):
        yield from (f"instead: {each}" for each in mechanisms(found.renewed))


def _because(demand: FamilyDemand, found: Recommendation) -> Iterator[str]:
    made = found.timing
    if made is None or found.binding is None:
        return
    ttl = shown(made.ttl_ns)
    longest = "" if found.longest_ns is None else f", and the SLO allows at most {shown(found.longest_ns)}"
    if not found.renewed:
        yield f"TTL {ttl} = {_parts(found)}"
        kept = made.ttl_ns - sum(term.ns for term in found.terms if term.name != "guard")
        if kept < arithmetic.drift_ns(made.ttl_ns):
            yield (
                f"the guard of {shown(kept)} is less than the {shown(arithmetic.drift_ns(made.ttl_ns))} by which "
                "clocks may disagree: the holder stops trusting the lease that much before its end"
            )
        yield f"if it is renewed: every {shown(made.renew_every_ns)}, a third of the TTL"
        return
    needed = shown(found.shortest_ns or 0)
    whys = {
        Binding.SLO: f"TTL {ttl}: the longest that the takeover SLO allows; {added(found)} needs at least {needed}",
        Binding.SILENCE: f"TTL {ttl}: with it a renewal is in time that was held up by {added(found)}{longest}",
        Binding.NEITHER: f"TTL {ttl} may stay: {added(found)} needs at least {needed}{longest}",
        Binding.SHORTEST: f"TTL {ttl}: no lease may be shorter",
    }
    yield whys[found.binding]
    yield (
        f"the holder stops {shown(found.deadline_ns or 0)} after the last confirmed renewal; a renewal may come "
        f"{shown(margin_ns(made, found.tail_ns))} late"
    )
    if made.renew_every_ns < made.ttl_ns // USUAL_PARTS:
        yield (
            f"renew every {shown(made.renew_every_ns)} rather than every third of the TTL: jitter is high for it; that "
            f"is {made.ttl_ns / made.renew_every_ns:.0f} renewals in a TTL for the store"
        )
    now = demand.timing
    if (
        now is not None
        and _renewals(now) != _renewals(made)
        and (demand.every, demand.failures) != (None, DEFAULT_FAILURES)
    ):
        yield f"now {_renewals(now)}; it should be {_renewals(made)}"


def _renewals(timing: Timing) -> str:
    after = "1 failure" if timing.failures_max == 1 else f"{timing.failures_max} failures in a row"
    return f"renewed every {shown(timing.renew_every_ns)} and given up after {after}"


def _trust(found: Recommendation) -> Iterator[str]:
    loss = found.false_loss
    if not found.renewed:
        return
    if loss is None:
        yield "how often a lease would be lost for nothing is not known: at least 100 recorded renewals are needed"
        return
    most = "at most " if loss.bound else "about "
    yield (
        f"lost for nothing, in an hour of holding: {chance(loss.per_hour_apart)} if requests fail apart from each "
        f"other, {most}{loss.per_hour_together:.2g} if all fail once one does (the model: {loss.attempts} attempts in "
        f"a period, none answered in time; from {loss.requests:,} recorded requests)"
    )


def chance(value: float) -> str:
    """A probability for people. Smaller values cannot be known."""
    return f"below {NEGLIGIBLE:g}" if value < NEGLIGIBLE else f"{value:.2g}"
