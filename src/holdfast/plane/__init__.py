"""The plane: a control plane for agent jobs in which every lock is used as it should be."""

from holdfast.plane.app import App
from holdfast.plane.model.outcome import Fatal, Quarantine
from holdfast.plane.worker.context import BlockingContext, Context
from holdfast.plane.worker.worker import Drained, Worker
from holdfast.plane.workflows.builder import Flow, retrying, workflow
from holdfast.plane.workflows.core.definition import Workflow
from holdfast.plane.workflows.core.problems import BadWorkflow
from holdfast.plane.workflows.files import load_workflow, parse_workflow

__all__ = [
    "App",
    "BadWorkflow",
    "BlockingContext",
    "Context",
    "Drained",
    "Fatal",
    "Flow",
    "Quarantine",
    "Worker",
    "Workflow",
    "load_workflow",
    "parse_workflow",
    "retrying",
    "workflow",
]
