"""How many messages a consumer requests from each of its queues on NATS. Pure.

One consumer may take from several queues with the same slots: a worker has a queue for each topic. JetStream has no
request for a message of any of them, so each queue has a request of its own, and these add up.

Promises: every queue has a request while a slot is free, so no message waits at the server for a free consumer. The
requests exceed the free slots by at most one for each queue. Queues from which messages came recently share the slots;
the others have a request for one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class PullQueue:
    """One queue of a consumer."""

    number: int
    subject: str
    durable: str
    busy: bool  # messages came from it since the slots were last divided
    asked: int = 0  # how many messages the server may still send
    heard_s: float = 0.0  # when the server last answered a request for it; the loop's clock


class Requests(NamedTuple):
    """What to request now."""

    more: Sequence[tuple[PullQueue, int]] = ()
    withdraw: bool = False  # the requests that are under way have to be withdrawn first


def next_requests(queues: Sequence[PullQueue], free: int, slots: int) -> Requests:
    """The next requests of a consumer that has `slots`, of which `free` are free."""
    asked = sum(queue.asked for queue in queues)
    if free <= 0:
        # The first queue is the shared one of older versions; a request for one of its messages may stay.
        return Requests(withdraw=any(queue.asked for queue in queues[1:]))
    shares = _shares(queues, free)
    more = [(queue, share - queue.asked) for queue, share in zip(queues, shares, strict=True) if share > queue.asked]
    # Many small requests cost more than few large ones; so the next one waits until half of the slots are free.
    if not any(queue.asked == 0 for queue, _ in more) and 2 * (free - asked) < slots:
        return Requests()
    if asked + sum(number for _, number in more) <= free + len(queues):
        return Requests(more)
    return Requests(list(zip(queues, shares, strict=True)), withdraw=True)


def _shares(queues: Sequence[PullQueue], free: int) -> list[int]:
    """How many messages may be requested from each queue."""
    busy = [queue.busy for queue in queues]
    if not any(busy):
        busy = [queue.number > 0 or len(queues) == 1 for queue in queues]
    share = -(-free // sum(busy))
    return [share if each else 1 for each in busy]
