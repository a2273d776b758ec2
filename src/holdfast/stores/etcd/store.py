"""`ports.Store` on an etcd cluster: which transactions are run, and what their answers mean. See `engine` for promises.

Written once for sync and asyncio: it awaits a gateway, and nothing in it knows whether that blocks or suspends. No
answer is believed before it has been checked: an answer that cannot be read is an unknown outcome, never a grant.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from holdfast.core.diagnosis import StoreFinding
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.core.ports import LISTEN_NS, Capabilities, Clock, Watch
from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.stores.etcd.diagnosis import findings, probe
from holdfast.stores.etcd.errors import LeaseGone
from holdfast.stores.etcd.fence_base import Base, FenceBase
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.lease_ids import LeaseIds
from holdfast.stores.etcd.lock_value import (
    FOREIGN_OWNER,
    KeyNames,
    decode,
    decode_audit,
    encode_audit,
    holding,
    new_value,
    proves,
)
from holdfast.stores.etcd.messages import (
    KeyValue,
    Message,
    OperationAnswer,
    TransactionAnswer,
    count,
    created,
    created_before,
    delete,
    get,
    move,
    nested,
    put,
    range_end,
    read_range,
    same_value,
    text,
    unchanged,
)
from holdfast.stores.etcd.waiter import Entry, EtcdWatch, enter
from holdfast.types import NS, AcquireRequest, AuditRecord, Busy, Grant, Guarantee, Holding, KeyOwnership, Renewal

T = TypeVar("T")

CAPABILITIES: Final = Capabilities(
    engine="etcd", guarantee=Guarantee.FENCED, wakeups=True, fair=True, durable=True, shared=True
)

AUDIT_MAX: Final = 10_000
OPERATIONS: Final = 100  # of a transaction; a server allows 128 by default
PAGE: Final = 500
_ROUNDS: Final = 8


class EtcdStore:
    """`ports.Store` on one cluster, in the color of its gateway."""

    def __init__(
        self, gateway: Gateway, prefix: str, *, clock: Clock, leases: LeaseIds, base: FenceBase, keys: KeyNames
    ) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._clock = clock
        self._leases = leases
        self._base = base
        self._keys = keys
        # The newest waiter of each lock. Of all waiters of a process only one gets past the local mutex and asks;
        # others that come here all the same join the queue when they wait.
        self._watches: dict[str, EtcdWatch] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return CAPABILITIES

    def __repr__(self) -> str:
        return f"<EtcdStore {self._prefix}>"

    # Acquiring.

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`. A request without a ticket ignores the queue of those with one."""
        deadline = self._gateway.deadline(timeout_ns)
        watch = self._watches.get(ask.key)
        if watch is not None and not watch.may_ask:
            watch = None
        if ask.ticket is not None:
            return await self._repeated(lambda: self._acquire_in_turn(ask, ask.ticket or "", watch, deadline))
        if watch is not None and self._leases.ready(ask.ttl_ns) is None:
            busy = await self._still_busy(ask, watch, deadline)
            if busy is not None:
                return busy
        return await self._repeated(lambda: self._acquire(ask, watch, deadline))

    async def _repeated(self, attempt: Callable[[], Awaitable[T | None]]) -> T:
        """Attempt a step again while others change what it is about."""
        for _ in range(_ROUNDS):
            try:
                result = await attempt()
            except LeaseGone:
                self._leases.forget()
                continue
            if result is not None:
                return result
        raise Unavailable("etcd: the key changed again and again")

    async def _still_busy(self, ask: AcquireRequest, watch: EtcdWatch, deadline: int) -> Busy | None:
        """Look whether the lock is still held, which is cheaper than to grant an etcd lease first."""
        lock = self._keys.lock(ask.key)
        joining = await watch.joining(deadline)
        try:
            seen = await self._gateway.transact(deadline, [created(lock, "GREATER", 0)], [get(lock), *joining])
        except LeaseGone:
            self._leases.forget()
            return None
        held = seen.parts[0].first if seen.succeeded else None
        if held is None or proves(held.value, ask.token):
            return None
        watch.queued(_entry(watch.own_key, watch.queue, seen.parts[-1]))
        return await self._busy(ask.key, held, deadline)

    async def _acquire(self, ask: AcquireRequest, watch: EtcdWatch | None, deadline: int) -> Grant | Busy | None:
        """One attempt without a ticket. None: the base of fences, or the lock, has changed meanwhile."""
        leaving = [] if watch is None else [delete(watch.own_key)]
        joining = [] if watch is None else await watch.joining(deadline)
        base, value, outcome = await self._grant(ask, deadline, (), leaving, joining)
        if outcome.succeeded:
            if watch is not None:
                watch.granted()
            return self._granted(ask, base, value, outcome)
        if watch is not None:
            watch.queued(_entry(watch.own_key, watch.queue, outcome.parts[-1]))
        held = outcome.parts[0].first
        self._check_base(base, outcome.parts[1])
        if held is None:
            return None
        if proves(held.value, ask.token):
            return await self._extend(ask, held, leaving, deadline)
        return await self._busy(ask.key, held, deadline)

    async def _acquire_in_turn(
        self, ask: AcquireRequest, ticket: str, watch: EtcdWatch | None, deadline: int
    ) -> Grant | Busy | None:
        """One attempt with a ticket: a grant if the lock is free and no ticket waits, else behind the older ones."""
        queue = self._keys.turns(ask.key)
        mine = queue + ticket.encode()
        lease = await self._leases.get(self._gateway, ask.ticket_ttl_ns, deadline)
        joining = [enter(mine, lease), get(mine)]
        base, value, outcome = await self._grant(ask, deadline, [created(queue, "EQUAL", 0, whole=True)], (), joining)
        if outcome.succeeded:
            return self._granted(ask, base, value, outcome)
        self._check_base(base, outcome.parts[1])
        held, entry = outcome.parts[0].first, _entry(mine, queue, outcome.parts[-1])
        if held is not None and proves(held.value, ask.token):
            return await self._extend(ask, held, [delete(mine)], deadline)
        if entry is None:
            return None
        if watch is not None:
            watch.queued(entry)
        first = [created(mine, "EQUAL", entry.revision), created(queue, "GREATER", entry.revision - 1, whole=True)]
        older = [created_before(queue, entry.revision)]
        base, value, outcome = await self._grant(ask, deadline, first, [delete(mine)], older)
        if outcome.succeeded:
            return self._granted(ask, base, value, outcome)
        self._check_base(base, outcome.parts[1])
        held, ahead = outcome.parts[0].first, len(outcome.parts[-1].found)
        if held is None:
            return Busy(ask.key, None, None, ahead) if ahead else None
        if proves(held.value, ask.token):
            return await self._extend(ask, held, [delete(mine)], deadline)
        return (await self._busy(ask.key, held, deadline))._replace(ahead=ahead)

    async def _grant(
        self,
        ask: AcquireRequest,
        deadline: int,
        compare: Sequence[Message],
        success: Sequence[Message],
        failure: Sequence[Message],
    ) -> tuple[Base, bytes, TransactionAnswer]:
        """Grant the lock if it is free and the comparisons are true; else read it and the base of fences."""
        base = await self._base.get(self._gateway, deadline)
        lease = await self._leases.get(self._gateway, ask.ttl_ns, deadline)
        lock, value = self._keys.lock(ask.key), new_value(ask, self._clock.now().wall, base.number)
        outcome = await self._gateway.transact(
            deadline,
            [created(lock, "EQUAL", 0), same_value(self._keys.fence, base.stored), *compare],
            [put(lock, value, lease), *success],
            [get(lock), get(self._keys.fence), *failure],
        )
        return base, value, outcome

    def _granted(self, ask: AcquireRequest, base: Base, value: bytes, outcome: TransactionAnswer) -> Grant:
        fence = base.number + outcome.revision
        if fence > FENCE_MAX:
            raise Timeout("etcd: the fence is too large; the key of the base of fences was changed")
        return Grant(ask.key, ask.token, fence, value.decode())

    def _check_base(self, base: Base, part: OperationAnswer) -> None:
        if part.first is None or part.first.value != base.stored:
            self._base.forget()

    async def _extend(
        self, ask: AcquireRequest, held: KeyValue, leaving: Sequence[Message], deadline: int
    ) -> Grant | None:
        """The token holds the lock already: the same grant, with a new expiry."""
        state = decode(held.value)
        if state is None:
            return None
        lease = await self._leases.get(self._gateway, ask.ttl_ns, deadline)
        lock = self._keys.lock(ask.key)
        outcome = await self._gateway.transact(deadline, [unchanged(held)], [move(lock, lease), *leaving])
        if not outcome.succeeded:
            return None
        return Grant(ask.key, ask.token, state.fence(held.created), held.value.decode())

    async def _busy(self, key: str, held: KeyValue, deadline: int) -> Busy:
        state = decode(held.value)
        owner = FOREIGN_OWNER if state is None else state.owner
        return Busy(key, owner, await self._remaining_ns(held.lease, deadline))

    async def _remaining_ns(self, lease: int, deadline: int) -> int | None:
        """What is left of an etcd lease, at most: servers round down. None: it is not known, or never ends."""
        if not lease:
            return None
        try:
            left_s: int = await self._gateway.call(
                "/v3/lease/timetolive", {"ID": str(lease)}, deadline, lambda reply: int(reply.get("TTL", 0))
            )
        except (Timeout, Unavailable):
            return None
        return max(0, left_s + 1) * NS

    # Renewing and releasing.

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`. Raises when the cluster answered nothing at all."""
        deadline = self._gateway.deadline(timeout_ns)
        answers: dict[Renewal, bool] = {}
        trouble: BackendError | None = None
        waiting = list(dict.fromkeys(renewals))
        while waiting:
            chunk: dict[str, Renewal] = {}  # a transaction may write a key only once
            for each in waiting:
                if len(chunk) < OPERATIONS:
                    chunk.setdefault(each.key, each)
            waiting = [each for each in waiting if chunk.get(each.key) is not each]
            asked = list(chunk.values())
            try:
                await self._repeated(lambda: self._renew(asked, answers, deadline))  # noqa: B023 - it ends before the next
            except BackendError as error:
                trouble = error
        if trouble is not None and not answers:
            raise trouble
        return [answers.get(each) for each in renewals]

    async def _renew(self, asked: list[Renewal], answers: dict[Renewal, bool], deadline: int) -> bool | None:
        """Move each key that belongs to its token to an etcd lease of its TTL. None: some have changed since the read.

        The read is what makes it safe: a transaction that is delivered late, after a newer one, must not move the key
        back to an etcd lease that ends sooner. It finds the key changed, and does nothing.
        """
        seen = await self._gateway.transact(deadline, (), [get(self._keys.lock(each.key)) for each in asked])
        operations, moved = [], []
        for each, part in zip(asked, seen.parts, strict=True):
            held = part.first
            if held is None or not proves(held.value, each.token):
                answers[each] = False
                continue
            lease = await self._leases.get(self._gateway, each.ttl_ns, deadline)
            operations.append(nested([unchanged(held)], [move(held.key, lease)]))
            moved.append(each)
        if operations:
            outcome = await self._gateway.transact(deadline, (), operations)
            answers |= {each: True for each, part in zip(moved, outcome.parts, strict=True) if part.succeeded}
        asked[:] = [each for each in asked if each not in answers]
        return None if asked else True

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`.

        If it has to ask twice, only a yes is an answer then: a no may mean that the first request did the work, or that
        the lease had been lost before. So after a no the outcome is still unknown.
        """
        deadline = self._gateway.deadline(timeout_ns)
        return await self._repeated(lambda: self._release(key, token, claim, keep_ns, deadline))

    async def _release(self, key: str, token: str, claim: str | None, keep_ns: int, deadline: int) -> bool:
        value = b"" if claim is None else claim.encode()
        if not proves(value, token):  # the claim is not known: perhaps the acquire is still under way
            await self._gateway.settle(deadline)
            held = (await self._gateway.transact(deadline, (), [get(self._keys.lock(key))])).parts[0].first
            value = b"" if held is None else held.value
        state = decode(value)
        if state is None or not proves(value, token):
            return False
        lock = self._keys.lock(key)
        if keep_ns > 0:
            lease = await self._leases.get(self._gateway, keep_ns, deadline)
            ending = put(lock, state._replace(proof="").encode(), lease)
        else:
            ending = delete(lock)
        outcome = await self._gateway.transact(
            deadline, [same_value(lock, value)], [ending], settles=lambda answer: answer.succeeded
        )
        return outcome.succeeded

    def key_ownership(self, grant: Grant) -> KeyOwnership:
        """See `ports.SharesKeys`."""
        value = grant.claim.encode()
        state = decode(value)
        if state is None:  # cannot be: the claim of a grant is its value
            raise Misconfigured("etcd: a grant without a value")
        return KeyOwnership(self._keys.lock(grant.key), value, grant.fence - state.base)

    # Views and operators.

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`."""
        deadline = self._gateway.deadline(timeout_ns)
        found = await self._gateway.transact(deadline, (), [get(self._keys.lock(key)), *self._queues(key)])
        held = found.parts[0].first
        if held is None:
            return None
        waiters = sum(part.number for part in found.parts[1:])
        return holding(key, held.value, held.created, await self._remaining_ns(held.lease, deadline), waiters)

    def _queues(self, key: str) -> list[Message]:
        return [count(self._keys.turns(key)), count(self._keys.waiters(key))]

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`. Shows only leases of our form."""
        deadline = self._gateway.deadline(timeout_ns)
        start = self._keys.lock(prefix)
        end = text(range_end(start))
        if after:
            start = max(start, self._keys.lock(after) + b"\0")
        found: list[Holding] = []
        left: dict[int, int | None] = {}  # of etcd leases, which keys may share
        while len(found) < limit:
            size = min(PAGE, limit - len(found))
            ask = {"key": text(start), "range_end": end, "limit": str(size)}
            page = await self._gateway.call("/v3/kv/range", ask, deadline, read_range)
            known = [(name, each) for each in page if (name := self._keys.name(each.key)) and decode(each.value)]
            waiters = await self._waiters([name for name, _ in known], deadline)
            for name, each in known:
                if each.lease not in left:
                    left[each.lease] = await self._remaining_ns(each.lease, deadline)
                found.append(holding(name, each.value, each.created, left[each.lease], waiters[name]))
            if len(page) < size:
                break
            start = page[-1].key + b"\0"
        return found

    async def _waiters(self, names: Sequence[str], deadline: int) -> dict[str, int]:
        counts: dict[str, int] = {}
        for at in range(0, len(names), OPERATIONS // 2):
            some = names[at : at + OPERATIONS // 2]
            found = await self._gateway.transact(deadline, (), [each for name in some for each in self._queues(name)])
            for number, name in enumerate(some):
                counts[name] = found.parts[2 * number].number + found.parts[2 * number + 1].number
        return counts

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`. Never asked twice: that would hide the record of the first."""
        deadline = self._gateway.deadline(timeout_ns)
        found = await self._repeated(lambda: self._force(key, actor, reason, deadline))
        return found[0] if found else None

    async def _force(self, key: str, actor: str, reason: str, deadline: int) -> tuple[AuditRecord, ...] | None:
        """One attempt. Empty: the lock is free; None: it has changed meanwhile."""
        base = await self._base.get(self._gateway, deadline)
        lock = self._keys.lock(key)
        held = (await self._gateway.transact(deadline, (), [get(lock)])).parts[0].first
        if held is None:
            return ()
        now_ns, state = self._clock.now().wall, decode(held.value)
        record = AuditRecord(
            wall_ns=now_ns,
            action="force_release",
            key=key,
            actor=actor,
            reason=reason,
            previous_owner=FOREIGN_OWNER if state is None else state.owner,
            previous_fence=None if state is None else state.fence(held.created),
            fence=0,
        )
        entry = self._keys.audit + f"{now_ns:020d}-{secrets.token_hex(4)}".encode()
        outcome = await self._gateway.transact(
            deadline,
            [unchanged(held), same_value(self._keys.fence, base.stored)],
            [delete(lock), put(entry, encode_audit(record, base.number), 0), count(self._keys.audit)],
            [get(lock), get(self._keys.fence)],
            twice=False,
        )
        if not outcome.succeeded:
            self._check_base(base, outcome.parts[1])
            return None
        if outcome.parts[2].number > AUDIT_MAX:
            await self._forget_old_records(deadline)
        return (dataclasses.replace(record, fence=base.number + outcome.revision),)

    async def _forget_old_records(self, deadline: int) -> None:
        """Delete all but the newest records. The forced release is done; that this fails changes nothing about it."""
        try:
            newest = await self._records(AUDIT_MAX, deadline)
            if newest:
                ask = {"key": text(self._keys.audit), "range_end": text(newest[-1].key)}
                await self._gateway.call("/v3/kv/deleterange", ask, deadline, lambda reply: reply["header"])
        except BackendError:
            return

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`. About the newest ten thousand are kept."""
        if limit <= 0:
            return []
        found = await self._records(limit, self._gateway.deadline(timeout_ns))
        try:
            return [decode_audit(each.value, each.created) for each in found]
        except (ValueError, KeyError, TypeError):
            raise Misconfigured(
                f"etcd: {self._keys.audit.decode()} holds records that are not ours; url prefix: use another one"
            ) from None

    async def _records(self, limit: int, deadline: int) -> tuple[KeyValue, ...]:
        """The newest records, newest first."""
        ask = {"key": text(self._keys.audit), "range_end": text(range_end(self._keys.audit))}
        order = {"sort_target": "CREATE", "sort_order": "DESCEND", "limit": str(limit)}
        found: tuple[KeyValue, ...] = await self._gateway.call("/v3/kv/range", {**ask, **order}, deadline, read_range)
        return found

    # Waiting.

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """See `ports.Store.leave`."""
        deadline = self._gateway.deadline(timeout_ns)
        await self._gateway.transact(deadline, (), [delete(self._keys.turns(key) + ticket.encode())])

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """See `ports.Store.watch`. The next ask for the key queues the waiter; if it does not, its wait does."""
        watch = EtcdWatch(self._gateway, self._leases, self._keys, key, self._forget)
        try:
            self._watches[key] = watch
            return watch  # noqa: TRY300 - until it is returned it can be interrupted
        except BaseException:
            self._forget(watch)
            raise

    def _forget(self, watch: EtcdWatch) -> None:
        if self._watches.get(watch.name) is watch:
            self._watches.pop(watch.name, None)

    async def diagnose(self, timeout_ns: int) -> list[StoreFinding]:
        """See `ports.Diagnosable`."""
        return findings(await probe(self._gateway, self._gateway.deadline(timeout_ns)))

    async def ping(self, timeout_ns: int) -> None:
        """See `ports.Store.ping`. A member without a quorum does not answer it."""
        ask = {"key": text(self._keys.fence), "keys_only": True}
        await self._gateway.call("/v3/kv/range", ask, self._gateway.deadline(timeout_ns), read_range)

    async def close(self) -> None:
        """See `ports.Store.close`."""
        await self._gateway.close()


def _entry(key: bytes, queue: bytes, part: OperationAnswer) -> Entry | None:
    return None if part.first is None else Entry(key, queue, part.first.created)
