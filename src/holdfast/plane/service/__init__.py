"""Commands and queries of a control plane, behind the HTTP API and the command line."""

from holdfast.plane.model.caller import Caller

__all__ = ["Caller"]
