"""Breaking a lock by force: its holder is fenced out, and a record names the actor, the reason and the holder."""

from __future__ import annotations

from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.states import Event
from holdfast.core.ports import Ports
from holdfast.types import AuditRecord


async def force_release(ports: Ports, key: str, actor: str, reason: str) -> AuditRecord | None:
    """Break the lock. None if it was not held."""
    # The store's audit record has no family; the present holder's lease has.
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
    # A holder in this process loses its lease now, so that the key is free here as in all other processes.
    inside = ports.runtime.mutexes.inside(key)
    held = None if inside is None else inside.held
    if held is not None and held.grant is not None and held.grant.fence < record.fence:
        held.end(Event.REFUSED)
    return record
