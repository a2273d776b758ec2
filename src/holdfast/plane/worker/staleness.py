"""Whether an attempt is still wanted: asked by a worker before it runs a message that is late or was delivered before.

Such a message may be a leftover, or a copy that a bus no longer knows as one: another worker has run the attempt
meanwhile, or the job has ended otherwise. Or its worker has died: then this is a takeover, and the database says since
when that worker was silent. Asked also before a worker repeats the result of an attempt instead of running it again.

Promises: an attempt is called outdated only when the database says that its job has ended, is at another attempt, or
waits again because this one failed or was taken back, or that it was handed out once more since, with a message of its
own, or that another job has its id by now. A worker is called silent only when it had begun this attempt, has missed
two of its heartbeats, and had not begun to leave. A run is called overtaken only when another worker has spoken of the
same attempt since, and it is not over. Does not promise the opposite: a result that the scheduler has not written yet
is not seen here, nor the death of a worker whose name somebody else has taken over.

**Lost runs.** A run that its worker did not live to end looks like any other that has begun. So runs are counted where
their starts are written, in the history of the job, and those that were given back are taken off: a worker that is told
to leave, or has lost its lease, its bus or a store, lives to say so (`given_back`). What is left was never heard of
again. Promises: no busy delivery counts, for it has begun nothing, nor one to a worker that was not at work on it; each
run counts that was said to begin, and every one is that is not the first of its message (see `attempt`). A worker that
cannot even say that it gives a run back leaves it as if it had died.

Clock: the wall clock, of which a heartbeat carries the sender's.

What a worker asks about an attempt before it runs it, and says when it gives it back.

`plane.worker.staleness.Attempts` answers from the database. Asking is part of running an attempt, and fails as that
does; a word on giving back is not worth more than a moment, because the message goes back in any case.

Most attempts are not asked about: the message has come at once, and for the first time. Whether it has waited is told
by two clocks, the scheduler's and the worker's, and so by none where those disagree by about as much as it has waited.
It is also told by two fences: that of the job's lock when it was handed out, and that of the lease under which it is to
be run. Both come from the lease store, which counts them by its own clock.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple, Protocol

from holdfast.core.lease.fence_clock import apart
from holdfast.core.lease.fencing import accepts
from holdfast.errors import BackendError, Timeout
from holdfast.flows.log import say
from holdfast.plane.bus.delivery_rules import lost_runs
from holdfast.plane.db.ports import Database, Row
from holdfast.plane.db.statements import sql
from holdfast.plane.model.assignment import Assignment
from holdfast.plane.model.job_states import WITH_WORKERS, JobState
from holdfast.types import MS, NS

HEARTBEAT: Final = 5.0
MISSED: Final = 2

_LOOK: Final = sql("attempt_look")
_GIVEN_BACK: Final = sql("attempt_given_back")


class Look(NamedTuple):
    """What the database says about an attempt."""

    wanted: bool  # it may still be run
    silent_since_ns: int | None = None  # it was being run by a worker that has died, last heard of at this time
    overtaken: bool = False  # it is being run under a newer fence than the one that was asked about
    lost: int = 0  # runs of it that were never heard of again


class Attempts:
    """The attempts of one plane, as its database knows them."""

    def __init__(self, database: Database, *, heartbeat: float = HEARTBEAT) -> None:
        """`heartbeat`: seconds between two of a worker."""
        self._database = database
        self._silence_ns = round(MISSED * heartbeat * NS)

    async def look(self, name: tuple[str, int, int], fence: int, now_ns: int, sent: int | None = None) -> Look:
        """Inspect an attempt (`Assignment.name`) that starts now, or was run, under that fence of the worker's lease.

        `sent`: the fence under which it was handed out (`Assignment.fence`). One of a job that is not known may be run:
        nothing is lost by a second run.
        """
        job, made_ns, attempt = name
        rows = await self._database.read(lambda tx: tx.query(_LOOK, {"id": job}))
        if not rows:
            return Look(wanted=True)
        row = rows[0]
        superseded = sent is not None and not accepts(row["sent_fence"], sent)
        if superseded or made_ns not in (0, row["created_ns"]):
            return Look(wanted=False)
        wanted = row["state"] in WITH_WORKERS and row["attempt"] == attempt
        if not wanted or row["run_fence"] is None:
            return Look(wanted)
        died = row["state"] == JobState.RUNNING and row["run_fence"] < fence
        silent_ns = self._silent_since(row, now_ns) if died else None
        lost = lost_runs(row["begun"], row["given_back"]) if died else 0
        return Look(wanted, silent_ns, overtaken=row["run_fence"] > fence, lost=lost)

    async def given_back(self, name: tuple[str, int, int], now_ns: int) -> None:
        """A run of this attempt that had begun was given back: it is not lost."""
        job, made_ns, attempt = name
        values = {"id": job, "made_ns": made_ns, "attempt": attempt, "at_ns": now_ns}
        await self._database.write(lambda tx: tx.query(_GIVEN_BACK, values))

    def _silent_since(self, row: Row, now_ns: int) -> int | None:
        at_ns: int | None = row["at_ns"]
        silent = at_ns is not None and not row["draining"] and now_ns - at_ns >= self._silence_ns
        return at_ns if silent else None


EXCUSE_S: Final = 1.0
LATE_NS: Final = 500 * MS
"""Whoever has waited for longer may have been cancelled or taken back; one that found a free place has not waited."""

_log: Final = logging.getLogger("holdfast.plane.worker")


class StalenessCheck(Protocol):
    """Knows which attempts are still wanted, and which of their runs were lost."""

    async def look(self, name: tuple[str, int, int], fence: int, now_ns: int, sent: int | None = None) -> Look:
        """Whether the attempt may still be run, and whether workers have died that ran it."""
        ...

    async def given_back(self, name: tuple[str, int, int], now_ns: int) -> None:
        """A run of the attempt, that was begun, is given back by a worker that has not died."""
        ...


def waited(order: Assignment, fence: int) -> bool:
    """Whether an attempt has waited for its lease, by the clock of the lease store. Such a lease has this fence."""
    return order.fence is not None and apart(order.fence, fence, LATE_NS)


async def excuse(currency: StalenessCheck, name: tuple[str, int, int], now_ns: int) -> None:
    """Say that a run is given back, so that it does not count as lost. If that cannot be said, it does."""
    limit = asyncio.timeout(EXCUSE_S)
    try:
        async with limit:
            await currency.given_back(name, now_ns)
    except (BackendError, TimeoutError) as raised:
        error = Timeout(f"no answer within {EXCUSE_S:g} s") if limit.expired() else raised  # a store is slow: no riddle
        text = "a run that is given back could not be excused, and may be taken for one that was lost"
        say(_log, logging.WARNING, text, error, job=name[0], attempt=name[2])
