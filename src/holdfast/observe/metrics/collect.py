"""The locks of one process, read together for metrics: however many `Locks` there are, each number is there once.

Counts are added up, histograms too; of what cannot be added (how far a keeper is behind, how bunched retries are) the
worst is taken. A `Locks` that is taken out leaves its counts behind: a sum that fell would seem a restart, and a
rate over it like a burst of everything that was ever counted.

A snapshot sends no request to a store and waits for no lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Protocol

from holdfast.errors import BadInput
from holdfast.guards.admission import REFUSALS
from holdfast.observe.metrics.samples import MetricSample, samples, together
from holdfast.observe.metrics.table import MetricKind
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.statistics import of_locks
from holdfast.runtime.thread_runtime import Mutex
from holdfast.types import check_label

SOURCES: Final = frozenset({"lock", "burst", "leases", "guards"})  # of the metrics that a program without a plane has


class HasManager(Protocol):
    """A `Locks` of sync or asyncio."""

    @property
    def manager(self) -> LeaseManager:
        """What its leases share."""
        ...


class LocksCollection:
    """Some `Locks`, and what those have counted that are not among them any more. Safe from any thread."""

    def __init__(self) -> None:
        self._mutex = Mutex()
        self._members: dict[LeaseManager, frozenset[str]] = {}
        self._left: dict[weakref.ref[LeaseManager], list[MetricSample]] = {}  # of those that may come back
        self._rest: list[MetricSample] = []

    def add(self, manager: LeaseManager, families: Iterable[str]) -> bool:
        """Read this one too. False: it was among them; the families are now known beforehand as well."""
        with self._mutex:
            before = self._members.get(manager)
            self._members[manager] = (before or frozenset()) | frozenset(families)
            self._left.pop(weakref.ref(manager), None)  # it reports its own counts
        return before is None

    def remove(self, manager: LeaseManager) -> bool:
        """Do not read this one any more, and keep what it had counted. False: it was not among them."""
        with self._mutex:
            families = self._members.pop(manager, None)
            if families is None:
                return False
            counted = [each for each in _of(manager, families) if each.metric.kind is not MetricKind.GAUGE]
            self._left[weakref.ref(manager)] = counted
        return True

    def samples(self) -> list[MetricSample]:
        """What all of them say now, and the guards of this process."""
        with self._mutex:
            members = list(self._members.items())
            for gone in [each for each in self._left if each() is None]:
                self._rest = together((*self._rest, *self._left.pop(gone)))
            left = [self._rest, *self._left.values()]
        found = [_of(manager, families) for manager, families in members]
        return together(chain(*left, *found, samples([REFUSALS.reading()])))


def manager_of(locks: object) -> LeaseManager:
    """The household of a `Locks`, or `BadInput`."""
    manager = getattr(locks, "manager", None)
    if not isinstance(manager, LeaseManager):
        raise BadInput("locks", f"{type(locks).__name__} is not a Locks", "pass what holdfast.connect() returned")
    return manager


def families_of(families: object) -> tuple[str, ...]:
    """Names of families, or `BadInput`."""
    if not isinstance(families, Sequence) or isinstance(families, str | bytes):
        raise BadInput("families", f"{families!r:.60} is no list of names", 'give a list, such as ["billing"]')
    return tuple(check_label("families", each) for each in families)


def _of(manager: LeaseManager, families: Iterable[str]) -> Iterator[MetricSample]:
    return samples(of_locks(manager, families, manager.policy.current()))
