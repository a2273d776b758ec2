"""An interrupt, or a lost answer, at every failpoint that blocking code reaches: nothing is left behind.

The points are not listed: the scenario is run once while they are recorded, and then once for each time that one of
them was reached, with a fault there and nowhere else.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import BackendError
from holdfast.testing import faults

KEY = "job"
LIMIT_S = 20.0


class Interrupt(KeyboardInterrupt):
    """Ctrl-C, at a place that was chosen."""


def interrupt() -> None:
    """As the interpreter does it: in the main thread, and in no other."""
    if threading.current_thread() is threading.main_thread():
        raise Interrupt


def acquire_renew_release(locks: holdfast.Locks) -> None:
    lease = locks.lock(KEY, ttl=30).acquire()
    try:
        lease.renew()
    finally:
        lease.release()


def a_block(locks: holdfast.Locks) -> None:
    with locks.lock(KEY, ttl=30) as lease:
        lease.ensure_held()


def in_turn(locks: holdfast.Locks) -> None:
    with locks.lock(KEY, ttl=30, fair=True):
        pass


SCENARIOS = [acquire_renew_release, a_block, in_turn]


def reached(locks: holdfast.Locks, scenario: Callable[[holdfast.Locks], None]) -> list[tuple[str, int]]:
    """Every point that the scenario reaches, with the how manyth time it is."""
    scenario(locks)  # connections are opened here
    with faults.recorded() as points:
        scenario(locks)
    count: Counter[str] = Counter()
    found = []
    for point in points:
        count[point] += 1
        found.append((point, count[point]))
    return found


def free(other: holdfast.Locks) -> bool:
    """Wait until the key is free, by expiry or by the release of an unknown grant. False: it never was."""
    until = time.monotonic() + LIMIT_S
    while other.inspect(KEY).held and time.monotonic() < until:
        time.sleep(0.002)
    return not other.inspect(KEY).held


def check_everywhere(url: str, scenario: Callable[[holdfast.Locks], None]) -> str:
    orphans: list[str] = []
    with holdfast.connect(url) as victim, holdfast.connect(url) as other:
        points = reached(victim, scenario)
        for fault in (interrupt, faults.lose()):
            for point, hit in points:
                where = f"{scenario.__name__}, {point} the {hit}. time"
                try:
                    with faults.armed(point, fault, hit=hit):
                        scenario(victim)
                except (Interrupt, BackendError):
                    pass
                if not free(other):
                    orphans.append(where)
                    other.force_release(KEY, reason="an orphan of a test")
                assert victim.statistics().held == 0, where
                assert victim.manager.renewer.lease_records() == [], where
                lease = victim.lock(f"nonce-{uuid.uuid4().hex}", ttl=30).acquire(timeout=LIMIT_S)
                seen = victim.inspect(lease.key)
                assert (seen.key, seen.fence) == (lease.key, lease.fence), (
                    f"{where}: an answer went to another question"
                )
                assert lease.release(), where
    summary = f"{scenario.__name__}: {2 * len(points)} faults, {len(orphans)} orphans {orphans}"
    print(summary)
    assert not orphans, summary
    return summary


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_anywhere_leaves_nothing_behind_in_memory(scenario: Callable[[holdfast.Locks], None]) -> None:
    check_everywhere(f"memory://{uuid.uuid4().hex}", scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_anywhere_leaves_nothing_behind_in_a_file(
    tmp_path: Path, scenario: Callable[[holdfast.Locks], None]
) -> None:
    check_everywhere(f"sqlite:///{tmp_path / 'leases.db'}", scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_anywhere_leaves_nothing_behind_on_redis(
    redis_url: str, scenario: Callable[[holdfast.Locks], None]
) -> None:
    check_everywhere(redis_url, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_anywhere_leaves_nothing_behind_on_etcd(
    etcd_url: str, scenario: Callable[[holdfast.Locks], None]
) -> None:
    check_everywhere(etcd_url, scenario)


@pytest.mark.parametrize("scenario", [acquire_renew_release, a_block])  # the store has no queue
def test_a_fault_anywhere_leaves_nothing_behind_on_nats(
    nats_leases: str, scenario: Callable[[holdfast.Locks], None]
) -> None:
    check_everywhere(nats_leases, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_anywhere_leaves_nothing_behind_on_postgres(
    postgres_url: str, scenario: Callable[[holdfast.Locks], None]
) -> None:
    check_everywhere(postgres_url, scenario)
