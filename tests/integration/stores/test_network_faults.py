"""Faults of the network between a client and each store: each call ends in the documented outcome, in bounded time.

The outcomes are in `tools/network_faults.toml`, from which docs/stores/network-faults.md is made. Whatever happened,
the store can be used again when the fault has ended, and no key stays taken.

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
from functools import partial
from typing import Any, Final

import pytest

import holdfast
from holdfast import aio
from holdfast.errors import BackendError, LeaseLost, LockBusy, Misconfigured
from holdfast.testing.proxy import DIRECTIONS, Direction, FaultProxy
from store_tables import faults_table, network_faults
from support.fixtures.scheduling import holds
from support.fixtures.tls import TlsFiles
from support.load.processes import until
from support.polling import pauses
from support.servers.store_sites import NEW, OLD, STORES, SecuredSite, Site

pytestmark = pytest.mark.server

LIMIT_S = 60.0
TIMEOUT_S = 0.3
OVERSHOOT_S = 0.05
TRIES = 20
PASSING_S = 2.0  # the lease of a call whose answer may be taken for another one

Fault = Callable[[FaultProxy], None]

OUTCOMES: Final = {fault["name"]: fault for fault in network_faults()}


@pytest.fixture(params=STORES, scope="module")
def store(request: pytest.FixtureRequest) -> str:
    """The name of a store in the table."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def running(store: str) -> Iterator[Site]:
    with ExitStack() as stack:
        yield STORES[store].plain(stack)


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    running.mend()


@pytest.fixture(scope="module")
def secured(store: str, tls_files: TlsFiles) -> Iterator[SecuredSite]:
    with ExitStack() as stack:
        yield STORES[store].secured(stack, tls_files)


def documented(store: str, fault: str, error: BaseException) -> None:
    """The outcome is one of those in the table."""
    expected = OUTCOMES[fault].get(store, OUTCOMES[fault]["outcome"])
    public = next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "holdfast.errors")
    assert f"`{public}`" in expected, f"{error!r} is not {expected}"


def until_free(site: Site, key: str) -> None:
    """Nothing that a call has left behind stays: a grant of unknown outcome is undone."""
    with holdfast.connect(site.direct) as direct:
        limit, pause = time.monotonic() + LIMIT_S, pauses()
        while (lease := direct.lock(key, ttl=60).try_acquire()) is None:
            assert time.monotonic() < limit, f"{key} stays taken"
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

    until(tried, "the store can be used again")


def answered(call: Callable[[], object]) -> bool:
    """Connections that are cut cost some calls, and then the circuit breaker may refuse a few."""
    try:
        call()
    except BackendError:
        return False
    return True


async def _renewed(lease: aio.Lease) -> bool:
    try:
        await lease.renew()
    except BackendError:
        return False
    return True


# Faults that answer nothing.


def _answer_nothing(proxy: FaultProxy) -> None:
    proxy.answer_nothing()
    proxy.reset()


HUNG: dict[str, Fault] = {
    "half-open connection": FaultProxy.half_open,
    "answers are lost": lambda proxy: proxy.drop("to_client"),
    "requests are lost": lambda proxy: proxy.drop("to_server"),
    "answers are held back": lambda proxy: proxy.stall("to_client"),
    "accepts and never answers": _answer_nothing,
}


def _blocking_once(site: Site, fault: Fault, key: str) -> tuple[BaseException, float]:
    """How the call ended, and how much longer than a bare timer beside it it took."""
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
        with pytest.raises((BackendError, LockBusy)) as caught:
            locks.lock(key, ttl=10 * LIMIT_S).acquire(timeout=TIMEOUT_S)
        took = time.monotonic() - began
        beside.join()
        site.mend()
        until_free(site, key)  # by the client that has left it, while that is open
        works_again(locks, f"{key}-again")
        return caught.value, took - max(TIMEOUT_S, timer[0])


def _asyncio_once(site: Site, fault: Fault, key: str) -> tuple[BaseException, float]:
    async def main() -> tuple[BaseException, float]:
        async with aio.connect(site.url) as locks:
            await locks.ping()
            site.all(fault)
            began = time.monotonic()

            async def bare() -> float:
                await asyncio.sleep(TIMEOUT_S)
                return time.monotonic() - began

            beside = asyncio.create_task(bare())
            with pytest.raises((BackendError, LockBusy)) as caught:
                await locks.lock(key, ttl=10 * LIMIT_S).acquire(timeout=TIMEOUT_S)
            took = time.monotonic() - began
            timer = await beside
            site.mend()
            await asyncio.to_thread(until_free, site, key)
            return caught.value, took - max(TIMEOUT_S, timer)

    return asyncio.run(main())


@pytest.mark.requires("R66")
@pytest.mark.parametrize("once", [_blocking_once, _asyncio_once], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("fault", HUNG)
def test_no_acquire_takes_longer_than_its_timeout_and_nothing_is_left_behind(
    store: str, site: Site, fault: str, once: Callable[[Site, Fault, str], tuple[BaseException, float]]
) -> None:
    over: list[float] = []
    for number in range(TRIES):
        key = f"{fault}-{number}"
        error, overshoot = once(site, HUNG[fault], key)
        documented(store, fault, error)
        over.append(overshoot)
        if overshoot < OVERSHOOT_S:
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
def test_duplicated_pieces_give_no_lease_to_two(store: str, site: Site, direction: Direction) -> None:
    with holdfast.connect(site.url) as locks:
        locks.ping()
        site.all(lambda proxy: proxy.duplicate(direction))
        keys = [f"twice-{direction}-{number}" for number in range(5)]
        for key in keys:
            _use(store, "duplicated pieces", locks, key)
        site.mend()
        works_again(locks, f"twice-{direction}")
        for key in keys:
            until_free(site, key)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_truncated_answers_and_requests_are_unknown_outcomes(store: str, site: Site, direction: Direction) -> None:
    with holdfast.connect(site.url) as locks:
        locks.ping()
        sizes = (0, 1, 9, 40, 120)
        for size in sizes:
            site.all(lambda proxy, size=size: proxy.truncate(direction, size))  # type: ignore[misc]
            _use(store, "truncated stream", locks, f"cut-{direction}-{size}")
            site.mend()
        works_again(locks, f"cut-{direction}")
        for size in sizes:
            until_free(site, f"cut-{direction}-{size}")  # by the client that has left it, while that is open


def _use(store: str, fault: str, locks: holdfast.Locks, key: str) -> None:
    """Acquire through the fault. A lease that is granted and held excludes others who meet the fault too."""
    try:
        lease = locks.lock(key, ttl=PASSING_S).acquire(timeout=TIMEOUT_S)
    except (BackendError, LockBusy) as error:
        documented(store, fault, error)
        return
    with contextlib.suppress(BackendError):
        other = locks.lock(key, ttl=PASSING_S).try_acquire()
        assert other is None or not lease.held
    for call in (lease.renew, lease.release):
        with contextlib.suppress(BackendError, LeaseLost):  # documented; what matters is what is left
            call()


def test_an_unreachable_store_is_unavailable_immediately_and_comes_back(store: str, site: Site) -> None:
    with holdfast.connect(site.url) as locks:
        lease = locks.lock("away", ttl=60).acquire()
        site.all(FaultProxy.cut)
        with pytest.raises(BackendError):
            lease.renew()
        with pytest.raises(BackendError) as caught:
            locks.lock("away-too", ttl=60).acquire(timeout=LIMIT_S)
        documented(store, "unreachable", caught.value)
        site.all(FaultProxy.mend)
        works_again(locks, "away-again")
        lease.renew()
        assert lease.release()


# What changes while a client is connected.


def test_a_rotated_password_is_misconfigured_until_the_client_has_the_new_one(store: str, secured: SecuredSite) -> None:
    with holdfast.connect(secured.url(OLD)) as locks:
        lease = locks.lock("password", ttl=60).acquire()
        secured.rotate(NEW)
        documented(store, "rotated password", _refused(lease.renew))
        with holdfast.connect(secured.url(NEW)) as renewed:
            assert renewed.lock("password", ttl=60).try_acquire() is None
            assert renewed.inspect("password").fence == lease.fence
        assert lease.held
        secured.rotate(OLD)
        works_again(locks, "password-again")
        assert lease.release()


def test_an_expired_certificate_is_misconfigured_until_it_is_renewed(store: str, secured: SecuredSite) -> None:
    async def fresh() -> BaseException:
        async with aio.connect(secured.url(OLD)) as others:
            with pytest.raises(BackendError) as caught:
                await others.lock("certificate", ttl=60).acquire(timeout=LIMIT_S)
            return caught.value

    with holdfast.connect(secured.url(OLD)) as locks:
        lease = locks.lock("certificate", ttl=60).acquire()
        secured.present("expired")
        documented(store, "expired certificate", _refused(lease.renew))
        documented(store, "expired certificate", asyncio.run(fresh()))
        assert lease.held
        secured.present("good")
        works_again(locks, "certificate-again")
        assert lease.release()


def _refused(call: Callable[[], Any]) -> BaseException:
    """The connections that are cut may cost a call each; then the reason is told, without the password."""
    told: list[str] = []
    for _ in range(5):
        with pytest.raises(BackendError) as caught:
            call()
        told.append(repr(caught.value))
        if isinstance(caught.value, Misconfigured):
            assert "s3cret" not in told[-1]
            return caught.value
    pytest.fail(f"the store never said what is wrong: {told}")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_a_name_that_moves_to_another_address_is_looked_up_again(
    site: Site, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name leads to the proxies first, which then go away, and to the same ports of another address after that."""
    addresses = ["127.0.0.1"]
    lookup = socket.getaddrinfo

    def changing(host: Any, *args: Any, **kwargs: Any) -> Any:
        return lookup(addresses[-1] if host in ("leases.test", b"leases.test") else host, *args, **kwargs)

    def move() -> None:
        for port, server in site.named.items():
            stack.enter_context(FaultProxy(server, host="127.0.0.2", port=port))
        addresses.append("127.0.0.2")
        for proxy in site.proxies:
            if proxy.port in site.named:
                proxy.cut()
            else:
                proxy.reset()  # reached by an address that the store's own servers give

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    url, key = site.url.replace("127.0.0.1", "leases.test"), f"moved-{asynchronous}"

    async def awaited() -> None:
        async with aio.connect(url) as locks:
            lease = await locks.lock(key, ttl=60).acquire()
            move()
            await holds(partial(_renewed, lease))
            assert await lease.release()

    def blocking() -> None:
        with holdfast.connect(url) as locks:
            lease = locks.lock(key, ttl=60).acquire()
            move()
            until(lambda: answered(lease.renew), "the new address is used")
            assert lease.release()

    with ExitStack() as stack:
        if asynchronous:
            asyncio.run(awaited())
        else:
            blocking()


# The table.


def test_every_store_with_a_network_and_every_fault_is_in_the_table() -> None:
    assert set(OUTCOMES) == {
        *HUNG,
        "slow network",
        "duplicated pieces",
        "truncated stream",
        "unreachable",
        "rotated password",
        "expired certificate",
        "changed address",
    }
    table = network_fault_rows()
    assert [row[0] for row in table[2:]] == list(OUTCOMES)
    assert table[0][1:] == list(STORES)
    own = {name for fault in OUTCOMES.values() for name in fault} - {"name", "how", "outcome", "then"}
    assert own <= set(STORES)


def network_fault_rows() -> list[list[str]]:
    """The cells of the table in the docs."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in faults_table().splitlines()]
