"""The plane: a control plane for agent jobs in which every lock is used as it should be."""

from holdfast.core.workflow import Workflow
from holdfast.core.workflow_problems import BadWorkflow
from holdfast.plane.app import App
from holdfast.plane.context import BlockingContext, Context
from holdfast.plane.model.outcome import Fatal, Quarantine
from holdfast.plane.worker import Drained, Worker
from holdfast.plane.workflow_files import load_workflow, parse_workflow
from holdfast.plane.workflows import Flow, retrying, workflow

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
