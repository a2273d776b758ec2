"""Many keys in one request to a Redis or Valkey server: the scripts of one key, sent together and answered together.

Promises: each key gets the result that it would get alone (see `RedisStore`); they are not one atomic step, and need
not be. A server that does not answer for some of them is asked for those again where that is harmless: an ask is, since
its token has the key or has it not; a release is not, so its outcome stays unknown.

`ports.Store` on one Redis or Valkey server: what is asked and what the answers mean. See `redis` for the promises.

Written once for sync and asyncio: it awaits a driver, and nothing in it knows whether that blocks or suspends. No
answer is believed before it has been checked: what cannot be read is an unknown outcome, never a grant.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.core.diagnosis import StoreFinding
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.core.ports import LISTEN_NS, Capabilities, Watch
from holdfast.errors import BackendError, BadInput, Misconfigured, Timeout, Unavailable
from holdfast.stores.redis.commands import CommandRetrier, Driver
from holdfast.stores.redis.diagnosis import findings, probe
from holdfast.stores.redis.lock_value import (
    FOREIGN_OWNER,
    MARK,
    VALUE_MAX,
    audit_record,
    glob_escaped,
    holding,
    milliseconds,
    remaining_ns,
    text_or_none,
)
from holdfast.stores.redis.protocol import (
    ConnectionBroken,
    RedisScript,
    Reply,
    ReplyError,
    Word,
    forbids_scripts,
    garbled,
    is_demoted,
    is_noscript,
    pack,
    refusal,
    unknown_command,
)
from holdfast.stores.redis.url import RedisAddress, ServerSource
from holdfast.stores.redis.waiter import AHEAD_US, QUEUE_TTL_NS, RedisHintQueue
from holdfast.stores.waiter import QueuedWatch, WakeupSubscriber, WakeupSubscription
from holdfast.types import MS, NS, AcquireRequest, AuditRecord, Busy, Grant, Guarantee, Holding, Renewal

CAPABILITIES: Final = Capabilities(
    engine="redis", guarantee=Guarantee.FENCED, wakeups=True, fair=True, durable=False, shared=True, many=True
)

AUDIT_MAX = 10_000
UNDO_NS = 500 * MS  # a grant that too few replicas have is released within this time
KEYS_A_CALL = 250  # the server serves no other client while a script runs: about 0.3 ms for so many keys
_SCAN_COUNT = 1000

ACQUIRE, _ACQUIRE_FAIR = RedisScript("acquire", "fence"), RedisScript("acquire_fair", "fence")
_ACQUIRE_RAISED = RedisScript("acquire_raised")
RENEW, RELEASE, _LEAVE = RedisScript("renew"), RedisScript("release"), RedisScript("leave")
INSPECT, _FORCE = RedisScript("inspect"), RedisScript("force_release", "fence")
_ALL_RENEWED = b"1" * KEYS_A_CALL


def renewed(reply: Reply, size: int) -> list[bool | None] | None:
    """What a renewal of so many leases answered; None if that cannot be read."""
    if reply == _ALL_RENEWED[:size]:
        return [True] * size
    if not isinstance(reply, bytes) or len(reply) != size or reply.strip(b"01"):
        return None
    return [answer == ord("1") for answer in reply]


class RedisStore:
    """`ports.Store` on one server, in the color of its driver."""

    def __init__(
        self,
        address: RedisAddress,
        driver: Driver,
        subscriber: WakeupSubscriber,
        source: ServerSource | None = None,
        commands: CommandRetrier | None = None,
    ) -> None:
        """`source`: where the server is, if that is not fixed."""
        self._address = address
        self._followers: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._driver = driver
        self._commands = commands or CommandRetrier(driver)
        self._subscriber = subscriber
        self._prefix = address.prefix
        self._fence_key = f"{address.namespace}:fence"
        self._audit_key = f"{address.namespace}:audit"
        self._reserved = (self._fence_key, self._audit_key)
        self._fences = f"{self._fence_key}:"  # of guards, whose names for records have no braces that set them apart
        self._hint_queues = f"{address.namespace}:ears:"
        self._queues = f"{address.namespace}:queue:"
        self._tickets = f"{address.namespace}:tickets:"
        # The newest waiter of each lock. Of all waiters of a process only one gets past the local mutex and asks;
        # others that come here all the same join the queue when they wait.
        self._watches: dict[str, QueuedWatch] = {}
        if source is not None:
            source.follow(self._moved)

    def follow(self, moved: Callable[[], None]) -> None:
        """See `ports.ChangesServers`."""
        self._followers.append(weakref.WeakMethod(moved))

    def _moved(self, address: RedisAddress) -> None:
        """Errors name the new server. The first one that is found is no change."""
        former, self._address = self._address, address
        if former.host:
            self._tell_followers()

    def _tell_followers(self) -> None:
        for follower in self._followers:
            moved = follower()
            if moved is not None:
                moved()

    def _fence(self, lock: str) -> str:
        """The counter that a lock's fences come from."""
        return self._fence_key

    def _audit(self, lock: str) -> str:
        """The stream that records what operators did to a lock."""
        return self._audit_key

    async def _listen(self, lock: str, timeout_ns: int) -> WakeupSubscription:
        return await self._subscriber.open(timeout_ns)

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return CAPABILITIES

    def __repr__(self) -> str:
        return f"<RedisStore at {self._address}>"

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`. A request without a ticket ignores the queue of those with one."""
        deadline = self._driver.deadline(timeout_ns)
        lock, head = self._lock(ask.key), self._head(ask)
        watch = self._watches.get(lock)
        if ask.floor:
            least = (lock, self._fence(lock), head, ask.token, milliseconds(ask.ttl_ns), str(ask.floor))
            reply = await self._grant(_ACQUIRE_RAISED, 2, least, deadline)
        elif watch is None and ask.ticket is None:
            reply = await self._grant(ACQUIRE, 2, self._acquire_words(ask, head), deadline)
        else:
            reply = await self._ask_queued(ask, lock, head, watch, deadline)
        if type(reply) is bytes:
            return self._granted(ask, head, reply)
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._address, lock)
        return self._busy(ask, reply)

    def _head(self, ask: AcquireRequest) -> str:
        head = f"{ask.owner} {MARK} {ask.family}"
        if head.count(" ") != 2 or not ask.token.isalnum():
            raise BadInput("owner, family and token", "one of them has a space or is empty", "use names without spaces")
        return head

    def _acquire_words(self, ask: AcquireRequest, head: str) -> tuple[Word, ...]:
        lock = self._lock(ask.key)
        return (lock, self._fence(lock), head, ask.token, milliseconds(ask.ttl_ns))

    async def _ask_queued(
        self, ask: AcquireRequest, lock: str, head: str, watch: QueuedWatch | None, deadline: int
    ) -> Reply:
        """Ask with a ticket, a subscription, or both. If the key is taken, the same step queues the subscription."""
        if watch is not None and not watch.may_ask:
            watch = None
        keys: tuple[Word, ...] = (lock, self._fence(lock))
        words: tuple[Word, ...] = (head, ask.token, milliseconds(ask.ttl_ns))
        if ask.ticket is not None:
            keys += (*self._queue(lock), self._hint_queue(lock))
            subscription = "" if watch is None else watch.entry
            words += (ask.ticket, milliseconds(ask.ticket_ttl_ns), subscription, milliseconds(QUEUE_TTL_NS))
        elif watch is not None:
            keys += (self._hint_queue(lock),)
            words += (watch.entry, str(AHEAD_US if watch.woken else 0), milliseconds(QUEUE_TTL_NS))
        script = ACQUIRE if ask.ticket is None else _ACQUIRE_FAIR
        try:
            reply = await self._grant(script, len(keys), (*keys, *words), deadline)
        except BaseException as error:
            if watch is not None:
                watch.unanswered(error)
            raise
        if watch is not None and not isinstance(reply, ReplyError):
            watch.answered(type(reply) is bytes)
        return reply

    async def _grant(self, script: RedisScript, keys: int, words: Sequence[Word], deadline: int) -> Reply:
        """Run a script that grants. With `wait_replicas`, a grant that too few replicas have is undone.

        The lock is the first of the words, and the token the second argument.
        """
        needed = self._address.wait_replicas
        if not needed:
            return await self._commands.run(script, keys, words, deadline)
        left_ns = deadline - self._driver.deadline(0)
        limit_ns = min(self._address.wait_ns, left_ns * 3 // 4)  # the rest is for the answer
        reply, acknowledged = await self._commands.run_acknowledged(script, keys, words, needed, limit_ns, deadline)
        if type(reply) is not bytes or (type(acknowledged) is int and acknowledged >= needed):
            return reply
        lock, token = str(words[0]), str(words[keys + 1])
        undo = (lock, self._hint_queue(lock), f" {token}", "end", "0")
        undone = await self._commands.run(RELEASE, 2, undo, self._driver.deadline(UNDO_NS))
        if isinstance(acknowledged, ReplyError):
            raise refusal(acknowledged, self._address, lock)
        if acknowledged is None or undone != 1:
            raise Timeout(
                f"redis at {self._address}: not known how many replicas have the lock; it may have taken effect"
            )
        raise Unavailable(
            f"redis at {self._address}: {acknowledged} of {needed} replicas had the lock in time, so it was released; "
            "url option wait_replicas: add replicas, or require fewer"
        )

    def _granted(self, ask: AcquireRequest, head: str, value: bytes) -> Grant:
        """Read a grant. Everything that is known about it beforehand must be in it, or it is none."""
        try:
            claim = value.decode()
            start, granted, fence, token = claim.rsplit(" ", 3)
            figures = granted.isdecimal() and fence.isdecimal() and (granted + fence).isascii()
            # What no guard can compare is no fence, and a lease without one is no grant.
            if start == head and token == ask.token and figures and 0 < (number := int(fence)) <= FENCE_MAX:
                return Grant(ask.key, token, number, claim)
        except ValueError:
            pass
        raise garbled(self._address, "an acquire")

    def _busy(self, ask: AcquireRequest, reply: Reply) -> Busy:
        match reply:
            case [bytes(owner), int(left_ms)]:
                return Busy(ask.key, owner.decode(errors="replace") or FOREIGN_OWNER, remaining_ns(left_ms))
            case [None, int(left_ms), int(ahead)]:
                return Busy(ask.key, None, remaining_ns(left_ms), ahead)
            case [bytes(owner), int(left_ms), int(ahead)]:
                return Busy(ask.key, owner.decode(errors="replace") or FOREIGN_OWNER, remaining_ns(left_ms), ahead)
        raise garbled(self._address, "an acquire")

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`. Raises when the server answered nothing at all."""
        deadline = self._driver.deadline(timeout_ns)
        chunks = [renewals[at : at + KEYS_A_CALL] for at in range(0, len(renewals), KEYS_A_CALL)]
        if not chunks:
            return []
        calls = [self._renewal_words(chunk) for chunk in chunks]
        packed = b"".join([RENEW.by_hash(len(chunk), call) for chunk, call in zip(chunks, calls, strict=True)])
        replies = await self._commands.call_all(packed, len(chunks), deadline)
        if is_demoted(replies[0]):
            await self._driver.distrust()
            replies = await self._commands.call_all(packed, len(chunks), deadline)
        answers: list[bool | None] = []
        trouble: BackendError | None = None
        for chunk, call, reply in zip(chunks, calls, replies, strict=False):
            try:
                answers += await self._renewed(chunk, call, reply, deadline)
            except BackendError as error:
                trouble = error
                answers += [None] * len(chunk)
        if trouble is not None and not any(answer is not None for answer in answers):
            raise trouble
        return answers + [None] * (len(renewals) - len(answers))

    def _renewal_words(self, chunk: Sequence[Renewal]) -> list[Word]:
        prefix = self._prefix
        words: list[Word] = [prefix + renewal[0] for renewal in chunk] if prefix else [renewal[0] for renewal in chunk]
        # The token decides, and it ends the claim. Without a claim of this token, the value must end with the token.
        words += [renewal[2] if renewal[2].endswith(renewal[1]) else f" {renewal[1]}" for renewal in chunk]
        words += [b"%d" % -(-renewal[3] // MS) for renewal in chunk]
        return words

    async def _renewed(
        self, chunk: Sequence[Renewal], call: Sequence[Word], first: Reply, deadline: int
    ) -> Sequence[bool | None]:
        size, reply = len(chunk), first
        if is_noscript(reply):
            reply = await self._commands.run(RENEW, size, call, deadline)
        if forbids_scripts(reply):
            return await self._renew_by_compare(size, call, reply, deadline)
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._address)
        if reply == _ALL_RENEWED[:size]:
            return [True] * size
        if not isinstance(reply, bytes) or len(reply) != size or reply.strip(b"01"):
            raise garbled(self._address, "a renewal")
        return [answer == ord("1") for answer in reply]

    async def _renew_by_compare(
        self, size: int, call: Sequence[Word], refused: ReplyError, deadline: int
    ) -> Sequence[bool | None]:
        """Where scripts are forbidden: SET … IFEQ (Redis 8.4, Valkey 8.1) writes the same value with a new expiry."""
        each = zip(call[:size], call[size : 2 * size], call[2 * size :], strict=True)
        packed = b"".join([pack(("SET", lock, value, "IFEQ", value, "PX", ms)) for lock, value, ms in each])
        replies = await self._commands.call_all(packed, size, deadline)
        if isinstance(replies[0], ReplyError):
            raise refusal(refused if unknown_command(replies[0]) else replies[0], self._address)
        meaning: dict[object, bool] = {b"OK": True, None: False}
        answers = [None if isinstance(reply, (list, ReplyError)) else meaning.get(reply) for reply in replies]
        for at, value in enumerate(call[size : size + len(answers)]):
            if str(value).startswith(" "):  # only the token is known, and these commands compare the whole value
                answers[at] = None
        return answers + [None] * (size - len(answers))

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`.

        After a broken connection it asks again, but only a yes is an answer then: a no may mean that the first request
        did the work, or that the lease had been lost before. So after a no the outcome is still unknown.
        """
        deadline = self._driver.deadline(timeout_ns)
        lock = self._lock(key)
        expected, how = f" {token}", "end"
        if claim is not None and claim.endswith(expected):
            expected, how = claim, ""
        words = (lock, self._hint_queue(lock), expected, how, milliseconds(max(0, keep_ns)))
        try:
            reply = await self._commands.run_once(RELEASE, 2, words, deadline)
        except ConnectionBroken as severed:
            reply = await self._commands.once_more(severed, RELEASE, 2, words, deadline)
            if reply != 1:
                raise
        if forbids_scripts(reply) and not how and keep_ns <= 0:
            reply = await self._release_by_compare(lock, expected, reply, deadline)
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._address, lock)
        if type(reply) is int and reply in (0, 1):  # of RESP2: a flag or a fraction of RESP3 is no answer to this
            return reply == 1
        raise garbled(self._address, "a release")

    async def _release_by_compare(self, lock: str, claim: str, refused: ReplyError, deadline: int) -> Reply:
        """Where scripts are forbidden: DELEX (Redis 8.4) or DELIFEQ (Valkey 9). Waiters find out by polling."""
        for words in (("DELEX", lock, "IFEQ", claim), ("DELIFEQ", lock, claim)):
            reply = await self._driver.call(pack(words), deadline)
            if not unknown_command(reply):
                return reply
        return refused

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`. Waiters: the tickets, or the queued subscriptions, whichever is more."""
        deadline = self._driver.deadline(timeout_ns)
        lock = self._lock(key)
        reply = await self._commands.run(INSPECT, 3, self._inspection([lock]), deadline)
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._address, lock)
        match reply:
            case [None]:
                return None
            case [[bytes(value), int(left_ms), int(tickets), int(listeners)]]:
                return holding(key, value, left_ms, max(tickets, listeners))
        raise garbled(self._address, "an inspection")

    async def time_ns(self, timeout_ns: int) -> int:
        """See `ports.HasServerTime`."""
        reply = await self._commands.call(pack(("TIME",)), self._driver.deadline(timeout_ns))
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._address)
        match reply:
            case [bytes(seconds), bytes(micros)] if seconds.isdigit() and micros.isdigit():
                return int(seconds) * NS + int(micros) * 1000
        raise garbled(self._address, "its time")

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`. Walks the whole key space in steps (SCAN) and shows only values of our format."""
        deadline = self._driver.deadline(timeout_ns)
        found: dict[str, Holding] = {}  # SCAN may name a key twice
        pattern = glob_escaped(self._prefix + prefix) + "*"
        cursor: Reply = b"0"
        while True:
            scan = pack(("SCAN", cursor, "MATCH", pattern, "COUNT", str(_SCAN_COUNT), "TYPE", "string"))
            reply = await self._commands.call(scan, deadline)
            if isinstance(reply, ReplyError):
                raise refusal(reply, self._address)
            match reply:
                case [bytes(cursor), list(names)] if all(type(name) is bytes for name in names):
                    seen = [name for name in map(text_or_none, names) if name is not None]
                    locks = [name for name in seen if name.removeprefix(self._prefix) > after]
                case _:
                    raise garbled(self._address, "a scan")
            for at in range(0, len(locks), KEYS_A_CALL):
                found.update(await self._read(locks[at : at + KEYS_A_CALL], deadline))
            if cursor == b"0":
                return heapq.nsmallest(max(0, limit), found.values(), key=lambda each: each.key)

    async def _read(self, locks: list[str], deadline: int) -> dict[str, Holding]:
        reply = await self._commands.run(INSPECT, 3 * len(locks), self._inspection(locks), deadline)
        if isinstance(reply, ReplyError):
            if str(reply).startswith("HFTYPE"):
                return {}  # the only one asked for became something else since the scan
            raise refusal(reply, self._address)
        if not isinstance(reply, list) or len(reply) != len(locks):
            raise garbled(self._address, "an inspection")
        result: dict[str, Holding] = {}
        for lock, answer in zip(locks, reply, strict=True):
            match answer:
                case [bytes(value), int(left_ms), int(tickets), int(listeners)]:
                    known = holding(lock.removeprefix(self._prefix), value, left_ms, max(tickets, listeners))
                    if known.fence is not None:
                        result[known.key] = known
        return result

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`. Never asked twice: that would write a second, or an empty, audit record."""
        deadline = self._driver.deadline(timeout_ns)
        lock = self._lock(key)
        words = (lock, self._fence(lock), self._audit(lock), self._hint_queue(lock), key, actor, reason, str(AUDIT_MAX))
        reply = await self._commands.run_once(_FORCE, 4, words, deadline)
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._address, lock)
        if reply is None:
            return None
        try:
            return audit_record(reply)
        except (KeyError, ValueError, TypeError, AttributeError):
            raise garbled(self._address, "a forced release") from None

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`. About the newest ten thousand are kept."""
        deadline = self._driver.deadline(timeout_ns)
        if limit <= 0:
            return []
        reply = await self._commands.call(pack(("XREVRANGE", self._audit_key, "+", "-", "COUNT", str(limit))), deadline)
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._address, self._audit_key)
        try:
            return [audit_record(fields) for _id, fields in reply]
        except (KeyError, ValueError, TypeError, AttributeError):
            raise Misconfigured(
                f"redis at {self._address}: {self._audit_key} holds records that are not ours; "
                "url option namespace: use another one"
            ) from None

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """See `ports.Store.leave`."""
        deadline = self._driver.deadline(timeout_ns)
        lock = self._lock(key)
        words = (lock, *self._queue(lock), self._hint_queue(lock), ticket)
        reply = await self._commands.run(_LEAVE, 4, words, deadline)
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._address, lock)

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """See `ports.Store.watch`. The next ask for the key queues the waiter; if it does not, its wait does."""
        lock = self._lock(key)
        queue = RedisHintQueue(self._commands, lock, self._hint_queue(lock))
        watch = QueuedWatch(queue, await self._listen(lock, timeout_ns), lock, self._forget)
        try:
            self._watches[lock] = watch
            return watch  # noqa: TRY300 - until it is returned it can be interrupted
        except BaseException:
            self._forget(watch)
            raise

    def _forget(self, watch: QueuedWatch) -> None:
        if self._watches.get(watch.lock) is watch:
            self._watches.pop(watch.lock, None)

    async def diagnose(self, timeout_ns: int) -> list[StoreFinding]:
        """See `ports.Diagnosable`."""
        deadline = self._driver.deadline(timeout_ns)
        sentinel, replicas = bool(self._address.service), self._address.wait_replicas
        return findings(await probe(self._driver, deadline, sentinel=sentinel, wait_replicas=replicas))

    async def ping(self, timeout_ns: int) -> None:
        """See `ports.Store.ping`."""
        reply = await self._commands.call(pack(("PING",)), self._driver.deadline(timeout_ns))
        if isinstance(reply, ReplyError):
            raise refusal(reply, self._address)
        if reply != b"PONG":
            raise garbled(self._address, "a ping")

    async def close(self) -> None:
        """See `ports.Store.close`."""
        await self._subscriber.close()
        await self._driver.close()

    def _lock(self, key: str) -> str:
        lock = self._prefix + key
        if lock in self._reserved or lock.startswith(self._fences):
            raise BadInput("name", f"{key!r} is where this store keeps its own records", "use another name")
        return lock

    def _queue(self, lock: str) -> tuple[str, str]:
        return f"{self._queues}{{{lock}}}", f"{self._tickets}{{{lock}}}"

    def _hint_queue(self, lock: str) -> str:
        return f"{self._hint_queues}{{{lock}}}"

    def _inspection(self, locks: list[str]) -> list[Word]:
        words: list[Word] = []
        for lock in locks:
            words += (lock, f"{self._tickets}{{{lock}}}", self._hint_queue(lock))
        words.append(str(VALUE_MAX))
        return words


class ManyRedisStore(RedisStore):
    """`ports.AcquiresMany` besides `ports.Store`."""

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        """See `ports.AcquiresMany`."""
        if any(ask.ticket is not None or ask.floor for ask in asks):
            raise BadInput("asks", "one has a ticket, or wants a fence from some number on", "ask for it alone")
        if self._address.wait_replicas:  # each of them has to be acknowledged, or undone
            return [await self.acquire(ask, timeout_ns) for ask in asks]
        deadline = self._driver.deadline(timeout_ns)
        heads = [self._head(ask) for ask in asks]
        calls = [self._acquire_words(ask, head) for ask, head in zip(asks, heads, strict=True)]
        packed = b"".join([ACQUIRE.by_hash(2, words) for words in calls])
        replies = await self._commands.call_all(packed, len(asks), deadline)
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
        """See `ports.AcquiresMany`."""
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
        return (lock, self._hint_queue(lock), grant.claim if known else ending, "" if known else "end", "0")
