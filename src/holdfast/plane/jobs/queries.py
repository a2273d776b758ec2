"""What people and loops ask about jobs: lists, pages, counts. Reads only, and never under a lock.

Promises: a page goes by an index, however many finished jobs are stored: of all jobs, of a tenant, of a topic, of a
state that is an end other than success, and of a state that is not over (there, all jobs of that state are read). A
second filter, and the state SUCCEEDED, walk past what does not fit. A page ends where the next begins: nothing is shown
twice or left out because jobs arrive meanwhile. Pages are of outlines, so that their size does not depend on what jobs
were given or have made.

Clock: none.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import BadInput
from holdfast.plane.db.ports import Database
from holdfast.plane.db.statements import sql
from holdfast.plane.jobs.summaries import JobOutline, outline_of
from holdfast.plane.model.job_states import ACTIVE, JobState
from holdfast.plane.model.paging import AFTER_ALL, LATEST_NS, Place
from holdfast.plane.model.records import check_whole
from holdfast.types import check_label

PAGE_MAX: Final = 1000

_LIST_TENANT: Final = sql("job_list_tenant")
_LIST_ALL: Final = sql("job_list_all")
_LIST_LIVE: Final = sql("job_list_live")
_LIST_FAILED: Final = sql("job_list_failed")
_LIST_TOPIC: Final = sql("job_list_topic")
_COUNT_LIVE: Final = sql("job_count_live")
_COUNT_ALL: Final = sql("job_count_all")


def place_of(text: object) -> Place:
    """The place that a text names, or `BadInput`."""
    number, mark, identity = text.partition("~") if isinstance(text, str) else ("", "", "")
    if not mark or not number.isascii() or not number.isdecimal() or int(number) > LATEST_NS or "\0" in identity:
        raise BadInput("after", "is not a cursor in a list", "use the cursor of the previous page, unchanged")
    return Place(int(number), identity)


class JobQueries:
    """The reading side of a job store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        *,
        tenant: str | None = None,
        state: JobState | str | None = None,
        topic: str | None = None,
        after: Place = AFTER_ALL,
        limit: int = 100,
    ) -> list[JobOutline]:
        """Jobs in outline, newest first. The next page comes after `Place(job.created_ns, job.id)` of the last one."""
        wanted = None if state is None else check_state(state)
        values = {
            "tenant": None if tenant is None else check_label("tenant", tenant),
            "state": None if wanted is None else str(wanted),
            "topic": None if topic is None else check_label("topic", topic),
            "created_ns": after.at_ns,
            "id": after.id,
            "most": check_whole("limit", limit, 1, PAGE_MAX),
        }
        statement = _list(tenant, wanted, topic)
        return [outline_of(row) for row in await self._database.read(lambda tx: tx.query(statement, values))]

    async def counts(self, *, tenant: str | None = None, finished: bool = True) -> dict[JobState, int]:
        """How many jobs are in each state, none included. With the finished ones it reads every job that is stored."""
        values = {"tenant": None if tenant is None else check_label("tenant", tenant)}
        statement = _COUNT_ALL if finished else _COUNT_LIVE
        rows = await self._database.read(lambda tx: tx.query(statement, values))
        found = {JobState(row["state"]): int(row["jobs"]) for row in rows}
        return {state: found.get(state, 0) for state in JobState if finished or state in ACTIVE}


def _list(tenant: str | None, state: JobState | None, topic: str | None) -> str:
    """The statement whose index leaves the fewest rows to walk past."""
    if state in ACTIVE:
        return _LIST_LIVE
    if state is not None and state is not JobState.SUCCEEDED:
        return _LIST_FAILED
    if topic is not None:
        return _LIST_TOPIC
    return _LIST_ALL if tenant is None else _LIST_TENANT


def check_state(value: object) -> JobState:
    """A state, also from its name in any case, or `BadInput`."""
    try:
        return JobState(value.upper() if isinstance(value, str) else "")
    except ValueError:
        shown = repr(value)[:60]
        raise BadInput("state", f"{shown} is no state", f"use one of {', '.join(JobState)}") from None
