"""Quota for the costly expressions of one tenant in an engine, so that they do not delay the runs of other tenants.

Promises: decisions about runs of one tenant that are too costly for a transaction are made one at a time, and after
each the tenant pauses according to `UNITS_PER_S`. A message about such a run that arrives meanwhile is nacked with a
delay (`RetryLater`, which does not consume an attempt). It occupies no slot of the engine, which handles other runs.
The more messages were nacked, the longer the delays, up to `DELAY_MAX_S`.

Does not promise anything about cheap decisions, nor a limit across processes: each engine has its own quota.

Clock: the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from holdfast.core.backoff import Draw
from holdfast.core.ports import Clock
from holdfast.errors import LockBusy, RetryLater
from holdfast.plane.workflows.core.run import Run
from holdfast.plane.workflows.expressions.builtins import Budget
from holdfast.types import NS

UNITS_PER_S: Final = 1_000_000
"""Units (`plane.workflows.expressions.builtins`) of one tenant in a second: about half of a core."""

RETURNS_PER_S: Final = 16
"""Nacked messages of one tenant that are redelivered in a second, approximately."""

DELAY_MAX_S: Final = 10
TENANTS_MAX: Final = 1_000
RUNS_MAX: Final = 20_000


@dataclass(slots=True)
class _Tenant:
    deciding: bool = False
    until_ns: int = 0  # no costly decision before this time
    returned: int = 0  # recently nacked messages


class ExpressionQuota:
    """The quota of every tenant, in one engine. Belongs to one event loop."""

    def __init__(self, clock: Clock, draw: Draw) -> None:
        self._clock = clock
        self._draw = draw
        self._tenants: dict[str, _Tenant] = {}
        self._runs: dict[str, str] = {}  # the tenants of costly runs that wait

    def check(self, run_id: str) -> None:
        """Return if a message about this run may be handled now, or raise `RetryLater`. Needs no I/O."""
        tenant = self._runs.get(run_id)
        if tenant is not None:
            self._check(run_id, tenant)

    @contextmanager
    def decision(self, run: Run, budget: Budget) -> Iterator[None]:
        """Make a costly decision in the block. `RetryLater` if another one is running, or the tenant pauses."""
        self._check(run.id, run.tenant)
        if len(self._tenants) >= TENANTS_MAX:
            now_ns = self._clock.now().mono
            self._tenants = {
                name: each for name, each in self._tenants.items() if each.deciding or each.until_ns > now_ns
            }
        mine = self._tenants.setdefault(run.tenant, _Tenant())
        mine.deciding = True
        try:
            yield
        finally:
            mine.deciding = False
            mine.until_ns = self._clock.now().mono + budget.spent * NS // UNITS_PER_S
            mine.returned //= 2

    def _check(self, run_id: str, tenant: str) -> None:
        mine = self._tenants.get(tenant)
        if mine is None:
            return
        left_ns = max(mine.until_ns - self._clock.now().mono, 0)
        if not left_ns and not mine.deciding:
            return
        mine.returned += 1
        if run_id not in self._runs:
            while len(self._runs) >= RUNS_MAX:
                del self._runs[next(iter(self._runs))]
            self._runs[run_id] = tenant
        spread_ns = NS + mine.returned * NS // RETURNS_PER_S
        delay_ns = min(left_ns + self._draw(spread_ns), DELAY_MAX_S * NS)
        raise put_off(delay_ns)


def put_off(delay_ns: int) -> RetryLater:
    """The error for a message whose run may not evaluate expressions now: contention, not a failure."""
    return RetryLater(delay_ns / NS, LockBusy("the tenant's expressions have used their quota for now"))
