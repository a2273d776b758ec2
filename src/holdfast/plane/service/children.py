"""Submits and reads the children of jobs, for workers.

Promises: a child belongs to the tenant of its parent, with its limits and approval rules. Its link is committed before
it is. The requesters of the parent are those of its children, too, and cannot approve them. A child that is submitted
while its parent is cancelled is cancelled too, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from holdfast.errors import BadInput
from holdfast.plane.client.request import JobRequest
from holdfast.plane.client.views import JobView
from holdfast.plane.jobs.children import CHILDREN_MAX, JobParent, children_of, link_child
from holdfast.plane.jobs.waiting_reason import WaitCode
from holdfast.plane.model.caller import Caller
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import Assignment, requesters_in, requesters_label
from holdfast.plane.service.service import Service

_FOR_A_SLOT: Final[Collection[WaitCode]] = frozenset(
    {WaitCode.TENANT_FULL, WaitCode.TOPIC_FULL, WaitCode.POOL_FULL, WaitCode.QUEUED, WaitCode.ASSIGNED}
)
PARENT_CANCELLED: Final = "its parent was cancelled"


class ChildJobs:
    """The children of all jobs of a plane."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def submit(
        self, parent: JobParent, request: JobRequest[Any], about: Assignment, *, detached: bool
    ) -> JobView:
        """See `ChildPort`."""
        service, database = self._service, self._service.parts.database
        caller = Caller(f"job {about.job}", about.tenant)
        now_ns = service.parts.store.clock.now().wall
        wanted = replace(request.submission(now_ns, about.tenant), trace=request.trace or about.trace)
        child = wanted.id or ""
        known = await database.read(lambda tx: children_of(tx, parent, CHILDREN_MAX))
        if len(known) >= CHILDREN_MAX:
            fix = f"submit at most {CHILDREN_MAX} children, or let children submit more"
            raise BadInput("ctx.submit", f"{parent.id} has {len(known)} children", fix)
        if all(each.id != child for each in known):
            await database.write(lambda tx: link_child(tx, parent, child, detached=detached, at_ns=now_ns))
        above = await service.job(caller, about.job)
        requesters = tuple(dict.fromkeys((*requesters_in(above.labels), above.submitted_by)))
        own = {**parent.labels, **requesters_label(requesters)}
        job, _ = await service.submit(caller, wanted, pool=request.pool, own_labels=own)
        if not detached and await self._cancelled(caller, about):
            await service.cancel(caller, job.id, reason=PARENT_CANCELLED)
        return JobView.of(job)

    async def ended(self, child: str, tenant: str, timeout_ns: int) -> bool:
        """See `ChildPort`."""
        found = await self._service.job_changes.wait(Caller("worker", tenant), {child: ""}, timeout_ns, ended=True)
        return bool(found)

    async def job(self, child: str, tenant: str) -> JobView:
        """See `ChildPort`."""
        return JobView.of(await self._service.job(Caller("worker", tenant), child))

    async def slot_awaited(self, child: str, tenant: str) -> str | None:
        """See `ChildPort`."""
        caller = Caller("worker", tenant)
        reason = await self._service.waiting(caller, await self._service.job(caller, child))
        return reason.text if reason is not None and reason.code in _FOR_A_SLOT else None

    async def traceback(self, child: str, tenant: str) -> str | None:
        """See `ChildPort`."""
        events = await self._service.events(Caller("worker", tenant), child)
        return next((each.traceback for each in reversed(events) if each.traceback is not None), None)

    async def cancel(self, child: str, tenant: str, by: str, reason: str) -> bool:
        """See `ChildPort`."""
        _, asked = await self._service.cancel(Caller(by, tenant), child, reason=reason)
        return asked

    async def _cancelled(self, caller: Caller, about: Assignment) -> bool:
        found = await self._service.job(caller, about.job)
        return found.state is JobState.CANCELLED and found.created_ns == about.made_ns
