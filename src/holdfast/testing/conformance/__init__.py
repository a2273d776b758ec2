"""The contract of a store, as a kit that runs against any store.

    from holdfast.testing.conformance import check_store
    check_store(lambda: MyStore("file.db"))                        # a blocking store
    check_store(lambda: MyAsyncStore("file.db"), asynchronous=True)

Promises: what a store claims in its `Capabilities` is proven by running it, sentence by sentence, in its own color; a
store that claims less is asked less. `proofs()` says which sentences stand behind which claim. Does not promise: that a
store survives what the kit cannot cause, such as a failover; the simulator and the drills are for that.

Clock: real time by default, with leases of 80 ms where one has to expire; a check waits for conditions and never
asserts that something happened quickly. With a test runner, make one case per check:

    @pytest.mark.parametrize("check", checks_for(CAPABILITIES), ids=str)
    def test_my_store(check): run_check(check, BlockingWorld(lambda: MyStore("file.db")))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.core.ports import Capabilities, Store
from holdfast.testing.conformance import batch as checks_many
from holdfast.testing.conformance import expiry, failures, fences, inspection, ownership, waiting
from holdfast.testing.conformance import names as checks_names
from holdfast.testing.conformance.check import Check, Claim, Nonconforming, Unproven, Violation
from holdfast.testing.conformance.environment import AsyncioWorld, BlockingWorld, World

__all__ = [
    "CHECKS",
    "AsyncioWorld",
    "BlockingWorld",
    "Check",
    "Claim",
    "Nonconforming",
    "Report",
    "Unproven",
    "Violation",
    "World",
    "check_store",
    "checks_for",
    "proofs",
    "run_check",
]

CHECKS: tuple[Check, ...] = (
    *ownership.chapter.checks,
    *expiry.chapter.checks,
    *fences.chapter.checks,
    *checks_many.chapter.checks,
    *inspection.chapter.checks,
    *waiting.chapter.checks,
    *checks_names.chapter.checks,
    *failures.chapter.checks,
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of the whole kit has proven, and what it could not try."""

    capabilities: Capabilities
    proven: tuple[str, ...]
    unproven: tuple[tuple[str, str], ...]  # the sentence, and what was missing


def checks_for(capabilities: Capabilities) -> list[Check]:
    """Pick the checks that a store with these capabilities must pass."""
    return [check for check in CHECKS if check.claim.made_by(capabilities)]


def proofs() -> dict[Claim, list[str]]:
    """Name the sentences that prove each claim."""
    return {claim: [check.name for check in CHECKS if check.claim is claim] for claim in Claim}


def run_check(check: Check, world: World) -> None:
    """Run one check in the color of its world, and close what it opened. Raises `Violation`, or the store's error."""
    world.drive(_run(check, world))


def check_store(opener: Callable[[], Store], *, asynchronous: bool = False, **settings: Any) -> Report:
    """Run every check that the store's capabilities call for; raise `Nonconforming` with all that failed.

    `opener` makes a new store over the same leases at each call, as another process would; for an asynchronous store it
    is called on the loop on which the store is used. `settings` are those of `World`.
    """
    world_class: type[World] = AsyncioWorld if asynchronous else BlockingWorld
    first = world_class(opener, **settings)
    capabilities = first.drive(_capabilities(first))
    proven: list[str] = []
    unproven: list[tuple[str, str]] = []
    broken: list[tuple[str, BaseException]] = []
    for check in checks_for(capabilities):
        try:
            run_check(check, world_class(opener, **settings))
            proven.append(check.name)
        except Unproven as missing:
            unproven.append((check.name, str(missing)))
        except Exception as error:  # noqa: BLE001 - whatever a store raises is a finding, and the other checks still run
            broken.append((check.name, error))
    if broken:
        raise Nonconforming(broken)
    return Report(capabilities, tuple(proven), tuple(unproven))


async def _run(check: Check, world: World) -> None:
    try:
        await check.run(world)
    finally:
        await world.close()


async def _capabilities(world: World) -> Capabilities:
    try:
        return (await world.open()).capabilities
    finally:
        await world.close()
