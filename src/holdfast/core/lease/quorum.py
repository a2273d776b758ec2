"""The result of the votes of several nodes: one tally for acquire, renew, release and views, and one rule for fences.

An answer of a node is a yes, a no, or nothing; the last is *unknown* when the request may have had an effect, and
*failed* when it certainly had none. Callers wait only for the votes that decide: a question is *won* when a majority
says yes, *lost* when so many say no that a majority cannot say yes any more, and *faulted* when neither can happen any
more. The number of nodes is odd, so both take the same number of votes, and any two majorities have a node in common.

Validity: a grant of a quorum is as old as its first request, whichever node answered when, so
`validity = ttl - elapsed since before the first request - drift`. A grant that is past it is none.

Fences: each node counts on its own clock, so nodes give different numbers for one grant; the highest of them
is not enough either, for the next majority may not know it. A fence is *settled* when a majority has the very same
number for the grant. Until then all are asked again with the highest number seen as the least that will do, and a node
raises what it has given, never lowers it; so after a few rounds it is settled, and the grant is told only then. The
next grant needs a majority too, so one of its nodes has seen the settled fence, gives a higher one, and no lower one
can be settled: fences of one key rise for as long as that node remembers. A node that has forgotten counts on from a
clock, its own or that of the node that was asked first: then fences rise if the clocks of the nodes are not further
apart than the time for which it was away.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from holdfast.core.lease.timing import drift_ns
from holdfast.types import Instant, elapsed_ns

NODES_MIN, NODES_MAX = 3, 9


class Vote(Enum):
    """The answer of one node."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"  # no answer, and it may have had an effect
    FAILED = "failed"  # no answer, and it certainly had none


class Verdict(Enum):
    """The result of the votes."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"
    FAULTED = "faulted"  # too many nodes did not answer


def majority(nodes: int) -> int:
    """How many nodes decide."""
    return nodes // 2 + 1


class Tally:
    """The votes on one question."""

    __slots__ = ("failed", "no", "nodes", "unknown", "yes")

    def __init__(self, nodes: int, votes: Iterable[Vote] = ()) -> None:
        self.nodes = nodes
        self.yes = self.no = self.unknown = self.failed = 0
        for vote in votes:
            self.cast(vote)

    def cast(self, vote: Vote) -> None:
        """Count the vote of one more node."""
        if vote is Vote.YES:
            self.yes += 1
        elif vote is Vote.NO:
            self.no += 1
        elif vote is Vote.UNKNOWN:
            self.unknown += 1
        else:
            self.failed += 1

    @property
    def pending(self) -> int:
        """How many nodes have not answered yet."""
        return self.nodes - self.yes - self.no - self.unknown - self.failed

    @property
    def quorate(self) -> bool:
        """Whether a majority has answered, one way or the other."""
        return self.yes + self.no >= majority(self.nodes)

    @property
    def verdict(self) -> Verdict:
        """The result so far."""
        need = majority(self.nodes)
        if self.yes >= need:
            return Verdict.WON
        if self.no > self.nodes - need:
            return Verdict.LOST
        pending = self.pending
        if self.yes + pending < need and self.no + pending <= self.nodes - need:
            return Verdict.FAULTED
        return Verdict.PENDING


def vote(answer: bool | None) -> Vote:
    """The vote for an answer to a renewal or a release; None: there was no answer."""
    if answer is None:
        return Vote.UNKNOWN
    return Vote.YES if answer else Vote.NO


def validity_ns(ttl_ns: int, began: Instant, now: Instant) -> int:
    """How long a grant may still be trusted whose first request was sent after `began`. Not above zero: no grant."""
    return ttl_ns - elapsed_ns(began, now) - drift_ns(ttl_ns)


def settled(fences: Iterable[int], nodes: int) -> int | None:
    """The fence that a majority has given for one grant. None: there is no such number yet."""
    counted = Counter(fences)
    return next((fence for fence, times in counted.items() if times >= majority(nodes)), None)


def assured(fences: Iterable[int], nodes: int) -> int | None:
    """The highest number that a majority has reached: every later majority has a node that continues above it."""
    falling = sorted(fences, reverse=True)
    need = majority(nodes)
    return falling[need - 1] if len(falling) >= need else None


def free_in_ns(remaining: Iterable[int | None], nodes: int) -> int | None:
    """When a majority of nodes will be free, by the time that the holder of each has left; 0 is a free one.

    None: unknown, because too many nodes did not answer. Each None stands for one that did not.
    """
    known = sorted(each for each in remaining if each is not None)
    need = majority(nodes)
    return known[need - 1] if len(known) >= need else None
