"""Faults of the network between a client and each store: each call ends in a documented outcome, in bounded time.

The outcomes: the answer, `Unavailable` (no effect), `Timeout` (unknown, and undone), `Misconfigured` (until an operator
acts). Whatever happened, the store can be used again when the fault has ended, and no key stays taken.

The machine may be busy, so a time limit is compared with a bare timer of the same length that runs beside it, and tried
again: scheduling delays some tries, a mechanism that overshoots delays all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import aio
from holdfast.errors import BackendError, LockBusy, Misconfigured, Unavailable
from holdfast.testing.proxy import DIRECTIONS, Direction, FaultProxy
from support.polling import pauses
from support.servers.nats import nats_executables, own_bucket, start_nats
from support.servers.redis import redis_executables, start_redis

pytestmark = pytest.mark.server

LIMIT_S = 60.0
TIMEOUT_S = 0.3
OVERSHOOT_S = 0.05
TRIES = 20

Fault = Callable[[FaultProxy], None]


@dataclass(frozen=True)
class Site:
    """A store behind proxies, one for each of its servers, and the way past them."""

    url: str
    direct: str
    proxies: list[FaultProxy]

    def all(self, fault: Fault) -> None:
        for proxy in self.proxies:
            fault(proxy)

    def mend(self) -> None:
        """End every fault, and the connections that have met one."""
        self.all(FaultProxy.mend)
        self.all(FaultProxy.reset)


def _redis(stack: ExitStack) -> Site:
    server = stack.enter_context(start_redis(redis_executables()[-1]))
    proxy = stack.enter_context(FaultProxy(server.port))
    return Site(f"redis://{proxy.address}", server.url, [proxy])


def _quorum(stack: ExitStack) -> Site:
    servers = [stack.enter_context(start_redis(redis_executables()[-1])) for _ in range(3)]
    proxies = [stack.enter_context(FaultProxy(server.port)) for server in servers]
    direct = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return Site(f"redlock://{','.join(proxy.address for proxy in proxies)}", f"redlock://{direct}", proxies)


def _nats(stack: ExitStack) -> Site:
    server = stack.enter_context(start_nats(nats_executables()[0]))
    proxy = stack.enter_context(FaultProxy(server.port))
    direct = own_bucket(server)
    return Site(f"nats://{proxy.address}?{direct.partition('?')[2]}", direct, [proxy])


SITES: dict[str, Callable[[ExitStack], Site]] = {"redis": _redis, "quorum": _quorum, "nats": _nats}


@pytest.fixture(params=list(SITES.values()), ids=list(SITES), scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Site]:
    with ExitStack() as stack:
        yield request.param(stack)


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    running.mend()


def until_free(site: Site, key: str) -> None:
    """Nothing that a call has left behind stays: a grant of unknown outcome is undone."""
    with holdfast.connect(site.direct) as direct:
        until, pause = time.monotonic() + LIMIT_S, pauses()
        while (lease := direct.lock(key, ttl=60).try_acquire()) is None:
            assert time.monotonic() < until, f"{key} stays taken"
            time.sleep(next(pause))
        assert lease.release()


def works_again(locks: holdfast.Locks, key: str) -> None:
    """The same client gets leases, renews and releases them. Its circuit breaker may refuse a few calls first."""

    def tried() -> bool:
        try:
            lease = locks.lock(key, ttl=60).acquire(timeout=LIMIT_S)
            lease.renew()
            return lease.release()
        except BackendError:
            return False

    until, pause = time.monotonic() + LIMIT_S, pauses()
    while not tried():
        assert time.monotonic() < until, "the store cannot be used again"
        time.sleep(next(pause))


# Faults that answer nothing.


def _answer_nothing(proxy: FaultProxy) -> None:
    proxy.answer_nothing()
    proxy.reset()


HUNG: dict[str, Fault] = {
    "half open": FaultProxy.half_open,
    "answers are lost": lambda proxy: proxy.drop("to_client"),
    "requests are lost": lambda proxy: proxy.drop("to_server"),
    "answers are held back": lambda proxy: proxy.stall("to_client"),
    "accepts and never answers": _answer_nothing,
}


def _blocking_once(site: Site, fault: Fault, key: str) -> tuple[float, float]:
    """How long the call took, and how long a bare timer took beside it."""
    with holdfast.connect(site.url) as locks:
        locks.ping()
        site.all(fault)
        timer: list[float] = []
        began = time.monotonic()

        def bare() -> None:
            threading.Event().wait(TIMEOUT_S)
            timer.append(time.monotonic() - began)

        beside = threading.Thread(target=bare)
        beside.start()
        with pytest.raises((BackendError, LockBusy)):
            locks.lock(key, ttl=60).acquire(timeout=TIMEOUT_S)
        took = time.monotonic() - began
        beside.join()
        site.mend()
        works_again(locks, f"{key}-again")
        return took, timer[0]


def _asyncio_once(site: Site, fault: Fault, key: str) -> tuple[float, float]:
    async def main() -> tuple[float, float]:
        async with aio.connect(site.url) as locks:
            await locks.ping()
            site.all(fault)
            began = time.monotonic()

            async def bare() -> float:
                await asyncio.sleep(TIMEOUT_S)
                return time.monotonic() - began

            beside = asyncio.create_task(bare())
            with pytest.raises((BackendError, LockBusy)):
                await locks.lock(key, ttl=60).acquire(timeout=TIMEOUT_S)
            took = time.monotonic() - began
            timer = await beside
            site.mend()
            return took, timer

    return asyncio.run(main())


@pytest.mark.requires("R66")
@pytest.mark.parametrize("once", [_blocking_once, _asyncio_once], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("fault", HUNG.values(), ids=HUNG)
def test_no_acquire_takes_longer_than_its_timeout_and_nothing_is_left_behind(
    site: Site, fault: Fault, once: Callable[[Site, Fault, str], tuple[float, float]]
) -> None:
    over: list[float] = []
    for number in range(TRIES):
        key = f"hung-{number}"
        took, timer = once(site, fault, key)
        until_free(site, key)
        over.append(took - max(TIMEOUT_S, timer))
        if over[-1] < OVERSHOOT_S:
            return
    pytest.fail(f"the limit of {TIMEOUT_S} s was exceeded each time, by {over}")


# Faults that change what arrives.


def test_a_slow_network_delays_calls_and_changes_nothing_else(site: Site) -> None:
    with holdfast.connect(site.url) as locks:
        site.all(lambda proxy: proxy.delay(0.005))
        for number in range(3):
            lease = locks.lock(f"slow-{number}", ttl=60).acquire()
            lease.renew()
            assert lease.release()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_duplicated_pieces_give_no_lease_to_two(site: Site, direction: Direction) -> None:
    with holdfast.connect(site.url) as locks, holdfast.connect(site.direct) as others:
        locks.ping()
        site.all(lambda proxy: proxy.duplicate(direction))
        for number in range(5):
            key = f"twice-{direction}-{number}"
            _use(locks, others, key)
            until_free(site, key)
        site.mend()
        works_again(locks, f"twice-{direction}")


@pytest.mark.parametrize("size", [0, 1, 9, 40, 120])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_truncated_answers_and_requests_are_unknown_outcomes(site: Site, direction: Direction, size: int) -> None:
    key = f"cut-{direction}-{size}"
    with holdfast.connect(site.url) as locks, holdfast.connect(site.direct) as others:
        locks.ping()
        site.all(lambda proxy: proxy.truncate(direction, size))
        _use(locks, others, key)
        site.mend()
        works_again(locks, f"{key}-again")
        until_free(site, key)  # by the client that has left it, while that is open


def _use(locks: holdfast.Locks, others: holdfast.Locks, key: str) -> None:
    """A lease through the fault, if there is one, excludes those who do not meet it."""
    try:
        lease = locks.lock(key, ttl=60).acquire(timeout=TIMEOUT_S)
    except (BackendError, LockBusy):
        return
    assert others.lock(key, ttl=60).try_acquire() is None
    for call in (lease.renew, lease.release):
        with contextlib.suppress(BackendError, holdfast.LeaseLost):  # documented; what matters is what is left
            call()


def test_an_unreachable_store_is_unavailable_immediately_and_comes_back(site: Site) -> None:
    with holdfast.connect(site.url) as locks:
        lease = locks.lock("away", ttl=60).acquire()
        site.all(FaultProxy.cut)
        with pytest.raises(BackendError):
            lease.renew()
        with pytest.raises(Unavailable):
            locks.lock("away-too", ttl=60).acquire(timeout=LIMIT_S)
        site.all(FaultProxy.mend)
        works_again(locks, "away-again")
        lease.renew()
        assert lease.release()


# What changes while a client is connected.


def test_a_rotated_password_is_misconfigured_until_the_client_has_the_new_one_on_redis() -> None:
    with start_redis(redis_executables()[-1], args=("--requirepass", "old-s3cret")) as server:
        place = f"127.0.0.1:{server.port}"
        with holdfast.connect(f"redis://:old-s3cret@{place}") as locks, server.client(password="old-s3cret") as raw:
            lease = locks.lock("job", ttl=60).acquire()
            raw.config_set("requirepass", "new-s3cret")
            raw.client_kill_filter(_type="normal", skipme=True)
            _refused(lease.renew)
            with holdfast.connect(f"redis://:new-s3cret@{place}") as renewed:
                assert renewed.lock("job", ttl=60).try_acquire() is None
            raw.config_set("requirepass", "old-s3cret")
            works_again(locks, "again")
            assert lease.release()


def test_a_rotated_password_is_misconfigured_until_the_client_has_the_new_one_on_nats(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text("authorization { user: ada, password: old-s3cret }")
    with start_nats(nats_executables()[0], args=["-c", str(config)]) as server:
        place = server.url.removeprefix("nats://")
        with holdfast.connect(f"nats://ada:old-s3cret@{place}") as locks:
            lease = locks.lock("job", ttl=60).acquire()
            server.kill()
            config.write_text("authorization { user: ada, password: new-s3cret }")
            server.start()
            _refused(lease.renew)
            with holdfast.connect(f"nats://ada:new-s3cret@{place}") as renewed:
                assert renewed.lock("job", ttl=60).try_acquire() is None
                assert renewed.inspect("job").fence == lease.fence
            assert lease.held


def _refused(call: Callable[[], Any]) -> None:
    """The connections that are cut may cost a call each; then the reason is told, without the password."""
    told: list[str] = []
    for _ in range(5):
        with pytest.raises(BackendError) as caught:
            call()
        told.append(repr(caught.value))
        if isinstance(caught.value, Misconfigured):
            assert "s3cret" not in told[-1]
            return
    pytest.fail(f"the store never said that the password is wrong: {told}")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_a_name_that_moves_to_another_address_is_looked_up_again(
    site: Site, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name leads to the proxies first, which then go away, and to the servers after that."""
    if "," in site.url:
        url = site.url.replace("127.0.0.1", "leases.test")
        ports = [int(place.rpartition(":")[2]) for place in site.direct.partition("://")[2].split(",")]
    else:
        url = site.url.replace("127.0.0.1", "leases.test")
        ports = [int(site.direct.partition("://")[2].partition("?")[0].partition("/")[0].rpartition(":")[2])]
    moved = threading.Event()
    new = {proxy.port: port for proxy, port in zip(site.proxies, ports, strict=True)}
    lookup = socket.getaddrinfo

    def changing(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "leases.test":
            return lookup(host, port, *args, **kwargs)
        return lookup("127.0.0.1", new[int(port)] if moved.is_set() else port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    key = f"moved-{asynchronous}"

    async def awaited() -> None:
        async with aio.connect(url) as locks:
            lease = await locks.lock(key, ttl=60).acquire()
            site.all(FaultProxy.cut)
            moved.set()
            for _ in range(20):
                try:
                    await lease.renew()
                    break
                except BackendError:
                    continue
            assert await lease.release()

    def blocking() -> None:
        with holdfast.connect(url) as locks:
            lease = locks.lock(key, ttl=60).acquire()
            site.all(FaultProxy.cut)
            moved.set()
            for _ in range(20):
                try:
                    lease.renew()
                    break
                except BackendError:
                    continue
            assert lease.release()

    if asynchronous:
        asyncio.run(awaited())
    else:
        blocking()
