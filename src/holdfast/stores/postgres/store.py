"""`ports.Store` on one Postgres database: what is asked and what the answers mean. See `engine` for the promises.

Written once for sync and asyncio: it awaits a driver, and nothing in it knows whether that blocks or suspends.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Sequence
from typing import Final, Protocol

from holdfast.core.diagnosis import StoreFinding
from holdfast.core.lease.fencing import FENCE_MAX
from holdfast.core.ports import LISTEN_NS, Capabilities, Watch
from holdfast.errors import BackendError, BadInput, Misconfigured, Timeout, Unavailable
from holdfast.runtime.connection_pool import ConnectionBroken
from holdfast.stores.postgres.connection import Row, Value
from holdfast.stores.postgres.diagnosis import facts_of, findings
from holdfast.stores.postgres.errors import Conflict, TablesMissing
from holdfast.stores.postgres.listener import PostgresSubscription
from holdfast.stores.postgres.schema import check_version, creation, statement
from holdfast.stores.postgres.url import PostgresAddress, parse_postgres_url
from holdfast.stores.waiter import QueuedWatch
from holdfast.types import MS, NS, AcquireRequest, AuditRecord, Busy, Grant, Guarantee, Holding, Ownership, Renewal

CAPABILITIES: Final = Capabilities(
    engine="postgres", guarantee=Guarantee.FENCED, wakeups=True, fair=True, durable=True, shared=True, many=True
)

LISTEN_TTL_NS: Final = 30 * NS  # a waiter that has not asked for so long is not notified
_LAST: Final = "\U0010ffff"
_SWEEP_EVERY: Final = 1000  # grants
_SWEEP_KEYS: Final = 1000
_CONFLICTS_MAX: Final = 10  # so often a request is repeated that the server asks for again
_ANSWER_NS: Final = 20 * MS  # the least that is left for the answer when a wait for a lock ends
_US: Final = 1000


class PostgresDriver(Protocol):
    """Connections, for threads or for one event loop."""

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over, on the driver's clock."""
        ...

    async def call(
        self, text: bytes, values: Sequence[Value] | None, deadline_ns: int, greeted: list[int] | None = None
    ) -> list[Row]:
        """Run one statement, or without `values` a script, and return its rows.

        `greeted` gets the process that the greeting of the used connection named.
        """
        ...

    async def settled(self, deadline_ns: int) -> None:
        """Wait until no request is under way that its caller has given up."""
        ...

    async def close(self) -> None:
        """Close idle connections."""
        ...


class PostgresSubscriber(Protocol):
    """Opens subscriptions, for threads or for one event loop."""

    async def open(self, timeout_ns: int) -> PostgresSubscription:
        """A subscription that receives hints from now on."""
        ...

    async def close(self) -> None:
        """Close idle subscriptions."""
        ...


class _PostgresHintQueue:
    """The waiters of one key: a `stores.waiter.HintQueue`."""

    __slots__ = ("_channel", "_key", "_store")

    ttl_ns = LISTEN_TTL_NS

    def __init__(self, store: PostgresStore, key: str, channel: str) -> None:
        self._store = store
        self._key = key
        self._channel = channel

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return self._store.deadline(timeout_ns)

    async def join(self, entry: str, deadline_ns: int) -> bool:
        """Join the queue, unless the key is free."""
        values = (self._key, self._channel, entry, LISTEN_TTL_NS // _US, self._store.lock_ms(deadline_ns))
        return (await self._store.call("holdfast_listen", values, deadline_ns)) == [(b"t",)]

    async def leave(self, entry: str, deadline_ns: int) -> bool:
        """Leave the queue."""
        await self._store.settled(deadline_ns)
        values = (self._key, entry, False, self._store.lock_ms(deadline_ns))
        await self._store.call("holdfast_leave", values, deadline_ns)
        return True


class PostgresStore:
    """`ports.Store` on one database, in the color of its driver."""

    def __init__(self, address: PostgresAddress, driver: PostgresDriver, subscriber: PostgresSubscriber) -> None:
        self._address = address
        self._driver = driver
        self._subscriber = subscriber
        self._checked = False  # whether the tables were seen, and are not newer than this code
        self._version = statement("version", address)
        self._holdings = statement("holdings", address)
        self._audit = statement("audit", address)
        self._ownership = statement("condition", address).decode()
        self._until_sweep = _SWEEP_EVERY
        self._swept = ""
        # The newest waiter of each key. Of all waiters of a process only one gets past the local mutex and asks;
        # others that come here all the same join the queue when they wait.
        self._watches: dict[str, tuple[QueuedWatch, str]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return CAPABILITIES

    def __repr__(self) -> str:
        return f"<PostgresStore at {self._address}>"

    def ownership(self, grant: Grant, schema: str | None) -> Ownership:
        """See `ports.SharesDatabase`. Time is left out: see `sql/condition.sql`."""
        if schema is not None:
            raise BadInput("schema", "names an attached database of SQLite", "leave it out; the URL names the schema")
        parameters: dict[str, str | int] = {
            "holdfast_key": grant.key,
            "holdfast_owned": _digest(grant.token),
            "holdfast_at": grant.fence,
        }
        return Ownership(self._ownership, parameters, str(self._address), "postgres")

    def ownership_check(self, database: str) -> str | None:
        """See `ports.ChecksOwnership`."""
        same = parse_postgres_url(database).is_same_database(self._address)
        return statement("owned", self._address).decode() if same else None

    # Leases.

    async def acquire(self, ask: AcquireRequest, timeout_ns: int) -> Grant | Busy:
        """See `ports.Store.acquire`. A request without a ticket ignores the queue of those with one."""
        deadline = self._driver.deadline(timeout_ns)
        watch, channel = self._watches.get(ask.key, (None, ""))
        if watch is not None and not watch.may_ask:
            watch = None
        entry = "" if watch is None else watch.entry
        values = (
            *(ask.key, _digest(ask.token), ask.owner, ask.family, _us(ask.ttl_ns), self.lock_ms(deadline)),
            *(("", 0) if ask.ticket is None else (_digest(ask.ticket), _us(ask.ticket_ttl_ns))),
            *(channel if entry else "", entry, LISTEN_TTL_NS // _US),
        )
        await self._sweep(1, deadline)
        try:
            rows = await self.call("holdfast_acquire", values, deadline)
        except Conflict:
            return Busy(ask.key, None, None)
        except BaseException as error:
            if watch is not None:
                watch.unanswered(error)
            raise
        ((fence, owner, left_us, ahead),) = rows
        if watch is not None:
            watch.answered(fence is not None)
        return self._answer(ask, fence, owner, left_us, ahead)

    def _answer(self, ask: AcquireRequest, fence: Value, owner: Value, left_us: Value, ahead: Value) -> Grant | Busy:
        if fence is None:
            left_ns = None if left_us is None else int(left_us) * _US
            return Busy(ask.key, None if owner is None else owner.decode(), left_ns, int(ahead or 0))
        number = int(fence)
        if not 0 < number <= FENCE_MAX:  # what no guard can compare is no fence, and without one this is no grant
            raise Timeout(f"{self._address} answered with a fence that is none")
        return Grant(ask.key, ask.token, number, "")

    async def renew_many(self, renewals: Sequence[Renewal], timeout_ns: int) -> list[bool | None]:
        """See `ports.Store.renew_many`. All of them or, when it raises, none or all."""
        if not renewals:
            return []
        deadline = self._driver.deadline(timeout_ns)
        keys = _array([each.key for each in renewals])
        tokens = _array([_digest(each.token) for each in renewals])
        ttls = _array([str(_us(each.ttl_ns)) for each in renewals])
        ((answers,),) = await self.call("holdfast_renew", (keys, tokens, ttls, self.lock_ms(deadline)), deadline)
        return [*_yes_or_no(answers, len(renewals))]

    async def release(self, key: str, token: str, claim: str | None, keep_ns: int, timeout_ns: int) -> bool:
        """See `ports.Store.release`. The claim is not needed: a table finds the lease by its key.

        After a broken connection it asks again, but only a yes is an answer then: a no may mean that the first request
        did the work, or that the lease had been lost before.
        """
        deadline = self._driver.deadline(timeout_ns)
        await self.settled(deadline)
        values = (key, _digest(token), _us(max(0, keep_ns)), self.lock_ms(deadline))
        try:
            rows = await self.call("holdfast_release", values, deadline, again=False)
        except ConnectionBroken as severed:
            rows = await self._once_more(severed, "holdfast_release", values, deadline)
            if rows != [(b"t",)]:
                raise
        return rows == [(b"t",)]

    async def acquire_many(self, asks: Sequence[AcquireRequest], timeout_ns: int) -> list[Grant | Busy]:
        """See `ports.AcquiresMany`. One statement, one transaction."""
        if any(ask.ticket is not None for ask in asks):
            raise BadInput("asks", "one has a ticket", "ask for it alone")
        if not asks:
            return []
        deadline = self._driver.deadline(timeout_ns)
        columns = (
            [ask.key for ask in asks],
            [_digest(ask.token) for ask in asks],
            [ask.owner for ask in asks],
            [ask.family for ask in asks],
            [str(_us(ask.ttl_ns)) for ask in asks],
        )
        await self._sweep(len(asks), deadline)
        values = (*map(_array, columns), self.lock_ms(deadline))
        try:
            rows = await self.call("holdfast_acquire_many", values, deadline)
        except Conflict:
            return [Busy(ask.key, None, None) for ask in asks]
        found = {int(number or 0): (fence, owner, left_us) for number, fence, owner, left_us in rows}
        return [self._answer(ask, *found[at], b"0") for at, ask in enumerate(asks, 1)]

    async def release_many(self, grants: Sequence[Grant], timeout_ns: int) -> list[bool | None]:
        """See `ports.AcquiresMany`. One statement, one transaction. Never asked twice: see `release`."""
        if not grants:
            return []
        deadline = self._driver.deadline(timeout_ns)
        tokens = _array([_digest(grant.token) for grant in grants])
        values = (_array([grant.key for grant in grants]), tokens, self.lock_ms(deadline))
        ((answers,),) = await self.call("holdfast_release_many", values, deadline, again=False)
        return [*_yes_or_no(answers, len(grants))]

    async def force_release(self, key: str, actor: str, reason: str, timeout_ns: int) -> AuditRecord | None:
        """See `ports.Store.force_release`. Never asked twice: that would find the key free, and report no record."""
        deadline = self._driver.deadline(timeout_ns)
        values = (key, actor, reason, secrets.token_hex(16), self.lock_ms(deadline))
        columns = "(extract(epoch FROM at) * 1000000)::bigint, action, key, actor, reason, previous_owner, "
        columns += "previous_fence, fence"
        rows = await self.call("holdfast_force_release", values, deadline, again=False, columns=columns)
        return _audit_record(rows[0]) if rows else None

    # What operators ask. None of it creates a table.

    async def inspect(self, key: str, timeout_ns: int) -> Holding | None:
        """See `ports.Store.inspect`."""
        found = await self._held(key, key + "\x01", "", 1, timeout_ns)
        return found[0] if found else None

    async def holdings(self, prefix: str, limit: int, timeout_ns: int, after: str = "") -> list[Holding]:
        """See `ports.Store.holdings`."""
        first = max(prefix, after + "\x01") if after else prefix
        return await self._held(first, prefix + _LAST, prefix, limit, timeout_ns)

    async def _held(self, first: str, last: str, prefix: str, limit: int, timeout_ns: int) -> list[Holding]:
        deadline = self._driver.deadline(timeout_ns)
        rows = await self._read(self._holdings, (first, last, prefix, max(0, limit)), deadline)
        return [_holding(row) for row in rows]

    async def audit(self, limit: int, timeout_ns: int) -> list[AuditRecord]:
        """See `ports.Store.audit`."""
        rows = await self._read(self._audit, (max(0, limit),), self._driver.deadline(timeout_ns))
        return [_audit_record(row) for row in rows]

    async def time_ns(self, timeout_ns: int) -> int:
        """See `ports.HasServerTime`."""
        text = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        ((us,),) = await self._answered(text, (), self._driver.deadline(timeout_ns))
        return int(us or 0) * _US

    async def ping(self, timeout_ns: int) -> None:
        """See `ports.Store.ping`. A server that only reads is of no use, and does not count as an answer."""
        text = b"SELECT current_setting('transaction_read_only')"
        if await self._answered(text, (), self._driver.deadline(timeout_ns)) != [(b"off",)]:
            raise Unavailable(f"{self._address} only reads now (a standby, or a failover under way)")

    async def diagnose(self, timeout_ns: int) -> list[StoreFinding]:
        """See `ports.Diagnosable`. Creates nothing."""
        greeted: list[int] = []
        text = statement("diagnosis", self._address)
        (row,) = await self._driver.call(text, (), self._driver.deadline(timeout_ns), greeted)
        return findings(facts_of(row, greeted[0]), timeout_ns, self._address.pool_max)

    async def has_tables(self, timeout_ns: int) -> bool:
        """Whether the tables of a lease store are there, of whatever version. Creates nothing."""
        try:
            return bool(await self._answered(self._version, (), self._driver.deadline(timeout_ns)))
        except TablesMissing:
            return False

    # Waiters.

    async def leave(self, key: str, ticket: str, timeout_ns: int) -> None:
        """See `ports.Store.leave`."""
        deadline = self._driver.deadline(timeout_ns)
        await self.settled(deadline)
        await self.call("holdfast_leave", (key, _digest(ticket), True, self.lock_ms(deadline)), deadline)

    async def watch(self, key: str, timeout_ns: int = LISTEN_NS) -> Watch:
        """See `ports.Store.watch`. The next ask for the key queues the waiter; if it does not, its wait does."""
        subscription = await self._subscriber.open(timeout_ns)
        queue = _PostgresHintQueue(self, key, subscription.channel)
        watch = QueuedWatch(queue, subscription, key, self._forget)
        try:
            self._watches[key] = (watch, subscription.channel)
            return watch  # noqa: TRY300 - until it is returned it can be interrupted
        except BaseException:
            self._forget(watch)
            raise

    def _forget(self, watch: QueuedWatch) -> None:
        if self._watches.get(watch.lock, (None, ""))[0] is watch:
            self._watches.pop(watch.lock, None)

    async def close(self) -> None:
        """See `ports.Store.close`."""
        await self._subscriber.close()
        await self._driver.close()

    # Requests.

    def deadline(self, timeout_ns: int) -> int:
        """When a call that may take so long has to be over."""
        return self._driver.deadline(timeout_ns)

    async def settled(self, deadline_ns: int) -> None:
        """Wait for the requests of cancelled callers: the acquire that is to be undone may be among them."""
        await self._driver.settled(deadline_ns)

    def lock_ms(self, deadline_ns: int) -> int:
        """How long the server may wait for a lock, so that its answer comes in time."""
        left_ns = deadline_ns - self._driver.deadline(0)
        return max(1, (left_ns - max(_ANSWER_NS, left_ns // 10)) // MS)

    async def call(
        self, function: str, values: Sequence[object], deadline_ns: int, *, again: bool = True, columns: str = "*"
    ) -> list[Row]:
        """Call a function of the schema, which is created if it does not exist."""
        if not self._checked:
            await self._prepare(deadline_ns)
        places = ", ".join(f"${at}" for at in range(1, len(values) + 1))
        text = f"SELECT {columns} FROM {self._address.schema}.{function}({places})".encode()  # noqa: S608 - our own names
        try:
            return await self._answered(text, values, deadline_ns, again=again)
        except TablesMissing:  # they were dropped
            await self._create(deadline_ns)
            return await self._answered(text, values, deadline_ns, again=again)

    async def _read(self, text: bytes, values: Sequence[object], deadline_ns: int) -> list[Row]:
        try:
            return await self._answered(text, values, deadline_ns)
        except TablesMissing:
            return []

    async def _answered(
        self, text: bytes, values: Sequence[object], deadline_ns: int, *, again: bool = True
    ) -> list[Row]:
        """Ask; and ask again after a conflict, or, where that is harmless, once after a broken connection.

        What must not happen is that the second try hides the doubt of the first: if it is refused or cannot be sent,
        the outcome is still unknown, and the error of the first is raised.
        """
        packed = [_packed(value) for value in values]
        conflicts = 0
        while True:
            try:
                return await self._driver.call(text, packed, deadline_ns)
            except Conflict:
                conflicts += 1
                if conflicts >= _CONFLICTS_MAX:
                    raise
            except ConnectionBroken as severed:
                if not again:
                    raise
                try:
                    return await self._driver.call(text, packed, deadline_ns)
                except (Unavailable, Misconfigured):
                    raise severed from None

    async def _once_more(
        self, severed: ConnectionBroken, function: str, values: Sequence[object], deadline_ns: int
    ) -> list[Row]:
        try:
            return await self.call(function, values, deadline_ns, again=False)
        except (Unavailable, Misconfigured):
            raise severed from None

    async def _prepare(self, deadline_ns: int) -> None:
        """Make sure that the tables are there, in a version that this code knows."""
        try:
            there = check_version(await self._answered(self._version, (), deadline_ns), self._address)
        except TablesMissing:
            there = False
        if not there:
            await self._create(deadline_ns)
        self._checked = True

    async def _create(self, deadline_ns: int) -> None:
        await self._driver.call(creation(self._address), None, deadline_ns)
        check_version(await self._answered(self._version, (), deadline_ns), self._address)

    async def _sweep(self, grants: int, deadline_ns: int) -> None:
        """Remove expired leases that were never asked for again, now and then, in a part of the caller's time."""
        self._until_sweep -= grants
        if self._until_sweep > 0:
            return
        self._until_sweep = _SWEEP_EVERY
        now = self._driver.deadline(0)
        with contextlib.suppress(BackendError):  # another time, then
            until = now + (deadline_ns - now) // 4
            ((place,),) = await self.call("holdfast_sweep", (self._swept, _SWEEP_KEYS), until, again=False)
            self._swept = (place or b"").decode()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _us(ns: int) -> int:
    """Whole microseconds, rounded up: the server must not let go before the holder does."""
    return -(-ns // _US)


def _packed(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"t" if value else b"f"
    # No text of Postgres has a zero byte, and UTF-8 has no lone surrogates. No key has either.
    return str(value).replace("\0", "\\0").encode("utf-8", "backslashreplace")


def _array(texts: Sequence[str]) -> bytes:
    """An array in the text form of Postgres."""
    quoted = ['"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"' for each in texts]
    return ("{" + ",".join(quoted) + "}").encode("utf-8", "backslashreplace")


def _yes_or_no(answers: Value, number: int) -> list[bool | None]:
    if answers is None or len(answers) != number:
        return [None] * number
    return [each == ord("1") for each in answers]


def _holding(row: Row) -> Holding:
    key, owner, fence, family, granted, left, mark, waiters = [(each or b"").decode() for each in row]
    return Holding(key, owner, int(fence), family, int(granted) * _US, int(left) * _US, mark, int(waiters))


def _audit_record(row: Row) -> AuditRecord:
    at, action, key, actor, reason, owner, previous, fence = [None if each is None else each.decode() for each in row]
    number = None if previous is None else int(previous)
    return AuditRecord(
        int(at or 0) * _US, action or "", key or "", actor or "", reason or "", owner or "", number, int(fence or 0)
    )
