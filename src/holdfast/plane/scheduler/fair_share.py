"""Whose turn it is: the next jobs for the free places of a pool, one from each tenant in turn. Pure.

Promises: between two jobs of one tenant every other tenant that has a job waiting, and a place left, gets one; a tenant
with a million jobs waiting delays another by at most one job for each tenant. Within a tenant the order is that of its
line. Does not promise equal shares of time: a turn is one job, however long it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """The jobs of one tenant that wait, in the order of their going."""

    tenant: str
    jobs: tuple[str, ...]
    room: int | None = None  # how many more of this tenant may go; None: as many as there are


@dataclass(frozen=True, slots=True)
class Turn:
    """What to dispatch, in this order, and which tenant had the last turn."""

    jobs: tuple[str, ...]
    last: str | None


def next_turn(lines: Sequence[Line], free: int) -> Turn:
    """Deal `free` places out: one to each line in the given order, then a second, until places or jobs are used up."""
    chosen: list[str] = []
    last: str | None = None
    depth = 0
    open_lines = [line for line in lines if _reach(line) > 0]
    while open_lines and len(chosen) < free:
        for line in open_lines:
            if len(chosen) == free:
                break
            chosen.append(line.jobs[depth])
            last = line.tenant
        depth += 1
        open_lines = [line for line in open_lines if _reach(line) > depth]
    return Turn(tuple(chosen), last)


def _reach(line: Line) -> int:
    return len(line.jobs) if line.room is None else min(len(line.jobs), line.room)
