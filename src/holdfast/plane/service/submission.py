"""Submission of jobs, one or many: checks them, chooses their pools, and inserts them.

Promises: each submission is checked alone and gets its own answer, in order. Jobs that the approval rules allow are
inserted in one transaction; each job that needs approval is inserted in a transaction of its own, with its approval. A
job that is ready needs no message: it is in the queue that dispatchers read, or in its topic's queue if the topic has
fewer slots than its pool (`quotas`). A job with a start time, or without a worker that serves its topic, is
announced to the scheduler.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from holdfast.errors import BackendError, BadInput, Closed, HoldfastError, RowExists
from holdfast.plane.approvals.rules import RuleEffect
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.db.batcher import Failed
from holdfast.plane.db.ports import Tx
from holdfast.plane.fleet.registry import View, Workers
from holdfast.plane.jobs.insert import CheckedSubmission, submit_one
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import LABELS_MAX, TRACE_CHARS_MAX, Caller, NotAllowed
from holdfast.plane.model.job_states import InvalidTransition, JobQueue
from holdfast.plane.model.records import DEFAULT_POOL, ID_CHARS_MAX, Job, Submission, check_name, check_text
from holdfast.plane.scheduler.fast_path import FastPath
from holdfast.plane.schedules.model import is_due_id
from holdfast.plane.workflows.core.run import is_attempt_id

Answer: TypeAlias = tuple[Job, bool] | HoldfastError
"""A job and whether it was inserted, or the error."""

Work: TypeAlias = Callable[[Tx], Awaitable[tuple[Job, bool]]]
"""Inserts a job in a transaction; also returns whether it was inserted."""


_PLANE_LABELS: Final = frozenset({subjects.POOL_LABEL, subjects.EMPTIED_LABEL})


class _Destination(NamedTuple):
    """The queue that the jobs of a topic go to."""

    pool: str
    served: bool  # a live worker takes them there
    scarce: bool = False  # fewer slots than for other topics of the pool

    @property
    def queue(self) -> JobQueue:
        """The queue of a new job."""
        return JobQueue.TOPIC if self.scarce or not self.served else JobQueue.POOL


class SubmissionService:
    """Inserts submissions, see the module docstring."""

    def __init__(
        self,
        store: JobStore,
        workers: Workers,
        pools: Mapping[str, str],
        approvals: Approvals | None,
        fast_path: FastPath,
    ) -> None:
        """`pools`: by topic, where it is configured. Without `approvals` no job needs approval."""
        self._store = store
        self._workers = workers
        self._pools = pools
        self._approvals = approvals
        self._fast_path = fast_path

    async def one(
        self, caller: Caller, wanted: Submission, pool: str | None, own: Mapping[str, str] | None = None
    ) -> tuple[Job, bool]:
        """See `Service.submit`."""
        (answer,) = await self.all(caller, [wanted], pool, own)
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    async def all(
        self, caller: Caller, wanted: Sequence[Submission], pool: str | None, own: Mapping[str, str] | None = None
    ) -> list[Answer]:
        """See `Service.submit_many`."""
        answers: dict[int, Answer] = {}
        checked: dict[int, Submission] = {}
        for at, each in enumerate(wanted):
            try:
                checked[at] = _checked(caller, each, pool, own or {})
            except HoldfastError as error:
                answers[at] = error
        places = await self._destinations(dict.fromkeys(each.topic for each in checked.values()), pool)
        allowed: dict[int, CheckedSubmission] = {}
        held: dict[int, CheckedSubmission] = {}
        for at, each in checked.items():
            destination = places[each.topic]
            if isinstance(destination, HoldfastError):
                answers[at] = destination
                continue
            may_run = self._approvals is None or self._approvals.evaluate(each).effect is RuleEffect.ALLOW
            messages = [subjects.submitted()] if each.not_before_ns or not destination.served else ()
            (allowed if may_run else held)[at] = CheckedSubmission(each, destination.pool, messages, destination.queue)
        for some, make in ((allowed, self._insert), (held, self._insert_with_approvals)):
            ends = await make([*some.values()]) if some else ()
            for (at, entry), end in zip(some.items(), ends, strict=True):
                answers[at] = _answer(entry.wanted, end)
        return [answers[at] for at in range(len(wanted))]

    async def prepared(self, caller: Caller, wanted: Submission, pool: str | None) -> Work:
        """The transaction that inserts a submission, for a caller who commits it."""
        checked = _checked(caller, wanted, pool, {})
        destination = (await self._destinations([checked.topic], pool))[checked.topic]
        if isinstance(destination, HoldfastError):
            raise destination
        messages = [subjects.submitted()] if checked.not_before_ns or not destination.served else ()
        entry = CheckedSubmission(checked, destination.pool, messages, destination.queue)
        if self._approvals is None or self._approvals.evaluate(checked).effect is RuleEffect.ALLOW:
            new = self._store.new(entry)
            insert: Work = lambda tx: submit_one(tx, self._store.bus, new)  # noqa: E731 - one of two works
        else:
            insert = self._approvals.submission(checked, destination.pool)

        async def work(tx: Tx) -> tuple[Job, bool]:
            end: tuple[Job, bool] | Failed
            try:
                end = await insert(tx)
            except HoldfastError as error:
                end = Failed(error)
            answer = _answer(checked, end)
            if isinstance(answer, HoldfastError):
                raise answer
            return answer

        return work

    async def _pool_in(self, view: View, topic: str) -> str:
        """The pool whose workers serve a topic, or served it before. Otherwise the default pool."""
        serving = view.serving(topic)
        if not serving and topic in view.known_topics:
            serving = [each.pool for each in await self._workers.all() if topic in each.topics]
        return min(serving, default=DEFAULT_POOL)

    async def _view(self, topic: str) -> View:
        """All workers. Read again if no known worker serves the topic: one may have just started."""
        view = await self._workers.view()
        return view if view.serving(topic) else await self._workers.view(fresh=True)

    async def _destinations(self, topics: Iterable[str], pool: str | None) -> dict[str, _Destination | HoldfastError]:
        """The queue for the jobs of each topic, or why it is unknown."""
        places: dict[str, _Destination | HoldfastError] = {}
        trouble: HoldfastError | None = None
        for topic in topics:
            destination = places[topic] = trouble or await self._destination(topic, pool)
            if isinstance(destination, BackendError | Closed):
                trouble = destination  # a store error concerns all topics: do not wait for it again
        return places

    async def _destination(self, topic: str, pool: str | None) -> _Destination | HoldfastError:
        try:
            view = await self._view(topic)
            where = self._pools.get(topic) if pool is None else pool
            found = view.pool(await self._pool_in(view, topic) if where is None else where)
            return _Destination(found.name, bool(found.workers_for(topic)), topic in found.places)
        except HoldfastError as error:
            return error

    async def _insert(self, entries: Sequence[CheckedSubmission]) -> Sequence[tuple[Job, bool] | Failed]:
        """Insert jobs that the rules allow."""
        return await self._fast_path.submit_all([self._store.new(entry) for entry in entries])

    async def _insert_with_approvals(self, entries: Sequence[CheckedSubmission]) -> Sequence[tuple[Job, bool] | Failed]:
        """Insert jobs that need approval, or that the rules refuse."""
        return await asyncio.gather(*map(self._insert_with_approval, entries))

    async def _insert_with_approval(self, entry: CheckedSubmission) -> tuple[Job, bool] | Failed:
        assert self._approvals is not None  # noqa: S101 - their rules hold the job
        try:
            return await self._store.database.write(self._approvals.submission(entry.wanted, entry.pool))
        except HoldfastError as error:
            return Failed(error)


def _checked(caller: Caller, wanted: Submission, pool: str | None, own: Mapping[str, str]) -> Submission:
    """The checked submission, or an error. Everything that a caller may send is bounded. `own`: labels of the plane."""
    if not caller.sees(wanted.tenant):
        raise NotAllowed("you may submit jobs only for your own tenant")
    wanted.check()
    check_not_reserved(wanted)
    if wanted.trace:
        check_text("trace", wanted.trace, TRACE_CHARS_MAX)
    if len(wanted.labels) > LABELS_MAX:
        raise BadInput("labels", f"are {len(wanted.labels)}", f"give at most {LABELS_MAX}")
    for name, value in wanted.labels.items():
        check_text("labels", name, ID_CHARS_MAX)
        if name.startswith(subjects.OWN_LABELS):
            raise BadInput("labels", f"{name!r:.60} is reserved for the plane", "choose another name")
        if value:
            check_text("labels", value, ID_CHARS_MAX)
    if pool is not None:
        own = {**own, subjects.POOL_LABEL: check_name("pool", pool)}
    if own:
        wanted = replace(wanted, labels={**wanted.labels, **own})
    return wanted if wanted.submitted_by else wanted.by(caller.name)  # a requester may not approve it


def check_not_reserved(wanted: Submission) -> None:
    """Refuse ids and keys of step jobs and scheduled jobs: a caller could make those fail."""
    for name, value in (("id", wanted.id), ("idempotency_key", wanted.idempotency_key)):
        if value is not None and is_due_id(value):
            fix = "choose another; schedule:TENANT:NAME@TIME is for the jobs of schedules"
            raise BadInput(name, f"{value!r:.60} is reserved", fix)
        if value is not None and is_attempt_id(value):
            fix = "do not end it with :NAME@NUMBER; that form is for the steps of workflow runs"
            raise BadInput(name, f"{value!r:.60} is reserved", fix)


def _answer(wanted: Submission, end: tuple[Job, bool] | Failed) -> Answer:
    """The answer to a submitter. Unexpected errors are raised."""
    if isinstance(end, Failed):
        if isinstance(end.error, InvalidTransition):
            # The error names the state of that job, which may belong to another caller.
            return RowExists(f"the id {wanted.id!r} is taken; choose another, or none")
        if isinstance(end.error, HoldfastError):
            return end.error
        raise end.error
    job, made = end
    return end if made else _existing(wanted, job)


def _existing(wanted: Submission, job: Job) -> Answer:
    """The existing job, unless a different job was submitted under this key: a caller would mistake it for its own."""
    # The payload may have been deleted since; the key still returns the job and how it ended.
    emptied = subjects.EMPTIED_LABEL in job.labels
    asked, known = (_request_text(replace(wanted, payload=None, labels={}) if emptied else wanted), _request_text(job))
    there = wanted.labels.get(subjects.POOL_LABEL, job.pool) == job.pool
    if asked == known and there and (wanted.id is None or wanted.id == job.id):
        return job, False
    named = wanted.idempotency_key is not None and wanted.idempotency_key == job.idempotency_key
    name = "idempotency key" if named else "id"
    there_is = f"{job.id} ({job.topic}, {job.state})"
    return RowExists(
        f"this {name} was used for another job, {there_is}; repeat that one unchanged, or choose another {name}"
    )


def _request_text(thing: Submission | Job) -> str:
    """The request as comparable text: Python treats 1, 1.0 and True as equal, and the order of names is irrelevant."""
    labels = {name: value for name, value in thing.labels.items() if name not in _PLANE_LABELS}
    what = [thing.topic, thing.payload, thing.priority, thing.max_attempts, thing.timeout_ns, labels]
    return json.dumps(json.loads(json.dumps(what)), sort_keys=True)
