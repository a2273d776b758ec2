"""Whether a name is free for a worker: two under one name would take each other's orders to stop.

Promises: a name that a living worker has, in another process, is refused, with who has it and when it will be free if
that one has died. A name is free at once when its worker has left, and on the same host when its process is gone: one
that is started again after a crash is not kept waiting.

Does not promise to tell two apart that start in the same moment.

Clock: the wall clock, as for heartbeats.
"""

from __future__ import annotations

import os

from holdfast.errors import BadInput
from holdfast.plane.model.records import Heartbeat
from holdfast.plane.workers import TTL_NS, Workers
from holdfast.types import NS, Owner


async def check_free(workers: Workers, name: str, me: Owner, now_ns: int) -> None:
    """Return if no other process works under a name, else raise `BadInput`."""
    for each in await workers.live():
        if each.worker.partition(":")[0] == name and not _is_gone(each, me):
            age_ns = max(0, now_ns - each.at_ns)
            free_s = max(1, -(-(TTL_NS - age_ns) // NS))
            raise BadInput(
                "--name",
                f"{name} is the name of a worker on {each.host}, process {each.pid}, heard of {age_ns // NS} s ago",
                f"choose another, or none; if that one has died, its name is free in {free_s} s",
            )


def _is_gone(other: Heartbeat, me: Owner) -> bool:
    """Whether a heartbeat is of this process, or of one on this host that runs no more."""
    if other.host != me.host:
        return False
    if other.pid == me.pid:
        return True
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is somebody else's, and runs
        return False
    return False
