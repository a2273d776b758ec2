"""How likely it is that a lease is lost although its holder is well: a model of renewals, and what it rests on.

The holder renews once in a period. A renewal that is not answered is tried again, quickly, until the loss age. The
lease is lost when every one of those attempts stays without an answer for as long as it may take. When they are sent
and how long each may take is asked of the library itself (`core.lease.states`), so that both speak of the same
attempts; how often a request takes longer than that is counted in the recorded ones.

Two figures bracket the truth. *Apart*: each attempt fails independently, as with lost packets; then their chances
multiply. *Together*: once one fails all do, as in an outage that lasts; then the first decides. Where nothing that slow
was seen among n requests, 3/n stands in its place: with 95 % certainty it is no more (the rule of three), and the
figure is an upper bound. Fewer than 100 requests say nothing, and then there is no figure. Pauses of the process are
not in it: they are budgeted for in the TTL itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.core.lease import states as lease
from holdfast.core.lease.timing import Timing
from holdfast.core.tuning.percentiles import Spread
from holdfast.types import NS, Instant

HOUR_NS: Final = 3600 * NS
_MIDDLE_DRAW: Final = 1 << 15
_RULE_OF_THREE: Final = 3


class FalseLoss(NamedTuple):
    """The chance that one period ends in a loss."""

    apart: float
    together: float
    attempts: int  # within one period
    requests: int  # that it was estimated from
    bound: bool  # nothing that slow was seen, so this is the most that it can be
    renew_every_ns: int

    @property
    def per_hour_apart(self) -> float:
        """Of a lease that is held for an hour."""
        return min(1.0, self.apart * HOUR_NS / self.renew_every_ns)

    @property
    def per_hour_together(self) -> float:
        """Likewise, if failures come together."""
        return min(1.0, self.together * HOUR_NS / self.renew_every_ns)


def attempts(timing: Timing, tail_ns: int = 0) -> list[tuple[int, int]]:
    """The renewals of one period of which none is answered: the age at which each is sent, and how long it may take."""
    start = Instant(0, 0, 0)
    state = lease.granted(start)
    age = timing.renew_every_ns
    found: list[tuple[int, int]] = []
    while age < timing.loss_age_ns(tail_ns) and state.live:
        now = Instant(age, age, age)
        allowed = lease.renew_timeout_ns(state, timing, now, tail_ns)
        found.append((age, allowed))
        age += allowed
        over = Instant(age, age, age)
        state = lease.unknown(state, timing, over)
        age += max(1, lease.renewal_in_ns(state, timing, over, _MIDDLE_DRAW))
    return found


def false_loss(timing: Timing, tail_ns: int, requests: Spread | None, unanswered: int = 0) -> FalseLoss | None:
    """The chance for one period of a lease, from recorded requests. None: too few of them, or it is not renewed."""
    if requests is None or not timing.auto_renew:
        return None
    number = requests.number + unanswered
    if not requests.enough:
        return None
    planned = attempts(timing, tail_ns)
    chances, bound = [], False
    for _, allowed in planned:
        slow = requests.beyond(allowed) + unanswered
        bound = bound or not slow
        chances.append(min(1.0, (slow or _RULE_OF_THREE) / number))
    apart = 1.0
    for each in chances:
        apart *= each
    return FalseLoss(apart, chances[0] if chances else 1.0, len(planned), number, bound, timing.renew_every_ns)
