"""The clocks and the chance of a simulated host.

Its clocks start anywhere, run a little fast or slow, stand still while it is suspended (`mono`), and can be stepped
(`wall`), as those of real hosts do. `boot` is never stepped and never stands still, so it can be turned back into true
(virtual) time. All of it is integer arithmetic.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from holdfast.testing.sim.environment.loop import SimLoop
from holdfast.types import NS, Instant

WALL_EPOCH_NS = 1_700_000_000 * NS
PPB = 1_000_000_000
DRIFT_MAX_PPB = 5_000_000  # 0.5 % on each side: together just inside the 1 % that a lease allows for


class SimClock:
    """The clocks of one host."""

    def __init__(self, loop: SimLoop, *, drift_ppb: int = 0, boot_offset_ns: int = 0, wall_offset_ns: int = 0) -> None:
        self._loop = loop
        self._rate = PPB + drift_ppb
        self._boot_offset_ns = boot_offset_ns
        self._asleep_ns = 0
        self._wall_offset_ns = WALL_EPOCH_NS + wall_offset_ns
        self._read_ns = -1  # when it was last read, and
        self._reading = Instant(0, 0, 0)  # what it said: it is read again and again at one instant

    def now(self) -> Instant:
        """Read all three clocks."""
        true_ns = self._loop.now_ns
        if true_ns != self._read_ns:
            run = true_ns * self._rate // PPB
            boot = self._boot_offset_ns + run
            self._reading = Instant(boot - self._asleep_ns, boot, self._wall_offset_ns + run)
            self._read_ns = true_ns
        return self._reading

    def true_ns(self, local_ns: int) -> int:
        """How much true time passes while this clock counts `local_ns`."""
        return -(-local_ns * PPB // self._rate)

    def step(self, by_ns: int) -> None:
        """Step the wall clock, as a correction of the time does."""
        self._wall_offset_ns += by_ns
        self._read_ns = -1

    @property
    def asleep_ns(self) -> int:
        """For how long, all in all, the monotonic clock has stood still."""
        return self._asleep_ns

    def slept(self, for_ns: int) -> None:
        """The host was suspended for that long: the monotonic clock stood still."""
        self._asleep_ns += for_ns * self._rate // PPB
        self._read_ns = -1


def drawing(chance: random.Random) -> Callable[[int], int]:
    """`chance.randrange(n)`, draw for draw, in half the time: a message on the network takes several."""
    bits = chance.getrandbits

    def below(n: int) -> int:
        size = n.bit_length()
        drawn = bits(size)
        while drawn >= n:
            drawn = bits(size)
        return drawn

    return below


class SimEntropy:
    """Chance and tokens from a seed. Split streams (`SimEntropy(f"{seed}/host-1")`) do not disturb each other."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311 - simulated secrets must be repeatable

    def token(self) -> str:
        """128 bits that are only as secret as the seed."""
        return f"{self.random.getrandbits(128):032x}"

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""
        return self.random.randrange(n)
