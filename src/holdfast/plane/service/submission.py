"""Jobs that somebody wants, one or many, on their way to the store: checked, given a pool, made, and told of.

Promises: each submission is judged by itself and gets its own answer, in order, whatever became of the others. Those
that come together are made in one transaction where the rules let them go; one that has to wait for a person is made
by itself, with the note that it does. A job that can go now is told of to nobody: it stands in line, where dispatchers
look; or aside, if its topic has fewer places than its pool (`topicplaces`). One that has to wait for its time, or for
somebody who knows its topic, is looked at by itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from holdfast.errors import BackendError, BadInput, Closed, HoldfastError, RowExists
from holdfast.plane.approvals.rules import RuleEffect
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.db.batcher import Failed
from holdfast.plane.fleet.registry import View, Workers
from holdfast.plane.jobs.insert import Entry
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import LABELS_MAX, TRACE_CHARS_MAX, Caller, NotAllowed
from holdfast.plane.model.job_states import InvalidTransition
from holdfast.plane.model.records import DEFAULT_POOL, ID_CHARS_MAX, Job, Submission, check_name, check_text
from holdfast.plane.scheduler.fast_path import Straight
from holdfast.plane.workflows.core.run import is_attempt_id

Answer: TypeAlias = tuple[Job, bool] | HoldfastError
"""A job and whether it was made, or why there is none."""


_NOT_ASKED_FOR: Final = frozenset({subjects.POOL_LABEL, subjects.EMPTIED_LABEL})


class _Place(NamedTuple):
    """Where the jobs of a topic go."""

    pool: str
    served: bool  # somebody alive takes them there
    scarce: bool = False  # fewer of them at once than of others


class Submitting:
    """See the module."""

    def __init__(
        self,
        store: JobStore,
        workers: Workers,
        pools: Mapping[str, str],
        approvals: Approvals | None,
        straight: Straight,
    ) -> None:
        """`pools`: by topic, where it is configured. Without `approvals` nothing waits for a person."""
        self._store = store
        self._workers = workers
        self._pools = pools
        self._approvals = approvals
        self._straight = straight

    async def one(self, caller: Caller, wanted: Submission, pool: str | None) -> tuple[Job, bool]:
        """See `Service.submit`."""
        (answer,) = await self.all(caller, [wanted], pool)
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    async def all(self, caller: Caller, wanted: Sequence[Submission], pool: str | None) -> list[Answer]:
        """See `Service.submit_many`."""
        answers: dict[int, Answer] = {}
        checked: dict[int, Submission] = {}
        for at, each in enumerate(wanted):
            try:
                checked[at] = _checked(caller, each, pool)
            except HoldfastError as error:
                answers[at] = error
        places = await self._places(dict.fromkeys(each.topic for each in checked.values()), pool)
        together: dict[int, Entry] = {}
        apart: dict[int, Entry] = {}
        for at, each in checked.items():
            place = places[each.topic]
            if isinstance(place, HoldfastError):
                answers[at] = place
                continue
            goes = self._approvals is None or self._approvals.evaluate(each).effect is RuleEffect.ALLOW
            told = [subjects.submitted()] if each.not_before_ns or not place.served else ()
            (together if goes else apart)[at] = Entry(each, place.pool, told, place.scarce or not place.served)
        for some, make in ((together, self._together), (apart, self._apart)):
            ends = await make([*some.values()]) if some else ()
            for (at, entry), end in zip(some.items(), ends, strict=True):
                answers[at] = _answer(entry.wanted, end)
        return [answers[at] for at in range(len(wanted))]

    async def _pool_in(self, view: View, topic: str) -> str:
        """The pool whose workers take a topic, or took it before. Without either: the default pool."""
        serving = view.serving(topic)
        if not serving and topic in view.known_topics:
            serving = [each.pool for each in await self._workers.all() if topic in each.topics]
        return min(serving, default=DEFAULT_POOL)

    async def _view(self, topic: str) -> View:
        """All workers. Looked up anew when nobody is known to take the topic: somebody may just have come."""
        view = await self._workers.view()
        return view if view.serving(topic) else await self._workers.view(fresh=True)

    async def _places(self, topics: Iterable[str], pool: str | None) -> dict[str, _Place | HoldfastError]:
        """Where the jobs of each topic go, or why that cannot be said."""
        places: dict[str, _Place | HoldfastError] = {}
        trouble: HoldfastError | None = None
        for topic in topics:
            place = places[topic] = trouble or await self._place(topic, pool)
            if isinstance(place, BackendError | Closed):
                trouble = place  # with the store, which is everybody's: nobody waits for it again
        return places

    async def _place(self, topic: str, pool: str | None) -> _Place | HoldfastError:
        try:
            view = await self._view(topic)
            where = self._pools.get(topic) if pool is None else pool
            found = view.pool(await self._pool_in(view, topic) if where is None else where)
            return _Place(found.name, bool(found.workers_for(topic)), topic in found.places)
        except HoldfastError as error:
            return error

    async def _together(self, entries: Sequence[Entry]) -> Sequence[tuple[Job, bool] | Failed]:
        """Make jobs that may go."""
        return await self._straight.submit_all([self._store.new(entry) for entry in entries])

    async def _apart(self, entries: Sequence[Entry]) -> Sequence[tuple[Job, bool] | Failed]:
        """Make jobs that have to wait for a person, or that the rules refuse."""
        return await asyncio.gather(*map(self._asked_for, entries))

    async def _asked_for(self, entry: Entry) -> tuple[Job, bool] | Failed:
        assert self._approvals is not None  # noqa: S101 - they have said so
        try:
            return await self._store.database.write(self._approvals.submission(entry.wanted, entry.pool))
        except HoldfastError as error:
            return Failed(error)


def _checked(caller: Caller, wanted: Submission, pool: str | None) -> Submission:
    """What is to be made, or why it is not: everything that a caller may send has an end."""
    if not caller.sees(wanted.tenant):
        raise NotAllowed("you may submit jobs of your own tenant only")
    wanted.check()
    _check_not_reserved(wanted)
    if wanted.trace:
        check_text("trace", wanted.trace, TRACE_CHARS_MAX)
    if len(wanted.labels) > LABELS_MAX:
        raise BadInput("labels", f"are {len(wanted.labels)}", f"give at most {LABELS_MAX}")
    for name, value in wanted.labels.items():
        check_text("labels", name, ID_CHARS_MAX)
        if name.startswith(subjects.OWN_LABELS):
            raise BadInput("labels", f"{name!r:.60} is a name of the plane's own", "choose another")
        if value:
            check_text("labels", value, ID_CHARS_MAX)
    if pool is not None:
        wanted = replace(wanted, labels={**wanted.labels, subjects.POOL_LABEL: check_name("pool", pool)})
    return wanted if wanted.submitted_by else wanted.by(caller.name)  # who asked for something may not approve it


def _check_not_reserved(wanted: Submission) -> None:
    """Refuse the ids and keys of jobs of runs: who has them first would make another caller's run fail."""
    for name, value in (("id", wanted.id), ("idempotency_key", wanted.idempotency_key)):
        if value is not None and is_attempt_id(value):
            fix = "do not end it with :NAME@NUMBER; that form is for the steps of workflow runs"
            raise BadInput(name, f"{value!r:.60} is reserved", fix)


def _answer(wanted: Submission, end: tuple[Job, bool] | Failed) -> Answer:
    """What whoever wanted a job is told. Errors that are nobody's answer are raised."""
    if isinstance(end, Failed):
        if isinstance(end.error, InvalidTransition):
            # The store says which state that job is in, which is none of this caller's business.
            return RowExists(f"the id {wanted.id!r} is taken; choose another, or none")
        if isinstance(end.error, HoldfastError):
            return end.error
        raise end.error
    job, made = end
    return end if made else _same(wanted, job)


def _same(wanted: Submission, job: Job) -> Answer:
    """The job that is there already, unless something else was submitted as that: one would take it for one's own."""
    # What it was about may have been forgotten since; that it was there, and how it ended, is what the key still gives.
    emptied = subjects.EMPTIED_LABEL in job.labels
    asked, known = (_said(replace(wanted, payload=None, labels={}) if emptied else wanted), _said(job))
    there = wanted.labels.get(subjects.POOL_LABEL, job.pool) == job.pool
    if asked == known and there and (wanted.id is None or wanted.id == job.id):
        return job, False
    named = wanted.idempotency_key is not None and wanted.idempotency_key == job.idempotency_key
    name = "idempotency key" if named else "id"
    return RowExists(f"this {name} was used for another job; repeat that one unchanged, or choose another {name}")


def _said(thing: Submission | Job) -> str:
    """What was asked for, as text: for Python 1, 1.0 and True are one, and the order of names says nothing."""
    labels = {name: value for name, value in thing.labels.items() if name not in _NOT_ASKED_FOR}
    what = [thing.topic, thing.payload, thing.priority, thing.max_attempts, thing.timeout_ns, labels]
    return json.dumps(json.loads(json.dumps(what)), sort_keys=True)
