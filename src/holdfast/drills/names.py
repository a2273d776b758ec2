"""The drills by name, for whoever only lists them: `catalogue` brings everything that they play."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "quick": "The essentials of pause, kill and compound: what is lost without fences, and that nothing is with "
        "them.",
        "pause": "A holder stopped for longer than its lease, between check and write: the loss, and how a guard "
        "prevents it.",
        "kill": "Holders, a scheduler and a worker killed without grace: takeover against the SLO, and no job ended "
        "twice.",
        "compound": "Renewals that fail, a lease that runs out, a stale release and a late write, all in one scene.",
        "outage": "The store unreachable for 30 s (--duration) under each error policy: fallbacks, duplicates, "
        "recovery.",
        "retry-waves": "Many contenders for one lock, with a fixed delay, with ±200 ms, and exponential: waves, waits "
        "and retries.",
        "pause-and-delay": "Long pauses and a slow network at the same time.",
        "failover": "A Redis primary lost with a lagging replica promoted, one cut off so that both sides grant, nodes "
        "of a quorum lost: the fence decides.",
        "clock": "Clocks of stores and hosts jump by a minute and by an hour, and a host is suspended: the fence "
        "decides.",
        "storm": "10,000 waiters for one lock, and 100,000 leases kept at once: order, waits, requests and memory are "
        "bounded.",
        "rolling-restart": "Every process of a plane replaced under load: nothing lost, nothing done twice, no lease "
        "waited out.",
        "soak": "The other drills, round after round for as long as asked (--duration), beside processes whose memory, "
        "threads and files must stay flat.",
    }
)
