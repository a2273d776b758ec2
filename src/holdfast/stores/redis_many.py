"""Many keys in one request to a Redis or Valkey server: the scripts of one key, sent together and answered together.

Promises: what each key gets is what it would get by itself (see `redis_store`); they are not one atomic step, and need
not be. A server that does not answer for some of them is asked for those again where that is harmless: an ask is, since
its token has the key or has it not; a release is not, so what became of it stays unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import BadInput
from holdfast.stores.redis_store import ACQUIRE, RELEASE, RedisStore
from holdfast.stores.redis_wire import ReplyError, Word
from holdfast.types import Ask, Busy, Grant


class ManyRedisStore(RedisStore):
    """`ports.TakesMany` besides `ports.Store`."""

    async def acquire_many(self, asks: Sequence[Ask], timeout_ns: int) -> list[Grant | Busy]:
        """See `ports.TakesMany`."""
        if any(ask.ticket is not None or ask.floor for ask in asks):
            raise BadInput("asks", "one has a ticket, or wants a fence from some number on", "ask for it by itself")
        deadline = self._driver.deadline(timeout_ns)
        heads = [self._head(ask) for ask in asks]
        calls = [self._acquire_words(ask, head) for ask, head in zip(asks, heads, strict=True)]
        packed = b"".join([ACQUIRE.by_hash(2, words) for words in calls])
        replies = await self._asker.call_all(packed, len(asks), deadline)
        answers: list[Grant | Busy] = []
        for at, ask in enumerate(asks):
            reply = replies[at] if at < len(replies) else None
            if type(reply) is bytes:
                answers.append(self._granted(ask, heads[at], reply))
            elif reply is None or isinstance(reply, ReplyError):  # broken off, a script that is not known, a refusal
                answers.append(await self.acquire(ask, max(1, deadline - self._driver.deadline(0))))
            else:
                answers.append(self._busy(ask, reply))
        return answers

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        """See `ports.TakesMany`."""
        deadline = self._driver.deadline(timeout_ns)
        packed = b"".join([RELEASE.by_hash(2, self._release_words(grant)) for grant in grants])
        replies = await self._driver.call_all(packed, len(grants), deadline)
        answers: list[bool | None] = []
        for at, grant in enumerate(grants):
            reply = replies[at] if at < len(replies) else None
            if isinstance(reply, ReplyError):  # it has done nothing, and why not is for one key to find out
                left = max(1, deadline - self._driver.deadline(0))
                answers.append(await self.release(grant.key, grant.token, grant.claim, 0, left))
            else:
                answers.append(reply == 1 if type(reply) is int and reply in (0, 1) else None)
        return answers

    def _release_words(self, grant: Grant) -> tuple[Word, ...]:
        lock, ending = self._lock(grant.key), f" {grant.token}"
        known = grant.claim.endswith(ending)
        return (lock, self._line(lock), grant.claim if known else ending, "" if known else "end", "0")
