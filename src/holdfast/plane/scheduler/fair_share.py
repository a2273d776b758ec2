"""Fair share: selects the next jobs for the free slots of a pool, one tenant after another. Pure.

Promises: between two jobs of one tenant every other tenant with a waiting job and a free slot gets one. So a tenant
with a million waiting jobs delays another by at most one job for each tenant. Within a tenant the order is that of its
queue. Does not promise equal shares of time: a job counts the same however long it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """The waiting jobs of one tenant, the next one first."""

    tenant: str
    jobs: tuple[str, ...]
    room: int | None = None  # how many more jobs of this tenant may be dispatched; None: no limit


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs to dispatch, in this order, and the tenant of the last one."""

    jobs: tuple[str, ...]
    last: str | None


def select_jobs(queues: Sequence[TenantQueue], free: int) -> Selection:
    """Fill `free` slots: one job of each queue in the given order, then a second, until slots or jobs are used up."""
    chosen: list[str] = []
    last: str | None = None
    depth = 0
    open_queues = [queue for queue in queues if _length(queue) > 0]
    while open_queues and len(chosen) < free:
        for queue in open_queues:
            if len(chosen) == free:
                break
            chosen.append(queue.jobs[depth])
            last = queue.tenant
        depth += 1
        open_queues = [queue for queue in open_queues if _length(queue) > depth]
    return Selection(tuple(chosen), last)


def _length(queue: TenantQueue) -> int:
    return len(queue.jobs) if queue.room is None else min(len(queue.jobs), queue.room)
