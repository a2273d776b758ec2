"""Values that every part of the control plane shares: jobs, runs, messages, outcomes. Pure."""

from holdfast.plane.model.records import Job, Submission

__all__ = ["Job", "Submission"]
