"""Leases of attempts that are taken by the very transaction that claims their messages.

Where bus and leases lie in one file, a worker needs one commit, and one trip to the thread that writes, to have an
attempt and the lease that it is made under. Promises: each is a lease as from `Lock.try_acquire`, valid from before the
transaction asked for it; one that nobody takes is given back, and so is one of a transaction of which nobody knows what
became. A lock that was busy is not here, and is asked for again by whoever wants it.

Clock: the one of the locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from holdfast.aio import batch as many
from holdfast.aio.client import Locks
from holdfast.aio.lease import Lease
from holdfast.aio.lock import Lock
from holdfast.core.ports import RidesAlong, TakesMany
from holdfast.errors import BackendError
from holdfast.plane.db.ports import Tx
from holdfast.plane.db.sqlite.connection import SqliteTx
from holdfast.plane.locks.registry import LockFamily
from holdfast.types import NS, Ask, Grant, Instant, elapsed_ns

_KEPT_MAX: Final = 4096


class _Had(NamedTuple):
    grant: Grant
    sent: Instant  # before it was asked for


class ClaimedLeases:
    """See the module. Belongs to one event loop, but for `work`, which runs where the transaction does."""

    def __init__(self, locks: Locks, family: LockFamily) -> None:
        self._locks = locks
        self._family = family
        self._ttl_ns = round(family.ttl * NS)
        self._asked: list[Ask] = []  # by the transaction that is under way
        self._got: list[_Had] = []
        self._here: dict[str, _Had] = {}  # by the name of the lock: had, and not yet taken by anybody
        self.answered = False  # the store has been there once
        self._riding: RidesAlong | None = None

    @property
    def ready(self) -> bool:
        """See `ports.Along`."""
        if self._riding is None and self.answered:
            store = self._locks.ports.store
            self._riding = store if isinstance(store, RidesAlong) and store.rides else None
        return self._riding is not None

    async def work(self, tx: Tx, keys: Sequence[str]) -> None:
        """See `ports.Along`: the keys are the ids of jobs."""
        self._got = []  # what a transaction had that was undone, and is made again, was never granted
        if not keys:
            return
        ports = self._locks.ports
        store = cast("RidesAlong", ports.store)
        family: LockFamily = self._family  # a test reads from this that the lock is a declared one
        owner, sent = self._locks.manager.owner, ports.clock.now()
        asks = [
            Ask(family.key(job=job), ports.entropy.token(), owner, family.name, self._ttl_ns) for job in sorted({*keys})
        ]
        self._asked += asks
        answers = cast("SqliteTx", tx).step(store.granting(asks))
        self._got = [_Had(each, sent) for each in answers if isinstance(each, Grant)]

    def done(self) -> None:
        """See `ports.Along`."""
        got, self._got, self._asked = self._got, [], []
        if len(self._here) + len(got) > _KEPT_MAX:
            self._forget_old()
        self._here.update((each.grant.key, each) for each in got)

    def undone(self) -> None:
        """See `ports.Along`."""
        asked, self._asked, self._got = self._asked, [], []
        for ask in asked:
            self._locks.ports.reaper.reap(ask.key, ask.token, ask.ttl_ns)

    async def take(self, lock: Lock[Lease]) -> Lease | None:
        """The lease of a lock, if it is here and can still be used."""
        had = self._here.pop(lock.name, None)
        return None if had is None else await many.taken_along(self._locks, lock, *had)

    async def leave(self, job: str) -> None:
        """Whoever had the message of a job is done with it. A lease that was not taken is given back.

        Before others get the message: they are not to find its job busy.
        """
        if not self._here or (had := self._here.pop(self._family.key(job=job), None)) is None:
            return
        ports = self._locks.ports
        try:
            await cast("TakesMany", ports.store).release_many([had.grant], ports.request_timeout_ns)
        except BaseException as error:
            self._reap(had)
            if not isinstance(error, BackendError):
                raise

    def close(self) -> None:
        """Nobody will take any more."""
        here, self._here = self._here, {}
        for had in here.values():
            self._reap(had)

    def _forget_old(self) -> None:
        """Messages that could not be read leave leases behind, which have run out by themselves."""
        now = self._locks.ports.clock.now()
        self._here = {key: had for key, had in self._here.items() if elapsed_ns(had.sent, now) < self._ttl_ns}

    def _reap(self, had: _Had) -> None:
        self._locks.ports.reaper.reap(had.grant.key, had.grant.token, self._ttl_ns)
