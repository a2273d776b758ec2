"""How often a caller may ask: a steady rate, and bursts. Pure.

One number is kept for each caller: when their bucket will be full again. Everything that was allowed moves it on by one
period; a request that would move it further than a burst ahead of now has to wait for the difference. Allowing takes no
more memory than that, and a caller that has been quiet for a burst's time needs no memory at all.

Clock: the caller's, in nanoseconds, which must not go back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class RateDecision(NamedTuple):
    """The outcome of one request."""

    full_ns: int  # when the bucket is full again; to be kept for the next time
    wait_ns: int  # 0: it is allowed

    @property
    def allowed(self) -> bool:
        """Whether it may continue now."""
        return not self.wait_ns


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """One request each `every_ns`, and `burst` in quick succession after a quiet time."""

    every_ns: int
    burst: int

    def decide(self, full_ns: int | None, now_ns: int) -> RateDecision:
        """Whether a request may continue now. `full_ns`: what was kept of the last one; None: nothing is known."""
        begin_ns = now_ns if full_ns is None else max(full_ns, now_ns)
        next_ns = begin_ns + self.every_ns
        wait_ns = next_ns - (now_ns + self.burst * self.every_ns)
        return RateDecision(begin_ns, wait_ns) if wait_ns > 0 else RateDecision(next_ns, 0)
