"""Bugs to be found by quorum worlds: planted in the production code that these worlds run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.core.lease import quorum
from holdfast.core.lease.quorum import Verdict
from holdfast.core.ports import Ports
from holdfast.flows import acquire as acquiring
from holdfast.stores.quorum import nodes as quorum_nodes
from holdfast.stores.quorum import store as quorum_store
from holdfast.stores.quorum.late_replies import LateVotes
from holdfast.stores.quorum.store import QuorumStore


def half_of_the_nodes_are_a_majority(patch: pytest.MonkeyPatch) -> None:
    """N/2 and not one more: two of five decide."""
    for module in (quorum, quorum_nodes):
        patch.setattr(module, "majority", lambda nodes: nodes // 2)


def a_grant_counts_from_its_last_answer(patch: pytest.MonkeyPatch) -> None:
    """The time of the answers is not checked, and the lease counts from the last answer."""
    ask = acquiring.try_once

    async def once(ports: Ports, *args: Any) -> Any:
        answer, _, now = await ask(ports, *args)
        return answer, now, now

    patch.setattr(quorum_store, "validity_ns", lambda *_: 1)
    patch.setattr(acquiring, "try_once", once)


def votes_of_a_lost_election_are_kept(patch: pytest.MonkeyPatch) -> None:
    """An outvoted caller leaves its votes at the nodes, where they block every caller."""

    async def nothing(*_: object) -> bool:
        return True

    patch.setattr(QuorumStore, "_release_votes", nothing)


def one_node_renews_a_lease(patch: pytest.MonkeyPatch) -> None:
    """A renewal counts when any node has confirmed it."""
    renewed = QuorumStore._renewed

    def by_one(self: QuorumStore, answers: Any, number: int) -> Verdict:
        said = [each[number] for each in answers.values() if isinstance(each, list)]
        return Verdict.WON if True in said else renewed(self, answers, number)

    patch.setattr(QuorumStore, "_renewed", by_one)


def the_highest_fence_is_told_at_once(patch: pytest.MonkeyPatch) -> None:
    """The highest number that any voter gave is the fence, and no step makes sure that a majority knows it."""

    def highest(fences: Iterable[int], nodes: int) -> int | None:
        return max(fences, default=None)

    patch.setattr(quorum_store, "settled", highest)


def votes_that_come_late_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A vote that comes when its lease was released stays at the node until its TTL is over."""
    patch.setattr(LateVotes, "over", lambda self, token: None)
