"""Two servers that continue from one counter of fences, which is ahead of their clock: no fence is given out twice.

That a clock was set back is the same as that the counter is ahead of it, and the latter can be written down. (The drill
`clock` sets clocks back for real.)
"""

from __future__ import annotations

import time

import pytest

from holdfast.core.ports import Store
from support.fixtures.redis import StartRedis, play_blocking
from support.harness.redis_requests import SOON, aux_name, take
from support.servers.redis import RedisServer

HOUR_US = 3_600_000_000
LIMIT_S = 60.0

pytestmark = pytest.mark.server


class Pair:
    """A primary and a replica, whose counter of fences is an hour ahead of their clock."""

    def __init__(self, own_redis: StartRedis) -> None:
        at_once = ("--repl-diskless-sync-delay", "0")  # not with others that may come within five seconds
        self.primary, self.replica = own_redis(args=at_once), own_redis(args=at_once)
        self.replica.cli("REPLICAOF", "127.0.0.1", self.primary.port)
        seconds, micros = self.primary.cli("TIME")
        self.primary.cli("SET", aux_name(self.primary.url, "fence"), int(seconds) * 1_000_000 + int(micros) + HOUR_US)

    def part(self) -> None:
        """Both have the same, and from now on neither hears of the other."""
        limit = time.monotonic() + LIMIT_S
        while not self._in_step():
            assert time.monotonic() < limit, "the replica does not follow"
        self.replica.cli("REPLICAOF", "NO", "ONE")

    def _in_step(self) -> bool:
        name = aux_name(self.primary.url, "fence")
        return bool(self.replica.cli("GET", name) == self.primary.cli("GET", name))


def handed_out(server: RedisServer) -> list[int]:
    """Every way to get a fence, in turns: a plain lock, a fair one, and one that is broken."""

    async def scenario(store: Store) -> list[int]:
        fences = []
        for number in range(6):
            fences.append((await take(store, f"plain:{number}")).fence)
            fences.append((await take(store, f"fair:{number}", ticket="t")).fence)
            record = await store.force_release(f"plain:{number}", "ops", "drill", SOON)
            assert record is not None
            fences.append(record.fence)
        return fences

    found: list[int] = play_blocking(server.url, scenario)
    assert found == sorted(set(found))
    return found


@pytest.mark.requires("R56", "R73")
def test_two_primaries_that_count_on_from_one_counter_ahead_of_the_clock_never_give_out_the_same_fence(
    own_redis: StartRedis,
) -> None:
    pair = Pair(own_redis)
    pair.part()
    here, there = handed_out(pair.primary), handed_out(pair.replica)
    assert not set(here) & set(there), "a fence was given out twice"


@pytest.mark.requires("R56", "R73")
def test_a_replica_that_missed_the_last_grants_gives_out_higher_fences_though_the_clock_is_behind(
    own_redis: StartRedis,
) -> None:
    pair = Pair(own_redis)
    play_blocking(pair.primary.url, lambda store: take(store, "known to both"))
    pair.part()
    lost = handed_out(pair.primary)
    assert min(handed_out(pair.replica)) > max(lost), "a fence went back"
