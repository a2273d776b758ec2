"""What is put right at single nodes after a renewal, when the majority has decided and its holders have been told.

A node that has lost a lease which a majority has renewed gets it again: otherwise one that is held for long would lose
its nodes one by one, with each that restarts. A node that has renewed one which a majority has lost gives it up: it
would block every caller for another TTL, and has no holder. Nothing is taken for a lease that was released meanwhile
(`late_replies`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from holdfast.core.lease.quorum import Verdict
from holdfast.core.ports import Store
from holdfast.errors import BackendError
from holdfast.stores.quorum.late_replies import Late
from holdfast.stores.quorum.nodes import quietly
from holdfast.types import NS, Ask, Renewal

CLEANUP_NS = 2 * NS


class Healing:
    """One renewal of some leases. Each node that was asked ends it once: with `agrees`, or with `heal`."""

    def __init__(
        self, stores: Sequence[Store], late: Late, renewals: Sequence[Renewal], decided: Sequence[Verdict]
    ) -> None:
        self._stores = stores
        self._late = late
        self._leases = list(zip(renewals, decided, strict=True))
        for lease, verdict in self._leases:
            if verdict is Verdict.WON:
                late.begin(lease.token, len(stores))
            elif verdict is Verdict.LOST:
                late.over(lease.token)

    def agrees(self, answer: list[bool | None] | BackendError) -> bool:
        """Whether there is nothing to be put right at a node that has said this."""
        if not isinstance(answer, list):
            right = True
        else:
            right = all(
                said is (verdict is Verdict.WON)
                for (_, verdict), said in zip(self._leases, answer, strict=True)
                if verdict in (Verdict.WON, Verdict.LOST)
            )
        if right:
            self.end(1)
        return right

    def end(self, nodes: int) -> None:
        """So many nodes need nothing more."""
        for lease, verdict in self._leases:
            if verdict is Verdict.WON:
                self._late.ended(lease.token, nodes)

    async def heal(self, node: int, answer: list[bool | None] | BackendError) -> None:
        """Put right what is wrong at a node. One that cannot be reached is left alone until the next renewal."""
        if self.agrees(answer) or not isinstance(answer, list):
            return
        todo = list(zip(self._leases, answer, strict=True))
        try:
            while todo:
                (lease, verdict), said = todo.pop()
                if verdict is Verdict.WON:
                    await quietly(self._keep(node, lease, missing=said is False))
                elif verdict is Verdict.LOST and said is True:
                    await quietly(self._give_up(node, lease))
        finally:
            for (lease, verdict), _ in todo:  # there are some if the store was closed meanwhile
                if verdict is Verdict.WON:
                    self._late.ended(lease.token)

    async def _keep(self, node: int, lease: Renewal, *, missing: bool) -> None:
        """Take a lease of ours again at a node that does not know it, and give it back if it is over by then."""
        try:
            ask = _ask_of(lease) if missing and not self._late.is_over(lease.token) else None
            if ask is not None:
                await quietly(self._stores[node].acquire(ask, CLEANUP_NS))
        finally:
            over = self._late.ended(lease.token)
        if over and ask is not None:
            await self._give_up(node, lease)

    async def _give_up(self, node: int, lease: Renewal) -> None:
        await self._stores[node].release(lease.key, lease.token, None, 0, CLEANUP_NS)


def _ask_of(lease: Renewal) -> Ask | None:
    try:
        fence, owner, family = json.loads(lease.claim)
    except ValueError:  # not a claim of ours: then it is renewed where it is, and no more
        return None
    return Ask(lease.key, lease.token, owner, family, lease.ttl_ns, floor=fence)
