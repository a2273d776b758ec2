"""Creates the plan of a drill from its options: all of them are validated before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.drills.catalog import Drill
from holdfast.drills.env.deployment import Deployment
from holdfast.drills.env.stores import OWN
from holdfast.drills.incidents.incident_list import incident
from holdfast.drills.model import OWN_ONLY, OWN_SERVERS, DrillPlan, Need
from holdfast.errors import BadInput
from holdfast.types import MS, NS, duration_ns

TTL_S: Final = 1.0
_LEAST: Final = 4  # one for each process of the storm
_WAITERS_MAX, _KEYS_MAX = 200_000, 1_000_000
_FAULTS: Final = {
    Need.SERVERS: "fail over a server",
    Need.CLOCKS: "move the clock of a server",
    Need.STORES: "break a store for that long",
    Need.FLEET: "break a fleet",
}
_LONGEST_NS: Final = 3600 * NS
_SOAK_NS: Final = 7 * 86_400 * NS
_TTL_LOW_NS, _TTL_HIGH_NS = 500 * MS, 3600 * NS


def planned(
    drill: Drill,
    *,
    url: str | None = None,
    store: str | None = None,
    ttl: float | None = None,
    slo: float | None = None,
    duration: float | None = None,
    seed: int = 0,
    waiters: int | None = None,
    keys: int | None = None,
    deployment: Deployment | None = None,
    incidents: Sequence[str] = (),
) -> DrillPlan:
    """Return a plan, or raise `BadInput` with the option and the fix."""
    startable = ("redis", *OWN_SERVERS) if drill.need is Need.SERVERS else OWN
    if store is not None and store not in startable:
        raise BadInput("--store", f"{store!r} cannot be started here", f"use one of {', '.join(startable)}")
    if store is not None and url is not None:
        raise BadInput("--store", "cannot be combined with --url", "use one of them")
    if store == "sqlite" and drill.need is Need.NETWORK:
        raise BadInput("--store", f"{drill.name} needs {drill.need}", "use --store redis")
    if drill.need in _FAULTS:
        _refuse_others(drill, url, store)
    if url is not None and drill.need is Need.PLANE:
        raise BadInput("--url", f"{drill.name} runs on {drill.need}, not on leases alone", "omit it")
    if url is not None and url.lower().startswith("sqlite:") and drill.need is Need.NETWORK:
        raise BadInput("--url", f"{drill.name} needs {drill.need}", "use such a URL, or omit it and use --store redis")
    lease = TTL_S if ttl is None else duration_ns("--ttl", ttl, low_ns=_TTL_LOW_NS, high_ns=_TTL_HIGH_NS) / NS
    bound = None if slo is None else duration_ns("--slo", slo, low_ns=MS, high_ns=86_400 * NS) / NS
    if bound is None and store is not None and store in OWN_SERVERS:
        bound = lease + 1.0 + OWN_SERVERS[store].election_s
    longest = _SOAK_NS if drill.need is Need.STORES else _LONGEST_NS
    length = None if duration is None else duration_ns("--duration", duration, low_ns=NS, high_ns=longest) / NS
    crowd = _count("--waiters", waiters, _WAITERS_MAX), _count("--keys", keys, _KEYS_MAX)
    chosen = tuple(incident(each).name for each in incidents)
    return DrillPlan(url, store or "sqlite", lease, bound, length, seed, *crowd, deployment, chosen)


def _count(option: str, number: int | None, most: int) -> int | None:
    if number is not None and not _LEAST <= number <= most:
        raise BadInput(option, f"{number} is not between {_LEAST} and {most:,}", "use a number in that range")
    return number


def _refuse_others(drill: Drill, url: str | None, store: str | None) -> None:
    """Refuse servers that the drill has not started: it may neither kill them nor set their clocks."""
    fault = _FAULTS[drill.need]
    if url is not None:
        told = f"{drill.name} cannot {fault} that it has not started itself; it runs on {OWN_ONLY[drill.need]}"
        raise BadInput("--url", told, "omit it")
    if store is not None and drill.need is not Need.SERVERS:
        raise BadInput("--store", f"{drill.name} runs on {OWN_ONLY[drill.need]}", "omit it")
