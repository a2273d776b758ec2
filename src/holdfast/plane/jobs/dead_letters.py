"""Dead letters of messages: messages that are not delivered again are stored, so that operators see them.

Dead letters of jobs: jobs that the plane does not retry any more are stored, so that operators can retry them.

Promises: trying a dead letter again makes one new job, however often and from wherever it is requested; the old job and
its history stay as they are. Whatever new jobs must pass, such as the rules of approval, these must too. Neither the
caller who tries it again nor those who asked for the earlier jobs may approve the new one.

A dead letter is kept for longer than its job, whose id is free then. It belongs to that job alone: a later one of the
same id is never tried again as what the earlier one was. Each tenant has its own, whatever ids others use; of two jobs
of one tenant that died under the same id, the newer one's is kept.

Clock: the wall clock, for people.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from holdfast.core.ports import Clock
from holdfast.errors import RowMissing
from holdfast.plane.approvals.rules import all_requesters
from holdfast.plane.db.ports import Database, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.jobs.queries import PAGE_MAX
from holdfast.plane.jobs.rows import job_of, letter_of
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.jobs.summaries import LetterOutline, letter_outline_of
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.job_states import InvalidTransition, JobState
from holdfast.plane.model.messages import requesters_in, requesters_label
from holdfast.plane.model.paging import AFTER_ALL, LATEST_NS, Place
from holdfast.plane.model.records import ID_CHARS_MAX, DeadLetter, Delivery, Job, Submission, check_text, check_whole
from holdfast.types import check_label

_LETTER: Final = sql("deadletter_insert")


class Undelivered:
    """Where a bus puts what it gives up. Keeping the same message twice keeps it once."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def __call__(self, delivery: Delivery, reason: str, code: str) -> None:
        """Keep one message, and why."""
        message = delivery.message
        body = {"subject": message.subject, "group": delivery.group, "message": dict(message.body)}
        values = {
            "id": f"{message.id}@{delivery.group}",
            "job": str(message.body.get("job") or ""),
            "tenant": str(message.body.get("tenant") or ""),
            "topic": str(message.body.get("topic") or message.subject),
            "reason": reason,
            "code": code,
            "last_state": None,
            "attempts": delivery.deliveries,
            "at_ns": self._clock.now().wall,
            "made_ns": 0,
            "body": json.dumps(body, separators=(",", ":"), ensure_ascii=False, default=str),
        }
        await self._database.write(lambda tx: tx.query(_LETTER, values))


RETRY_MARK: Final = "-retry-"
RETRY_CHARS: Final = 8

_GET: Final = sql("deadletter_get")
_LIST_ALL: Final = sql("deadletter_list_all")
_LIST_TENANT: Final = sql("deadletter_list_tenant")
_RETRIED: Final = sql("deadletter_retried")
_SWEEP: Final = sql("deadletter_sweep")
_JOB: Final = sql("job_get")


Intake: TypeAlias = Callable[[Submission, str], Callable[[Tx], Awaitable[tuple[Job, bool]]]]
"""Makes a job for a pool, as part of a transaction; or raises, and then nothing is made."""

_NOT_OVER: Final = "it is not finished and continues; wait until it finishes, or cancel it"
_NO_LETTER: Final = "it has no dead letter, and only that can be tried again; submit it as a new job"


class DeadLetters:
    """The dead letters of one plane."""

    def __init__(self, store: JobStore, intake: Intake | None = None) -> None:
        """`intake`: what a job that is tried again has to pass, as any other; by default nothing."""
        self._store = store
        self._intake = intake or (lambda wanted, pool: store.submission(wanted, pool, [subjects.submitted()]))
        self._database = store.database

    async def get(self, letter_id: str, *, tenant: str | None = None) -> DeadLetter | None:
        """A dead letter of a tenant, or of any (None): the newest; or None. That of a job has the job's id."""
        values = {"id": check_text("id", letter_id, 2 * ID_CHARS_MAX), "tenant": tenant}
        rows = await self._database.read(lambda tx: tx.query(_GET, values))
        return letter_of(rows[0]) if rows else None

    async def page(
        self, *, tenant: str | None = None, after: Place = AFTER_ALL, limit: int = 100
    ) -> list[LetterOutline]:
        """Dead letters in outline, newest first. The next page: `Place(letter.at_ns, letter.id)` of the last one."""
        values = {
            "tenant": None if tenant is None else check_label("tenant", tenant),
            "at_ns": after.at_ns,
            "id": after.id,
            "most": check_whole("limit", limit, 1, PAGE_MAX),
        }
        statement = _LIST_ALL if tenant is None else _LIST_TENANT
        return [letter_outline_of(row) for row in await self._database.read(lambda tx: tx.query(statement, values))]

    async def retry(self, letter_id: str, *, tenant: str | None = None, actor: str = "operator") -> tuple[Job, bool]:
        """Try a dead letter again as a new job, `<old>-retry-<8 characters>`, with all attempts and no deadline.

        Also returns whether it was made: a second retry gives the job of the first. `RowMissing`: the tenant has no
        such letter, or one that is not of a job. If the intake refuses it, the letter can still be tried again later.
        """
        where = {"id": check_text("id", letter_id, 2 * ID_CHARS_MAX), "tenant": tenant}
        again = self._again(actor)

        async def work(tx: Tx) -> tuple[Job, bool]:
            letter = await _letter(tx, where)
            if letter is None or "payload" not in letter.body:
                raise RowMissing(f"there is no dead letter of a job under {letter_id!r}")
            return await again(tx, letter)

        return await self._database.write(work)

    async def retry_job(self, job: Job, *, actor: str = "operator") -> tuple[Job, bool]:
        """The same for the dead letter of this very job. `InvalidTransition`: it has none."""
        again = self._again(actor)

        async def work(tx: Tx) -> tuple[Job, bool]:
            letter = await _letter(tx, {"id": job.id, "tenant": job.tenant})
            if letter is None or letter.made_ns != job.created_ns:
                raise InvalidTransition(job.state, JobState.PENDING, _NO_LETTER if job.state.terminal else _NOT_OVER)
            return await again(tx, letter)

        return await self._database.write(work)

    def _again(self, actor: str) -> Callable[[Tx, DeadLetter], Awaitable[tuple[Job, bool]]]:
        check_text("actor", actor, ID_CHARS_MAX)
        token = self._store.entropy.token()[:RETRY_CHARS]

        async def work(tx: Tx, letter: DeadLetter) -> tuple[Job, bool]:
            wanted = _wanted(letter, token, actor)
            where = {"id": letter.id, "tenant": letter.tenant, "made_ns": letter.made_ns}
            if await tx.query(_RETRIED, {**where, "job": wanted.id}):
                return await self._intake(wanted, letter.body["pool"])(tx)
            known = await _letter(tx, where)
            found = [] if known is None else await tx.query(_JOB, {"id": known.retried_as})
            if not found or found[0]["tenant"] != letter.tenant:
                raise RowMissing(f"the job as which {letter.id!r} was tried again is no longer stored")
            return job_of(found[0]), False

        return work

    async def sweep(self, before_ns: int, *, limit: int = 1000) -> int:
        """Forget dead letters from before a time, oldest first, at most `limit`; how many that were."""
        values = {
            "before_ns": check_whole("before_ns", before_ns, 0, LATEST_NS),
            "most": check_whole("limit", limit, 1, 100_000),
        }
        return len(await self._database.write(lambda tx: tx.query(_SWEEP, values)))


async def _letter(tx: Tx, where: Mapping[str, Any]) -> DeadLetter | None:
    rows = await tx.query(_GET, where)
    return letter_of(rows[0]) if rows else None


def _wanted(letter: DeadLetter, token: str, actor: str) -> Submission:
    suffix = f"{RETRY_MARK}{token}"
    body = letter.body
    earlier = all_requesters(requesters_in(body["labels"]), body.get("submitted_by", ""))
    return Submission(
        topic=letter.topic,
        payload=body["payload"],
        tenant=letter.tenant,
        id=letter.job[: ID_CHARS_MAX - len(suffix)] + suffix,
        priority=body["priority"],
        max_attempts=body["max_attempts"],
        timeout_ns=body["timeout_ns"],
        submitted_by=actor,
        trace=body["trace"],
        labels={**body["labels"], **requesters_label(earlier)},
    )
