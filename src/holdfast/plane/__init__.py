"""The plane: a control plane for agent jobs in which every lock is used as it should be."""

from holdfast.plane.app import App
from holdfast.plane.context import BlockingContext, Context
from holdfast.plane.outcome import Fatal
from holdfast.plane.worker import Drained, Worker

__all__ = ["App", "BlockingContext", "Context", "Drained", "Fatal", "Worker"]
