"""What goes in and out about workflows and their runs. See `schemas` for what holds for all of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field, StringConstraints

from holdfast.plane.model.caller import REASON_CHARS_MAX, TRACE_CHARS_MAX
from holdfast.plane.service.workflows import RUN_ID_CHARS_MAX
from holdfast.plane.workflows.core.definition_codec import as_document
from holdfast.plane.workflows.core.run import RunStatus, StepState, StepStatus, StoredRun
from holdfast.plane.workflows.definitions import Definition
from holdfast.plane.workflows.run_rows import RunEvent, RunOutline, outline_of_run
from holdfast.plane.workflows.summaries import WorkflowOutline
from holdfast.web.schemas.jobs import (
    AS_WHOLE,
    IN_DIGITS,
    Asked,
    Cursor,
    Filter,
    Given,
    Key,
    Label,
    Labels,
    LabelText,
    Limit,
    Seconds,
    Told,
    moment,
)

VERSION_MAX: Final = 2**31

RunId: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/\[\]-]*$", max_length=RUN_ID_CHARS_MAX)
]
Version: TypeAlias = Annotated[int, Field(ge=1, le=VERSION_MAX), AS_WHOLE]
RunStatusName: TypeAlias = Annotated[RunStatus, Field(description="How a run is.")]
StepStatusName: TypeAlias = Annotated[StepStatus, Field(description="How a step is.")]


# Workflows.


class DefineWorkflow(Asked):
    """A workflow as somebody defines it."""

    definition: dict[str, Any] = Field(description="What `holdfast runs define` takes as YAML: see the documentation.")
    tenant: Label | None = Field(None, description="For one tenant; by default for the caller's, or for everybody.")


class WorkflowOutlineShown(Told):
    """A workflow as a list has it: without its definition."""

    name: str
    version: int
    scope: str = Field(description="The tenant that has it; * is everybody.")
    description: str = Field(description="Its beginning, of 200 characters at most.")
    risk: str = Field(description="The class that decides about lock errors.")
    steps: int = Field(description="How many it has.")
    digest: str
    created_at: datetime
    created_by: str

    @classmethod
    def of(cls, kept: WorkflowOutline) -> WorkflowOutlineShown:
        """For going out."""
        return cls(**_workflow_outline(kept))


class WorkflowShown(WorkflowOutlineShown):
    """A workflow as it is kept."""

    definition: dict[str, Any]

    @classmethod
    def whole(cls, kept: Definition) -> WorkflowShown:
        """For going out."""
        return cls(**_workflow_outline(kept.outline), definition=as_document(kept.workflow))


class WorkflowFilter(Filter):
    """Which definitions, and which page of them."""

    tenant: Given[Label] = Field(None, description="What this tenant sees; only for callers who are not bound to one.")
    cursor: Given[Cursor] = Field(None, description="What the page before said in `next`.")
    limit: Limit = 100


class WorkflowPage(Told):
    """The newest versions of some workflows, in outline, by name."""

    items: list[WorkflowOutlineShown]
    next: str | None = Field(description="The `cursor` of the next page; null: there is none.")


class VersionFilter(Filter):
    """Which version of a definition, and whose."""

    version: Given[Annotated[int, Field(ge=1, le=VERSION_MAX), IN_DIGITS]] = Field(
        None, description="By default the newest."
    )
    tenant: Given[Label] = Field(None, description="As this tenant sees it; only for callers not bound to one.")


# Runs.


class StartRun(Asked):
    """A run as somebody asks for it."""

    workflow: Label
    input: Any = None
    version: Version | None = Field(None, description="By default the newest.")
    tenant: Label | None = Field(None, description="Only for callers who are not bound to a tenant.")
    id: RunId | None = Field(None, description="Made up when not given.")
    idempotency_key: Key | None = Field(None, description="The same as the Idempotency-Key header.")
    deadline_in: Seconds | None = Field(None, description="After how long the run is ended.")
    trace: LabelText = Field("", max_length=TRACE_CHARS_MAX)
    labels: Labels = Field(default_factory=dict)


class RerunRun(Asked):
    """How a run is run again."""

    keep: bool = Field(
        False, description="Whether the outputs of steps that succeeded are kept. Approvals are asked for again."
    )


class CancelRun(Asked):
    """Why a run should end."""

    reason: Annotated[str, StringConstraints(pattern=r"^[ -~]+$", max_length=REASON_CHARS_MAX)] = "cancelled on request"


class RunFilter(Filter):
    """Which runs, and which page of them."""

    status: Given[RunStatusName] = None
    workflow: Given[Label] = None
    tenant: Given[Label] = Field(None, description="Only for callers who are not bound to a tenant.")
    cursor: Given[Cursor] = Field(None, description="What the page before said in `next`.")
    limit: Limit = 100


class StepShown(Told):
    """A step of a run, or one item of a fan-out."""

    status: StepStatusName
    attempt: int
    job: str | None
    started_at: datetime | None
    ended_at: datetime | None
    due_at: datetime | None
    output: Any
    error: str | None
    code: str | None
    children: list[StepShown] | None = Field(description="Of a fan-out: one for each item.")

    @classmethod
    def of(cls, state: StepState) -> StepShown:
        """For going out."""
        return cls(
            status=state.status,
            attempt=state.attempt,
            job=state.job,
            started_at=_moment(state.started_ns),
            ended_at=_moment(state.ended_ns),
            due_at=_moment(state.due_ns),
            output=state.output,
            error=state.error,
            code=state.code,
            children=None if state.items is None else [cls.of(child) for child in state.children],
        )


class RunHead(Told):
    """What is said of a run wherever it is shown."""

    id: str
    tenant: str
    workflow: str
    workflow_version: int
    status: RunStatusName
    risk: str
    error: str | None
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    deadline_at: datetime | None
    wakes_at: datetime | None = Field(description="When it is looked at by itself.")
    version: int
    fence: int | None = Field(description="Of the lease under which it was last written.")
    parent: str | None = Field(description="The run whose step it is.")
    rerun_of: str | None
    submitted_by: str
    idempotency_key: str | None
    trace: str
    labels: dict[str, str]


class RunLine(RunHead):
    """A run in a list."""

    steps: dict[str, StepStatusName]

    @classmethod
    def of(cls, run: RunOutline) -> RunLine:
        """For going out."""
        return cls(**_head(run), steps=dict(run.steps))


class RunShown(RunHead):
    """A run."""

    input: Any
    output: Any
    steps: dict[str, StepShown]

    @classmethod
    def of(cls, stored: StoredRun) -> RunShown:
        """For going out."""
        run = stored.run
        steps = {name: StepShown.of(state) for name, state in run.steps.items()}
        return cls(**_head(outline_of_run(stored)), input=run.input, output=run.output, steps=steps)


class RunPage(Told):
    """Some runs in outline, newest first."""

    items: list[RunLine]
    next: str | None = Field(description="The `cursor` of the next page; null: there is none.")


class TimelineFilter(Filter):
    """Which page of a timeline."""

    cursor: Given[Cursor] = Field(None, description="What the page before said in `next`.")
    limit: Limit = 500


class TimelineShown(Told):
    """One line of a timeline."""

    version: int
    at: datetime
    step: str | None = Field(description="Null: the run itself.")
    kind: str
    detail: str
    attempt: int
    fence: int | None
    actor: str

    @classmethod
    def of(cls, event: RunEvent) -> TimelineShown:
        """For going out."""
        return cls(
            version=event.version,
            at=moment(event.at_ns),
            step=event.step,
            kind=event.kind,
            detail=event.detail,
            attempt=event.attempt,
            fence=event.fence,
            actor=event.actor,
        )


class Timeline(Told):
    """What happened to a run, oldest first."""

    items: list[TimelineShown]
    next: str | None = Field(description="The `cursor` of the next page; null: there is none yet.")


def _head(run: RunOutline) -> dict[str, Any]:
    about = run.about
    return {
        "id": run.id,
        "tenant": run.tenant,
        "workflow": run.workflow,
        "workflow_version": run.workflow_version,
        "status": run.status,
        "risk": run.risk,
        "error": run.error,
        "created_at": moment(run.created_ns),
        "updated_at": moment(run.updated_ns),
        "ended_at": _moment(run.ended_ns),
        "deadline_at": _moment(run.deadline_ns),
        "wakes_at": _moment(run.wake_ns),
        "version": run.version,
        "fence": run.fence,
        "parent": run.parent,
        "rerun_of": about.rerun_of,
        "submitted_by": about.submitted_by,
        "idempotency_key": about.idempotency_key,
        "trace": about.trace,
        "labels": dict(about.labels),
    }


def _workflow_outline(kept: WorkflowOutline) -> dict[str, Any]:
    return {
        "name": kept.name,
        "version": kept.version,
        "scope": kept.scope,
        "description": kept.description,
        "risk": kept.risk,
        "steps": kept.steps,
        "digest": kept.digest,
        "created_at": moment(kept.created_ns),
        "created_by": kept.created_by,
    }


def _moment(ns: int | None) -> datetime | None:
    return None if ns is None else moment(ns)
