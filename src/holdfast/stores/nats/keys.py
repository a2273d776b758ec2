"""What a store knows of its keys, and the steps of one operation on one key: write, and read when that is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from holdfast.core.ports import Clock
from holdfast.errors import BackendError, Unavailable
from holdfast.stores.nats.link import NatsConnectionBroken
from holdfast.stores.nats.requests import BucketMessage, BucketRequests, Write
from holdfast.stores.nats.revisions import Revision, Revisions, left_ns, shown_ns
from holdfast.stores.nats.values import Free, HeldValue, mark_of

_AGAIN_S: Final = 0.002


class LeaseKeys:
    """The keys of one bucket, as this process knows them."""

    def __init__(self, bucket: BucketRequests, revisions: Revisions, clock: Clock) -> None:
        self.bucket = bucket
        self._revisions = revisions
        self._clock = clock

    def known(self, key: str) -> Revision | None:
        """The last message of the key, as far as this process knows."""
        return self._revisions.get(key)

    def read(self, key: str, message: BucketMessage | None) -> Revision | None:
        """Note what was read."""
        if message is None:
            self._revisions.forget(key)
            return None
        now_ns = self._clock.now().mono  # the message was there before
        return self._revisions.learned(key, Revision(message.seq, message.content, now_ns, message.stored_ns))

    def wrote(self, write: Write, seq: int) -> Revision:
        """Note what was stored."""
        content = write.content
        if isinstance(content, Free) and content.forced is not None:
            content = replace(content, forced=replace(content.forced, fence=seq))
        return self._revisions.learned(write.key, Revision(seq, content, self._clock.now().mono))

    def left(self, known: Revision | None) -> int | None:
        """How long the key is protected. 0 or less: not any more. None: without an end."""
        return 0 if known is None else left_ns(known, self._clock.now().mono, self.bucket.server_time)

    def shown(self, known: Revision) -> int | None:
        """The same, for people."""
        return shown_ns(known, self._clock.now().mono, self.bucket.server_time)

    async def keep_record(self, key: str, known: Revision | None, deadline_ns: int) -> bool:
        """Copy the record of a forced release, and replace its message by one that the server forgets.

        False: there was none.
        """
        if known is None or not isinstance(known.content, Free) or known.content.forced is None:
            return False
        await self.bucket.record(replace(known.content.forced, fence=known.seq), deadline_ns)
        write = Write(key, known.seq, Free())
        seq = await self.bucket.write(write, deadline_ns)
        if seq is not None:
            self.wrote(write, seq)
        return True


class KeyStep:
    """One operation on one key: what it knows, and whether an earlier request of it may have taken effect.

    After a connection that broke it asks again, once: every message names its token, so the second request finds out
    the outcome of the first. It must not hide the doubt of the first one: an error of the second request is raised as
    the doubt that the first has left.
    """

    def __init__(self, keys: LeaseKeys, key: str, deadline_ns: int) -> None:
        self._keys = keys
        self._key = key
        self._reconnected = False
        self.deadline_ns = deadline_ns
        self.known = keys.known(key)
        self.fresh = False  # whether it was read in this operation
        self.broken: NatsConnectionBroken | None = None  # a write whose outcome is not known yet

    @property
    def free(self) -> bool:
        """Whether the key may be taken: nothing is known of it, it was released, or its lease has expired."""
        left = self._keys.left(self.known)
        return left is not None and left <= 0

    def ours(self, token: str) -> HeldValue | None:
        """The lease, if the token holds the key and has not expired; it names its fence."""
        known = self.known
        if known is None or not isinstance(known.content, HeldValue) or self.free:
            return None
        return replace(known.content, fence=known.fence) if known.content.mark == mark_of(token) else None

    def replacing(self, content: HeldValue | Free) -> Write:
        """The write that replaces the message that is known."""
        return Write(self._key, 0 if self.known is None else self.known.seq, content)

    async def read(self) -> None:
        """Read the last message of the key."""
        try:
            message = await self._keys.bucket.read(self._key, self.deadline_ns)
        except NatsConnectionBroken as error:
            self._once(Unavailable(f"{error}".removesuffix("; it may have taken effect")))  # reads have no effect
            await self.read()
            return
        except BackendError as error:
            raise self.broken or error from None
        self.known, self.fresh = self._keys.read(self._key, message), True

    async def write(self, content: HeldValue | Free) -> Revision | None:
        """Replace the message that is known. None: another message was found there, and read."""
        write = self.replacing(content)
        try:
            if await self._keys.keep_record(self._key, self.known, self.deadline_ns):
                await self.read()
                return None
            seq = await self._keys.bucket.write(write, self.deadline_ns)
        except NatsConnectionBroken as error:
            self._once(error)
            self.broken = error
            await self.read()
            return None
        except BackendError as error:
            raise self.broken or error from None
        if seq is not None:
            return self._keys.wrote(write, seq)
        await self.read()
        if (0 if self.known is None else self.known.seq) == write.expected:
            await self.pause()
        return None

    async def pause(self) -> None:
        """Wait a moment: a write of another client is under way, and cannot be read yet."""
        await asyncio.sleep(_AGAIN_S)

    def check_certain(self) -> None:
        """Before the answer "not ours": after a broken connection that may be the work of this very operation."""
        if self.broken is not None:
            raise self.broken

    def _once(self, error: BackendError) -> None:
        """Allow one new connection in an operation."""
        if self._reconnected:
            raise self.broken or error from None
        self._reconnected = True
