"""The check of leases as a part of the transaction that writes jobs, where both are in one Postgres database.

Promises: a write under a lease that has expired, was stolen or was released changes nothing. Until the transaction
ends, no other caller is granted the keys of its leases. The check is a part of the statement that writes, so it costs
no round trip. The fence in the row is still compared: it refuses a stale writer of any store.

Does not apply to a lease store elsewhere (Redis, NATS, another database): there the fence alone decides, when the next
holder has written. In one SQLite file, locks are acquired within the transaction instead (`locked_updates`).

Clock: the server's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from holdfast.core.ports import ChecksOwnership, Store
from holdfast.errors import LeaseLost
from holdfast.guards.bearer import Fenced
from holdfast.leases.lease_base import HeldLease
from holdfast.plane.db.ports import Database, ServerDatabase, Tx
from holdfast.types import LossReason

Owned: TypeAlias = Mapping[str, str | int]
"""Which lease a write is made under: key, digest of its token, and fence."""


class LeaseCheck:
    """The check for the leases of one store."""

    def __init__(self, statement: str) -> None:
        self._statement = statement

    @classmethod
    def of(cls, database: Database, leases: Store) -> LeaseCheck | None:
        """The check for leases that are in this database; None: they are elsewhere."""
        if not isinstance(database, ServerDatabase) or not isinstance(leases, ChecksOwnership):
            return None
        statement = leases.ownership_check(database.server_url)
        return None if statement is None else cls(statement)

    def owned(self, lease: Fenced) -> Owned | None:
        """What the check needs of a lease; None: it was not granted to this process. `LeaseLost` if that is known."""
        if not isinstance(lease, HeldLease):
            return None
        found = lease.condition().parameters
        return {"key": found["holdfast_key"], "token": found["holdfast_owned"], "fence": found["holdfast_at"]}

    async def put(self, tx: Tx, owned: Sequence[Owned]) -> None:
        """Let a transaction that holds nothing write nothing unless all of these leases stand."""
        if owned and not tx.holds:
            await tx.put(self._statement, {"owned": json.dumps(owned)}, rows=len(owned))

    async def lost(self, tx: Tx, owned: Sequence[Owned]) -> dict[str, LeaseLost]:
        """The keys of leases that do not stand. The others do until the transaction ends, if it holds what it reads."""
        if not owned or not tx.holds:
            return {}
        standing = {row["key"] for row in await tx.query(self._statement, {"owned": json.dumps(owned)})}
        return {str(each["key"]): _lost(each) for each in owned if each["key"] not in standing}


def _lost(owned: Owned) -> LeaseLost:
    key, fence = str(owned["key"]), int(owned["fence"])
    text = f"lease lost: {key} ({LossReason.STOLEN}), found by the transaction that was to write under it"
    return LeaseLost(text, key=key, reason=str(LossReason.STOLEN), fence=fence)
