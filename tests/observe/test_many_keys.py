"""However many names locks have, what is measured of them stays small."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import holdfast
from fixtures_databases import until
from holdfast.aio import connect
from holdfast.observe import prometheus

MANY = 10_000  # a million in the same way takes minutes, and adds nothing: not one series comes with the second name


def series(registry: CollectorRegistry) -> int:
    return sum(not line.startswith(b"#") for line in generate_latest(registry).splitlines())


@pytest.mark.threat("X14")
def test_the_number_of_series_does_not_depend_on_how_many_locks_there_are() -> None:
    registry = CollectorRegistry()
    with holdfast.connect("memory://many-keys") as locks:
        prometheus.register(locks, registry=registry)

        def use(count: int) -> tuple[int, int]:
            for number in range(count):
                token = locks.acquire_token(f"invoice:{count}:{number}", 30)
                locks.release_token(f"invoice:{count}:{number}", token)
            text = generate_latest(registry)
            assert b"invoice:" not in text
            return series(registry), len(text)

        few, many = use(10), use(MANY)
    assert few[0] == many[0] <= 200
    assert many[1] < 1.2 * few[1]  # longer numbers


@pytest.mark.threat("X14")
def test_families_that_are_made_up_without_end_are_counted_together() -> None:
    registry = CollectorRegistry()
    with holdfast.connect("memory://many-families") as locks:
        prometheus.register(locks, registry=registry)
        sizes: list[int] = []
        for _ in range(2):
            for _ in range(300):
                with locks.lock("k", ttl=30, family=f"family-{len(sizes)}-{locks.house.entropy.token()[:12]}"):
                    pass
            sizes.append(series(registry))
    assert sizes[0] == sizes[1]


@pytest.mark.threat("X15")
@pytest.mark.asyncio
async def test_of_all_waiters_of_a_process_one_stands_at_the_store() -> None:
    async with connect("memory://many-waiters") as locks, connect("memory://many-waiters") as others:
        held = await others.lock("k", ttl=60).acquire()
        waiters = [asyncio.create_task(locks.lock("k", ttl=60).acquire(timeout=60)) for _ in range(2_000)]
        await until(lambda: locks.statistics().waiting)
        assert ((await others.inspect("k")).waiters or 0) <= 1
        for each in waiters:
            each.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        await held.release()
        assert locks.statistics().waiting == 0
        assert (await others.inspect("k")).waiters == 0
