"""The arithmetic of a lease: how long it may be trusted, when to renew it, when to let go of it.

All of it is local and one-sided: each quantity errs towards believing that less time is left.

    sent                                                      sent + ttl
     |---- renew_every ----|---- …                                |
     |======================= valid_ns =====================|drift|
     |================= loss_age ================|  margin  |
                                                 ^ the holder stops here, before the store may give the key away

The clock of every age here is `types.elapsed_ns` on the holder's host, counted from *before* the request that granted
or last renewed the lease was sent. Settings that cannot be safe are refused when the lock is described, with the sum.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import BadInput
from holdfast.types import MS, NS, Duration, duration_ns

TTL_MIN_NS = 50 * MS
TTL_MAX_NS = 7 * 86_400 * NS
DEFAULT_TTL = 30.0
DEFAULT_FAILURES = 3
RENEW_TIMEOUT_NS = 2 * NS
GUARD_MIN_NS = 50 * MS
RENEW_JITTER_NUMERATOR, RENEW_JITTER_DENOMINATOR = 12, 10  # the renew deadline must exceed 1.2 × the interval


def drift_ns(ttl_ns: int) -> int:
    """How far two clocks may disagree over one lease: 1 % of it, and 2 ms for reading them."""
    return ttl_ns // 100 + 2 * MS


def guard_ns(ttl_ns: int, tail_ns: int = 0) -> int:
    """The safety margin: how long before the end of validity a holder stops, so that work in flight can be stopped.

    `tail_ns` is the observed p99.9 of renewal latency. A store that is slow compared to the TTL must not swallow the
    whole lease, so the margin never exceeds a third of it.
    """
    return min(max(ttl_ns // 10, GUARD_MIN_NS, 2 * tail_ns), ttl_ns // 3)


@dataclass(frozen=True, slots=True)
class Timing:
    """The settled time settings of one lock. Made by `settle`, which refuses what cannot work."""

    ttl_ns: int
    auto_renew: bool
    renew_every_ns: int
    renew_timeout_ns: int
    failures_max: int
    deadline_ns: int | None  # an explicit renew deadline, counted from the last confirmation; None: from the guard
    max_hold_ns: int | None
    stall_after_ns: int | None
    warn_before_ns: int | None
    at_least_ns: int
    # Values that every acquisition and every use of a lease needs are computed once:
    usual_guard_ns: int  # the safety margin while the store answers quickly,
    usual_loss_ns: int  # the loss age that follows from it,
    first_check_ns: int  # the age at which a new lease is first checked,
    next_check_ns: int  # and how long after a renewal a held lease is checked; 0: whenever something may end it

    def valid_ns(self) -> int:
        """Age at which the store may already have given the key away."""
        return self.ttl_ns - drift_ns(self.ttl_ns)

    def loss_age_ns(self, tail_ns: int = 0) -> int:
        """Age since the last confirmation at which the holder must stop. Unrenewed leases use their whole validity."""
        if 2 * tail_ns <= self.usual_guard_ns:
            return self.usual_loss_ns
        slow = _loss_age_ns(self.ttl_ns, self.auto_renew, self.deadline_ns, tail_ns)
        # Even with a slow store, a lease is not given up before its first renewal could succeed.
        return max(slow, min(self.usual_loss_ns, _needed_ns(self.renew_every_ns)))

    def warn_age_ns(self, tail_ns: int = 0) -> int:
        """Age at which the holder is warned; by default half-way between a missed renewal and the loss.

        A lease that is not renewed is expected to expire, so only an explicit setting causes a warning.
        """
        loss = self.loss_age_ns(tail_ns)
        if self.warn_before_ns is not None:
            return max(0, loss - self.warn_before_ns)
        return loss - (loss - self.renew_every_ns) // 2 if self.auto_renew else loss


def _loss_age_ns(ttl_ns: int, auto_renew: bool, deadline_ns: int | None, tail_ns: int) -> int:
    valid = ttl_ns - drift_ns(ttl_ns)
    if not auto_renew:
        return valid
    limit = valid - guard_ns(ttl_ns, tail_ns)
    return limit if deadline_ns is None else min(limit, deadline_ns)


def settle(**settings: Any) -> Timing:
    """Turn the public settings into a `Timing`, or refuse them with the arithmetic that shows why.

    Equal settings give the same object: there are many locks and few kinds of them.
    """
    try:
        return _known(**settings)
    except TypeError:  # something that cannot even be looked up; the checks say what is wrong with it
        return _settle(**settings)


def _settle(
    *,
    ttl: Duration = DEFAULT_TTL,
    auto_renew: bool = True,
    renew_every: Duration | None = None,
    renew_deadline: Duration | None = None,
    failures: int = DEFAULT_FAILURES,
    max_hold: Duration | None = None,
    stall_after: Duration | None = None,
    early_warning: Duration | None = None,
    at_least: Duration = 0,
    takeover_slo: Duration | None = None,
) -> Timing:
    ttl_ns = duration_ns("ttl", ttl, low_ns=TTL_MIN_NS, high_ns=TTL_MAX_NS)
    every_ns = ttl_ns // 3 if renew_every is None else duration_ns("renew_every", renew_every, low_ns=MS)
    if type(failures) is not int or not 1 <= failures <= 100:
        raise BadInput("failures", f"{failures!r} is not a failure budget", "give a whole number from 1 to 100")
    deadline_ns = None if renew_deadline is None else duration_ns("renew_deadline", renew_deadline, low_ns=MS)
    timing = Timing(
        ttl_ns=ttl_ns,
        auto_renew=auto_renew,
        renew_every_ns=every_ns,
        renew_timeout_ns=RENEW_TIMEOUT_NS,
        failures_max=failures,
        deadline_ns=deadline_ns,
        max_hold_ns=None if max_hold is None else duration_ns("max_hold", max_hold, low_ns=MS),
        stall_after_ns=None if stall_after is None else duration_ns("stall_after", stall_after, low_ns=MS),
        warn_before_ns=None if early_warning is None else duration_ns("early_warning", early_warning, low_ns=0),
        at_least_ns=duration_ns("at_least", at_least),
        usual_guard_ns=guard_ns(ttl_ns),
        usual_loss_ns=_loss_age_ns(ttl_ns, auto_renew, deadline_ns, 0),
        first_check_ns=0,
        next_check_ns=0,
    )
    timing = replace(timing, first_check_ns=_first_check_ns(timing), next_check_ns=_next_check_ns(timing))
    _check_relations(timing, takeover_slo)
    return timing


_known = functools.lru_cache(maxsize=1024, typed=True)(_settle)


def _needed_ns(renew_every_ns: int) -> int:
    return renew_every_ns * RENEW_JITTER_NUMERATOR // RENEW_JITTER_DENOMINATOR


def _first_check_ns(timing: Timing) -> int:
    """Half a renewal period, when the renewer must know of the lease; sooner if something may end it before."""
    ages = [timing.renew_every_ns // 2, timing.max_hold_ns, timing.stall_after_ns]
    if timing.warn_before_ns is not None:
        ages.append(timing.warn_age_ns())
    return min(age for age in ages if age is not None)


def _next_check_ns(timing: Timing) -> int:
    """Until it is time to warn: a lease that is renewed in time never gets there."""
    ends_otherwise = timing.max_hold_ns is not None or timing.stall_after_ns is not None
    return 0 if ends_otherwise or not timing.auto_renew else timing.warn_age_ns()


def _check_relations(timing: Timing, takeover_slo: Duration | None) -> None:
    ttl = timing.ttl_ns
    if timing.auto_renew:
        deadline = timing.usual_loss_ns
        latest = _loss_age_ns(ttl, timing.auto_renew, None, 0)
        if timing.deadline_ns is not None and timing.deadline_ns > latest:
            raise BadInput(
                "renew_deadline",
                f"{_s(timing.deadline_ns)} is too late for a ttl of {_s(ttl)}: ttl - drift - guard = "
                f"{_s(ttl)} - {_s(drift_ns(ttl))} - {_s(guard_ns(ttl))} = {_s(latest)}",
                f"give at most {_s(latest)}, or a longer ttl",
            )
        needed = _needed_ns(timing.renew_every_ns)
        if deadline <= needed:
            raise BadInput(
                "renew_every",
                f"the renew deadline must exceed 1.2 x the interval, but 1.2 x {_s(timing.renew_every_ns)} = "
                f"{_s(needed)} and the deadline is {_s(deadline)} (ttl {_s(ttl)})",
                f"renew every {_s(ttl // 3)} or more often, or use a longer ttl",
            )
    if timing.at_least_ns > ttl:
        raise BadInput(
            "at_least",
            f"{_s(timing.at_least_ns)} is longer than the ttl of {_s(ttl)}, which is all the store would keep it",
            "use a longer ttl or a shorter at_least",
        )
    if takeover_slo is not None:
        _check_takeover(timing, duration_ns("takeover_slo", takeover_slo, low_ns=MS))


def _check_takeover(timing: Timing, slo_ns: int) -> None:
    """After a crash the next owner can act after the TTL and one retry at the latest, and no sooner is promised."""
    retry = min(NS, timing.ttl_ns // 3)
    bound = timing.ttl_ns + retry
    if bound > slo_ns:
        raise BadInput(
            "takeover_slo",
            f"{_s(slo_ns)} cannot be met: after a crash the key is free at ttl + one retry = "
            f"{_s(timing.ttl_ns)} + {_s(retry)} = {_s(bound)}",
            f"use a ttl of at most {_s(slo_ns * 3 // 4)}, or detect the crash by other means than expiry",
        )


def takeover_bound_ns(ttl_ns: int, retry_ns: int) -> int:
    """Worst time from a crash to the next grant when a waiter is waiting: the TTL, and one retry."""
    return ttl_ns + retry_ns


def ttl_from_data_ns(p99_hold_ns: int, jitter_ns: int, margin_ns: int) -> int:
    """The TTL of an unrenewed lock: p99 of the section + network and store tail + guard (18 + 4 + 2 = 24 s)."""
    return p99_hold_ns + jitter_ns + margin_ns


def _s(ns: int) -> str:
    return f"{ns / NS:g} s"
