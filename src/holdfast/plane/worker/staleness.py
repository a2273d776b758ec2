"""Whether an attempt is stale. A worker checks it before it runs a message that is late or was redelivered.

Such a message may be a leftover or a duplicate: another worker has run the attempt, or the job has ended otherwise. Or
its worker has died: then this is a takeover, and the database knows since when that worker was silent. A worker also
checks before it publishes a known result again.

Promises:

- An attempt is stale only if the database shows one of these: its job has ended, is at another attempt, or waits again
  because this attempt failed or was taken back; it was dispatched again, with another message; another job has its id.
- A worker is silent only if it had begun this attempt, missed two heartbeats, and was not draining.
- A run is overtaken only if another worker has reported on the same attempt since, and the attempt is not over.

Does not promise the opposite: a result that the scheduler has not written yet is not seen here, nor the death of a
worker whose name another worker uses by now.

**Lost runs.** The run of a worker that died looks like any other that has begun. So runs are counted in the history of
the job, where their starts are written, minus those that were returned: a worker that drains, or has lost its lease,
its bus or a store, reports that (`returned`). The rest is lost. A busy delivery does not count, because it has begun
nothing. A worker that cannot report a returned run leaves it as if it had died.

**Which attempts are checked.** Most are not: their message has come immediately, and for the first time. Whether it has
waited is measured by two clocks, the scheduler's and the worker's, which may disagree. It is also measured by two
fences of the lease store's own clock: that of the job's lock when it was dispatched, and that of the attempt's lease.

A check is part of running an attempt, and fails as that does. The report of a returned run gets a second, because the
message is nacked in any case.

Clock: the wall clock; a heartbeat carries that of its sender.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

from holdfast.core.lease.fencing import accepts
from holdfast.errors import BackendError, Timeout
from holdfast.flows.log import log_event
from holdfast.plane.bus.delivery_rules import lost_runs
from holdfast.plane.db.ports import Database, Row
from holdfast.plane.db.statements import sql
from holdfast.plane.model.job_states import WITH_WORKERS, JobState
from holdfast.types import MS, NS

HEARTBEAT: Final = 5.0
MISSED: Final = 2

_CHECK: Final = sql("attempt_check")
_RETURNED: Final = sql("attempt_returned")


class Staleness(NamedTuple):
    """What the database knows about an attempt."""

    wanted: bool  # it may still be run
    silent_since_ns: int | None = None  # the last heartbeat of a worker that died while it ran it
    overtaken: bool = False  # it runs under a newer fence
    lost: int = 0  # runs of it whose worker died


class Attempts:
    """The attempts of one plane, as stored in its database."""

    def __init__(self, database: Database, *, heartbeat: float = HEARTBEAT) -> None:
        """`heartbeat`: seconds between two of a worker."""
        self._database = database
        self._silence_ns = round(MISSED * heartbeat * NS)

    async def check(self, name: tuple[str, int, int], fence: int, now_ns: int, sent: int | None = None) -> Staleness:
        """Check an attempt (`Assignment.name`) that starts now, or was run, under that fence of the worker's lease.

        `sent`: the fence under which it was dispatched (`Assignment.fence`). An attempt of an unknown job may be run:
        nothing is lost by a second run.
        """
        job, made_ns, attempt = name
        rows = await self._database.read(lambda tx: tx.query(_CHECK, {"id": job}), one_view=False)
        if not rows:
            return Staleness(wanted=True)
        row = rows[0]
        superseded = sent is not None and not accepts(row["sent_fence"], sent)
        if superseded or made_ns not in (0, row["created_ns"]):
            return Staleness(wanted=False)
        wanted = row["state"] in WITH_WORKERS and row["attempt"] == attempt
        if not wanted or row["run_fence"] is None:
            return Staleness(wanted)
        died = row["state"] == JobState.RUNNING and row["run_fence"] < fence
        silent_ns = self._silent_since(row, now_ns) if died else None
        lost = lost_runs(row["begun"], row["given_back"]) if died else 0
        return Staleness(wanted, silent_ns, overtaken=row["run_fence"] > fence, lost=lost)

    async def returned(self, name: tuple[str, int, int], now_ns: int) -> None:
        """Note that a run that had begun was returned: it is not lost."""
        job, made_ns, attempt = name
        values = {"id": job, "made_ns": made_ns, "attempt": attempt, "at_ns": now_ns}
        await self._database.write(lambda tx: tx.query(_RETURNED, values))

    def _silent_since(self, row: Row, now_ns: int) -> int | None:
        at_ns: int | None = row["at_ns"]
        silent = at_ns is not None and not row["draining"] and now_ns - at_ns >= self._silence_ns
        return at_ns if silent else None


REPORT_LIMIT_S: Final = 1.0
LATE_NS: Final = 500 * MS
"""A message that has waited for longer may have been cancelled or taken back."""

_log: Final = logging.getLogger("holdfast.plane.worker")


class StalenessCheck(Protocol):
    """Knows which attempts are stale, and which of their runs were lost."""

    async def check(self, name: tuple[str, int, int], fence: int, now_ns: int, sent: int | None = None) -> Staleness:
        """Whether the attempt may still be run, and whether workers died that ran it."""
        ...

    async def returned(self, name: tuple[str, int, int], now_ns: int) -> None:
        """Note that a run that had begun was returned by a living worker."""
        ...


async def report_returned(staleness: StalenessCheck, name: tuple[str, int, int], now_ns: int) -> None:
    """Report that a run was returned, so that it does not count as lost. If that fails, it does."""
    limit = asyncio.timeout(REPORT_LIMIT_S)
    try:
        async with limit:
            await staleness.returned(name, now_ns)
    except (BackendError, TimeoutError) as raised:
        error = Timeout(f"no answer within {REPORT_LIMIT_S:g} s") if limit.expired() else raised
        text = "a returned run could not be reported and may count as lost"
        log_event(_log, logging.WARNING, text, error, job=name[0], attempt=name[2])
