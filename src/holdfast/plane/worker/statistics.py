"""What a worker has done and is doing, in numbers: for metrics, for the console, and for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.histogram import Distribution


@dataclass(slots=True)
class WorkerStatistics:
    """Counts since the worker was made, and what is going on now."""

    # How attempts ended. Each that was taken ends in exactly one of these, or is still active.
    taken: int = 0  # a lease was had
    succeeded: int = 0
    quarantined: int = 0  # succeeded, and the output must not be used
    failed: int = 0  # for good
    retried: int = 0  # failed, and another attempt may be made
    lost: int = 0  # the lease was lost: nothing was said, and the message was given back
    stopped: int = 0  # the scheduler had ended the attempt
    given_back: int = 0  # interrupted by the end of the worker, or because the bus or the database did not answer
    outdated: int = 0  # a leftover of an attempt that is over; nothing was run

    # What was not taken.
    refused: int = 0  # not a topic of this worker
    full: int = 0  # no place for another of its topic
    passed_on: int = 0  # the same, and left for another worker, which has one
    busy: int = 0  # somebody else runs it
    unreachable: int = 0  # the lease store, or the bus, did not answer
    turned_away: int = 0  # delivered while the worker was ending
    repeated: int = 0  # finished here before; its result was published again, and nothing was run

    # Besides.
    timed_out: int = 0  # ran into a time limit
    stalled: int = 0  # reported no progress for too long
    overran: int = 0  # did not stop within the grace period when asked to
    beats: int = 0
    beats_failed: int = 0
    held: dict[str, Distribution] = field(default_factory=dict)  # by topic: how long attempts needed their lease
    taken_over: Distribution = field(
        default_factory=Distribution
    )  # since a dead worker's last heartbeat, until it was had

    # Now.
    active: int = 0
    stuck: int = 0  # of those that overran, how many still run

    def held_for(self, topic: str, ns: int) -> None:
        """An attempt is over, and gives its lease back unless it has lost it."""
        found = self.held.get(topic)
        if found is None:
            found = self.held[topic] = Distribution()
        found.observe(ns)
