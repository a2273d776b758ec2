"""Every planted bug, house by house."""

from __future__ import annotations

from typing import Final

from zoo import (
    planted_guards,
    planted_leases,
    planted_operations,
    planted_plane,
    planted_promises,
    planted_servers,
    planted_stores,
)
from zoo.species import Mutant

HOUSES: Final[dict[str, tuple[Mutant, ...]]] = {
    "Clients: taking, keeping, judging and giving back leases": tuple(planted_leases.house.mutants),
    "Stores and resources, in the simulator": tuple(planted_stores.house.mutants),
    "Redis and SQLite: scripts, statements, connections": tuple(planted_servers.house.mutants),
    "Guards: what compares fences in front of the data": tuple(planted_guards.house.mutants),
    "The plane: jobs, messages, and its door": tuple(planted_plane.house.mutants),
    "Operations: drills, alerts, runbooks and tuning": tuple(planted_operations.house.mutants),
    "Texts, times, delays and policies that callers and operators rely on": tuple(planted_promises.house.mutants),
}

ZOO: Final[tuple[Mutant, ...]] = tuple(mutant for house in HOUSES.values() for mutant in house)
