"""The queue of those who wait for one key on Redis: a sorted set, and a channel for each waiter; see `stores.waiter`.

A waiter is queued by the step in which its ask found the key taken (`lua/acquire.lua`), or, if it has not asked, by
`lua/listen.lua`. It passes a hint on in the step in which it leaves (`lua/unlisten.lua`). At a channel without
listeners a release continues to the next waiter.
"""

from __future__ import annotations

from holdfast.errors import Unavailable
from holdfast.stores.redis.commands import CommandRetrier
from holdfast.stores.redis.protocol import RedisScript, Word
from holdfast.types import MS, NS

QUEUE_TTL_NS = 600 * NS  # the queue of a key is forgotten when no waiter has joined or asked for so long: nothing leaks
AHEAD_US = 10**15  # a waiter that was woken and came too late precedes all that were not woken yet

_LISTEN, _UNLISTEN = RedisScript("listen"), RedisScript("unlisten")


class RedisHintQueue:
    """See `stores.waiter.HintQueue`."""

    __slots__ = ("_commands", "_keys")

    ttl_ns = QUEUE_TTL_NS

    def __init__(self, commands: CommandRetrier, lock: str, queue: str) -> None:
        self._commands = commands
        self._keys = (lock, queue)

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return self._commands.deadline(timeout_ns)

    async def join(self, entry: str, deadline_ns: int) -> bool:
        """Join the queue, unless the key is free."""
        words: tuple[Word, ...] = (*self._keys, entry, str(QUEUE_TTL_NS // MS))
        reply = await self._commands.run(_LISTEN, 2, words, deadline_ns)
        if reply not in (0, 1):
            raise Unavailable("redis refused to queue a waiter")
        return bool(reply == 1)

    async def leave(self, entry: str, deadline_ns: int) -> bool:
        """Leave the queue."""
        reply = await self._commands.run(_UNLISTEN, 2, (*self._keys, entry), deadline_ns)
        return isinstance(reply, int)
