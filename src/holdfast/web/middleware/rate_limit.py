"""How often each caller of the API may ask. Kept in this process: with several replicas, each allows its own share.

Promises: bounded memory, constant time. Whoever was not heard of for the longest time is forgotten first; somebody who
is forgotten has a full burst again, never less. Clock: the monotonic clock that is passed in.
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
BURST_S: Final = 2  # of requests may come at once


class Rates:
    """What is left of each caller's ration."""

    def __init__(self, rate: int, clock: Clock, *, callers_max: int = CALLERS_MAX) -> None:
        """`rate`: requests a second; twice as many may come at once."""
        check_whole("rate", rate, 1, RATE_MAX)
        self._token_bucket = TokenBucket(NS // rate, BURST_S * rate)
        self._clock = clock
        self._most = check_whole("callers_max", callers_max, 1, 10**9)
        self._full_ns: OrderedDict[Hashable, int] = OrderedDict()
        self.limited = 0

    def __len__(self) -> int:
        return len(self._full_ns)

    def wait_ns(self, caller: Hashable) -> int:
        """Count one request of a caller: 0, or how long they have to wait for the next one."""
        decision = self._token_bucket.decide(self._full_ns.get(caller), self._clock.now().mono)
        self._full_ns[caller] = decision.full_ns
        self._full_ns.move_to_end(caller)
        if len(self._full_ns) > self._most:
            self._full_ns.popitem(last=False)
        self.limited += not decision.allowed
        return decision.wait_ns
