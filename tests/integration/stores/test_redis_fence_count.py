"""The counter of fences on real servers: the script counts as the rule does, and older versions can read it."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from holdfast.core.lease.fencing import Count
from holdfast.core.ports import Store
from holdfast.stores.redis.protocol import RedisScript
from support.fixtures.redis import play_blocking
from support.harness.redis_requests import aux_name, take

HOUR_US = 3_600_000_000
NOW_US = 1_790_000_000_000_000
LIMIT_S = 60.0

pytestmark = pytest.mark.server

COUNT = RedisScript("fence").body.decode() + "return {next_fence(ARGV[1], tonumber(ARGV[2]), ARGV[2], ARGV[3])}"

# How versions before "<fence>.<clock>" counted; some of a fleet still do while the others are upgraded.
ONE_BY_ONE = """
local number, now = tonumber(ARGV[1]), tonumber(ARGV[2])
if not number or number < 0 or number >= 9007199254740991 then
  return redis.error_reply('HFFENCE not a usable number')
end
return string.format('%.0f', number >= now and number + 1 or now)
"""


def written(count: Count) -> str:
    return str(count.fence) if count.fence == count.clock else f"{count.fence}.{count.clock}"


def moments(chance: random.Random, number: int) -> list[tuple[Count, int]]:
    """Counts and the times at which they are asked: at the clock and ahead of it, with clocks set forward and back."""
    found = []
    for _ in range(number):
        clock = NOW_US + chance.randrange(-HOUR_US, HOUR_US)
        ahead = chance.choice([0, 0, 1, chance.randrange(5_000_000), chance.randrange(10**15)])
        later = chance.choice([0, 1, 2, 3, chance.randrange(5_000_000), chance.randrange(10**15)])
        found.append((Count(clock + ahead, clock), clock + chance.choice([1, 1, -1]) * later))
    return found


def test_the_script_counts_as_the_rule_does(redis_raw: Any) -> None:
    chance = random.Random(11)
    asked = [(count, now, f"{chance.getrandbits(128):032x}") for count, now in moments(chance, 400)]
    answers = redis_raw.pipeline(transaction=False)
    for count, now, secret in asked:
        answers.eval(COUNT, 0, written(count), now, secret)
    expected = [count.next(now, secret) for count, now, secret in asked]
    assert answers.execute() == [[str(count.fence), written(count)] for count in expected]


def test_versions_that_count_one_by_one_read_the_counter_and_no_fence_goes_back_between_the_two(redis_raw: Any) -> None:
    chance = random.Random(12)
    for count, now in moments(chance, 60):
        fences, stored = [count.fence], written(count)
        for step in range(6):
            now += chance.choice([-1_000_000, 1, 7, 1_000_000])
            if step % 2 == 0:
                fence = stored = redis_raw.eval(ONE_BY_ONE, 0, stored, now)
            else:
                fence, stored = redis_raw.eval(COUNT, 0, stored, now, f"{step}")
            fences.append(int(fence))
        assert fences == sorted(set(fences))


def test_a_counter_that_is_ahead_falls_back_to_the_clock(redis_url: str, redis_raw: Any) -> None:
    async def scenario(store: Store) -> None:
        seconds, micros = redis_raw.time()
        now = seconds * 1_000_000 + micros
        counter = aux_name(redis_url, "fence")
        redis_raw.set(counter, f"{now + 2000}.{now}")
        fences = [(await take(store, "first")).fence]
        limit = time.monotonic() + LIMIT_S
        while "." in redis_raw.get(counter):
            assert time.monotonic() < limit, "it is ahead for ever"
            fences.append((await take(store, f"k{len(fences)}")).fence)
        assert fences == sorted(set(fences))
        assert int(redis_raw.get(counter)) == fences[-1]

    play_blocking(redis_url, scenario)
