"""Every planted bug, house by house."""

from __future__ import annotations

from typing import Final

from mutation import (
    mutants_guards,
    mutants_leases,
    mutants_operations,
    mutants_plane,
    mutants_promises,
    mutants_servers,
    mutants_stores,
)
from mutation.mutant import Mutant

HOUSES: Final[dict[str, tuple[Mutant, ...]]] = {
    "Clients: taking, keeping, judging and giving back leases": tuple(mutants_leases.house.mutants),
    "Stores and resources, in the simulator": tuple(mutants_stores.house.mutants),
    "Redis and SQLite: scripts, statements, connections": tuple(mutants_servers.house.mutants),
    "Guards: what compares fences in front of the data": tuple(mutants_guards.house.mutants),
    "The plane: jobs, messages, and its door": tuple(mutants_plane.house.mutants),
    "Operations: drills, alerts, runbooks and tuning": tuple(mutants_operations.house.mutants),
    "Texts, times, delays and policies that callers and operators rely on": tuple(mutants_promises.house.mutants),
}

ZOO: Final[tuple[Mutant, ...]] = tuple(mutant for house in HOUSES.values() for mutant in house)
