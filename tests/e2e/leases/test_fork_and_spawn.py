"""Children: what they inherit by fork is not theirs, and what they get by spawn is a description and nothing more."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import aio
from support.load.processes import LIMIT_S, until

TTL_S = 1.5  # of a lease that a child keeps: long enough to outlast a busy machine, and renewed after a third of it
HANG_S = 90.0  # beyond every limit of what a child does, and before the limit of the test

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def in_child(work: Callable[[], Any]) -> Any:
    """Fork, do the work there, and bring its result (or its error) back. A child that hangs says where."""
    read, write = os.pipe()
    hung = tempfile.TemporaryFile()  # noqa: SIM115 - closed below, and not in the child
    pid = os.fork()
    if pid == 0:
        try:
            # What other tests have left behind is not collected here: that would copy all of the parent's memory while
            # a lease waits to be renewed, and finalize what belongs to threads that do not exist in this process.
            gc.freeze()
            faulthandler.dump_traceback_later(HANG_S, exit=True, file=hung)
            os.close(read)
            try:
                result = ("value", work())
            except BaseException as error:
                result = ("error", f"{type(error).__name__}: {error}")
            with os.fdopen(write, "wb") as out:
                out.write(pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer, hung:
        text = answer.read()
        os.waitpid(pid, 0)
        hung.seek(0)
        assert text, f"the child hung or died: {hung.read().decode(errors='replace')}"
    kind, value = pickle.loads(text)
    assert kind == "value", value
    return value


def kept(locks: holdfast.Locks, *leases: holdfast.Lease) -> bool:
    """Wait until a keeper of this process has renewed as often as there are leases; whether they are held then."""
    before = locks.statistics().renewed

    def settled() -> bool:
        return locks.statistics().renewed >= before + len(leases) or not all(each.held for each in leases)

    until(settled, "leases are renewed in a child")
    return all(each.held for each in leases)


def test_an_inherited_lease_is_lost_in_the_child_and_lives_on_in_the_parent(url: str) -> None:
    with holdfast.connect(url) as locks:
        lease = locks.lock("k", ttl=5).acquire()

        def child() -> dict[str, Any]:
            before = {"held": lease.held, "reason": lease.lost.reason, "waited": lease.lost.wait(0)}
            released = lease.release()
            try:
                lease.ensure_held()
            except holdfast.LeaseLost as lost:
                return {**before, "released": released, "text": str(lost)}
            return before

        seen = in_child(child)
        assert seen["held"] is False
        assert (seen["reason"], seen["waited"], seen["released"]) == ("forked", True, False)
        assert "forked" in seen["text"]
        assert lease.held
        lease.renew()
        assert locks.inspect("k").fence == lease.fence
        assert lease.release()


def test_an_inherited_hold_is_not_the_childs_either(url: str) -> None:
    with holdfast.connect(url) as locks:
        lease = locks.hold("tick", ttl=30)
        assert lease is not None
        assert in_child(lambda: (lease.held, lease.lost.reason, lease.release())) == (False, "forked", False)
        assert lease.held
        assert locks.inspect("tick").held


def test_a_child_takes_and_waits_for_locks_of_its_own(url: str) -> None:
    with holdfast.connect(url, service="parent") as locks:
        lease = locks.lock("k", ttl=5).acquire()

        def child() -> tuple[bool, int, str]:
            busy = locks.lock("k", ttl=5).try_acquire() is None
            with locks.lock("other", ttl=TTL_S) as mine:
                assert kept(locks, mine)  # the child has a keeper of its own
                return busy, mine.fence, mine.owner

        busy, fence, owner = in_child(child)
        assert busy
        assert fence > lease.fence
        assert owner != lease.owner
        assert lease.release()
        assert not locks.inspect("other").held


def test_one_locks_that_cannot_start_anew_in_a_child_does_not_keep_another_from_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("this one is beyond repair")

    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(holdfast.connect(url)) for _ in range(4)]
        for each in many[::2]:
            monkeypatch.setattr(each.manager, "forked", broken)

        def child() -> bool:
            with many[1].lock("one", ttl=TTL_S) as one, many[3].lock("other", ttl=TTL_S) as other:
                return kept(many[1], one) and kept(many[3], other)

        assert in_child(child)


def test_children_do_not_draw_the_parents_chances_again(tmp_path: Path) -> None:
    """Workers of a fork pool that retried in phase would be the herd that jitter is there to prevent."""
    with holdfast.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        draw = locks.manager.entropy.below
        draw(2)
        children = [in_child(lambda: [draw(1 << 30) for _ in range(4)]) for _ in range(3)]
        own = [draw(1 << 30) for _ in range(4)]
        assert len({tuple(each) for each in [own, *children]}) == 4


def _take(lock: holdfast.Lock[holdfast.Lease]) -> int:
    with lock as lease:
        lease.ensure_held()
        return lease.fence


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_pool_of_processes_shares_a_lock_by_pickling_it(url: str, how: str) -> None:
    with holdfast.connect(url) as locks:
        lock = locks.lock("k", ttl=10, family="billing", timeout=LIMIT_S)
        with multiprocessing.get_context(how).Pool(3) as pool:
            fences = pool.map_async(_take, [lock] * 12).get(LIMIT_S)
        assert len(set(fences)) == 12
        assert not lock.locked()


def test_a_lock_of_a_private_store_cannot_be_pickled() -> None:
    with holdfast.connect("memory://") as locks, pytest.raises(TypeError, match="private"):
        pickle.dumps(locks.lock("k"))


def test_an_unpickled_lock_is_the_same_description(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    with holdfast.connect(url, service="here") as locks:
        lock = locks.lock("k", ttl=7, family="billing", risk="money", timeout=0)
        twin = pickle.loads(pickle.dumps(lock))
        assert (twin.name, twin.ttl, twin.family, twin.risk) == ("k", 7.0, "billing", "money")
        with lock:
            assert twin.try_acquire() is None
            with pytest.raises(holdfast.AcquireTimeout):
                twin.acquire()
        with twin as lease:
            assert lease.held
        twin._locks.close()


def test_an_unpickled_asynchronous_lock_works_on_every_loop_that_uses_it(tmp_path: Path) -> None:
    import asyncio

    async def use(text: bytes) -> int:
        lock: aio.Lock[aio.Lease] = pickle.loads(text)
        async with lock as lease:
            fence = lease.fence
        await lock._locks.close()
        return fence

    async def describe() -> bytes:
        async with aio.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
            return pickle.dumps(locks.lock("k", ttl=5))

    text = asyncio.run(describe())
    assert asyncio.run(use(text)) < asyncio.run(use(text))
