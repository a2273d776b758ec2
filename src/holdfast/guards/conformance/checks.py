"""What a check of the guard kit is, and how it fails.

A check is an `async def` over a `GuardWorld` that proves one sentence about a guard; the sentence is its name. It
awaits the guarded resource and the world and nothing else, so it runs in sync and asyncio. It fails with `Violation`,
which is an `AssertionError`: any test runner shows it, and none is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from holdfast.errors import FencedOut

if TYPE_CHECKING:
    from holdfast.guards.conformance.environment import GuardWorld

Body: TypeAlias = "Callable[[GuardWorld], Awaitable[None]]"


class Violation(AssertionError):
    """A guard or a store broke its contract; the text shows what was seen instead."""


class Nonconforming(AssertionError):
    """A guard or a store broke its contract; the text lists every broken sentence, and what was seen instead."""

    def __init__(self, broken: Sequence[tuple[str, BaseException]]) -> None:
        lines = [f"- {name}\n  {type(error).__name__}: {error}" for name, error in broken]
        super().__init__("\n".join([f"{len(broken)} sentences of the contract do not hold:", *lines]))
        self.broken = list(broken)


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence about a guard, and the code that proves it."""

    name: str
    body: Body
    proves: tuple[str, ...] = ()  # requirement ids, for the ledger
    deletes: bool = False  # asked only of guards that can delete
    processes: bool = False  # starts other processes, so the factory has to be picklable

    def __str__(self) -> str:
        return self.name

    async def run(self, world: GuardWorld) -> None:
        """Prove the sentence in this world, or raise `Violation`. Errors that the guard raises come out as they are."""
        await self.body(world)


class GuardChapter:
    """The checks of one file, in the order in which they are written there."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def check(
        self, *, proves: tuple[str, ...] = (), deletes: bool = False, processes: bool = False
    ) -> Callable[[Body], Body]:
        """Enter a check. Its name is the sentence that the function's name spells."""

        def enter(body: Body) -> Body:
            name = getattr(body, "__name__", "unnamed").replace("_", " ")
            self.checks.append(Check(name, body, proves, deletes, processes))
            return body

        return enter


def expect(condition: object, text: str) -> None:
    """Raise `Violation` with the text unless the condition holds."""
    if not condition:
        raise Violation(text)


def expect_equal(seen: object, wanted: object, what: str) -> None:
    """Raise `Violation` that shows both values unless they are equal, and of one type: 1 and True are not."""
    if seen != wanted or type(seen) is not type(wanted):
        raise Violation(f"{what}: expected {shown(wanted)}, saw {shown(seen)}")


async def expect_fenced_out(step: Awaitable[object], *, fence: int, seen: int, what: str) -> None:
    """Insist that a step is refused as stale, and that the refusal carries both fences."""
    try:
        await step
    except FencedOut as refusal:
        expect_equal(
            (refusal.fence, refusal.seen), (fence, seen), f"{what}: the fence of the refused, and the one seen"
        )
        return
    raise Violation(f"{what}: fence {fence} was accepted although {seen} had been seen")


def shown(value: object) -> str:
    """A value for a message, cut where it becomes long."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}… ({len(text)} characters) …{text[-60:]}"
