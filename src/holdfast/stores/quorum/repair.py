"""Repairs single nodes after a renewal, when the majority has decided and the holders have their answers.

A node that has lost a lease which a majority has renewed gets it again: otherwise a long lease would lose its nodes one
by one, with each that restarts. A node that has renewed a lease which a majority has lost releases it: it would block
every caller for another TTL, and has no holder. Nothing is taken for a lease that was released meanwhile
(`late_replies`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.core.lease.quorum import Verdict
from holdfast.core.ports import Store
from holdfast.errors import BackendError
from holdfast.stores.quorum.late_replies import TokenVotes
from holdfast.stores.quorum.nodes import quietly
from holdfast.types import NS, AcquireRequest, Renewal

CLEANUP_NS = 2 * NS


class Repair:
    """The repair after one renewal of some leases."""

    def __init__(
        self, stores: Sequence[Store], leases: Sequence[tuple[Renewal, TokenVotes]], decided: Sequence[Verdict]
    ) -> None:
        self._stores = stores
        self._leases = [(*lease, verdict) for lease, verdict in zip(leases, decided, strict=True)]
        for _, votes, verdict in self._leases:
            if verdict is Verdict.LOST:
                votes.over = True

    def agrees(self, answer: list[bool | None] | BackendError) -> bool:
        """Whether a node with this answer needs no repair."""
        return not isinstance(answer, list) or all(
            renewed is (verdict is Verdict.WON)
            for (_, _, verdict), renewed in zip(self._leases, answer, strict=True)
            if verdict in (Verdict.WON, Verdict.LOST)
        )

    async def at(self, node: int, answer: list[bool | None] | BackendError) -> None:
        """Repair one node. One that cannot be reached is left alone until the next renewal."""
        if self.agrees(answer) or not isinstance(answer, list):
            return
        for (lease, votes, verdict), renewed in zip(self._leases, answer, strict=True):
            if verdict is Verdict.WON and renewed is False:
                await quietly(self._take_again(node, lease, votes))
            elif verdict is Verdict.LOST and renewed is True:
                await quietly(self._release(node, lease))

    async def _take_again(self, node: int, lease: Renewal, votes: TokenVotes) -> None:
        """Take a lease again at a node that does not have it, and release it if it is over by then."""
        ask = None if votes.over else _ask_of(lease)
        if ask is not None:
            await quietly(self._stores[node].acquire(ask, CLEANUP_NS))
            if votes.over:
                await self._release(node, lease)

    async def _release(self, node: int, lease: Renewal) -> None:
        await self._stores[node].release(lease.key, lease.token, None, 0, CLEANUP_NS)


def _ask_of(lease: Renewal) -> AcquireRequest | None:
    try:
        fence, owner, family = json.loads(lease.claim)
    except ValueError:  # not a claim of ours: then it is renewed where it is, and no more
        return None
    return AcquireRequest(lease.key, lease.token, owner, family, lease.ttl_ns, floor=fence)
