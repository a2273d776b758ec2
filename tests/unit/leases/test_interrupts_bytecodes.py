"""A signal handler that raises, or that releases leases, at every bytecode of acquire, renew, release and close.

Whatever the moment: renewal continues, no thread spins, nothing stays locked, the pool keeps its size, and the key is
free in the end.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import secrets
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.leases.sync.lock import Lock
from holdfast.runtime.renewer import Orphan
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.timer_thread import TimerThread
from holdfast.stores.blocking import BlockingStore
from holdfast.stores.etcd.store import EtcdStore
from holdfast.stores.memory.store import MemoryEngine, MemoryTable
from holdfast.stores.quorum.engine import QuorumEngine, QuorumStore
from holdfast.types import MS, NS, AcquireRequest, Grant
from support.campaigns import FULL, campaign
from support.faults.bytecode_interrupts import Tracer, every, raise_interrupted
from support.servers.etcd import EtcdServer, etcd_executables, start_etcd
from support.servers.nats import NatsServer, nats_executables, own_bucket, start_nats
from support.servers.postgres import PostgresServer, postgres_executables, start_postgres
from support.servers.redis import RedisServer, redis_executables, start_redis

pytestmark = [
    pytest.mark.timeout(600),  # many thousand repetitions, each of which waits for other threads, on a busy machine
    pytest.mark.filterwarnings(
        # An interrupt before a coroutine is started leaves it unstarted; one that loses a lease leaves it to expire.
        "ignore:coroutine .* was never awaited:RuntimeWarning",
        "ignore:the lease of .* was dropped:ResourceWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ),
]

SECONDS = 30.0  # by which any condition must hold
PATIENT = 5.0  # for a request: none is cut short because the machine is busy
SAMPLE = 10  # bytecodes of each way, on stores whose rounds take long
BUSY_NS = 10 * MS  # for which a waiter finds the key held


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + SECONDS
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < end, what
        pause.wait(0.002)


def tickers(locks: holdfast.Locks) -> list[TimerThread[Any]]:
    keeper = locks.manager.renewer
    found: list[Any] = [keeper._alarms, keeper._renewals, keeper._orphans]
    return found


def whole(pool: dict[str, int]) -> bool:
    """Whether all connections are back in the pool. The cleanup in the background may have one for a while."""
    return pool["open"] == pool["idle"] and not pool["waiting"]


def listeners(locks: holdfast.Locks) -> list[Any]:
    """What the store remembers of callers that wait."""
    store: Any = locks.engine.blocking
    known = ("_listening", "_registered", "_watches")
    left = [each for name in known for each in getattr(store, name, ())]
    subscriber = getattr(store, "_subscriber", None)
    left += getattr(subscriber, "_in_use", ())
    left += getattr(getattr(subscriber, "_listener", None), "_subscriptions", ())
    if isinstance(store, BlockingStore):
        inner: Any = store._store
        left += [*inner._hub._ears, *(call for home in store._thread._homes for call in home.calls)]
    return [*left, *getattr(getattr(store, "table", None), "_listeners", ())]


def reachable(ticker: TimerThread[Any]) -> bool:
    """Whether each item of a timer queue is in the slot at which it is due."""
    return all(
        item in ticker._timer_wheel._slots.get(slot, ()) for item, slot in ticker._timer_wheel._due.copy().items()
    )


def check(locks: holdfast.Locks, where: str) -> None:
    """What must hold after every interrupt. The key is free when the reaper has had its turn."""
    mutexes: Any = locks.ports.runtime.mutexes
    # A thread of the runtime may hold the last reference to the lease for a moment; the queue is left when it goes.
    until(f"a caller is still in the local queue after an interrupt at {where}", lambda: not mutexes.queues)
    # While its thread takes an item out, the item is in one of the two tables.
    until(f"an item of a timer queue never comes out: {where}", lambda: all(map(reachable, tickers(locks))))
    until(f"the key is still held after an interrupt at {where}", lambda: not locks.inspect("k").held)
    until(f"something is left of a waiter after an interrupt at {where}", lambda: not listeners(locks))
    pool = getattr(locks.engine.blocking, "_driver", None)
    if pool is not None:
        until(f"a connection is missing after an interrupt at {where}", lambda: whole(pool.statistics()))
    check_nodes(locks, where)
    # A server may execute a request of a closed connection late. The reaper then releases the key once more.
    until(f"the lock cannot be acquired after an interrupt at {where}", lambda: acquired(locks))


def acquired(locks: holdfast.Locks) -> bool:
    """Whether the key is free: it is acquired and released."""
    lease = locks.lock("k", ttl=60).try_acquire()
    return lease is not None and lease.release()


def check_nodes(locks: holdfast.Locks, where: str) -> None:
    """No node of a quorum has a vote for the key, no request is counted as under way, and no thread is missing."""
    store: Any = locks.engine.blocking
    if not isinstance(store, QuorumStore):
        return
    nodes: Any = store._nodes
    until(
        f"a node still has a vote after an interrupt at {where}",
        lambda: not any(run_now(node.inspect("k", NS)) for node in nodes.stores),
    )
    until(f"a vote counts as under way after an interrupt at {where}", lambda: not len(store._late))
    until(
        f"a thread of a node is missing after an interrupt at {where}",
        lambda: all(len(each._idle) == len(each._threads) for each in nodes.runner._nodes),
    )


def check_renewal(locks: holdfast.Locks) -> None:
    """A lease is renewed as ever, and the threads of the runtime sleep in between."""
    lease = locks.lock("renewed", ttl=0.6).acquire()
    renewed, used = locks.statistics().renewed, time.process_time()
    until("the lease is not renewed any more", lambda: locks.statistics().renewed >= renewed + 3)
    assert lease.held
    assert time.process_time() - used < 0.5, "a thread spins"
    assert lease.release()
    assert all(ticker.crashes == 0 for ticker in tickers(locks))
    until("an item is left in a timer queue", lambda: not any(_left(ticker) for ticker in tickers(locks)))


def _left(ticker: TimerThread[Any]) -> list[Any]:
    """Items that are neither dropped leases, which go when they are due, nor orphans, which go when they expire."""
    lease_records = [each for each in ticker.items() if not isinstance(each, Orphan)]
    return [each for each in lease_records if not each.abandoned and each.recorded.live]


def acquire(locks: holdfast.Locks, at: Tracer) -> None:
    lease = locks.lock("k", ttl=60).acquire()
    Tracer.pause()
    lease.release()
    del at


def try_acquire(locks: holdfast.Locks, at: Tracer) -> None:
    lease = locks.lock("k", ttl=60).try_acquire()
    Tracer.pause()
    assert lease is not None
    lease.release()
    del at


def block(locks: holdfast.Locks, at: Tracer) -> None:
    with kept(locks):
        pass
    del at


def block_of_a_lease(locks: holdfast.Locks, at: Tracer) -> None:
    Tracer.pause()
    with remembered(locks, kept(locks).acquire()):
        at.resume()


def block_of_a_leader(locks: holdfast.Locks, at: Tracer) -> None:
    Tracer.pause()
    with locks.leader("k", lease=60, renew_deadline=40, retry=2):
        at.resume()


def block_of_a_stack(locks: holdfast.Locks, at: Tracer) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(kept(locks))
    del at


_KEPT: weakref.WeakKeyDictionary[holdfast.Locks, tuple[Lock[Any], list[Any]]] = weakref.WeakKeyDictionary()


def kept(locks: holdfast.Locks) -> Lock[Any]:
    """One lock for all rounds, as programs have it: it lives on after an interrupt."""
    if locks not in _KEPT:
        _KEPT[locks] = locks.lock("k", ttl=60), []
    return _KEPT[locks][0]


def remembered(locks: holdfast.Locks, lease: holdfast.Lease) -> holdfast.Lease:
    """The lease, which a variable of the program refers to after an interrupt."""
    _KEPT[locks][1][:] = [lease]
    return lease


def release(locks: holdfast.Locks, at: Tracer) -> None:
    Tracer.pause()
    lease = locks.lock("k", ttl=60).acquire()
    at.resume()
    try:
        lease.release()
    finally:
        Tracer.pause()
        lease.release()  # as a `finally` of the caller's would


def renew(locks: holdfast.Locks, at: Tracer) -> None:
    Tracer.pause()
    lease = locks.lock("k", ttl=60).acquire()
    try:
        at.resume()
        lease.renew()
        lease.progress()
        lease.ensure_held()
    finally:
        Tracer.pause()
        lease.release()


def wait(lock: Lock[Any], at: Tracer) -> None:
    """Another holder has it for a moment: the caller asks in vain, listens, sleeps, and gets it."""
    Tracer.pause()
    another = AcquireRequest("k", secrets.token_hex(16), "another", "default", BUSY_NS)
    store: Any = lock._locks.engine.blocking
    for each in store._nodes.stores if isinstance(store, QuorumStore) else [store]:
        granted = run_now(each.acquire(another, NS))
        assert isinstance(granted, Grant)
        if isinstance(each, EtcdStore):  # which counts whole seconds
            release = partial(run_now, each.release("k", another.token, granted.claim, 0, NS))
            threading.Timer(BUSY_NS / NS, release).start()
    at.resume()
    lease = lock.acquire(SECONDS)
    Tracer.pause()
    lease.release()


def hold(locks: holdfast.Locks, at: Tracer) -> None:
    lease = locks.hold("k", ttl=60)
    Tracer.pause()
    assert lease is not None
    lease.release()
    del at


def once(locks: holdfast.Locks, at: Tracer) -> None:
    lease = locks.once("k", window=86_400)
    Tracer.pause()
    assert lease is not None
    lease.release()
    del at


def bare(locks: holdfast.Locks, at: Tracer) -> None:
    token = locks.acquire_token("k", 60)
    Tracer.pause()
    assert token
    locks.release_token("k", token)
    del at


def fenced(locks: holdfast.Locks, at: Tracer) -> None:
    token, fence = locks.acquire_fenced_token("k", 60)
    Tracer.pause()
    assert fence
    locks.release_token("k", token)
    del at


WORKS = [acquire, try_acquire, block, block_of_a_lease, block_of_a_leader, block_of_a_stack, release, renew]


def memory(_: pytest.FixtureRequest) -> str:
    return "memory://"


def sqlite(request: pytest.FixtureRequest) -> str:
    path: Path = request.getfixturevalue("tmp_path")
    return f"sqlite:///{path}/leases.db"


def redis(request: pytest.FixtureRequest) -> str:
    server: RedisServer = request.getfixturevalue("newest_redis")
    space = uuid.uuid4().hex[:10]
    return f"{server.url}?prefix={space}:&namespace=aux-{space}"


def quorum(request: pytest.FixtureRequest) -> str:
    """Three nodes in memory. No node counts as slow, so that each attempt takes the same way."""
    tables = [MemoryTable() for _ in range(3)]

    def engine(_: str | None) -> QuorumEngine:
        return QuorumEngine([MemoryEngine(table) for table in tables], hedge_ns=round(SECONDS * NS))

    request.getfixturevalue("monkeypatch").setattr("holdfast.leases.connect.open_engine", engine)
    return "memory://"


def postgres(request: pytest.FixtureRequest) -> str:
    server: PostgresServer = request.getfixturevalue("newest_postgres")
    stack: contextlib.ExitStack = request.getfixturevalue("opened")
    return stack.enter_context(server.database())


def etcd(request: pytest.FixtureRequest) -> str:
    server: EtcdServer = request.getfixturevalue("newest_etcd")
    return f"{server.url}/t{uuid.uuid4().hex[:10]}"


def nats(request: pytest.FixtureRequest) -> str:
    return own_bucket(request.getfixturevalue("newest_nats"))


def needs(executables: Sequence[object]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.server, pytest.mark.skipif(not executables, reason="no such server is installed")]


STORES = [
    pytest.param(memory, id="memory"),
    pytest.param(sqlite, id="sqlite"),
    pytest.param(redis, id="redis", marks=needs(redis_executables())),
    pytest.param(quorum, id="quorum"),
    pytest.param(postgres, id="postgres", marks=needs(postgres_executables())),
    pytest.param(etcd, id="etcd", marks=needs(etcd_executables())),
    pytest.param(nats, id="nats", marks=needs(nats_executables())),
]
Url = Callable[[pytest.FixtureRequest], str]
Work = Callable[[holdfast.Locks, Tracer], None]
SERVERS: tuple[Url, ...] = (postgres, etcd, nats)


def most(url: Url) -> int | None:
    """How many bytecodes of each way are struck: all, where a round is short. On these servers it is not.

    A quorum of three has more than two thousand bytecodes, most of them the same ones for each of its nodes.
    """
    if url is quorum:
        return campaign(20 * SAMPLE, None)
    return campaign(SAMPLE, None) if url in SERVERS else None


def on_stores(*works: Work, brief: Sequence[Work]) -> pytest.MarkDecorator:
    """Each piece of work on each store; outside of full campaigns, on these servers only the `brief` ones."""
    cases = [
        pytest.param(*url.values, work, id=f"{url.id}-{work.__name__}", marks=url.marks)
        for url in STORES
        for work in works
        if work in brief or url.values[0] not in SERVERS or FULL
    ]
    return pytest.mark.parametrize(("url", "work"), cases)


@pytest.fixture(scope="session")
def newest_redis() -> Iterator[RedisServer]:
    with start_redis(redis_executables()[-1]) as server:
        yield server


@pytest.fixture(scope="session")
def newest_postgres() -> Iterator[PostgresServer]:
    with start_postgres(postgres_executables()[-1]) as server:
        yield server


@pytest.fixture(scope="session")
def newest_etcd() -> Iterator[EtcdServer]:
    with start_etcd(etcd_executables()[-1]) as server:
        yield server


@pytest.fixture(scope="session")
def newest_nats() -> Iterator[NatsServer]:
    with start_nats(nats_executables()[-1]) as server:
        yield server


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def locks(url: Url, request: pytest.FixtureRequest) -> Iterator[holdfast.Locks]:
    with holdfast.connect(url(request), request_timeout=PATIENT) as locks:
        locks.lock("k", ttl=60).acquire().release()  # connected, and its threads run
        yield locks


@pytest.mark.requires("R48", "R81")
@on_stores(*WORKS, brief=[block, renew])
def test_an_interrupt_at_any_bytecode_leaves_nothing_behind(locks: holdfast.Locks, work: Work, url: Url) -> None:
    places = 0
    if work is block_of_a_stack:
        gc.freeze()  # the collections below then search only what came later
    for where in every(lambda at: work(locks, at), raise_interrupted, most=most(url)):
        if work is block_of_a_stack:
            gc.collect()  # the stack keeps the end of its block in a cycle with the exception
        check(locks, where)
        places += 1
    assert places > (100 if most(url) is None else SAMPLE // 2)
    check_renewal(locks)


@pytest.mark.requires("R48", "R81")
@on_stores(hold, once, bare, fenced, brief=[once])
def test_an_interrupt_at_any_bytecode_of_a_detached_acquire_leaves_nothing_behind(
    locks: holdfast.Locks, work: Work, url: Url
) -> None:
    for where in every(lambda at: work(locks, at), most=most(url)):
        check(locks, where)
        until(f"a window is taken after an interrupt at {where}", lambda: not locks.list("k"))


@pytest.mark.requires("R48", "R81")
@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("url", STORES)
def test_an_interrupt_at_any_bytecode_of_a_wait_leaves_nothing_behind(
    locks: holdfast.Locks, fair: bool, url: Url
) -> None:
    if fair and not locks.capabilities.fair:
        with pytest.raises(holdfast.Misconfigured, match="fair"):
            locks.lock("k", fair=True).acquire()
        return
    lock = locks.lock("k", ttl=60, fair=fair)
    for where in every(lambda at: wait(lock, at), but=lambda _: lock.acquire().release(), most=most(url)):
        check(locks, where)
    check_renewal(locks)


@on_stores(*WORKS, brief=[block])
def test_a_signal_handler_may_release_another_lease_at_any_bytecode(
    locks: holdfast.Locks, work: Work, url: Url
) -> None:
    """The handler of SIGTERM that docs show: it releases, and whatever was interrupted continues."""
    others: list[holdfast.Lease] = []

    def prepared(at: Tracer) -> None:
        Tracer.pause()
        for each in others:
            each.release()
        others[:] = [locks.lock("other", ttl=60).acquire()]
        at.resume()
        work(locks, at)

    def handler() -> None:
        others[0].release()

    for where in every(prepared, handler, most=most(url)):
        assert not others[0].held, where
        until(f"released by a handler at {where}", lambda: not locks.inspect("other").held)
        check(locks, where)
    others[0].release()
    check_renewal(locks)


@on_stores(block, release, renew, brief=[release])
def test_a_signal_handler_may_release_the_lease_at_hand_at_any_bytecode(
    locks: holdfast.Locks, work: Work, url: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[holdfast.Lease] = []
    make = holdfast.Lease.__init__

    def remember(self: holdfast.Lease, *args: Any) -> None:
        make(self, *args)
        made[:] = [self]

    monkeypatch.setattr(holdfast.Lease, "__init__", remember)

    def attempt(at: Tracer) -> None:
        made.clear()
        with contextlib.suppress(holdfast.LeaseLost):  # it is not held any more when it is used
            work(locks, at)

    def handler() -> None:
        for lease in made:
            lease.release()

    for where in every(attempt, handler, most=most(url)):
        check(locks, where)
    monkeypatch.undo()
    check_renewal(locks)


def shut(locks: holdfast.Locks) -> list[str]:
    """What a closed `Locks` has left: threads, connections, leases."""
    found = [ticker._name for ticker in tickers(locks) if ticker._thread is not None and ticker._thread.is_alive()]
    found += [lease_record.key for lease_record in locks.manager.renewer.lease_records() if lease_record.recorded.live]
    pool = getattr(locks.engine.blocking, "_driver", None)
    if pool is not None and pool.statistics()["open"]:
        found.append("connections")
    if isinstance(locks.engine, QuorumEngine):
        runner: Any = locks.engine.blocking._nodes.runner
        found += [thread.name for node in runner._nodes for thread in node._threads]
    if isinstance(locks.engine.blocking, BlockingStore) and not locks.engine.blocking._thread.idle:
        found.append("event loop")
    listener: Any = getattr(locks.engine, "_listener", None)
    if listener is not None and listener._thread is not None and listener._thread.is_alive():
        found.append("listener")
    http: Any = getattr(locks.engine, "_http", None)
    if http is not None and any(http._idle.values()):
        found.append("idle connections")
    file = getattr(locks.engine, "_file", None)
    if file is not None and file._connection is not None:
        found.append("file")
    return found


@pytest.mark.requires("R48", "R81")
@pytest.mark.parametrize("url", STORES)
def test_an_interrupt_at_any_bytecode_of_close_still_closes(url: Url, request: pytest.FixtureRequest) -> None:
    address = url(request)

    def close(at: Tracer) -> None:
        Tracer.pause()
        locks = opened[0] = holdfast.connect(address, request_timeout=PATIENT)
        lease = leases[0] = locks.lock(f"k{next(number)}", ttl=60).acquire()
        lease.renew()
        at.resume()
        locks.close()

    opened: list[Any] = [None]
    leases: list[Any] = [None]
    number = itertools.count()
    source, first = inspect.getsourcelines(holdfast.Locks.close)
    unbegun = {f"/leases/sync/client.py:{first + line}" for line in range(source.index("        try:\n"))}
    with holdfast.connect(address) as other:
        other.ping()  # holds the file open, so that each close is not also a checkpoint and a sync
        for where in every(close, most=most(url)):
            if where.partition(" ")[0] not in unbegun:  # else nothing was done yet
                assert not shut(opened[0]), where
                assert not leases[0].held, where
            opened[0].close()  # as a `finally` of the caller's would
            assert not shut(opened[0]), where
