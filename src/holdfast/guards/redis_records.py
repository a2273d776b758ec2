"""A fence record in Redis, for guards that stand before something else: HTTP endpoints, consumers of messages.

Promises: what `records.FenceRecord` says, among all processes that share the server or cluster, as durably as that is
set up: with `appendfsync always` on one primary as the protocol demands. With less (the usual once a second, a failover
to a replica that lags, an eviction by `allkeys-*`) the newest fences can be forgotten in a crash, and a stale request
be let in after it; a SQLite or Postgres record does not have that window.

The color is that of the client: with one of redis-py's blocking clients the methods never suspend.
"""

from __future__ import annotations

from holdfast.core.lease.fencing import Accepted, Rule, Stale, check_fence
from holdfast.errors import BadInput, Timeout
from holdfast.guards.redis import scripts
from holdfast.guards.redis.driver import AwaitedClient, BlockingClient
from holdfast.guards.redis.fence_keys import PREFIX, FenceNames
from holdfast.guards.redis.replies import outcome, text
from holdfast.guards.redis.script_runner import SyncScriptRunner, calls_of


class RedisRecord:
    """`records.FenceRecord` through the caller's own client, which stays the caller's to close."""

    def __init__(self, client: BlockingClient | AwaitedClient, *, prefix: str = PREFIX) -> None:
        self._calls = calls_of(client)
        self._names = FenceNames(prefix)
        self.blocking = isinstance(self._calls, SyncScriptRunner)
        """Whether its methods block: guards on an event loop then ask it on a thread."""

    async def note(self, place: str, resource: str, fence: int) -> int:
        """See `FenceRecord`."""
        words = (str(Rule.AT_LEAST), str(check_fence("fence", fence)))
        answered = outcome(await self._calls.run(scripts.NOTE, (self._name(place, resource),), words), resource)
        match answered:
            case Accepted():
                return fence
            case Stale(seen):
                return seen
        raise Timeout(f"redis sent an answer about {resource} that makes no sense; it may have taken effect")

    async def seen(self, place: str, resource: str) -> int | None:
        """See `FenceRecord`."""
        answered = outcome(await self._calls.run(scripts.SEEN, (self._name(place, resource),), ("none", "")), resource)
        (stored,) = answered.value if isinstance(answered, Accepted) else (None,)
        return None if stored is None else int(text(stored))

    def _name(self, place: object, resource: object) -> bytes:
        for field, each in (("place", place), ("resource", resource)):
            if not isinstance(each, str):
                raise BadInput(field, f"{type(each).__name__} is not a name", "give text")
        return self._names.of_record(str(place), str(resource))
