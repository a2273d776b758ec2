"""The engines that keep leases, and the names that an engine of your own needs (docs/stores/own.md).

`registry` picks an engine by URL and imports no other.
"""

from holdfast.core.ports import AcquiresMany, Capabilities, HasServerTime, Store, Watch
from holdfast.stores.registry import Engine
from holdfast.types import AcquireRequest, AuditRecord, Busy, Grant, Guarantee, Holding, Renewal

__all__ = [
    "AcquireRequest",
    "AcquiresMany",
    "AuditRecord",
    "Busy",
    "Capabilities",
    "Engine",
    "Grant",
    "Guarantee",
    "HasServerTime",
    "Holding",
    "Renewal",
    "Store",
    "Watch",
]
