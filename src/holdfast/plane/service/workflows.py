"""All commands and queries for workflows, runs and approvals, as plain methods.

The command line and the HTTP API call these methods. The promises of `service` about tenants and repeated commands hold
here too.

Does not promise that a run is cancelled when `cancel` returns: the request is stored, and an engine carries it out
under the run's lock.

Clock: the wall clock, for people and deadlines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.errors import BadInput, HoldfastError, RowExists, RowMissing
from holdfast.plane.approvals.rows import ApprovalOutline
from holdfast.plane.approvals.rules import Approval, ApprovalStatus, ApprovalVerdict, all_requesters
from holdfast.plane.approvals.service import Approvals, DecisionResult
from holdfast.plane.db.ports import Bus
from holdfast.plane.model import messages as subjects
from holdfast.plane.model.caller import (
    LABELS_MAX,
    PAGE_MAX,
    REASON_CHARS_MAX,
    TRACE_CHARS_MAX,
    Caller,
    NotAllowed,
    Page,
)
from holdfast.plane.model.paging import AFTER_ALL, BEFORE_ALL, Place
from holdfast.plane.model.records import ID_CHARS_MAX, check_id, check_text, check_whole, encoded
from holdfast.plane.workflows.core.advance import again, begin
from holdfast.plane.workflows.core.definition import Step, StepKind, Workflow
from holdfast.plane.workflows.core.run import Run, RunRequest, RunStatus, StoredRun
from holdfast.plane.workflows.core.validation import check_input
from holdfast.plane.workflows.definitions import ALL_TENANTS, Definition, WorkflowOutline
from holdfast.plane.workflows.run_rows import RunEvent, RunOutline
from holdfast.plane.workflows.run_store import RunStore
from holdfast.types import check_label

RUN_ID_CHARS_MAX: Final = 80
"""Shorter than other ids: the ids of a run's jobs and child runs begin with it."""

DEFINITIONS_MAX: Final = 200
"""Definitions of child workflows that a re-run with kept results searches for approvals."""


class RunNotFinished(HoldfastError):
    """The run has not finished, so it cannot be run again. Nothing was changed."""


class RunService:
    """The commands and queries for workflows, runs and approvals."""

    def __init__(self, runs: RunStore, approvals: Approvals, bus: Bus) -> None:
        self.store = runs
        self._approvals = approvals
        self._bus = bus

    # Definitions.

    async def define(self, caller: Caller, workflow: Workflow, *, tenant: str | None = None) -> tuple[Definition, bool]:
        """Store a definition for one tenant, or for all (None). Also returns whether it is a new version."""
        scope = caller.scope(tenant)
        return await self.store.definitions.keep(workflow, scope=scope or ALL_TENANTS, actor=caller.name)

    async def define_document(
        self, caller: Caller, document: object, *, tenant: str | None = None
    ) -> tuple[Definition, bool]:
        """The same for a definition as a JSON document, which is parsed outside of the event loop."""
        scope, definitions = caller.scope(tenant), self.store.definitions
        workflow = await definitions.accept(document, "definition")
        return await definitions.keep(workflow, scope=scope or ALL_TENANTS, actor=caller.name, accepted=True)

    async def definition(
        self, caller: Caller, name: str, version: int | None = None, *, tenant: str | None = None
    ) -> Definition:
        """A definition that the caller may see, by default the newest version, or `RowMissing`."""
        found = await self.store.definitions.get(caller.scope(tenant) or ALL_TENANTS, name, version)
        if found is None:
            which = "" if version is None else f" version {version}"
            raise RowMissing(f"there is no workflow {name!r:.80}{which}")
        return found

    async def definitions(
        self, caller: Caller, *, tenant: str | None = None, after: tuple[str, str] = ("", ""), limit: int = 100
    ) -> tuple[list[WorkflowOutline], tuple[str, str] | None]:
        """Outlines of the newest versions that the caller, or a tenant, may see, and the cursor of the next page."""
        most = check_whole("limit", limit, 1, PAGE_MAX)
        found = await self.store.definitions.page(caller.scope(tenant), after=after, limit=most + 1)
        items = found[:most]
        return items, (items[-1].scope, items[-1].name) if len(found) > most else None

    # Runs.

    async def start(
        self,
        caller: Caller,
        workflow: str,
        value: Any = None,
        *,
        version: int | None = None,
        tenant: str | None = None,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        deadline_ns: int | None = None,
        trace: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> tuple[StoredRun, bool]:
        """Start a run of a stored workflow. Also returns whether it was inserted, or existed under the same key.

        `RowExists`: the key, or the id, was used for another run.
        """
        owner = tenant or caller.tenant or "default"
        if not caller.sees(owner):
            raise NotAllowed("you may start runs only for your own tenant")
        about = RunRequest(_key(idempotency_key), caller.name, _trace(trace), _labels(labels or {}))
        encoded("input", value)
        if (known := await self._known(check_label("tenant", owner), about.idempotency_key)) is not None:
            return _repeated(known, workflow, version, value, run_id), False
        definition = await self.definition(replace(caller, tenant=owner), workflow, version)
        run = begin(
            self._id(run_id),
            owner,
            definition.workflow,
            check_input(definition.workflow, value),
            now_ns=self._now_ns(),
            deadline_ns=deadline_ns,
        )
        stored, made = await self.store.start(run, definition.scope, about)
        return stored if made else _repeated(stored, workflow, version, value, run_id), made

    async def run(self, caller: Caller, run_id: str) -> StoredRun:
        """One run, or `RowMissing`, also for an invalid id."""
        try:
            stored = await self.store.get(run_id)
        except BadInput:
            stored = None
        if stored is None or not caller.sees(stored.run.tenant):
            raise RowMissing(f"there is no run {run_id!r:.220}")
        return stored

    async def runs(
        self,
        caller: Caller,
        *,
        tenant: str | None = None,
        status: RunStatus | str | None = None,
        workflow: str | None = None,
        after: Place = AFTER_ALL,
        limit: int = 100,
    ) -> Page[RunOutline]:
        """Run outlines, newest first."""
        most = check_whole("limit", limit, 1, PAGE_MAX)
        found = await self.store.page(
            tenant=caller.scope(tenant),
            status="" if status is None else str(_status(status)),
            workflow=workflow or "",
            after=after,
            limit=most + 1,
        )
        items = found[:most]
        last = items[-1] if len(found) > most else None
        return Page(items, None if last is None else Place(last.created_ns, last.id))

    async def timeline(
        self, caller: Caller, run_id: str, *, after: tuple[int, int] = (0, -1), limit: int = PAGE_MAX
    ) -> list[RunEvent]:
        """The history of a run, oldest first, after a given version and entry."""
        await self.run(caller, run_id)
        return await self.store.timeline(run_id, after=after, limit=check_whole("limit", limit, 1, PAGE_MAX))

    async def cancel(
        self, caller: Caller, run_id: str, *, reason: str = "cancelled on request"
    ) -> tuple[StoredRun, bool]:
        """Request the cancellation of a run. Returns the current run, and whether the request changed anything."""
        stored = await self.run(caller, run_id)
        check_text("reason", reason, REASON_CHARS_MAX)
        if stored.run.status.terminal:
            return stored, False
        token = self.store.entropy.token()
        await self._bus.publish([subjects.cancel_run(run_id, stored.risk, caller.name, reason, token=token)])
        return stored, True

    async def rerun(
        self, caller: Caller, run_id: str, *, keep: bool = False, idempotency_key: str | None = None
    ) -> tuple[StoredRun, bool]:
        """Run a finished run again as a new one. `keep`: reuse the outputs of the steps that succeeded.

        Approvals are never kept (see `plane.workflows.core.advance`). Requesters of this run, of the given one and of
        those that it repeats may not approve any of its steps. Also returns whether it was inserted, or existed under
        the same key. `RunNotFinished`: the given run has not finished.
        """
        before = await self.run(caller, run_id)
        if not before.run.status.terminal:
            raise RunNotFinished(f"run {run_id} has not finished ({before.run.status}); cancel it first, or wait")
        requesters = all_requesters(before.run.requesters, before.about.submitted_by)
        held = await self._held(before.run) if keep else frozenset()
        run = again(*(before.run, self._id(None)), now_ns=self._now_ns(), keep=keep, held=held, requesters=requesters)
        about = replace(before.about, idempotency_key=_key(idempotency_key), submitted_by=caller.name, rerun_of=run_id)
        stored, made = await self.store.start(run, before.scope, about)
        if not made and stored.about.rerun_of != run_id:
            raise RowExists("this idempotency key was used for another run; choose another key")
        return stored, made

    async def _held(self, run: Run) -> frozenset[str]:
        """The steps of a run that need approval if they start again, although they are no approval steps.

        These are jobs that a rule may hold or refuse, and child workflows that contain approvals.
        """
        steps = run.workflow.steps.items()
        return frozenset([name for name, step in steps if await self._asks(run.tenant, step)])

    async def _asks(self, tenant: str, first: Step) -> bool:
        """Whether a step needs an approval, itself or in a workflow that it starts, at any depth."""
        seen: set[tuple[str, int | None]] = set()
        pending = [first]
        while pending:
            step = pending.pop()
            held = step.kind is StepKind.JOB and self._approvals.rules.may_hold(step.topic or "", tenant)
            if held or step.kind is StepKind.APPROVAL:
                return True
            which = (step.workflow or "", step.version)
            if step.kind is not StepKind.WORKFLOW or which in seen:
                continue
            seen.add(which)
            found = await self.store.definitions.get(tenant, *which) if len(seen) <= DEFINITIONS_MAX else None
            if found is None:
                return True  # unknown, or too large to search: assume that it does
            pending += found.workflow.steps.values()
        return False

    # Approvals.

    async def approvals(
        self,
        caller: Caller,
        *,
        tenant: str | None = None,
        status: ApprovalStatus | str | None = ApprovalStatus.WAITING,
        after: Place | None = None,
        limit: int = 100,
    ) -> Page[ApprovalOutline]:
        """Outlines of open approvals, oldest first; or those with another status (None: any), newest first."""
        most = check_whole("limit", limit, 1, PAGE_MAX)
        scope = caller.scope(tenant)
        wanted = "" if status is None else str(_approval_status(status))
        if wanted == ApprovalStatus.WAITING:
            found = await self._approvals.waiting(tenant=scope, after=after or BEFORE_ALL, limit=most + 1)
        else:
            found = await self._approvals.page(tenant=scope, status=wanted, after=after or AFTER_ALL, limit=most + 1)
        items = found[:most]
        return Page(items, Place(items[-1].created_ns, items[-1].job) if len(found) > most else None)

    async def approval(self, caller: Caller, job_id: str) -> Approval:
        """One approval, or `RowMissing`."""
        try:
            found = await self._approvals.get(job_id, tenant=caller.tenant)
        except BadInput:
            found = None
        if found is None or not caller.sees(found.tenant):
            raise RowMissing(f"no approval found for {job_id!r:.220}")
        return found

    async def decide(
        self, caller: Caller, job_id: str, verdict: ApprovalVerdict, *, note: str = "", revision: int | None = None
    ) -> DecisionResult:
        """Approve or reject. See `approvals.Approvals.decide`."""
        await self.approval(caller, job_id)
        return await self._approvals.decide(
            job_id, verdict, actor=caller.name, note=note, revision=revision, tenant=caller.tenant
        )

    # Shared.

    async def _known(self, tenant: str, key: str | None) -> StoredRun | None:
        return None if key is None else await self.store.by_key(tenant, key)

    def _id(self, wanted: str | None) -> str:
        if wanted is None:
            return f"{self._now_ns() // 1_000_000:012x}-{self.store.entropy.token()[:12]}"
        if len(check_id("id", wanted)) > RUN_ID_CHARS_MAX or "@" in wanted:
            fix = f"use at most {RUN_ID_CHARS_MAX} characters and no @, which marks ids of jobs and child runs"
            raise BadInput("id", f"{wanted!r:.60} cannot be the id of a run", fix)
        return wanted

    def _now_ns(self) -> int:
        return self.store.clock.now().wall


def _repeated(stored: StoredRun, workflow: str, version: int | None, value: Any, run_id: str | None) -> StoredRun:
    """The existing run under a key, or `RowExists` if it was another request.

    Its input is compared by its own definition: a newer one may have other defaults, and the request is still the same.
    """
    run = stored.run
    same = run.workflow.name == workflow and version in (None, run.workflow.version) and run_id in (None, run.id)
    if not same or _text(check_input(run.workflow, value)) != _text(run.input):
        raise RowExists("this idempotency key was used for another run; repeat that one, or choose another key")
    return stored


def _text(value: Any) -> str:
    """As comparable text: the order of names is irrelevant, and Python treats 1, 1.0 and True as equal."""
    return json.dumps(value, sort_keys=True)


def _key(value: str | None) -> str | None:
    return None if value is None else check_text("idempotency_key", value, ID_CHARS_MAX)


def _trace(value: str) -> str:
    return check_text("trace", value, TRACE_CHARS_MAX) if value else ""


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    if len(labels) > LABELS_MAX:
        raise BadInput("labels", f"are {len(labels)}", f"give at most {LABELS_MAX}")
    for name, value in labels.items():
        check_text("labels", name, ID_CHARS_MAX)
        if value:
            check_text("labels", value, ID_CHARS_MAX)
    return dict(labels)


def _status(value: RunStatus | str) -> RunStatus:
    try:
        return RunStatus(value)
    except ValueError:
        raise BadInput("status", f"{value!r:.60} is not a status of a run", f"use {', '.join(RunStatus)}") from None


def _approval_status(value: ApprovalStatus | str) -> ApprovalStatus:
    try:
        return ApprovalStatus(value)
    except ValueError:
        raise BadInput("status", f"{value!r:.60} is not a status", f"use {', '.join(ApprovalStatus)}") from None
