"""Guarded keys in Redis, through the caller's own redis-py client: strings, hashes and messages that refuse the stale.

    keys = GuardedKeys(redis.Redis())
    with keys.section(lease, "invoice:42") as entry:      # registers the fence and reads, in one script
        entry.hset({"total": int(entry.fields[b"total"]) + 5})   # refused unless the key still carries this fence

Promises: each step is one script, so check and write are one. The fence of a key lives in a side key of the same hash
slot (`fence_keys`), on a cluster too, and has no expiry: it outlives the data's deletion and the data's time to live. A
refusal changes nothing, and neither does data of the wrong type. After a script was forgotten (restart, failover,
SCRIPT FLUSH) it is sent again.

A step whose answer was lost (`Timeout`) may be repeated under the same fence: each of them says what shall be, not what
shall be added. Only what it returns differs then (a repeated `delete` finds nothing), and a repeated `publish` is a
second message. Something *else* written after a `Timeout` can be overtaken by the lost step, which has the same fence:
repeat the lost step until it is answered, or continue under a new lease, whose fence shuts it out.

Does not promise: anything about clients that write to the data or to the fences without the guard. That a fence is
remembered longer than the server remembers it: a failover to a replica that lags, a crash before the append-only file
was synchronised, a flush, or an eviction (`maxmemory-policy allkeys-*`; `volatile-*` and `noeviction` leave fences
alone) takes it back. A write inside a section finds that out (`NotEntered`); a direct write and a first `enter` cannot.
There is no WAIT for replicas here: it speaks of the connection that it is sent on, and the client's pool decides which
that is; `min-replicas-to-write` on the server narrows the window. Fences are never collected: one small key each.

Clock: none here; times to live are counted by the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from holdfast.core.failpoints import reach
from holdfast.core.lease.fencing import Rule
from holdfast.guards.admission import GuardStatistics
from holdfast.guards.bearer import Bearer, Fenced
from holdfast.guards.redis.driver import BlockingClient
from holdfast.guards.redis.key_flow import KeyFlow, KeySettings
from holdfast.guards.redis.key_view import NOTHING, Content, KeyView
from holdfast.guards.redis.pubsub import GuardedMessage
from holdfast.guards.redis.script_runner import calls_of
from holdfast.runtime.run_sync import run_now
from holdfast.types import Duration

__all__ = ["GuardedEntry", "GuardedKeys", "GuardedMessage", "KeySettings"]

B_contra = TypeVar("B_contra", bound=Bearer, contravariant=True)


class GuardedEntry(KeyView):
    """One key inside a section: what it held when it was entered, and the writes that only this fence may do."""

    def __init__(self, flow: KeyFlow, lease: Bearer, key: str, content: Content) -> None:
        super().__init__(key, content)
        self._flow = flow
        self._lease = lease

    def set(self, value: Any, *, ttl: Duration | None = None, keep_ttl: bool = False) -> None:
        """Write a string. Like SET it ends a running time to live, unless a new one is given or `keep_ttl`."""
        self._check_open()
        self._content = run_now(self._flow.set(self._lease, self.key, value, Rule.EXACTLY, ttl=ttl, keep_ttl=keep_ttl))

    def hset(self, mapping: Mapping[Any, Any], *, ttl: Duration | None = None) -> None:
        """Write fields of a hash; other fields stay. `ttl` is that of the whole hash, and stays if none is given."""
        self._check_open()
        self._merge(run_now(self._flow.hset(self._lease, self.key, mapping, Rule.EXACTLY, ttl=ttl)))

    def hdel(self, *fields: Any) -> int:
        """Remove fields of a hash; how many there were."""
        self._check_open()
        removed, names = run_now(self._flow.hdel(self._lease, self.key, fields, Rule.EXACTLY))
        self._without(names)
        return removed

    def delete(self) -> bool:
        """Delete the key; whether there was anything. Its fence stays, so no older holder can bring it back."""
        self._check_open()
        removed = run_now(self._flow.delete(self._lease, self.key, Rule.EXACTLY))
        self._content = NOTHING
        return removed


class GuardedKeys(Generic[B_contra]):
    """The keys of one server or cluster behind a guard. Safe from any thread, as the client is."""

    @overload
    def __init__(
        self: GuardedKeys[Fenced],
        client: BlockingClient,
        *,
        allow_degraded: Literal[False] = False,
        **settings: Unpack[KeySettings],
    ) -> None: ...
    @overload
    def __init__(
        self: GuardedKeys[Bearer],
        client: BlockingClient,
        *,
        allow_degraded: Literal[True],
        **settings: Unpack[KeySettings],
    ) -> None: ...
    def __init__(
        self,
        client: BlockingClient,
        *,
        allow_degraded: bool = False,
        **settings: Unpack[KeySettings],
    ) -> None:
        """`KeySettings` lists the settings. With `allow_degraded`, leases without a fence write unchecked."""
        self._flow = KeyFlow(calls_of(client, blocking=True), settings, allow_degraded)

    @contextmanager
    def section(self, lease: B_contra, key: str) -> Iterator[GuardedEntry]:
        """Register the fence and read the key, before anything else; what is written in the block needs that fence.

        `FencedOut` when the key has met a newer holder. A key that does not exist has `exists` False, and can be made.
        """
        entry = GuardedEntry(self._flow, lease, key, run_now(self._flow.enter(lease, key)))
        reach("guard.entered")
        try:
            yield entry
        finally:
            entry.end()

    def enter(self, lease: B_contra, key: str) -> Any:
        """Register the fence, and return what the key holds: a string, a dict for a hash, None. `FencedOut` if stale.

        Strings, and the fields and values of a hash, are bytes, or text if the client was made with `decode_responses`.
        """
        return run_now(self._flow.enter(lease, key)).value

    def set(
        self, lease: B_contra, key: str, value: Any, *, ttl: Duration | None = None, keep_ttl: bool = False
    ) -> None:
        """Write a string that depends on nothing read before; `FencedOut` if a newer holder was here."""
        run_now(self._flow.set(lease, key, value, Rule.AT_LEAST, ttl=ttl, keep_ttl=keep_ttl))

    def hset(self, lease: B_contra, key: str, mapping: Mapping[Any, Any], *, ttl: Duration | None = None) -> None:
        """Write fields of a hash, all or none; other fields stay. `FencedOut` if a newer holder was here."""
        run_now(self._flow.hset(lease, key, mapping, Rule.AT_LEAST, ttl=ttl))

    def hdel(self, lease: B_contra, key: str, *fields: Any) -> int:
        """Remove fields of a hash; how many there were. `FencedOut` if a newer holder was here."""
        return run_now(self._flow.hdel(lease, key, fields, Rule.AT_LEAST))[0]

    def delete(self, lease: B_contra, key: str) -> bool:
        """Delete a key of any type; whether there was anything. Its fence stays. `FencedOut` if it is stale."""
        return run_now(self._flow.delete(lease, key, Rule.AT_LEAST))

    def publish(self, lease: B_contra, channel: str, message: str) -> int:
        """Send a message in an envelope with key and fence (`pubsub`); how many this server handed it to.

        `FencedOut`, and nothing sent, if a newer holder of the same lock has published on the channel.
        """
        return run_now(self._flow.publish(lease, channel, message))

    def received(self, channel: str, data: str | bytes) -> GuardedMessage:
        """Open a message that was received; `FencedOut` if a newer holder of its lock has published since.

        For commands, which must not be carried out late. Where each message is a fact that stays true,
        `pubsub.opened` reads it without that check.
        """
        return run_now(self._flow.received(channel, data))

    def seen(self, key: str) -> int | None:
        """The highest fence that the key has met; None: it has never met one. For people and tests."""
        return run_now(self._flow.seen(key))

    def statistics(self) -> GuardStatistics:
        """What this guard has decided since it was made, keys and channels together."""
        return self._flow.statistics()
