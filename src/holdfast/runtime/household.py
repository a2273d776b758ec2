"""Everything that the leases of one `Locks` share: the keeper, the health of the store, the policy, the witness.

Facades of both colours are thin over this. A household survives `fork()` by starting anew in the child: the parent's
leases are lost there (`forked`), its threads and places in line do not exist, and nothing of it is touched.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.core import autopsy
from holdfast.core.history import Kind, Record
from holdfast.core.latency import Tail
from holdfast.core.lease import Event, State
from holdfast.flows.acquiring import Possession, Wish
from holdfast.flows.health import StoreHealth
from holdfast.ports import Clock, Entropy, Ports, Runtime, Store
from holdfast.runtime.callbacks import CallbackThreads
from holdfast.runtime.exercises import ExerciseSwitch
from holdfast.runtime.keeper import Keeper, MakeTicks
from holdfast.runtime.policies import PolicySwitch
from holdfast.runtime.tenure import Tenure
from holdfast.runtime.threads import ThreadRuntime
from holdfast.runtime.ticker import Ticker
from holdfast.runtime.witness import Witness
from holdfast.types import NS, Instant, Owner

log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of one `Locks`, for metrics, consoles and tests. All counts are since it was connected."""

    held: int
    waiting: int
    degraded: int
    granted: int
    busy: int
    busy_peak_to_mean: float  # of the lock-busy retries of the last minute, per 50 ms
    busy_fano: float  # likewise: about 1 at random, far above 1 in waves
    timed_out: int
    store_errors: int
    renewed: int
    renew_requests: int
    unconfirmed: int
    lost: int
    released: int
    not_owned: int
    release_failures: int
    compensated: int
    fallbacks: int
    exercised: int  # likewise given out without the store, because an exercise pretended that it had failed
    promotions: int
    denied: int
    keeper_lag: float
    renew_tail: float
    breaker_open: bool


@dataclass(frozen=True, slots=True)
class Health:
    """Whether leases are really being looked after."""

    ok: bool
    problems: tuple[str, ...]
    stalled: bool = False  # leases are held and not renewed, which a restart cures; a failing store it does not

    def __bool__(self) -> bool:
        return self.ok


class Household:
    """The shared parts of one `Locks`."""

    def __init__(
        self,
        keeper_store: Store,
        *,
        clock: Clock,
        entropy: Entropy,
        witness: Witness,
        policy: PolicySwitch,
        owner: Callable[[], Owner],
        request_timeout_ns: int,
        make_ticks: MakeTicks | None = None,
        keeper_runtime: Runtime | None = None,
    ) -> None:
        self.store = keeper_store
        self.clock = clock
        self.entropy = entropy
        self.witness = witness
        self.policy = policy
        self.request_timeout_ns = request_timeout_ns
        self.exercises = ExerciseSwitch(policy, clock, entropy)
        self.health = StoreHealth(clock, entropy)
        self.tail = Tail()
        self.callbacks = CallbackThreads()
        self._make_owner = owner
        self.owner = str(owner())
        self.on_fork: list[Callable[[], None]] = []
        keeper_ports = self.ports(keeper_store, keeper_runtime or ThreadRuntime())
        ticks: MakeTicks = make_ticks or (lambda name, act: Ticker(name, clock, act))
        self.keeper = Keeper(keeper_ports, self.health, self.tail, ticks, self._warn)
        _HOUSEHOLDS.add(self)

    def ports(self, store: Store, runtime: Runtime) -> Ports:
        """The ports for flows of one colour."""
        return Ports(
            store, self.clock, self.entropy, runtime, self.witness, self, self.request_timeout_ns, self.exercises
        )

    def reap(self, key: str, token: str, ttl_ns: int) -> None:
        """See to it that a grant that may exist is given back."""
        self.keeper.reap(key, token, ttl_ns)

    def take(
        self,
        wish: Wish,
        possession: Possession,
        *,
        looked_after: bool = True,
    ) -> Tenure:
        """Turn what a flow got into a tenure, which the keeper looks after unless it is meant to run out by itself."""
        tenure = Tenure(wish, possession.token, possession.grant, possession.sent, self.clock, self.tail)
        if possession.grant is not None:
            self._note(tenure, Kind.GRANTED)
        if not looked_after:
            return tenure
        tenure.place = possession.place
        tenure.on_end = self._ended
        tenure.on_unconfirmed = self._unconfirmed
        self.keeper.keep(tenure)
        return tenure

    def statistics(self, waiting: int) -> Statistics:
        """A snapshot."""
        tenures = self.keeper.tenures()
        total, burst = self.witness.total, self.witness.busy_burst()
        return Statistics(
            held=sum(tenure.recorded.live for tenure in tenures),
            waiting=waiting,
            degraded=sum(tenure.degraded for tenure in tenures),
            granted=total(Kind.GRANTED),
            busy=total(Kind.BUSY),
            busy_peak_to_mean=burst.peak_to_mean,
            busy_fano=burst.fano,
            timed_out=total(Kind.TIMED_OUT),
            store_errors=total(Kind.FAILED),
            renewed=self.keeper.renewed,
            renew_requests=self.keeper.requests,
            unconfirmed=total(Kind.UNCONFIRMED),
            lost=total(Kind.LOST),
            released=total(Kind.RELEASED),
            not_owned=total(Kind.RELEASE_REFUSED),
            release_failures=total(Kind.RELEASE_FAILED),
            compensated=total(Kind.COMPENSATED),
            fallbacks=total(Kind.FELL_BACK),
            exercised=total(Kind.EXERCISED),
            promotions=total(Kind.PROMOTED),
            denied=total(Kind.DENIED),
            keeper_lag=self.keeper.lag_ns() / NS,
            renew_tail=self.tail.value_ns / NS,
            breaker_open=self.health.open,
        )

    def health_report(self) -> Health:
        """A probe that fails when this process believes to hold leases and has stopped renewing them."""
        problems = []
        lag = self.keeper.lag_ns()
        shortest = min((tenure.timing.renew_every_ns for tenure in self.keeper.tenures()), default=None)
        stalled = shortest is not None and lag > shortest
        if shortest is not None and stalled:
            problems.append(f"renewal is {lag / NS:.3f} s behind, more than a renewal interval ({shortest / NS:.3f} s)")
        if self.health.open:
            problems.append("the store has been failing; the breaker is open")
        return Health(not problems, tuple(problems), stalled)

    def close(self) -> None:
        """Stop looking after leases. Those still held are lost to their holders (`revoked`) and expire in the store."""
        for tenure in self.keeper.tenures():
            tenure.end(Event.REVOKED)
        self.keeper.stop()

    def forked(self) -> None:
        """In a child process: start anew."""
        for tenure in self.keeper.abandon():
            tenure.forked()
        self.callbacks = CallbackThreads()
        self.witness.forked()
        self.exercises.forked()
        self.owner = str(self._make_owner())
        for restart in self.on_fork:
            restart()

    def _unconfirmed(self, tenure: Tenure) -> None:
        self._note(tenure, Kind.UNCONFIRMED)

    def _ended(self, tenure: Tenure) -> None:
        """A tenure is over. After a release the place is left when the store has been told; after a loss, now."""
        self.keeper.drop(tenure)
        if tenure.degraded and tenure.asked:
            self.keeper.reap(tenure.key, tenure.token, tenure.timing.ttl_ns)
        if tenure.recorded.state is State.LOST:
            if tenure.place is not None:
                tenure.place.leave()
            self._note(tenure, Kind.LOST, ok=False)

    def _warn(self, tenure: Tenure) -> None:
        self._note(tenure, Kind.WARNED)
        if tenure.on_warning is not None:
            self.callbacks.submit(tenure.on_warning)

    def _note(self, tenure: Tenure, kind: Kind, *, ok: bool = True) -> None:
        wish = tenure.wish
        if not self.witness.tally(kind, wish.family):
            return
        standing, now = tenure.recorded, self.clock.now()
        self.witness.note(
            Record(
                kind,
                now.wall,
                wish.key,
                wish.family,
                wish.owner,
                fence=None if tenure.grant is None else tenure.grant.fence,
                risk=wish.risk,
                reason=None if standing.reason is None else str(standing.reason),
                began_ns=standing.confirmed.wall,
                until_ns=standing.confirmed.wall + wish.timing.loss_age_ns(self.tail.value_ns),
                ok=ok,
                facts=self._autopsy(tenure, now) if kind is Kind.LOST else None,
            )
        )

    def _autopsy(self, tenure: Tenure, now: Instant) -> dict[str, Any]:
        """What was known about the lease when it was lost, for whoever asks why."""
        return autopsy.facts(
            tenure.recorded,
            tenure.timing,
            now,
            tail_ns=self.tail.value_ns,
            renewals=tuple(self.health.renewals),
            failure=self.health.failure,
            breaker_open=self.health.open,
            keeper_lag_ns=self.keeper.lag_ns(),
        )


_HOUSEHOLDS: weakref.WeakSet[Household] = weakref.WeakSet()


def _after_fork() -> None:
    for household in list(_HOUSEHOLDS):
        try:
            household.forked()
        except Exception:  # one that cannot start anew must not keep the others from it: nobody would renew for them
            log.exception("a Locks could not be made ready in a forked process; connect again there")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
