"""The seam between decisions and the world: everything a flow may await or ask for, and nothing else.

Each method that is `async def` here is awaited by flows. Blocking implementations never suspend, so that a flow driven
by `runtime.run_sync.run_now` runs to its end immediately; asyncio implementations suspend as usual. Flows see no
difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from holdfast.core.diagnosis import KnownFindings, StoreFinding
from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.loss_diagnosis import RenewalRequest, StoreFailure
from holdfast.core.lease.states import Event, LeaseState
from holdfast.errors import BackendError
from holdfast.types import (
    NS,
    AcquireRequest,
    AuditRecord,
    Busy,
    Grant,
    Guarantee,
    Holding,
    Instant,
    KeyOwnership,
    Ownership,
    Renewal,
)

LISTEN_NS: Final = 2 * NS  # what a listener may take to be registered, unless its waiter has less time


class Clock(Protocol):
    """The clocks of this host."""

    def now(self) -> Instant:
        """Read all three."""
        ...


class Entropy(Protocol):
    """Chance, and secrets."""

    def token(self) -> str:
        """A new secret of at least 128 bits, as lower-case hexadecimal text."""
        ...

    def below(self, n: int) -> int:
        """A uniform integer in [0, n)."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do. Each claim is proven by the conformance kit; a store that claims less runs fewer checks."""

    engine: str  # "sqlite", "redis", "memory"
    guarantee: Guarantee  # the most that the engine can promise; its server may be configured for less (`Diagnosable`)
    wakeups: bool  # `watch` notifies waiters of releases; without it they poll
    fair: bool  # tickets
    durable: bool  # survives a restart of the engine
    shared: bool  # other processes see the same leases
    many: bool = False  # it is a `AcquiresMany` too
    renewal: bool = True  # a store that cannot renew is not asked to; its leases run for their TTL


class Watch(Protocol):
    """A subscription to releases of one key. Only a hint: notifications may be lost, late or spurious."""

    async def wait(self, timeout_ns: int) -> bool:
        """Wait for a hint that the key may be free. Hints since `watch()` or the last `wait` count. False: none."""
        ...

    async def close(self) -> None:
        """Stop listening. Never raises."""
        ...


class Store(Protocol):
    """The engine that keeps leases.

    Errors: `Unavailable` when the request certainly had no effect, `Timeout` when it may have had one, `Misconfigured`
    when it can never work. Anything that ends a call early without a definite answer (also cancellation) leaves the
    outcome unknown, and must leave the connection in a state in which the next reply cannot be mistaken for this one.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this store."""
        ...

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """Grant the key to the token if it is free, with a fence above every earlier one, in one atomic step.

        Idempotent: a request whose token already holds the key gets the same grant again, with a new expiry.
        With a ticket, the key is granted only at the head of the queue; the ticket is made, or its lease extended.
        """
        ...

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """Set a new expiry for each key that still has its token. True renewed, False not ours, None no answer."""
        ...

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """Compare and delete. False: not the holder, nothing changed. `claim`: None if the grant's answer was lost.

        `keep_ns` > 0: do not delete, but let the key expire after that time (`at_least`).
        """
        ...

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """Who holds the key, or None."""
        ...

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """The leases whose key begins with `prefix` and sorts behind `after`, sorted by key, at most `limit`."""
        ...

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """Take the key from its holder, raise the fence, leave an audit record, atomically. None: it was not held."""
        ...

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """The newest audit records, newest first."""
        ...

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """Leave the queue of a fair lock."""
        ...

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """Listen for releases of a key (only with the `wakeups` capability)."""
        ...

    async def ping(self, timeout_ns: int) -> None:
        """Return when the store answers; raise as any other call."""
        ...

    async def close(self) -> None:
        """Close connections and threads. Idempotent; the store can be used again afterwards (it reconnects)."""
        ...


@runtime_checkable
class SharesDatabase(Protocol):
    """A store whose leases lie in a SQL database in which a user can have tables too."""

    def ownership(self, grant: Grant, schema: str | None) -> Ownership:
        """The predicate that holds while the grant stands. `schema`: the name under which the database is attached."""
        ...


@runtime_checkable
class ChecksOwnership(Protocol):
    """A store on a server whose leases can be checked by transactions of other tables in the same database."""

    def ownership_check(self, database: str) -> str | None:
        """A statement for transactions of the database with this URL; None: the leases are in another one.

        It returns one row for each lease of `:owned` that stands, and keeps it until the transaction ends.
        """
        ...


@runtime_checkable
class SharesKeys(Protocol):
    """A store whose leases lie in a key-value store with transactions, in which a user can have keys too."""

    def key_ownership(self, grant: Grant) -> KeyOwnership:
        """What is stored while the grant stands."""
        ...


@runtime_checkable
class HasServerTime(Protocol):
    """A store with a wall clock of its own, which all its clients can read."""

    async def time_ns(self, timeout_ns: int) -> int:
        """Nanoseconds since 1970. Errors are those of `Store`."""
        ...


@runtime_checkable
class Diagnosable(Protocol):
    """A store that can say what its server promises as it is configured now."""

    async def diagnose(self, timeout_ns: int) -> list[StoreFinding]:
        """Ask the server, and change nothing. Errors are those of `Store`."""
        ...


@runtime_checkable
class ChangesServers(Protocol):
    """A store whose leases may move to another server, which may not know all of them (a failover)."""

    def follow(self, moved: Callable[[], None]) -> None:
        """Call this bound method, from any thread, when they have moved. Kept weakly."""
        ...


@runtime_checkable
class AcquiresMany(Protocol):
    """A store that answers for many keys in one request. Each key gets the result that it would get alone.

    Requests have no ticket: no caller waits with one of these. Errors are those of `Store`, for the whole request.
    """

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        """Grant each key that is free; see `Store.acquire`. After an error some keys may have been granted."""
        ...

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        """Compare and delete each; see `Store.release`. True: released, False: not the holder, None: no answer."""
        ...


Query: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Sequence[Mapping[str, Any]]]]
"""Runs one statement with parameters written `:name` in an open transaction, and returns its rows."""


class TransactionLocks(Protocol):
    """Locks that last as long as a transaction on the file in which the leases lie."""

    async def take(self, query: Query, keys: Sequence[str], *, unheard: bool = False) -> list[int | Busy]:
        """A fence for each of some distinct keys, or its holder. Until the transaction ends, no other caller gets one.

        `unheard`: no other process can know these keys yet, so none holds them.
        """
        ...


@runtime_checkable
class LocksInTransaction(Protocol):
    """A store whose locks can be acquired inside the caller's own transaction."""

    def within(self, database: str) -> TransactionLocks | None:
        """Locks in transactions on the database of that path; None: the leases are not in it."""
        ...


@runtime_checkable
class SharesTransactions(Protocol):
    """A store whose requests for many locks can share the transactions of another writer to the same database."""

    def ride(self, database: object) -> bool:
        """From now on share the transactions of that database, if the leases lie in it and it can. Whether they do."""
        ...

    @property
    def rides(self) -> bool:
        """Whether they are shared, so that a lease is as durable as what that database has committed before it."""
        ...

    def granting(self, asks: Sequence[AcquireRequest]) -> Callable[[Any], list[Grant | Busy]]:
        """What `acquire_many` does, as a step of such a transaction, to be called with its connection.

        Only where they are shared, and after the store has answered once: its tables are there then.
        """
        ...


class Held(Protocol):
    """A lease that this process holds, as its other callers see it."""

    @property
    def grant(self) -> Grant | None:
        """What the store granted. None: the store knows nothing of it."""
        ...

    def current(self) -> LeaseState:
        """Its state at this moment. A loss that is noticed here frees the local mutex."""
        ...

    def end(self, event: Event) -> LeaseState:
        """It has ended, for a reason that is not time."""
        ...

    @property
    def runs_out(self) -> bool:
        """Whether it is not renewed, so that it ends with its TTL."""
        ...


class MutexEntry(Protocol):
    """One caller's position in the queue for the local mutex of one key."""

    asked: str | None
    """The token that the store may know while the caller does not know the answer. It outlives the flow that sent the
    request: an interrupt between the flow and the caller must not lose the grant."""

    caller: object
    """A mark of the thread or task that would wait for itself if it entered again. None: no such check."""

    held: Held | None
    """The lease of the caller who is inside, once there is one."""

    @property
    def next(self) -> bool:
        """Whether this caller is the first that waits."""
        ...

    async def enter(self, timeout_ns: int | None) -> bool:
        """Wait for this caller's turn. First come, first served.

        False: the time has ended, and the caller stays in the queue until it leaves or continues waiting here. Zero
        does not wait, and does not join the queue.
        """
        ...

    def leave(self) -> None:
        """Let the next caller in, or leave the queue. Idempotent, and may be called from any thread."""
        ...


class LocalMutexes(Protocol):
    """The local mutexes of one `Locks`: of all waiters for a key, only the one inside talks to the store."""

    @property
    def closed(self) -> bool:
        """Whether the `Locks` was closed: then no caller gets in, and waiting callers get `Closed`."""
        ...

    def entry(self, key: str, caller: object = None) -> MutexEntry:
        """A position for one caller; it is not in the queue until it enters."""
        ...

    def inside(self, key: str) -> MutexEntry | None:
        """The entry of the caller who is inside. None: the key is free in this process."""
        ...


class Runtime(Protocol):
    """Waiting and finishing, in one color."""

    @property
    def mutexes(self) -> LocalMutexes:
        """The local mutexes."""
        ...

    async def sleep(self, ns: int) -> None:
        """Sleep."""
        ...

    async def finish(self, work: Coroutine[Any, Any, None], limit_ns: int) -> None:
        """Run `work` to its end even if the caller is cancelled, twice, or interrupted. Never raises `work`'s error.

        A caller that is cancelled meanwhile continues waiting until the work is done or `limit_ns` is over, and only
        then sees its cancellation; past the limit the work continues in the background.
        """
        ...


class Observer(Protocol):
    """Receives events. Must be quick and must not raise."""

    def note(self, record: Record) -> None:
        """One thing happened."""
        ...


@runtime_checkable
class Gauging(Protocol):
    """An observer that also receives durations. Must be quick and must not raise."""

    def measured(self, measure: Measure, family: str, outcome: MeasuredOutcome, ns: int) -> None:
        """Something took so long. A request that renewed leases of many families has none (the empty text)."""
        ...


class Journal(Observer, Gauging, Protocol):
    """What flows report to. Most events are only counted, and cost no record."""

    def tally(self, kind: EventKind, family: str) -> bool:
        """Count the event. True when a listener wants the whole record: then make it and `note` it."""
        ...

    def waits(self, who: object, family: str) -> None:
        """This caller waits for a lock of this family from now on."""
        ...

    def waits_no_more(self, who: object) -> None:
        """This caller has got the lock, or has given up. A caller that does not wait is ignored."""
        ...


class Exercises(Protocol):
    """Whether a store error is to be pretended, so that the fallback path is walked before it is needed."""

    running: bool  # False: there is no exercise, and no request is needed

    def drawn(self, family: str, risk: str | None, on_error: Callable[[str | None], OnError]) -> bool:
        """Whether this acquisition is to meet a pretended error. Asked once for each acquisition."""
        ...


class ErrorPolicy(Protocol):
    """The error policy in force. Flows read it when the store fails: it may be switched while a caller waits."""

    def on_error(self, risk: str | None) -> OnError:
        """Return the reaction to a store error for a risk class."""
        ...


class CircuitBreaker(Protocol):
    """Refuses requests to a store that has been failing, and remembers its latest failures and renewals."""

    failure: StoreFailure | None
    renewals: deque[RenewalRequest]

    @property
    def open(self) -> bool:
        """Whether callers are being refused."""
        ...

    def admit(self, timeout_ns: int) -> None:
        """Return when a caller may ask the store; raise `Unavailable` when it should not."""
        ...

    def answered(self) -> None:
        """The store answered."""
        ...

    def failed(self, error: BackendError) -> None:
        """The store did not answer."""
        ...


class Reaper(Protocol):
    """Releases grants that could not be cleaned up in time."""

    def reap(self, key: str, token: str, ttl_ns: int, after_ns: int = 0) -> object:
        """Release a grant that may exist: try until it is released or must have expired. Never waits.

        `after_ns`: a request that releases it is under way and has so long. Returns what `settle` is called with.
        """
        ...

    def settle(self, orphan: object, *, released: bool) -> None:
        """The request that was under way is over: forget the grant if it was released, else try soon."""
        ...


class Kept(Protocol):
    """A lease as the renewer uses it."""

    @property
    def renewal(self) -> Renewal:
        """What to send."""
        ...

    def answered(self, answer: bool | None, sent: Instant, now: Instant) -> None:
        """Record the answer: renewed, refused, or none."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that a flow needs. The lease manager makes it for each `Locks`."""

    store: Store
    clock: Clock
    entropy: Entropy
    runtime: Runtime
    observer: Journal
    reaper: Reaper
    breaker: CircuitBreaker
    policy: ErrorPolicy
    request_timeout_ns: int
    exercises: Exercises | None = None
    known: KnownFindings = field(default_factory=KnownFindings)
