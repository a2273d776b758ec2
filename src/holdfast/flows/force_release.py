"""Breaking a lock by force: its holder is fenced out, and the record says who did it, why, and whose lease it was."""

from __future__ import annotations

from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.states import Event
from holdfast.core.ports import Ports
from holdfast.types import AuditRecord


async def force_release(ports: Ports, key: str, actor: str, reason: str) -> AuditRecord | None:
    """Break the lock. None if nobody held it."""
    # The store's own record of the act does not say what kind of lock it was; whoever holds it now does.
    holding = await ports.store.inspect(key, ports.request_timeout_ns)
    record = await ports.store.force_release(key, actor, reason, ports.request_timeout_ns)
    if record is None:
        return None
    same = holding is not None and holding.fence == record.previous_fence
    family = (holding.family if same and holding is not None else "") or "default"
    if ports.observer.tally(EventKind.FORCED, family):
        holder = {"holder": record.previous_owner, "holder_fence": record.previous_fence}
        ports.observer.note(
            Record(
                EventKind.FORCED,
                record.wall_ns,
                key,
                family,
                owner=record.actor,
                fence=record.fence,
                detail=reason,
                facts=holder,
            )
        )
    # A holder in this process learns of it now, and the key is free here as it is everywhere else.
    inside = ports.runtime.gate.inside(key)
    held = None if inside is None else inside.held
    if held is not None and held.grant is not None and held.grant.fence < record.fence:
        held.end(Event.REFUSED)
    return record
