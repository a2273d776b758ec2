"""Reads the timeline of a job: changes of state, emitted values and progress, from a place on.

Promises: one transaction, and a bounded number of values. Entries are returned in the order of `plane.jobs.timeline`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.jobs.progress import Progress, emitted_after, progress_of
from holdfast.plane.jobs.rows import event_of, job_of
from holdfast.plane.jobs.timeline import PlacedEntry, TimelinePlace, merged
from holdfast.plane.model.records import Job, JobEvent

VALUES_MAX: Final = 100
"""Values of one page."""

_JOB: Final = sql("job_get")
_EVENTS: Final = sql("event_list")
_PROGRESS: Final = sql("progress_get")


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """Entries of a job's timeline after a place."""

    job: Job
    progress: Progress | None
    entries: list[PlacedEntry]
    place: TimelinePlace  # where the next page begins
    more: bool  # there are more entries

    @property
    def ended(self) -> bool:
        """Whether the last entry of all is among these, or before them."""
        return self.job.state.terminal and not self.more


class TimelineReader:
    """Reads the pages of one job: each entry once, and its progress when that has changed."""

    def __init__(self) -> None:
        self._told: tuple[object, ...] = (None, None)

    def read(self, page: TimelinePage) -> list[PlacedEntry | Progress]:
        """The entries of the next page. New progress comes before the end of the job."""
        found: list[PlacedEntry | Progress] = list(page.entries)
        progress = page.progress
        if progress is None or (told := (progress.fraction, progress.note, progress.attempt)) == self._told:
            return found
        self._told = told
        if told[:2] != (None, None):  # an emitted value counts as progress and has neither
            last = page.entries[-1].entry if page.entries else None
            ends = isinstance(last, JobEvent) and last.after.terminal
            found.insert(len(found) - ends, progress)
        return found


async def timeline_page(database: Database, job_id: str, after: TimelinePlace) -> TimelinePage | None:
    """The next entries of a job; None: there is no such job."""

    async def work(tx: Tx) -> TimelinePage | None:
        rows = await tx.query(_JOB, {"id": job_id})
        if not rows:
            return None
        job = job_of(rows[0])
        # The history first: what an attempt emitted was stored before its end was.
        events = [event_of(row) for row in await tx.query(_EVENTS, {"job": job_id})]
        values = await emitted_after(tx, job_id, job.created_ns, after, VALUES_MAX + 1)
        said = await tx.query(_PROGRESS, {"job": job_id, "made_ns": job.created_ns})
        more = len(values) > VALUES_MAX
        entries = merged(after, events, values[:VALUES_MAX], more=more)
        place = entries[-1].place if entries else after
        # The job was read before its history, which may have gone on: a reader that comes again misses nothing.
        return TimelinePage(job, progress_of(said[0]) if said else None, entries, place, more)

    return await database.read(work)
