"""Rate limits per caller of the API. Kept in this process: with several replicas, each has its own limit.

Promises: bounded memory, constant time. The caller with the oldest request is evicted first; it then has a full burst
again, never less. Clock: the given monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from holdfast.core.ports import Clock
from holdfast.core.token_bucket import TokenBucket
from holdfast.plane.model.records import check_whole
from holdfast.types import NS

CALLERS_MAX: Final = 10_000
RATE_MAX: Final = 1_000_000
BURST_S: Final = 2  # seconds of requests that may arrive in a burst


class Rates:
    """The remaining requests of each caller."""

    def __init__(self, rate: int, clock: Clock, *, callers_max: int = CALLERS_MAX) -> None:
        """`rate`: requests a second; a burst may have twice as many."""
        check_whole("rate", rate, 1, RATE_MAX)
        self._token_bucket = TokenBucket(NS // rate, BURST_S * rate)
        self._clock = clock
        self._most = check_whole("callers_max", callers_max, 1, 10**9)
        self._full_ns: OrderedDict[Hashable, int] = OrderedDict()
        self.limited = 0

    def __len__(self) -> int:
        return len(self._full_ns)

    def wait_ns(self, caller: Hashable) -> int:
        """Count one request of a caller. Returns the time until it may be served; 0: now."""
        decision = self._token_bucket.decide(self._full_ns.get(caller), self._clock.now().mono)
        self._full_ns[caller] = decision.full_ns
        self._full_ns.move_to_end(caller)
        if len(self._full_ns) > self._most:
            self._full_ns.popitem(last=False)
        self.limited += not decision.allowed
        return decision.wait_ns
