"""How a decision requests the lock of its job: every 25 ms for two seconds. On virtual time, one ms each way."""

from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.core.history.events import EventKind
from holdfast.errors import AcquireTimeout
from holdfast.plane.locks.registry import APPROVAL
from holdfast.plane.settings.lock_times import family_in_effect
from holdfast.plane.settings.sections import ApprovalSettings
from holdfast.plane.settings.settings import Settings
from holdfast.types import MS, NS
from support.harness.small_world import SmallWorld

REQUEST_NS = 2 * MS


def attempts(jitter: float) -> list[int]:
    """When a decision on a job that stays busy made its attempts, in ns after the first."""
    world = SmallWorld()
    holder, decider = world.host("holder"), world.host("decider")
    family = family_in_effect(Settings(approvals=ApprovalSettings(lock_jitter=jitter)), APPROVAL)

    async def refused() -> None:
        async with family.lock(holder.locks, job="42"):
            with pytest.raises(AcquireTimeout):
                await family.lock(decider.locks, job="42").acquire()

    world.run(refused())
    answered = [each.at_ns for each in world.records if each.kind is EventKind.BUSY]
    return [each - answered[0] for each in answered]


def delays(sent: list[int]) -> list[int]:
    """How long the decision waited between two attempts, in ms."""
    return [round((later - earlier - REQUEST_NS) / MS) for earlier, later in pairwise(sent)]


@pytest.mark.requires("R10", "R12")
def test_a_decision_asks_every_25_ms_until_two_seconds_after_its_first_attempt() -> None:
    sent = attempts(0.0)
    first, *waits, last = delays(sent)
    assert first <= 2, "a subscription to releases, and one more attempt because a release may have come before it"
    assert waits == [25] * 73
    assert last <= 25, "the last attempt is made at the deadline, which is checked after it"
    assert sent[-1] == pytest.approx(2 * NS, abs=MS)


def test_jitter_between_the_attempts_of_a_decision_is_a_setting() -> None:
    first, *waits, last = delays(attempts(0.010))
    assert max(first, last) <= 35
    assert 25 <= min(waits) < max(waits) <= 35, "a waiter that listens polls in the slow half of the range"
