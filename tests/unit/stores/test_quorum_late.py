"""Late or abandoned votes of a quorum: they have no holder, and they block no caller."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from holdfast.core.lease.quorum import Verdict
from holdfast.core.ports import Store
from holdfast.stores.memory.store import MemoryStore, MemoryTable
from holdfast.stores.quorum import late_replies
from holdfast.stores.quorum.late_replies import DOUBT_NS, Doubts, Late
from holdfast.stores.quorum.repair import Healing
from holdfast.types import Ask, Busy, Grant, Renewal
from support.fixtures.quorum import CALL, LONG, Node, Play, ask, granted


def test_a_vote_that_comes_when_its_lease_is_over_is_given_back(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        nodes[4].delays = True
        grant = await granted(store, ask())
        assert await store.release("k", grant.token, grant.claim, 0, CALL)
        nodes[4].wake()
        await store.close()  # waits for what is under way
        assert [node.holder("k") for node in nodes] == [None] * 5

    play_quorum(scenario)


def test_a_lease_that_is_brought_back_to_a_node_when_it_is_over_is_given_back(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        grant = await granted(store, ask())
        nodes[4].table.forget()
        nodes[4].delays = True
        assert await store.renew_many([Renewal("k", grant.token, grant.claim, LONG)], CALL) == [True]
        assert await store.release("k", grant.token, grant.claim, 0, CALL)
        nodes[4].wake()
        await store.close()
        assert [node.holder("k") for node in nodes] == [None] * 5

    play_quorum(scenario)


def test_what_somebody_left_at_a_minority_keeps_nobody_waiting_for_long(
    play_quorum: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_replies, "DOUBT_NS", 0)

    async def scenario(store: Store, nodes: list[Node]) -> None:
        for node in nodes[:2]:  # a client died in the middle of an acquire
            node.table.acquire(ask("gone"))
        assert isinstance(await store.acquire(ask(), CALL), Busy), "one node is believed, the first time"
        grant = await granted(store, ask())
        assert [node.holder("k") for node in nodes] == ["gone@host:1/a"] * 2 + ["mine@host:1/a"] * 3
        assert await store.renew_many([Renewal("k", grant.token, grant.claim, LONG)], CALL) == [True]
        assert await store.release("k", grant.token, grant.claim, 0, CALL)

    play_quorum(scenario)


def test_a_key_that_stays_busy_is_looked_at_everywhere_and_taken_from_nobody(
    play_quorum: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_replies, "DOUBT_NS", 0)

    async def scenario(store: Store, nodes: list[Node]) -> None:
        for node in (nodes[0], *nodes[3:]):
            node.table.acquire(ask("holder"))
        for _ in range(3):
            busy = await store.acquire(ask(), CALL)
            assert isinstance(busy, Busy)
            assert not busy.spent
        await store.close()
        assert [node.holder("k") for node in nodes] == ["holder@host:1/a", None, None, *["holder@host:1/a"] * 2]

    play_quorum(scenario)


def test_doubts_come_now_and_then_and_are_forgotten() -> None:
    doubts = Doubts()
    assert [doubts.due("k", now) for now in (0, 1, DOUBT_NS - 1, DOUBT_NS, DOUBT_NS + 1)] == [
        *[False] * 3,
        True,
        False,
    ]
    doubts.settled("k")
    assert not doubts.due("k", 10 * DOUBT_NS)
    for number in range(3000):
        doubts.due(f"{number}", 20 * DOUBT_NS)
    assert not doubts.due("k", 30 * DOUBT_NS), "the oldest had to make room"
    assert doubts.due("2999", 30 * DOUBT_NS)


def test_votes_under_way_are_counted_for_each_token() -> None:
    late = Late()
    assert not late.over("a")
    late.begin("a", 3)
    late.begin("b", 1)
    assert not late.ended("a")
    assert late.over("a")
    assert [late.ended("a"), late.ended("b"), len(late)] == [True, False, 1]
    assert [late.ended("a"), late.ended("a"), len(late)] == [True, False, 0]


FORKED = """
import os, signal, threading
from holdfast.stores.quorum.late_replies import Memory

memory = Memory()
memory.late.begin("a", 1)
held, forked = threading.Event(), threading.Event()

def hold():
    with memory.late._mutex, memory.doubts._mutex:
        held.set()
        forked.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)  # who waits for ever is ended
    nothing = len(memory.late) == 0 and not memory.late.over("a") and not memory.doubts.due("k", 0)
    os._exit(0 if nothing else 1)
forked.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(memory.late) == 1
"""


def test_a_forked_child_knows_of_nothing_and_waits_for_nobody() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)


def test_a_store_that_is_closed_while_it_puts_nodes_right_counts_nothing_for_ever() -> None:
    async def scenario() -> None:
        late, never = Late(), asyncio.Event()

        class Slow(MemoryStore):
            async def acquire(self, ask: Ask, timeout_ns: int) -> Grant | Busy:
                await never.wait()
                raise AssertionError(f"no waiter for {ask.key}")

        leases = [Renewal(key, key * 32, f'[1, "me", "{key}"]', LONG) for key in ("a", "b", "c")]
        stores = [Slow(MemoryTable(), asynchronous=True)]
        healing = Healing(stores, late, leases, [Verdict.WON] * 3)
        task = asyncio.create_task(healing.heal(0, [False] * 3))
        await asyncio.sleep(0)
        assert len(late) == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(late) == 0

    asyncio.run(scenario())
