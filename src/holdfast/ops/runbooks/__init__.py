"""Every runbook, by name. Alerts, the command and the page refer to these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.errors import BadInput
from holdfast.ops.runbooks.books import (
    before_ttl_change,
    duplicate_dispatch,
    lock_debt,
    not_owned,
    retry_waves,
    snapshot_leader,
    store_outage,
    why,
    workflow_contention,
)
from holdfast.ops.runbooks.model import Runbook

RUNBOOKS: Final[Mapping[str, Runbook]] = {
    each.RUNBOOK.name: each.RUNBOOK
    for each in (
        why,
        not_owned,
        duplicate_dispatch,
        workflow_contention,
        snapshot_leader,
        store_outage,
        lock_debt,
        retry_waves,
        before_ttl_change,
    )
}


def runbook(name: str) -> Runbook:
    """Return a runbook, or raise `BadInput` that lists all of them."""
    found = RUNBOOKS.get(name)
    if found is None:
        raise BadInput("runbook", f"{name[:60]!r} does not exist", f"use one of {', '.join(RUNBOOKS)}")
    return found
