"""Which TTL, interval and failure budget a family of locks should have: arithmetic on evidence, nothing else.

Two kinds of lock, two rules. A lease that is *not renewed* must outlast its work: TTL = p99 of the hold + jitter (the
store's tail and the longest pause) + guard. A lease that *is renewed* lasts as long as its work anyway, so its TTL has
nothing to do with the hold: it must be short enough for the takeover SLO (TTL + the time until a waiter notices), and
long enough that a renewal which was held up by the longest pause and the slowest answers is still in time. Between
those two bounds the TTL that is set stays as it is; where they cross, the SLO cannot be kept by expiry alone, and that
is said, with what could keep it.

Promises: what a recommendation says about guard, drift, deadline and intervals is what the library does with that TTL,
because it is asked (`core.lease.timing`). No number without a source. Too few observations give no recommendation: a
guess looks like a number and is none. Times are nanoseconds; a TTL is rounded up to 10 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from holdfast.core.lease import timing as arithmetic
from holdfast.core.lease.timing import DEFAULT_FAILURES, DEFAULT_TTL, TTL_MAX_NS, TTL_MIN_NS, Timing, settle
from holdfast.core.timer_wheel import SLOT_NS
from holdfast.core.tuning.false_loss import FalseLoss, false_loss
from holdfast.core.tuning.percentiles import SourcedDuration, Spread, shown
from holdfast.errors import BadInput
from holdfast.types import MS, NS

STEP_NS: Final = 10 * MS
USUAL_PARTS: Final = 3  # a renewal every third of the TTL
MOST_PARTS: Final = 10  # more often than that loads the store, and gains little
TAILS: Final = 4
_TAILS_WHY: Final = "the answer that a pause cost, and for the next the third of what remains that one renewal may take"
DEATH_NS: Final = 60 * NS  # without an SLO: a pause too long to wait for


class Binding(StrEnum):
    """Which constraint decided the TTL."""

    HOLD = "hold"  # p99 of the work, which the lease must outlast
    SILENCE = "silence"  # pauses and the store's tail, which a renewal must survive
    SLO = "takeover SLO"
    NEITHER = "neither"  # what is set, or usual, keeps all of them
    SHORTEST = "shortest TTL"  # the library takes none below


class Detection(NamedTuple):
    """How long after the end of a lease the next owner acts: a retry, or a share of the TTL, whichever is less.

    The default is what a waiter of the library does by default.
    """

    most_ns: int | None = NS
    share: tuple[int, int] | None = (1, 3)
    source: str = "one retry of a waiter: 1 s, or a third of the TTL if that is less"

    def of(self, ttl_ns: int) -> int:
        """For a TTL."""
        part = None if self.share is None else ttl_ns * self.share[0] // self.share[1]
        return min(each for each in (self.most_ns, part) if each is not None)


@dataclass(frozen=True, slots=True)
class FamilyEvidence:
    """What was seen of one family. None: unknown, and the text beside it explains why."""

    family: str
    renewed: bool = True
    hold: SourcedDuration | None = None  # p99, of the job class with the longest
    no_hold: str = "nothing is known of holds"
    tail: SourcedDuration | None = None  # of what the store took to answer
    no_tail: str = "nothing is known of renewals"
    pauses: tuple[SourcedDuration, ...] = ()  # each the longest of its kind
    requests: Spread | None = None  # renewals that were answered
    unanswered: int = 0


@dataclass(frozen=True, slots=True)
class FamilyDemand:
    """What is asked of one family, and what is set now."""

    slo: SourcedDuration | None = None
    detection: Detection = Detection()  # noqa: RUF009 - it is a tuple
    guard: SourcedDuration | None = None  # in place of the library's own
    jitter: SourcedDuration | None = None  # in place of tail and pauses
    present: SourcedDuration | None = None  # the TTL in effect
    every: SourcedDuration | None = None  # the renewal interval, where one is set; else a third of the TTL
    failures: int = DEFAULT_FAILURES  # the failure budget in effect

    @property
    def timing(self) -> Timing | None:
        """All that is in effect, as the library takes it."""
        if self.present is None:
            return None
        every = self.present.ns // USUAL_PARTS if self.every is None else self.every.ns
        return settle(ttl=self.present.ns / NS, renew_every=every / NS, failures=self.failures)


class TtlTerm(NamedTuple):
    """One part of a sum."""

    name: str
    ns: int
    source: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What one family should have, and why. Without `timing` there is none, and `refused` names what is missing."""

    family: str
    renewed: bool
    terms: tuple[TtlTerm, ...]
    binding: Binding | None
    timing: Timing | None
    tail_ns: int
    detection_ns: int
    slo: SourcedDuration | None
    shortest_ns: int | None  # TTL that the evidence allows
    longest_ns: int | None  # TTL that the SLO allows
    false_loss: FalseLoss | None
    refused: str | None = None
    too_long: tuple[SourcedDuration, ...] = ()  # pauses that cannot be told from a death

    @property
    def ttl_ns(self) -> int | None:
        """The TTL."""
        return None if self.timing is None else self.timing.ttl_ns

    @property
    def takeover_ns(self) -> int | None:
        """The longest time from a crash to the next grant."""
        return None if self.timing is None else self.timing.ttl_ns + self.detection_ns

    @property
    def possible(self) -> bool:
        """Whether the takeover SLO is kept, if there is one."""
        return self.slo is None or self.takeover_ns is None or self.takeover_ns <= self.slo.ns

    @property
    def deadline_ns(self) -> int | None:
        """The age since the last confirmation at which the holder stops."""
        return None if self.timing is None else self.timing.loss_age_ns(self.tail_ns)


def recommend(evidence: FamilyEvidence, demand: FamilyDemand) -> Recommendation:
    """The settings for one family."""
    upper = None if demand.slo is None else longest_ttl_ns(demand.slo.ns, demand.detection)
    jitter, tail_ns, too_long = _jitter(evidence, demand, upper)
    blank = Recommendation(
        family=evidence.family,
        renewed=evidence.renewed,
        terms=(),
        binding=None,
        timing=None,
        tail_ns=tail_ns,
        detection_ns=0,
        slo=demand.slo,
        shortest_ns=None,
        longest_ns=upper,
        false_loss=None,
        too_long=too_long,
    )
    if jitter is None:
        return replace(blank, refused=evidence.no_tail)
    return (_renewed if evidence.renewed else _unrenewed)(evidence, demand, blank, jitter)


def longest_ttl_ns(slo_ns: int, detection: Detection) -> int:
    """The longest TTL whose takeover is within the SLO; 0: none is."""
    return _largest(lambda ttl: ttl + detection.of(ttl) <= slo_ns)


def shortest_ttl_ns(silence_ns: int, parts: int = USUAL_PARTS) -> int | None:
    """The shortest TTL of a renewed lease that outlives a silence; renewed `parts` times in a TTL. None: none does."""
    return _smallest(lambda ttl: outlives(ttl, parts, silence_ns))


def outlives(ttl_ns: int, parts: int, silence_ns: int) -> bool:
    """Whether a renewal that is due and then held up for so long is still in time, also the next time.

    The worst moment for a pause is while an answer is on its way: the request is given up when the process goes on, and
    the next is sent after the longest of the library's quick retries. And a silence that was felt once counts as the
    store's tail from then on, so that the holder stops earlier: that must leave room for the same silence again.
    """
    made = _settled(ttl_ns, parts)
    return made is not None and bears(made, silence_ns)


def bears(timing: Timing, silence_ns: int) -> bool:
    """The same of times that are settled, whatever their interval."""
    return longest_silence_ns(timing, silence_ns) >= silence_ns


def longest_silence_ns(timing: Timing, tail_ns: int = 0) -> int:
    """The longest silence after which a renewal is still in time, once one as long as `tail_ns` was felt."""
    return margin_ns(timing, tail_ns) - _again_ns(timing)


def failed_periods(timing: Timing, silence_ns: int) -> int:
    """How many renewals in a row a silence may cost, that begins when one is due."""
    return silence_ns // timing.renew_every_ns + 1


def margin_ns(timing: Timing, tail_ns: int = 0) -> int:
    """How long after it is due a renewal may be confirmed, before the holder must stop."""
    return timing.loss_age_ns(tail_ns) - timing.renew_every_ns


def _again_ns(timing: Timing) -> int:
    """The longest time until a renewal without an answer is sent again, as the renewer's calendar rounds it."""
    step = timing.renew_every_ns // 8  # as `lease.renewal_in_ns` has it; a test compares the two
    return step // 2 + step + SLOT_NS


def failure_budget(timing: Timing, tail_ns: int) -> int:
    """Failed periods that fit before the loss age, and one more: the deadline decides, and no blip before it."""
    return max(DEFAULT_FAILURES, min(100, timing.loss_age_ns(tail_ns) // timing.renew_every_ns + 1))


def _jitter(
    evidence: FamilyEvidence, demand: FamilyDemand, upper: int | None
) -> tuple[tuple[TtlTerm, ...] | None, int, tuple[SourcedDuration, ...]]:
    """What may hold up a renewal or the work: as given, else the tail and the longest pause that is not a death."""
    tail_ns = 0 if evidence.tail is None else evidence.tail.ns
    if demand.jitter is not None:
        return (TtlTerm("jitter", *demand.jitter),), tail_ns, ()
    if evidence.tail is None:
        return None, 0, ()
    present = 0 if demand.present is None else demand.present.ns
    limit = max(DEATH_NS, present) if upper is None else upper
    usable = [each for each in evidence.pauses if each.ns < limit]
    longest = max(usable, key=lambda each: each.ns, default=None)
    if evidence.renewed:
        times = f"{evidence.tail.source}; {TAILS} times: {_TAILS_WHY}"
        terms = [TtlTerm(f"{TAILS} x store tail", TAILS * evidence.tail.ns, times)]
    else:
        terms = [TtlTerm("store tail", *evidence.tail)]
    if longest is not None and longest.ns:
        terms.append(TtlTerm("longest pause", *longest))
    return tuple(terms), tail_ns, tuple(each for each in evidence.pauses if each.ns >= limit)


def _unrenewed(
    evidence: FamilyEvidence, demand: FamilyDemand, blank: Recommendation, jitter: tuple[TtlTerm, ...]
) -> Recommendation:
    """TTL = p99 + jitter + guard."""
    if evidence.hold is None:
        return replace(blank, refused=evidence.no_hold)
    needed = evidence.hold.ns + _sum(jitter)
    tail_ns = blank.tail_ns
    ttl: int | None
    if demand.guard is not None:
        ttl = _rounded(arithmetic.ttl_from_data_ns(evidence.hold.ns, _sum(jitter), demand.guard.ns))
        guard = TtlTerm("guard", *demand.guard)
    else:
        ttl = _smallest(lambda each: each - arithmetic.guard_ns(each, tail_ns) >= needed)
        kept = 0 if ttl is None else ttl - needed
        guard = TtlTerm("guard", kept, "what the library keeps free of such a TTL: 10 %, 50 ms or twice the tail")
    terms = (TtlTerm("p99 hold", *evidence.hold), *jitter, guard)
    if ttl is None or ttl > TTL_MAX_NS:
        why = f"{_added(terms)}, and no lease may last longer than {shown(TTL_MAX_NS)}"
        return replace(blank, refused=why)
    chosen = max(ttl, TTL_MIN_NS)
    binding = Binding.HOLD if chosen == ttl else Binding.SHORTEST
    made = settle(ttl=chosen / NS, auto_renew=False)
    found = demand.detection.of(chosen)
    return replace(blank, timing=made, terms=terms, binding=binding, shortest_ns=ttl, detection_ns=found)


def _renewed(
    evidence: FamilyEvidence, demand: FamilyDemand, blank: Recommendation, jitter: tuple[TtlTerm, ...]
) -> Recommendation:
    """TTL between what pauses need and what the SLO allows."""
    silence, tail_ns, upper = _sum(jitter), blank.tail_ns, blank.longest_ns
    parts = _parts_set(demand)
    lower = shortest_ttl_ns(silence, parts)
    while upper is not None and (lower is None or lower > upper) and parts < MOST_PARTS:
        parts += 1
        lower = shortest_ttl_ns(silence, parts)
    kept = _kept(demand, upper, silence)
    if kept is not None:
        lower = kept.ttl_ns if lower is None else min(lower, kept.ttl_ns)
    if lower is None:
        why = f"{_added(jitter)}, which no lease outlives: none may last longer than {shown(TTL_MAX_NS)}"
        return replace(blank, refused=why)
    wanted = _wanted(demand, upper)
    allowed = wanted if upper is None else min(wanted, upper)
    chosen = max(lower, allowed)
    if chosen > allowed:
        binding = Binding.SILENCE if chosen > TTL_MIN_NS else Binding.SHORTEST
    elif upper is not None and (chosen < wanted or demand.present is None):
        binding = Binding.SLO
    else:
        binding = Binding.NEITHER
    if kept is not None and chosen == kept.ttl_ns:
        interval = kept.renew_every_ns / NS
    else:
        interval = chosen // (_tightened(chosen, silence) if parts == USUAL_PARTS else parts) / NS
    made = settle(ttl=chosen / NS, renew_every=interval)
    stays = demand.failures != DEFAULT_FAILURES and demand.failures > failed_periods(made, silence)
    budget = demand.failures if stays else failure_budget(made, tail_ns)
    made = settle(ttl=chosen / NS, renew_every=interval, failures=budget)
    return replace(
        blank,
        timing=made,
        terms=jitter,
        binding=binding,
        shortest_ns=lower,
        detection_ns=demand.detection.of(chosen),
        false_loss=false_loss(made, tail_ns, evidence.requests, evidence.unanswered),
    )


def _wanted(demand: FamilyDemand, upper: int | None) -> int:
    """The TTL if nothing stood against it: what is set, else the most that the SLO allows, else the usual."""
    if demand.present is not None:
        return demand.present.ns
    return round(DEFAULT_TTL * NS) if upper is None else max(upper, TTL_MIN_NS)


def _parts_set(demand: FamilyDemand) -> int:
    """Renewals in a TTL, as they are set: an interval counts as its share of the TTL, which may change."""
    if demand.present is None or demand.every is None:
        return USUAL_PARTS
    return max(USUAL_PARTS, min(MOST_PARTS, demand.present.ns // demand.every.ns))


def _kept(demand: FamilyDemand, upper: int | None, silence_ns: int) -> Timing | None:
    """What is set, if an interval is and all of it will do: then it stays."""
    made = None if demand.every is None else demand.timing
    if made is None or made.renew_every_ns * MOST_PARTS < made.ttl_ns or (upper is not None and made.ttl_ns > upper):
        return None
    return made if bears(made, silence_ns) else None


def _tightened(ttl_ns: int, silence_ns: int) -> int:
    """Renewals in a TTL: three, or as many as it takes for the longest silence to fit twice, if it can."""
    for parts in range(USUAL_PARTS, MOST_PARTS + 1):
        if outlives(ttl_ns, parts, 2 * silence_ns):
            return parts
    return USUAL_PARTS


def _settled(ttl_ns: int, parts: int) -> Timing | None:
    try:
        return settle(ttl=ttl_ns / NS, renew_every=ttl_ns // parts / NS)
    except BadInput:  # the library would not take it
        return None


def _sum(terms: tuple[TtlTerm, ...]) -> int:
    return sum(term.ns for term in terms)


def _added(terms: tuple[TtlTerm, ...]) -> str:
    return " + ".join(f"{term.name} {shown(term.ns)}" for term in terms) + f" = {shown(_sum(terms))}"


def _rounded(ns: int) -> int:
    return -(-ns // STEP_NS) * STEP_NS


def _smallest(fits: Callable[[int], bool]) -> int | None:
    """The smallest TTL that fits, of those that the library takes; what fits once fits from there on."""
    low, high = TTL_MIN_NS // STEP_NS, TTL_MAX_NS // STEP_NS
    if not fits(high * STEP_NS):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle * STEP_NS) else (middle + 1, high)
    return low * STEP_NS


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest TTL that fits; 0: none does."""
    low, high = TTL_MIN_NS // STEP_NS - 1, TTL_MAX_NS // STEP_NS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * STEP_NS) else (low, middle - 1)
    return 0 if low < TTL_MIN_NS // STEP_NS else low * STEP_NS
