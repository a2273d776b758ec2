"""What a guarded Redis key does, color-free: admit the holder, run one script, say what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypedDict

from holdfast.core.lease.fencing import Absent, Accepted, Outcome, Rule
from holdfast.core.ports import Observer
from holdfast.errors import BadInput
from holdfast.guards.admission import Admission, GuardStatistics, Presented
from holdfast.guards.bearer import Bearer
from holdfast.guards.redis import scripts
from holdfast.guards.redis.fence_keys import PREFIX, FenceNames
from holdfast.guards.redis.key_view import NOTHING, Content
from holdfast.guards.redis.pubsub import GuardedMessage, check_message, opened, sealed
from holdfast.guards.redis.replies import outcome, text
from holdfast.guards.redis.script_runner import ScriptRunner, Word
from holdfast.guards.redis.scripts import GuardScript
from holdfast.stores.redis.lock_value import milliseconds
from holdfast.types import MS, NS, Duration, duration_ns

TTL_MAX_NS: Final = 36_525 * 86_400 * NS  # a hundred years


class KeySettings(TypedDict, total=False):
    """Settings of guarded keys; all have a default."""

    prefix: str
    """How the names of the fences begin (`"holdfast:fence:"`). All who guard the same keys use the same one."""

    key: str | None
    """The name of the lock that a key belongs to, with the key as its place: `"lock:{key}"`. Leases of other locks are
    refused then, for the fences of two locks do not compare. Channels are not held to it."""

    observer: Observer | None
    """Receives an event for every read, write and refusal."""


class KeyFlow:
    """The steps on the guarded keys of one server or cluster. Blocking and awaited facades drive the same one."""

    def __init__(self, calls: ScriptRunner, settings: KeySettings, allow_degraded: bool) -> None:
        if unknown := sorted(set(settings) - set(KeySettings.__annotations__)):
            known = ", ".join(KeySettings.__annotations__)
            raise BadInput(unknown[0], "is not a setting of guarded keys", f"there is {known}, allow_degraded")
        self._calls = calls
        self._names = FenceNames(settings.get("prefix", PREFIX))
        observer = settings.get("observer")
        self._keys = Admission(
            "redis:keys",
            key=settings.get("key"),
            names=("key",),
            allow_degraded=allow_degraded,
            observer=observer,
        )
        self._channels = Admission("redis:channels", allow_degraded=allow_degraded, observer=observer)

    def statistics(self) -> GuardStatistics:
        """The counts of keys and channels together."""
        keys, channels = self._keys.statistics(), self._channels.statistics()
        names = (each.name for each in fields(GuardStatistics))
        return GuardStatistics(**{name: getattr(keys, name) + getattr(channels, name) for name in names})

    async def seen(self, key: str) -> int | None:
        """The highest fence that the key has met."""
        return await self._seen(self._fence_of(key), key)

    async def enter(self, lease: Bearer, key: str) -> Content:
        """Register the fence, and read."""
        presented, answered = await self._step(lease, key, Rule.AT_LEAST, scripts.ENTER, ())
        found = _content(answered.value) if isinstance(answered, Accepted) else answered
        return self._keys.entered(presented, found) or NOTHING

    async def set(
        self, lease: Bearer, key: str, value: object, rule: Rule, *, ttl: Duration | None, keep_ttl: bool
    ) -> Content:
        """Write a string."""
        if ttl is not None and keep_ttl:
            raise BadInput("ttl", "is given together with keep_ttl", "give one of the two")
        encoded = self._calls.encoded("value", value)
        words = (encoded, "keep" if keep_ttl else _expiry(ttl))
        await self._write(lease, key, rule, scripts.SET, words)
        return Content("string", self._calls.decoded(encoded))

    async def hset(
        self, lease: Bearer, key: str, mapping: object, rule: Rule, *, ttl: Duration | None
    ) -> dict[Any, Any]:
        """Write fields of a hash."""
        if not isinstance(mapping, Mapping) or not mapping:
            raise BadInput(
                "mapping", f"{mapping!r:.60} has no fields", "give a dict of field and value, not an empty one"
            )
        pairs = [self._calls.encoded("mapping", each) for pair in mapping.items() for each in pair]
        await self._write(lease, key, rule, scripts.HSET, (_expiry(ttl), *pairs))
        shown = [self._calls.decoded(each) for each in pairs]
        return dict(zip(shown[::2], shown[1::2], strict=True))

    async def hdel(self, lease: Bearer, key: str, names: Sequence[Any], rule: Rule) -> tuple[int, frozenset[Any]]:
        """Remove fields of a hash: how many were there, and which were requested."""
        if not names:
            raise BadInput("fields", "are none", "name at least one; delete() removes the whole hash")
        encoded = [self._calls.encoded("fields", each) for each in names]
        (removed,) = await self._write(lease, key, rule, scripts.HDEL, encoded)
        return int(removed), frozenset(self._calls.decoded(each) for each in encoded)

    async def delete(self, lease: Bearer, key: str, rule: Rule) -> bool:
        """Delete the key, whatever it holds. Whether there was anything."""
        (removed,) = await self._write(lease, key, rule, scripts.DELETE, ())
        return bool(removed)

    async def publish(self, lease: Bearer, channel: str, message: str) -> int:
        """Send a message, unless a newer holder of the same lock has sent one on this channel."""
        check_message(message)
        presented, fence = await self._admit_channel(lease, channel)
        sent = sealed(presented.key, presented.fence, message)
        words = (*_judged(presented), self._calls.encoded("channel", channel), sent)
        answered = outcome(await self._calls.run(scripts.PUBLISH, (fence,), words), presented.resource)
        (receivers,) = self._channels.written(presented, answered)
        return int(receivers)

    async def received(self, channel: str, data: str | bytes) -> GuardedMessage:
        """Read a message that has arrived, and refuse it if a newer holder has sent one since."""
        found = opened(data)
        presented, fence = await self._admit_channel(found.carried, channel)
        answered = outcome(await self._calls.run(scripts.NOTE, (fence,), _judged(presented)), presented.resource)
        self._channels.entered(presented, answered)
        return found

    async def _write(
        self, lease: Bearer, key: str, rule: Rule, script: GuardScript, words: Sequence[Word]
    ) -> Sequence[Any]:
        presented, answered = await self._step(lease, key, rule, script, words)
        return self._keys.written(presented, answered)

    async def _step(
        self, lease: Bearer, key: str, rule: Rule, script: GuardScript, words: Sequence[Word]
    ) -> tuple[Presented, Outcome[Sequence[Any]]]:
        fence = self._fence_of(key)
        resource = _shown(key)
        presented = await self._keys.admit(lease, resource, rule, lambda: self._seen(fence, key), {"key": key})
        keys = (fence, self._calls.encoded("key", key))
        reply = await self._calls.run(script, keys, (*_judged(presented), *words))
        return presented, outcome(reply, resource)

    async def _admit_channel(self, lease: Bearer, channel: object) -> tuple[Presented, bytes]:
        if not isinstance(channel, str) or not channel:
            raise BadInput("channel", f"{channel!r:.60} is not a channel", "give a name such as 'invoices'")
        fence = self._names.of_channel(channel, str(getattr(lease, "key", "")))
        shown = _shown(channel)
        return await self._channels.admit(lease, shown, Rule.AT_LEAST, lambda: self._seen(fence, shown)), fence

    async def _seen(self, fence: bytes, resource: str) -> int | None:
        answered = outcome(await self._calls.run(scripts.SEEN, (fence,), ("none", "")), resource)
        (stored,) = answered.value if isinstance(answered, Accepted) else (None,)
        return None if stored is None else int(text(stored))

    def _fence_of(self, key: object) -> bytes:
        if not isinstance(key, str):
            raise BadInput("key", f"{type(key).__name__} is not the name of a key", "give text; decode bytes first")
        return self._names.of_key(self._calls.encoded("key", key))


def _judged(presented: Presented) -> tuple[str, str]:
    """The words of every script that say who asks."""
    return str(presented.rule), "" if presented.fence is None else str(presented.fence)


def _content(reply: Sequence[Any]) -> Accepted[Content] | Absent:
    kind = text(reply[0])
    if kind == "none":
        return Absent()
    if kind == "hash":
        return Accepted(Content("hash", dict(zip(reply[1][::2], reply[1][1::2], strict=True))))
    return Accepted(Content("string", reply[1]))


def _expiry(ttl: Duration | None) -> str:
    return "" if ttl is None else milliseconds(duration_ns("ttl", ttl, low_ns=MS, high_ns=TTL_MAX_NS)).decode()


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)
