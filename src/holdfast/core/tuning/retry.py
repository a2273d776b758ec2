"""Which retry delay suits a recorded contention: the same arrivals and holds, replayed once with each delay.

The replay is a discrete-event simulation: who came when, and how long each held the lock, are as recorded; only the
delay between attempts differs. A caller that finds the lock held waits `patience` for it (and then has it first, as
wake-ups make it), and after that comes again after the delay. It is deterministic: chance comes from a seed, and equal
input gives equal output. It leaves out what a delay does not change: the store, its latency, and lost leases.

Compared are the p95 of the wait, the number of attempts in vain, and how bunched those are (`core.tuning.burstiness`,
the worst minute). The guardrails are those of `core.backoff`: a spread below the TTL's safety budget, and a delay above
the median hold.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.core.backoff import Backoff, Draw, check_against
from holdfast.core.tuning.burstiness import BUCKET_NS, Burst, Burstiness
from holdfast.core.tuning.percentiles import Spread, of_durations
from holdfast.errors import BadInput
from holdfast.types import NS

MINUTE_NS: Final = 60 * NS
ATTEMPTS_MAX: Final = 2_000_000  # of one replay; what needs more is a lock that is held forever


class Arrival(NamedTuple):
    """When a caller asked for a key, and how long the caller then held it."""

    at_ns: int
    key: str
    hold_ns: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one delay does to a recorded contention."""

    name: str
    waits: Spread
    contended: Spread  # of those that found the lock held at first
    busy: int  # attempts in vain
    burst: Burst  # of those, in buckets of 50 ms: the worst minute
    waves: Burst  # in buckets of 500 ms
    unfinished: int = 0  # left when the replay had made as many attempts as it may

    @property
    def p95_wait_ns(self) -> int:
        """The p95 of all waits."""
        return self.waits.p95_ns


def replay(
    name: str, arrivals: Iterable[Arrival], backoff: Backoff, *, patience_ns: int = 0, seed: int = 0
) -> Replayed:
    """Live through the arrivals with this delay."""
    return _Replay(backoff, patience_ns, _draws(seed)).run(name, arrivals)


def guardrails(backoff: Backoff, ttl_ns: int, median_hold_ns: int | None) -> list[str]:
    """What is wrong with a delay for a lock, each as a sentence. Empty: nothing."""
    found = []
    for median in (None, median_hold_ns):
        try:
            check_against(backoff, ttl_ns, median)
        except BadInput as error:
            if f"{error.problem}; {error.fix}" not in found:
                found.append(f"{error.problem}; {error.fix}")
    return found


class _Replay:
    """One run. Events are distinguished by their sequence number, so that equal times have one order."""

    def __init__(self, backoff: Backoff, patience_ns: int, draw: Draw) -> None:
        self._backoff = backoff
        self._patience_ns = patience_ns
        self._draw = draw
        self._events: list[tuple[int, int, int, int]] = []  # time, order, what, who
        self._order = 0
        self._holder: dict[str, int] = {}
        self._waiting: dict[str, deque[int]] = {}
        self._busy: list[int] = []

    def run(self, name: str, arrivals: Iterable[Arrival]) -> Replayed:
        people = sorted(arrivals)
        tried = [0] * len(people)
        last = [0] * len(people)
        waits: dict[int, int] = {}
        for who, each in enumerate(people):
            self._put(each.at_ns, _TRY, who)
        while self._events and len(self._busy) < ATTEMPTS_MAX:
            now, _, what, who = heapq.heappop(self._events)
            key = people[who].key
            queue = self._waiting.setdefault(key, deque())
            if what == _RELEASE:
                del self._holder[key]
                if queue:
                    self._grant(now, queue.popleft(), people, waits)
            elif what == _TRY and key not in self._holder:
                self._grant(now, who, people, waits)
            elif what == _TRY and self._patience_ns:
                queue.append(who)
                self._put(now + self._patience_ns, _GIVE_UP, who)
            elif what == _TRY or who in queue:
                if what == _GIVE_UP:
                    queue.remove(who)
                self._busy.append(now)
                last[who] = self._backoff.delay_ns(tried[who], last[who], self._draw)
                tried[who] += 1
                self._put(now + max(1, last[who]), _TRY, who)
        contended = [wait for wait in waits.values() if wait > 0]
        return Replayed(
            name,
            of_durations(list(waits.values()), "waits"),
            of_durations(contended, "waits for a lock that was held"),
            len(self._busy),
            worst_minute(self._busy),
            worst_minute(self._busy, 500 * NS // 1000),
            len(people) - len(waits),
        )

    def _grant(self, now: int, who: int, people: Sequence[Arrival], waits: dict[int, int]) -> None:
        self._holder[people[who].key] = who
        waits[who] = now - people[who].at_ns
        self._put(now + max(1, people[who].hold_ns), _RELEASE, who)

    def _put(self, at_ns: int, what: int, who: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_ns, self._order, what, who))


_RELEASE, _TRY, _GIVE_UP = 0, 1, 2


def worst_minute(times_ns: Iterable[int], width_ns: int = BUCKET_NS) -> Burst:
    """How bunched events are, as the metric says it, in the minute in which they are bunched most."""
    counted, worst = Burstiness(), Burst(0, 0.0, 0.0)
    began: int | None = None
    last = 0
    for at in sorted(times_ns):
        if began is not None and at - began >= MINUTE_NS:
            worst = max(worst, counted.read(last, width_ns), key=lambda each: each.fano)
            counted, began = Burstiness(), None
        began = at if began is None else began
        last = at
        counted.note(at)
    return worst if began is None else max(worst, counted.read(last, width_ns), key=lambda each: each.fano)


def _draws(seed: int) -> Draw:
    """Uniform whole numbers from a seed, the same on every machine."""
    state = hashlib.sha256(f"holdfast retry {seed}".encode()).digest()
    left: list[int] = []

    def draw(limit: int) -> int:
        nonlocal state, left
        if not left:
            state = hashlib.sha256(state).digest()
            left = [int.from_bytes(state[place : place + 8], "big") for place in range(0, 32, 8)]
        return left.pop() * limit >> 64

    return draw
