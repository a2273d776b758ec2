"""Who of those that wait for a place of their topic goes next, and where that puts them in the lines of a pool. Pure.

Promises: the places of a topic go round among the tenants who wait for one, whatever else these tenants have waiting;
within a tenant they go by priority, then by age. Whoever may go stands in the line of its tenant as if it had always
stood there: it overtakes nobody of a higher priority, and nobody who was there before it; tenants take their turns as
ever (`fairness`). So those who wait for a place of their topic hold up nobody, and nobody holds up them.

Who waits for a place of its topic, as a dispatcher looks at it, and may go: they join the lines of their tenants.

Promises: a look costs the same however many wait, and next to nothing if nobody does. Only topics that live workers
serve are looked at, so jobs of other topics wait here at no cost, whatever their number. As with the lines of a pool
(`lines`) it is a look and nothing more: what it finds is decided under the job's lock, and counted there. SQLite is
asked in steps, which cost nothing there; Postgres once for all topics that have room. Both find the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdfast.plane.db.bulk import script
from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.scheduler.fair_share import Line, next_turn


class Rank(NamedTuple):
    """Where a job stands in the line of its tenant: the least goes first."""

    behind: int  # the priority, below zero
    created_ns: int
    job: str


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """The jobs of one tenant that wait for a place of one topic, in the order of their going."""

    tenant: str
    jobs: tuple[Rank, ...]
    room: int | None = None  # how many more of this tenant may go; None: as many as there are


def room_of(places: int | None, running: int, free: int) -> int:
    """How many jobs of a topic may go now. `places`: that it has; None: as many as its pool. `free`: of the pool."""
    return max(0, free if places is None else min(places - running, free))


def picked(lines: Sequence[TopicBacklog], room: int) -> dict[str, list[Rank]]:
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


TENANTS: Final = 64  # of each topic, read in one go

_TENANTS: Final = sql("aside_tenants")
_LINE: Final = sql("aside_line")
_LOOK: Final = sql("aside_look_postgres")


class Scarce(NamedTuple):
    """What is known of the topics of a pool."""

    places: Mapping[str, int]  # of those that have fewer than the pool
    served: frozenset[str]  # topics that live workers take
    last: Mapping[str, str] = {}  # by topic, the tenant that had the last turn


class Going(NamedTuple):
    """A job that has waited for a place of its topic, and may go."""

    topic: str
    tenant: str


@dataclass(frozen=True, slots=True)
class PoolBacklog:
    """What waits aside in a pool."""

    waiting: bool = False  # somebody does
    going: Mapping[str, Going] = field(default_factory=dict)  # by job, those who may go
    ranks: Mapping[str, list[Rank]] = field(default_factory=dict)  # of these, by tenant
    rooms: Mapping[str, int | None] = field(default_factory=dict)  # how many more of a tenant may go
    last: Mapping[str, str] = field(default_factory=dict)  # by topic, where to go on if nobody looked at may go


class Looked(NamedTuple):
    """What a dispatcher has looked at so far, and what it may hand out."""

    pool: str
    free: int
    passed: frozenset[str]
    slots: int | None


async def look_aside(tx: Tx, at: Looked, scarce: Scarce) -> PoolBacklog:
    """See the module."""
    rooms: dict[str, int] = {}
    served = json.dumps(sorted(scarce.served))
    topics = await tx.query(script("aside_topics", tx.dialect), {"pool": at.pool, "topics": served})
    for row in topics:
        topic = row["topic"]
        if room := room_of(scarce.places.get(topic), row["running"], at.free):
            rooms[topic] = room
    found = PoolBacklog(waiting=bool(topics))
    if not rooms:
        return found
    rows = await (_at_once if tx.dialect == "postgres" else _in_steps)(tx, at, scarce, rooms)
    going: dict[str, Going] = {}
    ranks: dict[str, list[Rank]] = {}
    last: dict[str, str] = {}
    left: dict[str, int | None] = {}
    for topic, room in rooms.items():
        lines = _lines([row for row in rows if row["topic"] == topic], at)
        left.update((line.tenant, line.room) for line in lines)
        chosen = picked([line for line in lines if line.room is None or line.room > 0], room)
        if not chosen and len(lines) == TENANTS:
            last[topic] = lines[-1].tenant
        for tenant, some in chosen.items():
            ranks.setdefault(tenant, []).extend(some)
            going.update((rank.job, Going(topic, tenant)) for rank in some)
    return PoolBacklog(waiting=True, going=going, ranks=ranks, rooms=left, last=last)


async def join(tx: Tx, lines: Sequence[Line], asides: PoolBacklog, after: str, until: str | None) -> tuple[Line, ...]:
    """The lines of a pool with those who may go in them. `until`: the last tenant looked at, if there may be more."""
    if not asides.ranks:
        return tuple(lines)
    there = [job for line in lines if line.tenant in asides.ranks for job in line.jobs]
    rows = await tx.query(script("queue_ranks", tx.dialect), {"ids": json.dumps(there)}) if there else []
    ranks = {row["id"]: _rank(row) for row in rows}
    order = [line.tenant for line in lines]
    if set(asides.ranks) - set(order):
        named = {*order, *asides.ranks} | ({until} if until is not None else set())
        known = {"tenants": json.dumps(sorted(named)), "after": after}
        order = [row["tenant"] for row in await tx.query(script("tenant_turns", tx.dialect), known)]
        if until is not None:
            order = order[: order.index(until) + 1]  # whoever comes later has its turn when those before it had theirs
    return joined(lines, asides.ranks, ranks, asides.rooms, order)


def _lines(rows: Sequence[Row], at: Looked) -> list[TopicBacklog]:
    lines: dict[str, list[Rank]] = {}
    rooms: dict[str, int | None] = {}
    for row in rows:
        limit = at.slots if row["slots"] is None else row["slots"]
        rooms[row["tenant"]] = None if limit is None else limit - row["running"]
        line = lines.setdefault(row["tenant"], [])
        if row["id"] not in at.passed:
            line.append(_rank(row))
    return [TopicBacklog(tenant, tuple(line), rooms[tenant]) for tenant, line in lines.items()]


def _rank(row: Row) -> Rank:
    return Rank(-row["priority"], row["created_ns"], row["id"])


async def _at_once(tx: Tx, at: Looked, scarce: Scarce, rooms: Mapping[str, int]) -> Sequence[Row]:
    wanted = [
        {"topic": topic, "after": scarce.last.get(topic, ""), "most": room + len(at.passed)}
        for topic, room in rooms.items()
    ]
    return await tx.query(_LOOK, {"pool": at.pool, "wanted": json.dumps(wanted), "tenants": TENANTS})


async def _in_steps(tx: Tx, at: Looked, scarce: Scarce, rooms: Mapping[str, int]) -> Sequence[Row]:
    found: list[Row] = []
    for topic, room in rooms.items():
        after, here = scarce.last.get(topic, ""), {"pool": at.pool, "topic": topic}
        tenants = await tx.query(_TENANTS, {**here, "after": after, "most": TENANTS})
        if after and len(tenants) < TENANTS:
            first = await tx.query(_TENANTS, {**here, "after": "", "most": TENANTS - len(tenants)})
            tenants += [each for each in first if each["tenant"] <= after]
        for each in tenants:
            wanted: dict[str, Any] = {**here, "tenant": each["tenant"], "most": room + len(at.passed)}
            found += ({**each, **row, "topic": topic} for row in await tx.query(_LINE, wanted))
    return found
