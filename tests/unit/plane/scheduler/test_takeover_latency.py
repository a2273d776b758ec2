"""How long a takeover took, as a scheduler knows it: only of a lock that ran out, and from its last renewal on."""

from __future__ import annotations

import pytest

from holdfast.core.histogram import NOTHING, Histogram
from holdfast.errors import LockBusy
from holdfast.plane.scheduler.takeover_latency import SEEN_MAX, SLACK_NS, TakeoverLatency
from holdfast.types import NS
from support.fixtures.buses import ScriptedClock

TTL = 60.0


class Watched:
    """What one scheduler sees of messages, in made-up time."""

    def __init__(self) -> None:
        self.clock = ScriptedClock()
        self.times = TakeoverLatency(self.clock, TTL)

    def after(self, seconds: float) -> None:
        self.clock.at_ns += round(seconds * NS)

    def busy(self, remaining: float | None, message: str = "m") -> None:
        self.times.busy(message, LockBusy("busy", remaining=remaining))


def test_a_lock_that_ran_out_is_measured_from_its_last_renewal() -> None:
    seen = Watched()
    seen.busy(30.0)  # renewed half a minute ago
    seen.after(29.5)
    seen.busy(0.5)
    seen.after(1.0)
    seen.times.handled("m")
    assert seen.times.read() == Histogram.of([round(60.5 * NS)])
    seen.times.handled("m")
    assert seen.times.read().number == 1, "each is measured once"


@pytest.mark.parametrize("early_ns", [SLACK_NS, SLACK_NS + 1])
def test_an_end_that_was_misjudged_by_a_little_is_the_end(early_ns: int) -> None:
    seen = Watched()
    seen.busy(10.0)
    seen.clock.at_ns += 10 * NS - early_ns
    seen.times.handled("m")
    assert seen.times.read().number == (early_ns == SLACK_NS)


def test_a_lock_that_was_given_back_is_nobodys_takeover() -> None:
    seen = Watched()
    seen.busy(60.0)
    seen.after(0.5)
    seen.times.handled("m")
    assert seen.times.read() == NOTHING


def test_a_holder_that_renews_is_alive_until_it_does_not() -> None:
    seen = Watched()
    for _ in range(10):  # far longer than the TTL; each time it has renewed
        seen.busy(50.0)
        seen.after(15.0)
    seen.times.handled("m")
    assert seen.times.read() == NOTHING


def test_what_the_store_cannot_tell_and_what_other_trouble_delays_is_not_measured() -> None:
    seen = Watched()
    seen.busy(10.0)
    seen.busy(None)  # of another holder in this process
    seen.busy(10.0, "n")
    seen.times.unknown("n")  # the store was away
    seen.after(100.0)
    for message in ("m", "n", "never seen"):
        seen.times.handled(message)
    assert seen.times.read() == NOTHING


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    seen = Watched()
    for number in range(SEEN_MAX + 1):
        seen.busy(1.0, f"m{number}")
    seen.after(1.0)
    for number in range(SEEN_MAX + 1):
        seen.times.handled(f"m{number}")
    assert seen.times.read().number == SEEN_MAX
