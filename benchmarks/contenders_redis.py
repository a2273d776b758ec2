"""Who takes part in the Redis scenarios of threads. Each is used as its own documentation says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import holdfast
from benchmarks.contender import TTL_S, Connect, Contender, Cycle, Make, Place, Role, module
from benchmarks.raw import Bare, RawCycle, Scripts

CONNECTIONS = 2_000  # clients that pool may open one connection for each caller


class HoldfastCycle:
    """Holdfast's lock, with its fence read each time."""

    def __init__(self, lock: holdfast.Lock[holdfast.Lease]) -> None:
        self._lock = lock
        self._lease: holdfast.Lease

    def acquire(self) -> object:
        """Take it and look at the fence."""
        self._lease = self._lock.acquire()
        return self._lease.fence

    def release(self) -> object:
        """Give it back."""
        return self._lease.release()


@contextmanager
def holdfast_threads(place: Place) -> Iterator[Make]:
    """One `Locks` for all threads."""
    with holdfast.connect(place.url) as locks:
        yield lambda key: HoldfastCycle(locks.lock(key, ttl=TTL_S))


def client_of(place: Place) -> Any:
    """A redis-py client."""
    return module("redis").Redis(place.host, place.port, max_connections=CONNECTIONS)


@contextmanager
def _redis_py(place: Place) -> Iterator[Make]:
    with client_of(place) as client:

        def make(key: str) -> Cycle:
            lock: Cycle = client.lock(key, timeout=TTL_S)
            return lock

        yield make


@contextmanager
def _python_redis_lock(place: Place) -> Iterator[Make]:
    with client_of(place) as client:

        def make(key: str) -> Cycle:
            lock: Cycle = module("redis_lock").Lock(client, key, expire=TTL_S)
            return lock

        yield make


@contextmanager
def _pottery(place: Place) -> Iterator[Make]:
    with client_of(place) as client:

        def make(key: str) -> Cycle:
            lock: Cycle = module("pottery").Redlock(key=key, masters={client}, auto_release_time=TTL_S)
            return lock

        yield make


@contextmanager
def _raw(place: Place) -> Iterator[Make]:
    clients: list[Bare] = []

    def make(key: str) -> Cycle:
        client = Bare(place)
        clients.append(client)
        return RawCycle(client, Scripts(client), key)

    yield make
    for client in clients:
        client.close()


HOLDFAST: Contender[Connect] = Contender("holdfast", Role.OURS, "holdfast", holdfast_threads)
REDIS_PY: Contender[Connect] = Contender("redis-py", Role.PEER, "redis", _redis_py)
PYTHON_REDIS_LOCK: Contender[Connect] = Contender("python-redis-lock", Role.PEER, "redis_lock", _python_redis_lock)
POTTERY: Contender[Connect] = Contender("pottery", Role.PEER, "pottery", _pottery)
RAW: Contender[Connect] = Contender("raw", Role.RAW, "hiredis", _raw)

ALONE = (HOLDFAST, REDIS_PY, PYTHON_REDIS_LOCK, POTTERY, RAW)
WAITING = (HOLDFAST, REDIS_PY, PYTHON_REDIS_LOCK)
