"""Late or abandoned votes of a quorum: they have no holder, and they block no caller."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

from holdfast.core.lease.quorum import Verdict
from holdfast.core.ports import Store
from holdfast.runtime.run_sync import run_now
from holdfast.stores.memory.store import MemoryStore, MemoryTable
from holdfast.stores.quorum import fan_out, late_replies
from holdfast.stores.quorum.engine import QuorumEngine
from holdfast.stores.quorum.late_replies import RECHECK_NS, BusyKeys, LateVotes
from holdfast.stores.quorum.repair import Repair
from holdfast.types import AcquireRequest, Busy, Grant, Renewal
from support.fixtures.quorum import CALL, HEDGE, LONG, Node, Play, ask, granted


def test_a_vote_that_comes_after_the_release_of_its_lease_is_released(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        nodes[4].delays = True
        grant = await granted(store, ask())
        assert await store.release("k", grant.token, grant.claim, 0, CALL)
        nodes[4].wake()
        await store.close()  # waits for what is under way
        assert [node.holder("k") for node in nodes] == [None] * 5

    play_quorum(scenario, hedge_ns=HEDGE)


def test_a_vote_of_an_interrupted_acquire_is_released_when_it_comes_after_the_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [Node(number) for number in range(3)]
    store = QuorumEngine(nodes, hedge_ns=LONG).blocking
    asked = ask()
    nodes[0].delays = True

    class InterruptedSignal:
        """Ctrl-C while the caller waits for the first node, which has begun to answer."""

        def set(self) -> None: ...

        def clear(self) -> None: ...

        async def wait(self, timeout_ns: int) -> bool:
            while not nodes[0].asked:
                threading.Event().wait(0.001)
            raise KeyboardInterrupt

    monkeypatch.setattr(fan_out, "_ThreadSignal", InterruptedSignal)
    with pytest.raises(KeyboardInterrupt):
        run_now(store.acquire(asked, CALL))
    monkeypatch.undo()
    assert not run_now(store.release(asked.key, asked.token, None, 0, CALL))
    assert nodes[0].delays, "the node grants the key only now"
    nodes[0].wake()
    run_now(store.close())
    assert [node.holder("k") for node in nodes] == [None] * 3


def test_a_lease_that_is_repaired_at_a_node_after_its_release_is_released_there(play_quorum: Play) -> None:
    async def scenario(store: Store, nodes: list[Node]) -> None:
        grant = await granted(store, ask())
        nodes[4].table.forget()
        nodes[4].delays = True
        assert await store.renew_many([Renewal("k", grant.token, grant.claim, LONG)], CALL) == [True]
        assert await store.release("k", grant.token, grant.claim, 0, CALL)
        nodes[4].wake()
        await store.close()
        assert [node.holder("k") for node in nodes] == [None] * 5

    play_quorum(scenario, hedge_ns=HEDGE)


def test_votes_left_at_a_minority_do_not_block_callers_for_long(
    play_quorum: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_replies, "RECHECK_NS", 0)

    async def scenario(store: Store, nodes: list[Node]) -> None:
        for node in nodes[:2]:  # a client died in the middle of an acquire
            node.table.acquire(ask("gone"))
        assert isinstance(await store.acquire(ask(), CALL), Busy), "one node is believed, the first time"
        grant = await granted(store, ask())
        assert [node.holder("k") for node in nodes] == ["gone@host:1/a"] * 2 + ["mine@host:1/a"] * 3
        assert await store.renew_many([Renewal("k", grant.token, grant.claim, LONG)], CALL) == [True]
        assert await store.release("k", grant.token, grant.claim, 0, CALL)

    play_quorum(scenario)


def test_a_key_that_stays_busy_is_checked_at_all_nodes_and_taken_from_no_holder(
    play_quorum: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_replies, "RECHECK_NS", 0)

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


def test_busy_come_now_and_then_and_are_forgotten() -> None:
    busy = BusyKeys()
    assert [busy.due("k", now) for now in (0, 1, RECHECK_NS - 1, RECHECK_NS, RECHECK_NS + 1)] == [
        *[False] * 3,
        True,
        False,
    ]
    busy.settled("k")
    assert not busy.due("k", 10 * RECHECK_NS)
    for number in range(3000):
        busy.due(f"{number}", 20 * RECHECK_NS)
    assert not busy.due("k", 30 * RECHECK_NS), "the oldest had to make room"
    assert busy.due("2999", 30 * RECHECK_NS)


def test_votes_under_way_are_known_by_token_until_their_requests_end() -> None:
    late = LateVotes()
    late.over("a")
    first, second, other = late.of("a"), late.of("a"), late.of("b")
    assert first is second
    late.over("a")
    assert (first.over, other.over, len(late)) == (True, False, 2)
    del first
    assert len(late) == 2
    del second
    assert len(late) == 1
    assert not late.of("a").over


FORKED = """
import os, signal, threading
from holdfast.stores.quorum.late_replies import QuorumMemory

memory = QuorumMemory()
under_way = memory.late.of("a")
held, forked = threading.Event(), threading.Event()

def hold():
    with memory.late._mutex, memory.busy._mutex:
        held.set()
        forked.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)  # who waits for ever is ended
    memory.late.over("a")
    nothing = len(memory.late) == 0 and not under_way.over and not memory.busy.due("k", 0)
    os._exit(0 if nothing else 1)
forked.set()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(memory.late) == 1
"""


def test_a_forked_child_starts_empty_and_waits_for_no_thread_of_the_parent() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)


def test_a_store_that_is_closed_while_it_repairs_nodes_counts_nothing_forever() -> None:
    async def scenario() -> None:
        late, never = LateVotes(), asyncio.Event()

        class Slow(MemoryStore):
            async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
                await never.wait()
                raise AssertionError(f"no waiter for {ask.key}")

        leases = [Renewal(key, key * 32, f'[1, "me", "{key}"]', LONG) for key in ("a", "b", "c")]
        stores = [Slow(MemoryTable(), asynchronous=True)]
        repair = Repair(stores, [(each, late.of(each.token)) for each in leases], [Verdict.WON] * 3)
        task = asyncio.create_task(repair.at(0, [False] * 3))
        await asyncio.sleep(0)
        assert len(late) == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del repair, task
        await asyncio.sleep(0)  # the loop has the traceback until here
        gc.collect()  # which refers to its own frames
        assert len(late) == 0

    asyncio.run(scenario())
