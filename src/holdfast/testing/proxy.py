"""A TCP proxy that injects network faults between a program and its store, for tests of users and of Holdfast.

    from holdfast.testing.proxy import FaultProxy

    with FaultProxy(6379) as proxy, holdfast.connect(f"redis://{proxy.address}") as locks:
        lease = locks.lock("job", ttl=30).acquire()
        proxy.stall("to_client")     # the server gets requests, and its answers do not arrive
        …
        proxy.mend()

See `FaultProxy` for the faults. It also serves the drills.
"""

from __future__ import annotations

from holdfast.drills.env.proxy import DIRECTIONS, HELD_LIMIT_S, Direction, FaultProxy

__all__ = ["DIRECTIONS", "HELD_LIMIT_S", "Direction", "FaultProxy"]
