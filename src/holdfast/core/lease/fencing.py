"""The rule of every guard, and what a storage step can answer. Pure: no storage, no clock.

A resource remembers the highest fence that it was entered or written under. A step is accepted when its fence is not
below that: greater is a newer grant, equal is the same grant writing again. Fences are ordered among the grants of one
lock only, so a resource belongs to one lock.

Checking on writes alone is not enough. A (fence 1) pauses before its write, B (fence 2) reads, A's write arrives and is
accepted because the resource has not met 2 yet, and B writes what it made from its stale read: A's acknowledged write
is gone. So a holder enters before its first read, and whatever it writes after that demands that the resource still
carries exactly its own fence (`Rule.EXACTLY`): a registration that was rolled back or restored away is found too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

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
