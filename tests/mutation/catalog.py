"""All mutants, in groups."""

from __future__ import annotations

from typing import Final

from mutation import (
    mutants_etcd,
    mutants_guards,
    mutants_leases,
    mutants_operations,
    mutants_plane,
    mutants_promises,
    mutants_servers,
    mutants_stores,
)
from mutation.mutant import Mutant

GROUPS: Final[dict[str, tuple[Mutant, ...]]] = {
    "Clients: acquire, renew, check and release leases": tuple(mutants_leases.group.mutants),
    "Stores and resources, in the simulator": tuple(mutants_stores.group.mutants),
    "Redis and SQLite: scripts, statements, connections": tuple(mutants_servers.group.mutants),
    "etcd: transactions, fences, waiters": tuple(mutants_etcd.group.mutants),
    "Guards: what compares fences in front of the data": tuple(mutants_guards.group.mutants),
    "The plane: jobs, messages and access": tuple(mutants_plane.group.mutants),
    "Operations: drills, alerts, runbooks and tuning": tuple(mutants_operations.group.mutants),
    "Texts, times, delays and policies that callers and operators rely on": tuple(mutants_promises.group.mutants),
}

MUTANTS: Final[tuple[Mutant, ...]] = tuple(mutant for group in GROUPS.values() for mutant in group)
