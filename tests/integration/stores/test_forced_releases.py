"""Locks that many break concurrently: each break has one record, and each shuts out the previous holder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import BadInput, LeaseLost
from support.servers.redis import redis_executables, start_redis

pytestmark = pytest.mark.threat("X11")

THREADS, BREAKS, KEYS = 8, 125, 5
KINDS = ["memory", "sqlite", *(pytest.param(str(each), marks=pytest.mark.server) for each in redis_executables())]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield f"memory://{tmp_path.name}"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/leases.db?synchronous=normal"
    else:
        (executable,) = (each for each in redis_executables() if str(each) == request.param)
        with start_redis(executable) as server:
            yield server.url


def test_of_a_thousand_concurrent_breaks_none_is_lost_and_fences_only_rise(place: str) -> None:
    done: list[tuple[str, str, str, int]] = []
    with holdfast.connect(place) as locks:

        def attack(who: int) -> None:
            for number in range(BREAKS):
                key = f"k{(who + number) % KEYS}"
                locks.acquire_token(key, 60)
                broken = locks.force_release(key, reason=f"drill {who}/{number}", actor=f"ops-{who}")
                if broken is not None:
                    done.append((key, broken.actor, broken.reason, broken.fence))

        threads = [threading.Thread(target=attack, args=(who,)) for who in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        records = locks.audit(limit=2 * THREADS * BREAKS)
    assert len(done) > THREADS * BREAKS / 4  # the rest found that another had been quicker
    assert sorted((each.key, each.actor, each.reason, each.fence) for each in records) == sorted(done)
    for key in {key for key, *_ in done}:
        fences = [each.fence for each in reversed(records) if each.key == key]
        assert fences == sorted(set(fences))
        assert all(each.fence > (each.previous_fence or 0) for each in records)


def test_the_previous_holder_is_shut_out_and_a_break_needs_a_reason(place: str) -> None:
    with holdfast.connect(place) as locks, holdfast.connect(place) as operator:
        held = locks.lock("stuck", ttl=30).acquire()
        for reason in ("", "   ", "x" * 1001):
            with pytest.raises(BadInput, match="reason"):
                operator.force_release("stuck", reason=reason)
        assert held.held
        broken = operator.force_release("stuck", reason="a drill")
        assert broken is not None
        after = operator.lock("stuck", ttl=30).acquire()
        assert held.fence < broken.fence < after.fence
        with pytest.raises(LeaseLost):
            held.renew()
        after.renew()
        after.release()
