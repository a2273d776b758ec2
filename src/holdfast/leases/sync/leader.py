"""Leader election in blocking code: one of many is the leader, keeps being it, and knows when it no longer is."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from holdfast.errors import LeaseLost
from holdfast.leases.inspection import Inspection
from holdfast.leases.lease_base import is_loss_of
from holdfast.leases.sync.lease import Lease
from holdfast.leases.sync.lock import Lock
from holdfast.leases.sync.with_statement import exit_of_each_statement
from holdfast.types import Duration

T = TypeVar("T")


class Leader:
    """A candidate for one leadership. Leading is holding a lease: it has a fence, is renewed, and can be lost."""

    def __init__(self, lock: Lock[Lease]) -> None:
        self._lock = lock

    @property
    def name(self) -> str:
        """What is led."""
        return self._lock.name

    def campaign(self, timeout: Duration | None = None) -> Lease:
        """Wait to become the leader. `AcquireTimeout` at the deadline."""
        return self._lock.acquire(timeout)

    def current(self) -> Inspection:
        """Who leads now, as the store sees it."""
        return self._lock.inspect()

    def run(
        self,
        main: Callable[[Lease], T],
        *,
        on_started: Callable[[Lease], object] | None = None,
        on_stopped: Callable[[Lease], object] | None = None,
    ) -> T:
        """Lead whenever elected: call `main` with the lease, and campaign again when leadership is lost.

        Returns what `main` returns when it ends while still leading. `main` must stop when the lease is lost; it may
        say so with `LeaseLost`, also from several tasks (a group that contains nothing else).
        """
        while True:  # ends when main returns as leader, or raises
            try:
                with self._lock as lease:
                    try:
                        if on_started is not None:
                            on_started(lease)
                        return main(lease)
                    finally:
                        if on_stopped is not None:
                            on_stopped(lease)
            except (LeaseLost, ExceptionGroup) as lost:
                if not is_loss_of(lost, self.name):
                    raise

    def __enter__(self) -> Lease:
        return self._lock.__enter__()

    @exit_of_each_statement
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)
