"""What a conformance check is, and how it fails.

A check is an `async def` over a `World` that proves one sentence about a store; the sentence is its name. It awaits the
store and the world and nothing else, so it runs in both colors. It fails with `Violation`, which is an
`AssertionError`: any test runner shows it, and none is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from holdfast.core.ports import Capabilities
from holdfast.guards.conformance.checks import Nonconforming, Violation, expect
from holdfast.types import Guarantee

__all__ = [
    "Check",
    "Claim",
    "Nonconforming",
    "StoreChapter",
    "Unproven",
    "Violation",
    "expect",
    "expect_equal",
    "expect_no_token",
]

if TYPE_CHECKING:
    from holdfast.testing.conformance.environment import World

Body: TypeAlias = "Callable[[World], Awaitable[None]]"


class Unproven(Exception):
    """The check could not be made in this world; the text says what is missing."""


class Claim(StrEnum):
    """What a store can claim, and so what a check can prove. Every store makes the first one."""

    EXCLUSIVE = "exclusive"  # one holder at a time, by compare and set; asked of every store
    FENCED = "fenced"  # Capabilities.guarantee
    WAKEUPS = "wakeups"
    FAIR = "fair"
    DURABLE = "durable"
    SHARED = "shared"
    MANY = "many"

    def made_by(self, capabilities: Capabilities) -> bool:
        """Whether a store with these capabilities makes this claim."""
        if self is Claim.EXCLUSIVE:
            return True
        if self is Claim.FENCED:
            return capabilities.guarantee.covers(Guarantee.FENCED)
        return bool(getattr(capabilities, self.value))


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence about a store, and the code that proves it."""

    name: str
    claim: Claim
    body: Body
    proves: tuple[str, ...] = ()  # requirement ids, for the ledger

    def __str__(self) -> str:
        return self.name

    async def run(self, world: World) -> None:
        """Prove the sentence in this world, or raise `Violation`. Errors that the store raises come out as they are."""
        await self.body(world)


class StoreChapter:
    """The checks of one file, in the order in which they are written there."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def check(self, claim: Claim = Claim.EXCLUSIVE, *, proves: tuple[str, ...] = ()) -> Callable[[Body], Body]:
        """Enter a check. Its name is the sentence that the function's name spells."""

        def enter(body: Body) -> Body:
            name = getattr(body, "__name__", "unnamed").replace("_", " ")
            self.checks.append(Check(name, claim, body, proves))
            return body

        return enter


def expect_equal(seen: object, wanted: object, what: str) -> None:
    """Raise `Violation` that shows both values unless they are equal."""
    expect(seen == wanted, f"{what}: expected {wanted!r}, saw {seen!r}")


def expect_no_token(shown: object, token: str, where: str) -> None:
    """Raise `Violation` if eight characters or more of a token can be read in what is shown to people."""
    text = f"{shown!r} {shown}".lower()
    for start in range(len(token) - 7):
        if token[start : start + 8].lower() in text:
            raise Violation(f"{where} gives away a piece of the token")
