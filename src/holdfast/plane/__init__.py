"""The plane: a control plane for agent jobs in which every lock is used as it should be.

Applications import from here: `App` declares jobs, `Client` submits them and waits for their results, `Plane` runs a
plane inside of a program. Everything below this package is internal.
"""

from holdfast.plane.app import App
from holdfast.plane.client.blocking import BlockingClient, BlockingJobHandle, BlockingRunHandle
from holdfast.plane.client.blocking_resource_locks import BlockingResourceLease, BlockingResourceLock
from holdfast.plane.client.client import Client, JobHandle, RunHandle
from holdfast.plane.client.request import JobRequest
from holdfast.plane.client.resource_locks import ResourceLease, ResourceLock
from holdfast.plane.client.schedules import ScheduleView
from holdfast.plane.client.views import (
    ApprovalView,
    JobCancelled,
    JobFailed,
    JobProgress,
    JobUpdate,
    JobView,
    NotSucceeded,
    RunNotSucceeded,
    RunView,
    SubmitRefused,
    UpdateKind,
)
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.outcome import Fatal, Quarantine
from holdfast.plane.policy.model import PolicyConflict
from holdfast.plane.process.plane import Plane
from holdfast.plane.schedules.model import ScheduleConflict
from holdfast.plane.settings.settings import Settings
from holdfast.plane.worker.children import BlockingChildJob, ChildJob
from holdfast.plane.worker.context import BlockingContext, Context
from holdfast.plane.worker.worker import Drained, Worker
from holdfast.plane.workflows.builder import Flow, retrying, workflow
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.problems import BadWorkflow
from holdfast.plane.workflows.core.run import RunStatus
from holdfast.plane.workflows.files import load_workflow, parse_workflow

__all__ = [
    "App",
    "ApprovalView",
    "BadWorkflow",
    "BlockingChildJob",
    "BlockingClient",
    "BlockingContext",
    "BlockingJobHandle",
    "BlockingResourceLease",
    "BlockingResourceLock",
    "BlockingRunHandle",
    "ChildJob",
    "Client",
    "Context",
    "Drained",
    "Fatal",
    "Flow",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobProgress",
    "JobRequest",
    "JobState",
    "JobUpdate",
    "JobView",
    "NotSucceeded",
    "Plane",
    "PolicyConflict",
    "Quarantine",
    "ResourceLease",
    "ResourceLock",
    "RunHandle",
    "RunNotSucceeded",
    "RunStatus",
    "RunView",
    "ScheduleConflict",
    "ScheduleView",
    "Settings",
    "SubmitRefused",
    "UpdateKind",
    "Worker",
    "Workflow",
    "load_workflow",
    "parse_workflow",
    "retrying",
    "workflow",
]
