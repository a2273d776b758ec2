"""An interrupt at any bytecode of the first use in a forked child: the sockets of the parent are never used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.stores.quorum.fan_out import ThreadRunner
from holdfast.stores.redis.sync_driver import RedisConnectionPool
from holdfast.stores.redis.sync_subscriber import SyncSubscriber
from holdfast.stores.redis.url import parse_redis_url
from holdfast.stores.sqlite.notify import ThreadListeners
from support.faults.bytecode_interrupts import Tracer, every

ADDRESS = parse_redis_url("redis://localhost")


class Inherited:
    """A socket of the parent, or its threads."""

    pid = -1

    def close(self) -> None: ...

    def hang_up(self) -> None: ...


Case = tuple[Callable[[], Any], str, Callable[[Any], object]]
CASES: dict[str, Case] = {
    "pool": (lambda: RedisConnectionPool(ADDRESS), "_idle", lambda pool: pool.close_idle()),
    "subscriber": (lambda: SyncSubscriber(ADDRESS), "_idle", lambda subscriber: subscriber.close_idle()),
    "listeners": (ThreadListeners, "_idle", lambda listeners: listeners.close()),
    "runner": (lambda: ThreadRunner(["1 of 3"]), "_nodes", lambda runner: runner._present()),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_belongs_to_the_parent_is_never_taken_for_the_childs(case: Case) -> None:
    make, field, use = case
    made: list[Any] = []
    inherited = Inherited()

    def attempt(at: Tracer) -> None:
        Tracer.pause()
        made[:] = [make()]
        made[0]._pid = -1  # another process
        getattr(made[0], field).append(inherited)
        at.resume()
        use(made[0])

    for where in every(attempt):
        assert made[0]._pid == -1 or inherited not in getattr(made[0], field), where
        use(made[0])
        assert inherited not in getattr(made[0], field), where
