"""`connect` and `Locks` in blocking code: one `Locks` per store and process, shared by all its threads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from holdfast.core import backoff, time_windows
from holdfast.core.lease.spec import LockSpec
from holdfast.core.ports import MutexEntry, Observer
from holdfast.errors import BadInput
from holdfast.flows import acquire as acquiring
from holdfast.flows import force_release as breaking
from holdfast.flows import raw_token, shared_clock
from holdfast.leases.connect import AnyLocks, Reconnection, open_locks
from holdfast.leases.inspection import ForcedRelease, Inspection, check_limit, check_reason, forced, inspection
from holdfast.leases.key_template import NameTemplate
from holdfast.leases.lock_spec import LockSettings, renamed
from holdfast.leases.sync.in_coroutine import exclusively
from holdfast.leases.sync.leader import Leader
from holdfast.leases.sync.lease import DegradedLease, Lease, block
from holdfast.leases.sync.lock import Lock
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.statistics import Measurements, Statistics
from holdfast.runtime.thread_runtime import ThreadRuntime
from holdfast.stores.registry import Engine
from holdfast.types import MS, NS, Busy, Duration, Guarantee, check_key, duration_ns, elapsed_ns

P = ParamSpec("P")
R = TypeVar("R")


class Locks(AnyLocks):
    """The locks of one store. Make it with `connect`; use it from as many threads as you like; close it at the end."""

    def __init__(
        self,
        engine: Engine,
        manager: LeaseManager,
        reconnection: Reconnection | None = None,
        *,
        minimum: Guarantee = Guarantee.EFFICIENCY_ONLY,
    ) -> None:
        super().__init__(engine, manager, reconnection, minimum)
        self._runtime = ThreadRuntime()
        self.ports = manager.ports(engine.blocking, self._runtime)
        manager.on_fork.append(self._runtime.forked)

    @overload
    def lock(self, name: str, *, risk: None = None, **settings: Unpack[LockSettings]) -> Lock[Lease]: ...
    @overload
    def lock(self, name: str, *, risk: str, **settings: Unpack[LockSettings]) -> Lock[Lease | DegradedLease]: ...
    def lock(self, name: str, *, risk: str | None = None, **settings: Unpack[LockSettings]) -> Lock[Any]:
        """Describe a lock. Nothing is sent anywhere until it is acquired. `LockSettings` lists the settings."""
        return Lock(self, self._describe(name, risk, settings))

    def once(self, name: str, *, window: Duration = 60, family: str = "default") -> Lease | None:
        """Take the present window of time: a lease for one caller of all replicas, None for all others.

        Windows begin at multiples of `window` since 1970 (UTC), by the clock of the store if it has one (Redis), else
        by this host's. The lease is neither renewed nor released. If the work failed, `release()` lets another
        caller have the same window. Windows do not exclude each other: hold a lock for that.
        """
        window_ns = duration_ns("window", window, low_ns=MS, high_ns=time_windows.LONGEST_NS)
        check_key("name", name)
        began = self.ports.clock.now()
        key = time_windows.key(name, run_now(shared_clock.shared_ns(self.ports)), window_ns)
        lease: Lease | None = None
        try:
            lease = self._take(key, time_windows.ttl_ns(window_ns) / NS, family)
            if lease is not None and elapsed_ns(began, self.ports.clock.now()) >= time_windows.skew_ns(window_ns):
                return None  # paused for so long that another caller may have had this window, and its key be gone
            return lease  # noqa: TRY300 - until it is returned it can be interrupted
        except BaseException:
            if lease is not None:
                lease.release()  # the caller does not have it, and another one may do the work of this window
            raise

    def hold(self, name: str, *, ttl: Duration, family: str = "default") -> Lease | None:
        """Take a lock for its whole TTL: it is neither renewed nor released, and expiry rotates it.

        None while any caller, also this one, has it. For loops with many replicas; the TTL must be shorter than the
        period of the loop, because a tick that comes before the expiry finds the lock taken. `once` needs no such care.
        """
        return self._take(name, ttl, family)

    def _take(self, name: str, ttl: Duration, family: str) -> Lease | None:
        """Acquire a lease that is left to expire."""
        settings: LockSettings = {"ttl": ttl, "family": family, "auto_renew": False}
        spec = replace(self._describe(name, None, settings), detached=True)
        entry = self._runtime.mutexes.entry(spec.key)
        try:
            answer = run_now(acquiring.attempt(self.ports, spec, entry))
            lease: Lease | None = None
            if not isinstance(answer, Busy):
                lease = Lease(self.manager, self.ports, self.manager.take(spec, answer, looked_after=False))
                lease.let_run_out()
            entry.leave()
            return lease  # noqa: TRY300 - until it is returned it can be interrupted
        except BaseException:
            try:
                run_now(acquiring.take_back(self.ports, spec, entry))
            finally:
                entry.leave()  # again, because a second interrupt may have cut the clean-up
            raise

    def leader(
        self,
        name: str,
        *,
        lease: Duration = 15.0,
        renew_deadline: Duration = 10.0,
        retry: Duration = 2.0,
        family: str = "leader",
        on_lost: Callable[[Any], object] | None = None,
        on_warning: Callable[[Any], object] | None = None,
    ) -> Leader:
        """A candidate for leadership. Refused unless lease > renew_deadline > 1.2 x retry."""
        every = duration_ns("retry", retry, low_ns=1)
        return Leader(
            self.lock(
                name,
                ttl=lease,
                renew_deadline=renew_deadline,
                renew_every=retry,
                retry=backoff.Jittered(every * 11 // 10, every // 10),
                family=family,
                on_lost=on_lost,
                on_warning=on_warning,
            )
        )

    def exclusive(
        self, name: str, *, risk: str | None = None, **settings: Unpack[LockSettings]
    ) -> Callable[[Callable[P, R]], Callable[..., R]]:
        """Decorate a function so that it runs under a lock named after its arguments, e.g. `"tenant:{tenant_id}"`.

        The function gets the lease if it has a parameter called `lease`. Works for functions, generators and
        coroutine functions (which do not block their event loop while they wait).
        """
        model = self._describe("name", risk, settings)

        def decorate(function: Callable[P, R]) -> Callable[..., R]:
            template = NameTemplate(name, function)

            def lock_for(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Lock[Any]:
                return Lock(self, renamed(model, template.fill(args, kwargs)))

            def extra(lease: Any) -> dict[str, Any]:
                return {"lease": lease} if template.wants_lease else {}

            if inspect.isasyncgenfunction(function):
                raise BadInput(
                    "exclusive",
                    f"{function.__qualname__} is an asynchronous generator",
                    "use holdfast.aio.connect() for it",
                )
            if inspect.iscoroutinefunction(function):
                return exclusively(function, lock_for, extra)
            if inspect.isgeneratorfunction(function):

                @functools.wraps(function)
                def generate(*args: Any, **kwargs: Any) -> Any:
                    with block(lock_for(args, kwargs).acquire()) as lease:
                        yield from function(*args, **kwargs, **extra(lease))

                return generate

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> R:
                with lock_for(args, kwargs) as lease:
                    return function(*args, **kwargs, **extra(lease))

            return run

        return decorate

    def inspect(self, name: str) -> Inspection:
        """Who holds the lock of that name, since when, for how long, under which fence, and how many wait."""
        check_key("name", name)
        return inspection(name, run_now(self.ports.store.inspect(name, self.ports.request_timeout_ns)))

    def list(self, prefix: str = "", limit: int = 1000, *, after: str = "") -> list[Inspection]:
        """The locks that are held now, sorted by name; behind the name `after`, where a list continues."""
        if prefix != "":
            check_key("prefix", prefix)
        if after != "":
            check_key("after", after)
        check_limit(limit)
        found = run_now(self.ports.store.holdings(prefix, limit, self.ports.request_timeout_ns, after))
        return [inspection(holding.key, holding) for holding in found]

    def force_release(self, name: str, *, reason: str, actor: str | None = None) -> ForcedRelease | None:
        """Break a lock: its holder is fenced out, the fence rises, an audit record is kept. None if it was not held."""
        check_key("name", name)
        check_reason(reason)
        record = run_now(breaking.force_release(self.ports, name, actor or self.manager.owner, reason))
        return None if record is None else forced(record)

    def audit(self, limit: int = 100) -> Sequence[ForcedRelease]:
        """The forced releases that the store remembers, newest first."""
        return [
            forced(record)
            for record in run_now(self.ports.store.audit(check_limit(limit), self.ports.request_timeout_ns))
        ]

    def acquire_token(self, key: str, ttl: Duration) -> str:
        """The lock primitive: a new token, or the empty string while the key is held. The token is not renewed."""
        spec, entry = self._detached(key, ttl)
        try:
            return run_now(raw_token.acquire(self.ports, spec, entry))
        except BaseException:
            try:
                run_now(acquiring.take_back(self.ports, spec, entry))
            finally:
                entry.leave()  # again, because a second interrupt may have cut the clean-up
            raise

    def acquire_fenced_token(self, key: str, ttl: Duration) -> tuple[str, int]:
        """The lock primitive with a fence: a new token and its fence, or `LockBusy`. The token is not renewed."""
        spec, entry = self._detached(key, ttl)
        try:
            return run_now(raw_token.acquire_fenced(self.ports, spec, entry))
        except BaseException:
            run_now(acquiring.take_back(self.ports, spec, entry))
            raise

    def _detached(self, key: str, ttl: Duration) -> tuple[LockSpec, MutexEntry]:
        settings: LockSettings = {"ttl": ttl, "auto_renew": False}
        spec = replace(self._describe(key, None, settings), detached=True)
        return spec, self._runtime.mutexes.entry(key)

    def release_token(self, key: str, token: str) -> None:
        """The lock primitive: delete the key if it has this token, else `NotOwner` and nothing is changed."""
        run_now(raw_token.release(self.ports, key, token))

    def renew_token(self, key: str, token: str, ttl: Duration) -> None:
        """The lock primitive: reset the expiry if the key has this token, else `NotOwner`."""
        run_now(raw_token.renew(self.ports, key, token, duration_ns("ttl", ttl, low_ns=1_000_000)))

    def ping(self) -> None:
        """Return if the store answers; else raise its error."""
        run_now(self.ports.store.ping(self.ports.request_timeout_ns))

    def statistics(self) -> Statistics:
        """Counts and gauges, for metrics and for people."""
        return self.manager.statistics.snapshot(self._runtime.mutexes.waiting())

    def measurements(self) -> Measurements:
        """Counts, and how long was waited and held, by family: what metrics and `holdfast tune` read."""
        return self.manager.statistics.measurements()

    def close(self) -> None:
        """Stop renewing, end threads, close connections. Leases still held are lost (`revoked`). Idempotent.

        An interrupt or a cancellation cuts short the wait for cleanup in the background, and nothing else.
        """
        if self._ended:
            return
        self._closed = True
        try:
            self._runtime.mutexes.close()
            self._runtime.drain(self.manager.request_timeout_ns)
            self._end()
        except BaseException:
            self._end()  # each step can be done again
            raise

    def _end(self) -> None:
        self._runtime.mutexes.close()
        self.manager.close()
        run_now(self.engine.blocking.close())
        self._ended = True

    def usable(self) -> bool:
        """Whether it can be used now."""
        return not self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    url: str | None = None,
    *,
    engine: Engine | None = None,
    client: object | None = None,
    service: str | None = None,
    instance: str | None = None,
    policy: Mapping[str, str] | None = None,
    policy_file: str | Path | None = None,
    observers: Sequence[Observer] = (),
    request_timeout: Duration = 2.0,
    guarantee: str = Guarantee.EFFICIENCY_ONLY,
) -> Locks:
    """Open the locks of a store. No URL: `$HOLDFAST_URL`, else a SQLite file in the user's state directory.

    Instead of a URL, `engine` is an engine of your own (see docs/stores/own.md), and `client` a client of redis-py:
    its settings are used for connections of the store's own (see docs/stores/redis.md).
    `service` and `instance` are shown to people as the owner of locks. `policy` and `policy_file` set the reaction of
    each risk class to a store error. `observers` get the record of every event. `request_timeout` limits one request
    to the store. `guarantee` is the least that the store must promise for each of its locks (see docs/doctor.md): an
    engine that cannot is refused here, and a server that is configured for less at the first acquire. Engines connect
    when they are first used.
    """
    opened = open_locks(
        url,
        engine=engine,
        client=client,
        service=service,
        instance=instance,
        policy=policy,
        policy_file=policy_file,
        observers=observers,
        request_timeout=request_timeout,
        guarantee=guarantee,
    )
    return Locks(opened.engine, opened.manager, opened.reconnection, minimum=opened.minimum)


_RECONNECTED: dict[str, Locks] = {}


def reconnect(reconnection: Reconnection) -> Locks:
    """The `Locks` of this process for a lock that came from another one; one for each URL and set of options."""
    known = repr(reconnection)
    locks = _RECONNECTED.get(known)
    if locks is None or not locks.usable():
        locks = _RECONNECTED[known] = connect(reconnection.url, **dict(reconnection.options))
    return locks
