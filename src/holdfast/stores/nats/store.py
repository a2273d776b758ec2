"""`ports.Store` on a bucket of NATS JetStream, for one event loop. See `engine` for the promises.

Every change of a key is one message that names the sequence of the message that it replaces, and only the answer to
such a write grants, renews or releases a lease. A read is used to find out which message that is, and whether its
holder is to be waited for. The flow of each operation is the same: write what would replace the message that this
process knows; if the server refuses, because there is another one, read it and decide again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from holdfast.core.diagnosis import StoreFinding
from holdfast.core.ports import LISTEN_NS, Capabilities, Clock, Watch
from holdfast.errors import BackendError, BadInput, Timeout
from holdfast.stores.nats.diagnosis import findings, probe
from holdfast.stores.nats.keys import KeyStep, LeaseKeys
from holdfast.stores.nats.link import NatsConnectionBroken, NatsLink
from holdfast.stores.nats.requests import BucketRequests, Write
from holdfast.stores.nats.revisions import Revision, Revisions
from holdfast.stores.nats.values import FOREIGN_OWNER, Foreign, Free, HeldValue, held, key_token, mark_of
from holdfast.stores.nats.wakeups import WakeupHub
from holdfast.types import AcquireRequest, AuditRecord, Busy, Grant, Guarantee, Holding, Renewal

T = TypeVar("T")

CAPABILITIES: Final = Capabilities(
    engine="nats", guarantee=Guarantee.FENCED, wakeups=True, fair=False, durable=True, shared=True, many=True
)

_KEYS_A_CALL: Final = 250
_FINGERPRINT: Final = 6


class NatsStore:
    """See the module. `ports.AcquiresMany` and `ports.HasServerTime` too."""

    def __init__(self, link: NatsLink, revisions: Revisions, clock: Clock) -> None:
        self._link = link
        self._clock = clock
        self._bucket = BucketRequests(link, clock)
        self._keys = LeaseKeys(self._bucket, revisions, clock)
        self._hub = WakeupHub(link, self._bucket.ping)

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return CAPABILITIES

    def __repr__(self) -> str:
        return f"<NatsStore at {self._link.address}, bucket {self._link.address.bucket}>"

    # Changes of one key.

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`. A ticket means nothing here: the store has no queue."""
        if ask.floor:
            raise BadInput("floor", "fences are sequences of the bucket, and cannot be raised", "do not ask for one")
        step = await self._step(ask.key, timeout_ns)
        while True:
            ours = step.ours(ask.token)
            if step.free:
                content = held(ask, self._clock.now().wall)
            elif ours is not None:
                content = replace(ours, ttl_ns=ask.ttl_ns)
            elif step.fresh:
                return self._busy(ask.key, step.known)
            else:
                await step.read()
                continue
            stored = await step.write(content)
            if stored is not None:
                return Grant(ask.key, ask.token, stored.fence, str(stored.fence))

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`. Raises when the server answered nothing at all.

        Leases whose last message is known are renewed in one round trip. Each other one is read first.
        """
        deadline_ns = self._link.deadline(timeout_ns)
        if not renewals:
            return []
        await self._bucket.prepare(deadline_ns)
        writes: dict[int, Write] = {}
        for at, (key, token, _claim, ttl_ns) in enumerate(renewals):
            step = KeyStep(self._keys, key, deadline_ns)
            ours = step.ours(token)
            if ours is not None:
                writes[at] = step.replacing(replace(ours, ttl_ns=ttl_ns))
        answers: list[bool | BackendError | None] = [None] * len(renewals)
        if writes:
            stored = await self._bucket.write_all(list(writes.values()), deadline_ns)
            for (at, write), answer in zip(writes.items(), stored, strict=True):
                if isinstance(answer, int):
                    self._keys.wrote(write, answer)
                if not isinstance(answer, NatsConnectionBroken):  # it is asked for again, on another connection
                    answers[at] = True if isinstance(answer, int) else answer
        alone = [at for at, answer in enumerate(answers) if answer is None]
        for at, answer in zip(alone, await _all([self._renew(renewals[at], deadline_ns) for at in alone]), strict=True):
            answers[at] = answer
        return _unless_nothing(answers)

    async def _renew(self, renewal: Renewal, deadline_ns: int) -> bool:
        step = KeyStep(self._keys, renewal.key, deadline_ns)
        while True:
            ours = step.ours(renewal.token)
            if ours is not None:
                if await step.write(replace(ours, ttl_ns=renewal.ttl_ns)) is not None:
                    return True
            elif step.fresh:
                return False
            else:
                await step.read()

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`. The message of a released key names who released it, so it can be asked again.

        Where the key is free, a message says so once more: a request of the same token that is still on its way is then
        refused, so that a release settles it. A read would not do, for the server may answer it before that request.
        """
        step = await self._step(key, timeout_ns)
        by = Free(by=mark_of(token))
        while True:
            ours = step.ours(token)
            if ours is not None:
                after = replace(ours, ttl_ns=keep_ns, mark="") if keep_ns > 0 else by
                if await step.write(after) is not None:
                    await self._wake_one(key)
                    return True
            elif step.free and step.broken is None:
                if await step.write(Free()) is not None:
                    return False
            elif step.fresh:
                if step.broken is not None and step.known is not None and step.known.content == by:
                    return True  # the request whose answer was lost did it
                step.check_certain()
                return False
            else:
                await step.read()

    async def _step(self, key: str, timeout_ns: int) -> KeyStep:
        deadline_ns = self._link.deadline(timeout_ns)
        await self._bucket.prepare(deadline_ns)
        return KeyStep(self._keys, key, deadline_ns)

    async def _wake_one(self, key: str) -> None:
        """Wake one waiter."""
        await self._link.publish_hint(self._bucket.names.hints + key_token(key))

    # Many keys.

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        """See `ports.AcquiresMany`."""
        if any(ask.ticket is not None or ask.floor for ask in asks):
            raise BadInput("asks", "one has a ticket, or wants a fence from some number on", "ask for it alone")
        answers: list[Grant | Busy] = []
        for answer in await _all([self.acquire(ask, timeout_ns) for ask in asks]):
            if isinstance(answer, BackendError):
                raise answer
            answers.append(answer)
        return answers

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        """See `ports.AcquiresMany`."""
        return _unless_nothing(
            await _all([self.release(each.key, each.token, each.claim, 0, timeout_ns) for each in grants])
        )

    # What operators see and do.

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`."""
        step = await self._step(key, timeout_ns)
        await step.read()
        return self._holding(key, step.known)

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`. Asks for the names of all keys, and then for the messages of those that fit."""
        deadline_ns = self._link.deadline(timeout_ns)
        await self._bucket.prepare(deadline_ns)
        keys = sorted(key for key in await self._bucket.keys(deadline_ns) if key.startswith(prefix) and key > after)
        found: list[Holding] = []
        for at in range(0, len(keys), _KEYS_A_CALL):
            if len(found) >= limit:
                break
            some = keys[at : at + _KEYS_A_CALL]
            for key, message in zip(some, await self._bucket.read_all(some, deadline_ns), strict=True):
                holding = self._holding(key, self._keys.read(key, message))
                if holding is not None and holding.fence is not None:
                    found.append(holding)
        return found[: max(0, limit)]

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`. The message that frees the key is the record, until that is copied.

        A lost answer is not asked for again: the record of the second request would be empty.
        """
        step = await self._step(key, timeout_ns)
        while True:
            await step.read()
            known = step.known
            if known is None or step.free:
                return None
            content = known.content
            owner, fence = (content.owner, known.fence) if isinstance(content, HeldValue) else (FOREIGN_OWNER, None)
            record = AuditRecord(self._clock.now().wall, "force_release", key, actor, reason, owner, fence, 0)
            write = step.replacing(Free(forced=record))
            seq = await self._bucket.write(write, step.deadline_ns)
            if seq is not None:
                broken = self._keys.wrote(write, seq)
                await self._wake_one(key)
                await self._keys.keep_record(key, broken, step.deadline_ns)
                return replace(record, fence=seq)
            await step.pause()

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`. The newest ten thousand are kept."""
        deadline_ns = self._link.deadline(timeout_ns)
        return await self._bucket.audit(limit, deadline_ns) if limit > 0 else []

    async def time_ns(self, timeout_ns: int) -> int:
        """See `ports.HasServerTime`: the clock of the leader of the bucket."""
        deadline_ns = self._link.deadline(timeout_ns)
        await self._bucket.prepare(deadline_ns)
        return (await self._bucket.ping(deadline_ns)).wall_ns

    async def diagnose(self, timeout_ns: int) -> list[StoreFinding]:
        """See `ports.Diagnosable`. A bucket that is not there is created."""
        deadline_ns = self._link.deadline(timeout_ns)
        facts = await probe(self._link, await self._bucket.info(deadline_ns), deadline_ns)
        return findings(facts, self._bucket.names, self._link.address.replicas)

    async def ping(self, timeout_ns: int) -> None:
        """See `ports.Store.ping`. The bucket answers, not only the server."""
        await self.time_ns(timeout_ns)

    # Waiters.

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """See `ports.Store.leave`. There is no queue."""

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """See `ports.Store.watch`."""
        await self._bucket.prepare(self._link.deadline(timeout_ns))
        return await self._hub.watch(self._bucket.names.hints + key_token(key), timeout_ns)

    async def close(self) -> None:
        """See `ports.Store.close`."""
        await self._link.close()

    def _busy(self, key: str, known: Revision | None) -> Busy:
        content = None if known is None else known.content
        return Busy(key, content.owner if isinstance(content, HeldValue) else FOREIGN_OWNER, self._keys.left(known))

    def _holding(self, key: str, known: Revision | None) -> Holding | None:
        left = self._keys.left(known)
        if known is None or (left is not None and left <= 0):
            return None
        content = known.content
        if isinstance(content, HeldValue):
            mark = content.mark[:_FINGERPRINT]
            shown = self._keys.shown(known)
            return Holding(key, content.owner, known.fence, content.family, content.granted_ns, shown, mark)
        mark = content.mark[:_FINGERPRINT] if isinstance(content, Foreign) else ""
        return Holding(key, FOREIGN_OWNER, None, "", None, None, mark)


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T | BackendError]:
    """Run calls at the same time: of each its answer, or the error of the store."""

    async def one(call: Coroutine[Any, Any, T]) -> T | BackendError:
        try:
            return await call
        except BackendError as error:
            return error

    return list(await asyncio.gather(*[one(call) for call in calls]))


def _unless_nothing(answers: Sequence[bool | BackendError | None]) -> list[bool | None]:
    """What is known of each; the first error if nothing is known of any."""
    errors = [answer for answer in answers if isinstance(answer, BackendError)]
    if errors and len(errors) == len(answers):
        raise next((error for error in errors if isinstance(error, Timeout)), errors[0])
    return [answer if isinstance(answer, bool) else None for answer in answers]
