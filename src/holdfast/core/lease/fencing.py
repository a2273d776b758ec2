"""Fencing tokens: how a guard compares them, how a store counts them, and the outcomes of a guarded step. Pure.

**Comparing.** A resource remembers the highest fence that it was entered or written under. A step is accepted when its
fence is not below that: greater is a newer grant, equal is the same grant writing again. Fences are ordered among the
grants of one lock only, so a resource belongs to one lock.

Checking on writes alone is not enough. A (fence 1) pauses before its write, B (fence 2) reads, A's write arrives and is
accepted because the resource has not met 2 yet, and B writes what it made from its stale read: A's acknowledged write
is gone. So a holder enters before its first read, and whatever it writes after that demands that the resource still
carries exactly its own fence (`Rule.EXACTLY`): a registration that was rolled back or restored away is found too.

**Counting.** A store counts its fences by its clock, and while the clock is behind, at the rate of the clock. A fence
is the store's wall clock in microseconds, so a store that has forgotten everything does not go back. But clocks are set
back, and then the count is *ahead*. Adding one to the last fence would do on one server. Across a failover it does not:
a replica that has missed the last grants continues from the same number as its lost primary did, and gives the same
fences to others. Guards accept an equal fence, because one grant may write many times. So no writer would be refused,
and an update would be lost. Three rules prevent that:

    ahead     the fence rises by three quarters of the time since the last one, so that a store that has missed
              grants and counts later is above all of them; and the count falls back to the clock within four times the
              lead that it has
    set back  when the clock is behind what it was at the last fence, the time that has passed is unknown; the fence
              rises by a random number up to a second, which comes from the secret of the grant
    limit     such a step is an hour at most, so that a clock which is set right after years does no harm

Promises: each count is above the one before it, whatever the clock reads. Two stores that go on from one count, each on
a clock that does not go back, never give out the same fence but by chance: two clocks that tell the same microsecond,
or one in 2^20 for grants right after the clock was set back. If both clocks have gone on since that count, and the
later grant is later by its clock, it has the higher fence, for as long as no more than an hour was missed.
So two fences of one count also say how far apart they were granted, by that one clock (`apart`): no two clocks have
to agree for it.
Does not promise an order where the clock was set back after the last fence that both know of, nor where one of two
clocks is behind the other by more than the time between the grants.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from holdfast.errors import BadInput

V = TypeVar("V")

FENCE_MAX = 2**63 - 1  # what a signed 64-bit column holds; JSON readers and Lua lose precision long before

_DECIMAL = re.compile(r"(?:0|[1-9][0-9]{0,18})\Z", re.ASCII)


class Rule(StrEnum):
    """What a step demands of the fence that the resource carries."""

    AT_LEAST = "at_least"  # ours is not below it: a first contact, or a write that needs no earlier read
    EXACTLY = "exactly"  # it is ours: a write inside a section, after `enter`
    NONE = "none"  # nothing: a lease without a fence, where that was allowed; the stored fence is left as it is


@dataclass(frozen=True, slots=True)
class Accepted(Generic[V]):
    """The step was done; `value` is what it read or wrote."""

    value: V


@dataclass(frozen=True, slots=True)
class Stale:
    """The resource has met a newer fence. Nothing was changed."""

    seen: int


@dataclass(frozen=True, slots=True)
class Absent:
    """There is nothing to update or delete. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Present:
    """There is something already, so nothing was inserted. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Unregistered:
    """The resource does not carry the fence it was entered under, but an older one or none. Nothing was changed."""

    seen: int | None


Outcome: TypeAlias = Accepted[V] | Stale | Absent | Present | Unregistered


def accepts(seen: int | None, fence: int) -> bool:
    """Whether a resource that has seen this much takes a step under this fence. None: it has never met one."""
    return seen is None or fence >= seen


def judge(rule: Rule, seen: int | None, fence: int) -> Stale | Unregistered | None:
    """Why a step must not be done; None: it may."""
    if rule is Rule.NONE:
        return None
    if seen is not None and not accepts(seen, fence):
        return Stale(seen)
    if rule is Rule.EXACTLY and seen != fence:
        return Unregistered(seen)
    return None


def check_fence(field: str, fence: object) -> int:
    """A number that can be a fence, or `BadInput`. Text and floats are refused: rounding changes it."""
    if isinstance(fence, bool) or not isinstance(fence, int):
        raise BadInput(field, f"{type(fence).__name__} is not a fence", "give the whole number that the lease carries")
    if not 0 <= fence <= FENCE_MAX:
        raise BadInput(field, f"{fence} is out of range", f"give a whole number from 0 to {FENCE_MAX}")
    return fence


def parse_fence(field: str, text: object) -> int:
    """A fence that arrived as text (a header, a file): plain decimal digits and nothing else, or `BadInput`."""
    if not isinstance(text, str) or _DECIMAL.match(text) is None:
        shown = repr(text) if len(repr(text)) <= 60 else repr(text)[:57] + "…"
        raise BadInput(field, f"{shown} is not a fence", "send plain decimal digits, such as 17")
    return check_fence(field, int(text))


STEP_MAX_US: Final = 3600 * 1_000_000
CHANCE_DIGITS: Final = 5  # hexadecimal: 2^20 µs, about a second


class Count(NamedTuple):
    """The last fence, and the store's clock when it was granted, in µs. Not equal: the count is ahead."""

    fence: int = 0
    clock: int = 0

    def next(self, now: int, secret: str) -> Count:
        """The count after a grant at this time. `secret`: no other grant has the same one."""
        passed = now - self.clock
        step = 1 + _chance(secret) if passed < 0 else max(1, min(passed * 3 // 4, STEP_MAX_US))
        return Count(max(now, self.fence + step), now)


def apart(earlier: int, later: int, ns: int) -> bool:
    """Whether two fences of one count may have been granted further apart than so many nanoseconds.

    Never False if it was more than four thirds of that, unless the store's clock was set back in between. Two fences
    that were counted otherwise, or by two clocks, may give either answer: it must then be one that does no harm.
    """
    return (later - earlier) * 1000 > ns


def _chance(secret: str) -> int:
    """A number below 2^20 that differs from grant to grant. Redis scripts have no random numbers, but SHA-1."""
    return int(hashlib.sha1(secret.encode(), usedforsecurity=False).hexdigest()[:CHANCE_DIGITS], 16)
