"""The circuit breaker of one store, with its latest failure and renewals. Adds clock and jitter to the pure breaker."""

from __future__ import annotations

import logging
from collections import deque

from holdfast.core.lease import circuit_breaker
from holdfast.core.lease.circuit_breaker import Breaker
from holdfast.core.lease.loss_diagnosis import RenewalRequest, StoreFailure
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BackendError, Unavailable
from holdfast.flows.log import OutageLog
from holdfast.types import Instant, elapsed_ns

_log = logging.getLogger("holdfast")


class StoreBreaker:
    """Shared by all callers of this process that acquire leases from the store.

    Plain assignments, no mutex: two callers that race here let at most one probe too many through.
    """

    __slots__ = ("_breaker", "_clock", "_congested", "_entropy", "_stuck_ns", "_trouble", "failure", "renewals")

    def __init__(self, clock: Clock, entropy: Entropy, request_timeout_ns: int) -> None:
        self._breaker = Breaker()
        self._congested: Instant | None = None  # the first report of congestion since the last answer
        self._stuck_ns = request_timeout_ns
        self._clock = clock
        self._entropy = entropy
        self._trouble = OutageLog(_log, "the lease store does not answer", "the lease store answers again")
        self.failure: StoreFailure | None = None  # the latest
        self.renewals: deque[RenewalRequest] = deque(maxlen=8)  # the latest, for the diagnosis of a loss

    @property
    def open(self) -> bool:
        """Whether callers are being refused."""
        return self._breaker.open

    def admit(self, timeout_ns: int) -> None:
        """Return when a caller may ask the store; raise `Unavailable` when it should not."""
        if self._breaker.failures == 0:
            return
        self._breaker, admitted = circuit_breaker.admit(self._breaker, self._clock.now().mono, timeout_ns)
        if not admitted:
            raise Unavailable("the store has been failing; not asking again before it has had time to recover")

    def answered(self) -> None:
        """The store answered."""
        self._congested = None
        if self._breaker.failures:
            self._breaker = circuit_breaker.succeeded(self._breaker)
            self._trouble.ended()

    def failed(self, error: BackendError) -> None:
        """The store did not answer.

        A congested store counts as failed when it has answered nothing for the time of one more request. Then the
        error is no longer `congested`.
        """
        now = self._clock.now()
        self.failure = StoreFailure(now.mono, f"{type(error).__name__}: {error}")
        if error.congested:
            if self._congested is None:
                self._congested = now
            if elapsed_ns(self._congested, now) < self._stuck_ns:
                return
            error.congested = False
        self._breaker = circuit_breaker.failed(self._breaker, now.mono, self._entropy.below)
        if self._breaker.open:
            self._trouble.met(error)
