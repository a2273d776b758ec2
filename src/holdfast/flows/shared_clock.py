"""The time by the clock that all replicas of a program share, if there is one."""

from __future__ import annotations

from holdfast.core.ports import HasServerTime, Ports


async def shared_ns(ports: Ports) -> int:
    """The wall clock of the store; the one of this host where the store has none. A store error is raised."""
    if isinstance(ports.store, HasServerTime):
        return await ports.store.time_ns(ports.request_timeout_ns)
    return ports.clock.now().wall
