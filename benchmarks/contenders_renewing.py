"""Contenders that keep many leases alive. Each takes them all, renews them until the block ends, and counts the lost.

Peers that leave renewal to the caller get the loop that a user would write, once for two thirds of the TTL, as
python-redis-lock does it. Holdfast renews each third, so it does twice the work. Twice the TTL holds three renewals of
such a loop, if it begins in the middle between two: so long is what is measured.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import holdfast
from benchmarks.contender import Contender, CountLost, Keep, Place, Role, module
from benchmarks.contenders_redis import client_of

TTL_S = 6
_EVERY_S = TTL_S * 2 / 3
_AT_ONCE = 100
_CONTEXT = contextvars.Context()


def _names(count: int) -> list[str]:
    return [f"renewed:{number}" for number in range(count)]


def _missing(place: Place, names: list[str]) -> int:
    """How many keys the server no longer has."""
    with client_of(place) as client, client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.exists(name)
        return sum(not found for found in pipe.execute())


@contextmanager
def _holdfast(place: Place, count: int, limit_s: float) -> Iterator[CountLost]:
    with holdfast.connect(place.url) as locks:
        leases = [locks.lock(name, ttl=TTL_S).acquire() for name in _names(count)]
        yield lambda: max(sum(not lease.held for lease in leases), _missing(place, _names(count)))
        for lease in leases:
            lease.release()


def _in_thread(loop: Callable[[threading.Event], object]) -> Callable[[], None]:
    """Run a renewal loop in a thread of its own; what is returned ends it."""
    stop = threading.Event()
    thread = threading.Thread(target=loop, args=(stop,), name="renewal", daemon=True)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join(2 * TTL_S)

    return end


@contextmanager
def _redis_py(place: Place, count: int, limit_s: float) -> Iterator[CountLost]:
    with client_of(place) as client:
        locks = [client.lock(name, timeout=TTL_S, thread_local=False) for name in _names(count)]

        error = module("redis.exceptions").LockError

        def renew_all() -> None:
            for lock in locks:
                try:
                    lock.extend(TTL_S, replace_ttl=True)
                except error:
                    continue  # lost; it is counted at the end

        def renew(stop: threading.Event) -> None:
            due = time.monotonic() + _EVERY_S / 2
            while not stop.wait(max(0.0, due - time.monotonic())):
                due += _EVERY_S
                renew_all()

        for lock in locks:
            lock.acquire()
        renew_all()  # to take so many may have lasted longer than the first of them can wait
        end = _in_thread(renew)
        yield lambda: _missing(place, _names(count))
        end()


@contextmanager
def _python_redis_lock(place: Place, count: int, limit_s: float) -> Iterator[CountLost]:
    with client_of(place) as client:
        lock_type = module("redis_lock").Lock
        locks = [lock_type(client, name, expire=TTL_S, auto_renewal=True) for name in _names(count)]
        # A renewal that comes too late ends its thread with a traceback; that it was lost is counted instead.
        hook, threading.excepthook = threading.excepthook, lambda _: None
        for lock in locks:
            lock.acquire()
        yield lambda: _missing(place, [f"lock:{name}" for name in _names(count)])
        # Stop all together; its own release would wait for one thread after the other.
        for lock in locks:
            lock._lock_renewal_stop.set()
        for lock in locks:
            lock._stop_lock_renewer()
        threading.excepthook = hook


@contextmanager
def _coredis(place: Place, count: int, limit_s: float) -> Iterator[CountLost]:
    ready = threading.Event()

    async def keep(stop: threading.Event) -> None:
        lock_type = module("coredis.patterns.lock").Lock
        lost = module("coredis.exceptions").LockError
        async with module("coredis").Redis(host=place.host, port=place.port) as client:
            locks = [lock_type(client, name, timeout=TTL_S) for name in _names(count)]
            await _many(lock.acquire() for lock in locks)
            await _many(_extended(lock, lost) for lock in locks)
            ready.set()
            due = time.monotonic() + _EVERY_S / 2
            while not await asyncio.to_thread(stop.wait, max(0.0, due - time.monotonic())):
                due += _EVERY_S
                await _many(_extended(lock, lost) for lock in locks)

    end = _in_thread(lambda stop: asyncio.run(keep(stop)))
    if not ready.wait(limit_s):
        end()
        raise TimeoutError(f"coredis did not take {count} locks in {limit_s:g} s")
    yield lambda: _missing(place, _names(count))
    end()


async def _many(work: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Some at a time, all in one context: coredis keeps the token in a context variable of the acquirer."""
    loop, context, rest = asyncio.get_running_loop(), _CONTEXT, iter(work)
    while some := list(itertools.islice(rest, _AT_ONCE)):
        await asyncio.gather(*(loop.create_task(each, context=context) for each in some))


async def _extended(lock: Any, lost: type[Exception]) -> None:
    try:
        await lock.extend(_EVERY_S)
    except lost:
        return  # it is counted at the end


HOLDFAST: Contender[Keep] = Contender("holdfast", Role.OURS, "holdfast", _holdfast)
REDIS_PY: Contender[Keep] = Contender("redis-py", Role.PEER, "redis", _redis_py)
PYTHON_REDIS_LOCK: Contender[Keep] = Contender(
    "python-redis-lock", Role.PEER, "redis_lock", _python_redis_lock, 1_000, "it starts a thread for each lock"
)
COREDIS: Contender[Keep] = Contender("coredis", Role.PEER, "coredis", _coredis)

RENEWING = (HOLDFAST, REDIS_PY, PYTHON_REDIS_LOCK, COREDIS)
