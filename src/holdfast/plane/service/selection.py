"""Jobs and dead letters that match a filter, for an operator who changes many of them.

Promises: a selection is bounded by `limit` and reports whether more match. Jobs are found by the indexes of their
states, so that finished jobs cost nothing. Does not promise that a selected job is still unfinished when it is changed:
each change checks that again. Clock: the wall clock, for the age.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.errors import BadInput
from holdfast.plane.jobs.queries import PAGE_MAX, check_state
from holdfast.plane.jobs.summaries import JobOutline, LetterOutline
from holdfast.plane.model.caller import Caller
from holdfast.plane.model.job_states import ACTIVE, JobState
from holdfast.plane.model.paging import AFTER_ALL, Place
from holdfast.plane.service.service import Service
from holdfast.types import check_label

PAGE: Final = PAGE_MAX // 2


@dataclass(frozen=True, slots=True)
class BulkFilter:
    """Conditions that a job meets. None: any value."""

    tenant: str | None = None
    state: str | None = None  # of jobs
    code: str | None = None  # of dead letters
    topic: str | None = None
    before_ns: int | None = None  # created before, or for a dead letter: ended before

    def check(self) -> BulkFilter:
        """This filter, or `BadInput`. A filter without conditions is refused: it would select everything."""
        for name in ("tenant", "topic", "code"):
            value = getattr(self, name)
            if value is not None:
                check_label(name, value)
        if self.state is not None:
            check_state(self.state)
        if self == BulkFilter():
            raise BadInput("filter", "has no condition", "give an id, or a condition such as --topic")
        return self

    @property
    def place(self) -> Place:
        """Where a list begins, newest first."""
        return AFTER_ALL if self.before_ns is None else Place(self.before_ns, "")


class BulkItem(NamedTuple):
    """A job with its state, or a dead letter with its code."""

    id: str
    tenant: str
    topic: str
    kind: str  # the state, or the code


class BulkSelection(NamedTuple):
    """What matches, and whether more matches."""

    items: list[BulkItem]
    more: bool


async def unfinished_jobs(service: Service, caller: Caller, wanted: BulkFilter, *, limit: int) -> BulkSelection:
    """Unfinished jobs that match, newest first within each state."""
    wanted.check()
    if wanted.state is not None and check_state(wanted.state).terminal:
        raise BadInput("state", f"{wanted.state!r:.60} is a finished state", f"use one of {', '.join(sorted(ACTIVE))}")
    states = [each for each in JobState if each in ACTIVE] if wanted.state is None else [check_state(wanted.state)]

    async def found() -> AsyncIterator[BulkItem]:
        for state in states:
            after: Place | None = wanted.place
            while after is not None:
                page = await service.jobs(
                    caller, tenant=wanted.tenant, state=state, topic=wanted.topic, after=after, limit=PAGE
                )
                for each in page.items:
                    yield _selected(each)
                after = page.after

    return await _first(found(), limit)


async def untried_letters(service: Service, caller: Caller, wanted: BulkFilter, *, limit: int) -> BulkSelection:
    """Dead letters of jobs that match and were not retried yet, newest first."""
    wanted.check()

    async def found() -> AsyncIterator[BulkItem]:
        after: Place | None = wanted.place
        while after is not None:
            page = await service.dead_letters(caller, tenant=wanted.tenant, after=after, limit=PAGE)
            for each in page.items:
                matches = wanted.topic in (None, each.topic) and wanted.code in (None, each.code)
                if matches and each.retried_as is None and each.last_state is not None:
                    yield _selected(each)
            after = page.after

    return await _first(found(), limit)


def _selected(each: JobOutline | LetterOutline) -> BulkItem:
    kind = each.code if isinstance(each, LetterOutline) else str(each.state)
    return BulkItem(each.id, each.tenant, each.topic, kind)


async def _first(found: AsyncIterator[BulkItem], limit: int) -> BulkSelection:
    seen: dict[tuple[str, str], BulkItem] = {}  # a job whose state changes meanwhile is found once
    async for each in found:
        if len(seen) == limit and (each.tenant, each.id) not in seen:
            return BulkSelection(list(seen.values()), more=True)
        seen[each.tenant, each.id] = each
    return BulkSelection(list(seen.values()), more=False)
