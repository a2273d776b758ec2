"""A majority of stores as one store: nodes that are gone, slow, wrong or full of other votes, in both colors."""

from __future__ import annotations

import pytest

from holdfast.core.ports import Store
from holdfast.errors import BadInput, Misconfigured, Timeout, Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores.quorum.engine import QuorumEngine
from holdfast.types import NS, AcquireRequest, Busy, Grant, Guarantee, Instant, Renewal
from support.fixtures.quorum import CALL, HEDGE, LONG, Node, NodeStore, Play, ask, fail, granted


@pytest.mark.parametrize("lost", [1, 2])
def test_a_minority_that_is_gone_changes_nothing(play_quorum: Play, lost: int) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        fail(nodes[:lost], Unavailable("gone"))
        grant = await granted(store, ask())
        renewal = Renewal("k", grant.token, grant.claim, LONG)
        assert await store.renew_many([renewal], CALL) == [True]
        assert isinstance(await store.acquire(ask("other"), CALL), Busy)
        holding = await store.inspect("k", CALL)
        assert holding is not None
        assert holding.fence == grant.fence
        await store.ping(CALL)
        assert await store.release("k", grant.token, grant.claim, 0, CALL)
        assert (await granted(store, ask("other"))).fence > grant.fence

    play_quorum(scenario)


def test_a_majority_that_is_gone_is_an_error_with_the_reason_of_each_node(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        held = await granted(store, ask("held"))
        for number, node in enumerate(nodes[:3]):
            node.error = Unavailable(f"{number} is gone")
        with pytest.raises(Unavailable, match="no majority of 5 nodes, 3 failed: 0 is gone; 1 is gone; 2"):
            await store.ping(CALL)
        for call in (
            store.renew_many([Renewal("k", held.token, held.claim, LONG)], CALL),
            store.release("k", held.token, held.claim, 0, CALL),
            store.acquire(ask()._replace(key="free"), CALL),
        ):
            with pytest.raises(Timeout, match="no majority"):  # two nodes have done their part
                await call
        with pytest.raises(Unavailable, match="inspect lock k"):
            await store.inspect("k", CALL)
        fail(nodes, Unavailable("gone"))
        with pytest.raises(Unavailable, match="acquire lock k"):
            await store.acquire(ask(), CALL)

    play_quorum(scenario)


def test_a_majority_that_can_never_work_is_misconfigured(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        fail(nodes[:3], Misconfigured("wrong password"))
        with pytest.raises(Misconfigured, match="wrong password"):
            await store.ping(CALL)

    play_quorum(scenario)


def test_a_list_has_what_a_majority_holds_however_much_else_single_nodes_have(play_quorum: Play) -> None:
    """Votes that were not released fill the lists of the nodes, which are cut before what is held."""

    async def scenario(store: Store, nodes: list[Node]) -> None:
        keys = [f"held {number}" for number in range(4)]
        for key in keys:
            await granted(store, ask()._replace(key=key))
        for number, node in enumerate(nodes):
            for left in range(10):
                await granted(node.blocking, ask()._replace(key=f"a vote of {number}: {left}"))
        for limit in (1, 3, 4, 5):
            seen = [each.key for each in await store.holdings("", limit, CALL)]
            assert seen == keys[:limit]
            rest = [each.key for each in await store.holdings("", 100, CALL, seen[-1])]
            assert rest == keys[limit:]

    play_quorum(scenario)


@pytest.mark.parametrize("slow", [0, 2, 4])
def test_no_caller_waits_for_a_node_that_never_answers(play_quorum: Play, slow: int) -> None:
    """The limit of each call is a minute, and the node does not answer before the test is over."""

    async def scenario(store: Store, nodes: list[Node]) -> None:
        nodes[slow].hangs = True
        grant = await granted(store, ask())
        assert await store.renew_many([Renewal("k", grant.token, grant.claim, LONG)], CALL) == [True]
        assert isinstance(await store.acquire(ask("other"), CALL), Busy)
        assert await store.release("k", grant.token, grant.claim, 0, CALL)
        assert nodes[slow].asked
        nodes[slow].wake()

    play_quorum(scenario, hedge_ns=HEDGE)


def test_a_busy_lock_costs_one_request_and_takes_no_vote(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        await granted(store, ask("holder"))
        await store.close()  # waits until the slower nodes have heard of it
        before = [node.asked for node in nodes]
        busy = await store.acquire(ask(), CALL)
        assert isinstance(busy, Busy)
        assert (busy.owner, busy.spent) == ("holder@host:1/a", False)
        assert [node.asked - was for node, was in zip(nodes, before, strict=True)] == [1, 0, 0, 0, 0]

    play_quorum(scenario)


def test_votes_of_a_lost_election_are_released_before_the_caller_is_answered(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        for node in nodes[2:]:  # a holder has a majority, and the first nodes do not know of it
            node.table.acquire(ask("holder"))
        busy = await store.acquire(ask(), CALL)
        assert isinstance(busy, Busy)
        assert busy.owner == "holder@host:1/a"
        assert [node.holder("k") for node in nodes] == [None] * 2 + ["holder@host:1/a"] * 3
        assert not busy.spent

    play_quorum(scenario)


def test_a_late_vote_is_released_and_its_token_is_spent(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        nodes[0].hangs = True
        for node in nodes[1:]:
            node.table.acquire(ask("holder"))
        busy = await store.acquire(ask(), CALL)
        assert isinstance(busy, Busy)
        assert busy.spent
        nodes[0].wake()
        await store.close()  # waits for what is under way
        assert nodes[0].holder("k") is None

    play_quorum(scenario, hedge_ns=HEDGE)


def test_a_lost_lease_is_given_up_where_its_renewal_came_in_time(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        grant = await granted(store, ask())
        for node in nodes[2:]:
            node.table.release("k", grant.token, 0)
        assert await store.renew_many([Renewal("k", grant.token, grant.claim, LONG)], CALL) == [False]
        await store.close()  # waits for what is under way
        assert [node.holder("k") for node in nodes] == [None] * 5

    play_quorum(scenario)


def test_what_a_minority_has_left_of_a_key_is_no_holder_to_be_forced_out(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        grant = await granted(store, ask())
        for node in nodes[1:]:
            node.table.release("k", grant.token, 0)
        assert await store.inspect("k", CALL) is None
        assert await store.force_release("k", "me", "why", CALL) is None
        assert await store.audit(10, CALL) == []
        assert nodes[0].holder("k") == "mine@host:1/a"

    play_quorum(scenario)


def test_a_forced_release_that_only_some_nodes_did_is_told_and_written_down(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        grant = await granted(store, ask())
        for node in nodes[:2]:
            node.table.release("k", grant.token, 0)
        record = await store.force_release("k", "me", "why", CALL)
        assert record is not None
        assert record.previous_owner == "mine@host:1/a"
        assert await store.audit(10, CALL) == [record]
        assert [node.holder("k") for node in nodes] == [None] * 5

    play_quorum(scenario)


def test_a_fence_is_settled_although_the_counters_of_the_nodes_differ(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        ahead = 10**16
        nodes[3].table.acquire(ask("other")._replace(key="elsewhere", floor=ahead))
        fail(nodes[1:3], Unavailable("gone"))
        grant = await granted(store, ask())  # of 1, 4 and 5: what the fourth knows decides
        assert grant.fence > ahead
        fences = [holding.fence for node in nodes if (holding := node.table.inspect("k")) is not None]
        assert fences == [grant.fence] * 3
        assert await store.release("k", grant.token, grant.claim, 0, CALL)
        fail(nodes[1:3], None)  # type: ignore[arg-type]  # they are back
        fail(nodes[3:], Unavailable("gone"))
        assert (await granted(store, ask("next"))).fence > grant.fence  # of 1, 2 and 3, of which the first remembers

    play_quorum(scenario)


def test_a_node_that_does_not_raise_fences_is_found_out(play_quorum: Play) -> None:
    class Deaf(NodeStore):
        async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
            answer = await super().acquire(ask._replace(floor=0), timeout_ns)
            return answer._replace(fence=1) if isinstance(answer, Grant) else answer

    async def scenario(store: Store, nodes: list[Node]) -> None:
        for node in nodes[1:]:
            node._here.__class__ = Deaf
        stores = store._nodes.stores  # type: ignore[attr-defined]  # what the store is made of
        for each in stores[1:]:
            each.__class__ = Deaf
        with pytest.raises(Misconfigured, match="does not raise fences"):
            await store.acquire(ask(), CALL)

    play_quorum(scenario)


class Ticking:
    """A clock on which every look takes long."""

    def __init__(self) -> None:
        self.ns = 0

    def now(self) -> Instant:
        self.ns += NS
        return Instant(self.ns, self.ns, self.ns)


def test_a_majority_that_took_longer_than_the_lease_is_no_grant() -> None:
    engine = QuorumEngine([Node(number) for number in range(3)], clock=Ticking())
    with pytest.raises(Timeout, match="longer than the lease may be trusted"):
        run_now(engine.blocking.acquire(ask(ttl_ns=3 * NS), 1000 * NS))
    run_now(engine.blocking.close())


@pytest.mark.parametrize("number", [0, 1, 2, 4, 11])
def test_a_quorum_of_no_majority_is_refused(number: int) -> None:
    with pytest.raises(BadInput, match="engines"):
        QuorumEngine([Node(each) for each in range(number)])


def test_a_quorum_claims_what_its_nodes_can_and_no_wake_ups() -> None:
    claims = QuorumEngine([Node(number) for number in range(3)]).capabilities
    assert (claims.engine, claims.guarantee) == ("quorum", Guarantee.FENCED)
    assert (claims.wakeups, claims.fair, claims.shared, claims.durable) == (False, False, False, False)


def test_what_a_node_refuses_as_input_reaches_the_asker(play_quorum: Play) -> None:
    class Picky(NodeStore):
        async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
            raise BadInput("name", "is odd", "use another")

    async def scenario(store: Store, nodes: list[Node]) -> None:
        for each in store._nodes.stores:  # type: ignore[attr-defined]  # what the store is made of
            each.__class__ = Picky
        with pytest.raises(BadInput, match="is odd"):
            await store.acquire(ask(), CALL)

    play_quorum(scenario)
