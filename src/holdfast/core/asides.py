"""Who of those that wait for a place of their topic goes next, and where that puts them in the lines of a pool. Pure.

Promises: the places of a topic go round among the tenants who wait for one, whatever else these tenants have waiting;
within a tenant they go by priority, then by age. Whoever may go stands in the line of its tenant as if it had always
stood there: it overtakes nobody of a higher priority, and nobody who was there before it; tenants take their turns as
ever (`fairness`). So those who wait for a place of their topic hold up nobody, and nobody holds up them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.core.fairness import Line, next_turn


class Rank(NamedTuple):
    """Where a job stands in the line of its tenant: the least goes first."""

    behind: int  # the priority, below zero
    created_ns: int
    job: str


@dataclass(frozen=True, slots=True)
class Aside:
    """The jobs of one tenant that wait for a place of one topic, in the order of their going."""

    tenant: str
    jobs: tuple[Rank, ...]
    room: int | None = None  # how many more of this tenant may go; None: as many as there are


def room_of(places: int | None, running: int, free: int) -> int:
    """How many jobs of a topic may go now. `places`: that it has; None: as many as its pool. `free`: of the pool."""
    return max(0, free if places is None else min(places - running, free))


def picked(lines: Sequence[Aside], room: int) -> dict[str, list[Rank]]:
    """Who may go, by tenant: one of each line in the given order, then a second, until there is no more room."""
    ranks = {rank.job: (line.tenant, rank) for line in lines for rank in line.jobs}
    turn = next_turn([Line(each.tenant, tuple(rank.job for rank in each.jobs), each.room) for each in lines], room)
    found: dict[str, list[Rank]] = {}
    for job in turn.jobs:
        tenant, rank = ranks[job]
        found.setdefault(tenant, []).append(rank)
    return found


def joined(
    lines: Sequence[Line],
    going: Mapping[str, Sequence[Rank]],
    ranks: Mapping[str, Rank],
    rooms: Mapping[str, int | None],
    order: Sequence[str],
) -> tuple[Line, ...]:
    """The lines of a pool with those who may go in them, in the order of the tenants.

    `ranks` are those of the jobs in lines that somebody joins, and `rooms` those of tenants who have no line yet.
    """
    known = {line.tenant: line for line in lines}
    found: list[Line] = []
    for tenant in order:
        line = known.get(tenant) or Line(tenant, (), rooms.get(tenant))
        if tenant in going:
            all_of_it = sorted([*(ranks[job] for job in line.jobs if job in ranks), *going[tenant]])
            line = Line(tenant, tuple(rank.job for rank in all_of_it), line.room)
        found.append(line)
    return tuple(found)
