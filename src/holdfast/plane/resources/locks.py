"""Locks for systems outside the plane, on resources that they name: shared or exclusive, each holder with a token.

Promises:

- An exclusive holder is alone.
- The fence of a grant is above that of every earlier grant of the resource, even after all records of it are deleted.
- Each holder has its own token and expiry, so one holder's renewal or silence does not affect another's.
- Renewal and release need the token of a current holder; otherwise they are `NotOwner` and change nothing.
- A refused writer blocks new readers for `READER_BLOCK_NS`, and longer if it asks again within that time.
- A resource belongs to one tenant, and is named by tenant and resource together.
- Repeating a request with the same token returns the same grant, so a lost answer can be requested again. Another mode
  or owner with that token is refused.
- A client that is known to have disconnected before the answer holds nothing and blocks no reader.
- A forced release takes effect immediately and leaves a permanent record.

Does not promise an order among writers: the first request after a release wins. Is not re-entrant, and a reader cannot
become a writer: it would wait for its own lock. `owner` is a label for people and proves nothing. A holder that lost a
resource by force finds out at its next renewal; its writes are refused where fences are checked, once a later holder
has written.

Both modes are rows in the plane's database, not leases. Readers and a writer must exclude each other in one atomic
step, which leases of several holders cannot offer on every engine.

Clock: that of the database (for SQLite, of this host, the only one that uses the file); never the caller's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from holdfast.core.ports import Clock, Entropy
from holdfast.errors import Closed, HoldfastError, LockBusy, NotOwner, Timeout
from holdfast.flows.log import log_event
from holdfast.plane.db.database_clock import database_now
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.records import check_whole
from holdfast.plane.resources.client_wait import ClientWait, WaitEnd
from holdfast.plane.resources.model import (
    BEFORE_ALL,
    PAGE_MAX,
    READER_BLOCK_NS,
    TIMEOUT_MAX_NS,
    TTL_S,
    HolderCursor,
    ResourceGrant,
    ResourceHolder,
    ResourceMode,
    ResourceRequest,
    channel_of,
    check_mode,
    check_owner,
    check_resource,
    check_token,
    check_ttl,
    holder_of,
    named,
    proof,
)
from holdfast.types import MS, NS, Duration, check_label, duration_ns

UNDO_S: Final = 5.0  # time limit of an undo; after that the grant expires

_SLOT: Final = sql("resource_slot")
_HOLD: Final = {"sqlite": _SLOT, "postgres": f"{_SLOT} FOR UPDATE"}
_FENCE: Final = sql("resource_fence")
_HOLDERS: Final = sql("resource_holders")
_GRANT: Final = sql("resource_grant")
_RENEW: Final = sql("resource_renew")
_RELEASE: Final = sql("resource_release")
_UNDO: Final = sql("resource_undo")
_SWEEP: Final = sql("resource_sweep")
_LIST_ALL: Final = sql("resource_list_all")
_LIST_TENANT: Final = sql("resource_list_tenant")
_BLOCK_READERS: Final = sql("resource_block_readers")
_READERS_BLOCKED: Final = sql("resource_readers_blocked")
_UNBLOCK_READERS: Final = sql("resource_unblock_readers")
_SWEEP_READER_BLOCKS: Final = sql("resource_sweep_reader_blocks")

_log: Final = logging.getLogger("holdfast.plane")

RESOURCE_SCHEMAS: Final = ("resource_schema", "resource_break_schema")


class ResourceLocks:
    """The resource locks of one plane."""

    def __init__(self, database: Database, clock: Clock, entropy: Entropy) -> None:
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self._undoing: set[asyncio.Task[None]] = set()  # the event loop keeps no strong references

    async def prepare(self) -> None:
        """Create the tables if they are missing."""
        for name in RESOURCE_SCHEMAS:
            await prepare(self._database, name)

    async def acquire(
        self,
        tenant: str,
        resource: str,
        *,
        owner: str,
        mode: ResourceMode | str = ResourceMode.EXCLUSIVE,
        ttl: Duration = TTL_S,
        timeout: Duration = 0.0,
        token: str | None = None,
        client: ClientWait | None = None,
    ) -> ResourceGrant:
        """Acquire a resource. `LockBusy` if it is not available within `timeout`.

        `token`: made up by the caller, who can then repeat the request after a lost answer. A request with the token of
        a current holder returns the same grant with a new expiry. `client` ends the wait early. If the client has
        disconnected, the wait ends with `LockBusy` and leaves nothing behind. If the process shuts down, it ends with
        `Closed`, and a writer still blocks readers: it may ask another process in time.
        """
        request = ResourceRequest(
            *named(tenant, resource),
            check_owner(owner),
            check_mode(mode),
            check_ttl(ttl),
            token is not None,
            self._entropy.token() if token is None else check_token(token),
        )
        limit_ns = duration_ns("timeout", timeout, high_ns=TIMEOUT_MAX_NS)
        client = client or ClientWait()
        answer = await (self._wait(request, limit_ns, client) if limit_ns else self._try_committed(request))
        if client.ended is WaitEnd.LEFT:
            await self._undo(request, answer)
            raise LockBusy(f"the client no longer waits for resource {request.resource!r}", key=request.resource)
        if isinstance(answer, LockBusy):
            raise Closed("the plane is shutting down") if client.ended is WaitEnd.CLOSING else answer
        return answer

    async def renew(self, tenant: str, resource: str, token: str, *, ttl: Duration = TTL_S) -> ResourceHolder:
        """Set the expiry of one holder to `ttl` from now, or `NotOwner`."""
        where, ttl_ns = proof(tenant, resource, token), check_ttl(ttl)

        async def work(tx: Tx) -> ResourceHolder | None:
            now_ns, _ = await self.lock_slot(tx, where["slot"])
            rows = await tx.query(_RENEW, {**where, "now_ns": now_ns, "expires_ns": now_ns + ttl_ns})
            return holder_of(rows[0], now_ns) if rows else None

        renewed = await self._database.write(work)
        if renewed is None:
            raise NotOwner(key=resource)
        return renewed

    async def release(self, tenant: str, resource: str, token: str) -> ResourceHolder:
        """Release a resource, or `NotOwner`. Returns the released holder."""
        where = proof(tenant, resource, token)

        async def work(tx: Tx) -> ResourceHolder | None:
            now_ns, _ = await self.lock_slot(tx, where["slot"])
            rows = await tx.query(_RELEASE, {**where, "now_ns": now_ns})
            tx.notify(channel_of(where["slot"]))
            return holder_of(rows[0], now_ns) if rows else None

        released = await self._database.write(work)
        if released is None:
            raise NotOwner(key=resource)
        return released

    async def holders(self, tenant: str, resource: str) -> list[ResourceHolder]:
        """The current holders of a resource, in the order of their grants."""
        name, key = named(tenant, resource)

        async def work(tx: Tx) -> list[ResourceHolder]:
            now_ns = await database_now(tx, self._clock)
            rows = await tx.query(_HOLDERS, {"tenant": name, "resource": key, "now_ns": now_ns})
            return [holder_of(row, now_ns) for row in rows]

        return await self._database.read(work)

    async def page(
        self,
        tenant: str | None = None,
        *,
        resource: str | None = None,
        after: HolderCursor = BEFORE_ALL,
        limit: int = 100,
    ) -> list[ResourceHolder]:
        """Holders of the resources of a tenant, or of all tenants; or of one resource name. Ordered by their places.

        The next page starts after the `place` of the last one.
        """
        where = {
            "tenant": after.tenant if tenant is None else check_label("tenant", tenant),
            "resource": after.resource,
            "fence": after.fence,
            "only": None if resource is None else check_resource(resource),
            "most": check_whole("limit", limit, 1, PAGE_MAX),
        }
        statement = _LIST_ALL if tenant is None else _LIST_TENANT

        async def work(tx: Tx) -> list[ResourceHolder]:
            now_ns = await database_now(tx, self._clock)
            return [holder_of(row, now_ns) for row in await tx.query(statement, {**where, "now_ns": now_ns})]

        return await self._database.read(work)

    async def lock_slot(self, tx: Tx, slot: int) -> tuple[int, int]:
        """As part of a transaction, lock a slot. Returns the current time and the newest fence of the slot."""
        rows = await tx.query(_HOLD[tx.dialect], {"slot": slot})
        return await database_now(tx, self._clock), rows[0]["fence"]

    # One transaction.

    async def _try(self, tx: Tx, request: ResourceRequest) -> ResourceGrant | LockBusy:
        """One request. Busy is returned and not raised, because the block on readers is committed with it."""
        slot, where = request.slot, {"tenant": request.tenant, "resource": request.resource}
        now_ns, newest = await self.lock_slot(tx, slot)
        await tx.query(_SWEEP, {"slot": slot, "now_ns": now_ns})
        await tx.query(_SWEEP_READER_BLOCKS, {"slot": slot, "now_ns": now_ns})
        rows = await tx.query(_HOLDERS, {**where, "now_ns": now_ns})
        own = next((row for row in rows if row["token"] == request.digest), None)
        if own is not None:
            return await self._repeated(tx, request, own, now_ns)
        holders = [holder_of(row, now_ns) for row in rows]
        if request.mode is ResourceMode.EXCLUSIVE and holders:
            await tx.query(
                _BLOCK_READERS, {**where, "owner": request.owner, "slot": slot, "until_ns": now_ns + READER_BLOCK_NS}
            )
            return request.busy(holders[0].owner, max(each.remaining_ns for each in holders))
        if any(each.mode is ResourceMode.EXCLUSIVE for each in holders):
            return request.busy(holders[0].owner, holders[0].remaining_ns)
        if request.mode is ResourceMode.SHARED:
            blocked_until = (await tx.query(_READERS_BLOCKED, {**where, "now_ns": now_ns}))[0]["until_ns"]
            if blocked_until is not None:
                return request.busy(None, blocked_until - now_ns)
        else:
            await tx.query(_UNBLOCK_READERS, {**where, "owner": request.owner})
        # The clock is a lower bound, so a database that was restored from a backup does not grant old fences again.
        fence = max(newest + 1, now_ns // 1000)
        await tx.query(_FENCE, {"slot": slot, "fence": fence})
        values = {
            "token": request.digest,
            "slot": slot,
            "mode": str(request.mode),
            "owner": request.owner,
            "fence": fence,
        }
        await tx.query(_GRANT, {**where, **values, "now_ns": now_ns, "expires_ns": now_ns + request.ttl_ns})
        holder = ResourceHolder(
            request.tenant, request.resource, request.mode, request.owner, fence, now_ns, request.ttl_ns
        )
        return ResourceGrant(holder, request.token)

    async def _repeated(self, tx: Tx, request: ResourceRequest, own: Row, now_ns: int) -> ResourceGrant:
        request.check_repetition(own)
        where = {"tenant": request.tenant, "resource": request.resource, "token": request.digest}
        rows = await tx.query(_RENEW, {**where, "now_ns": now_ns, "expires_ns": now_ns + request.ttl_ns})
        return ResourceGrant(holder_of(rows[0], now_ns), request.token, fresh=False)

    # Requests and waits.

    async def _try_committed(self, request: ResourceRequest) -> ResourceGrant | LockBusy:
        """One committed request. If the caller cannot learn the result, the grant is undone."""
        try:
            return await self._database.write(lambda tx: self._try(tx, request))
        except (asyncio.CancelledError, Timeout):
            if not request.own:  # a caller with its own token can repeat the request
                await self._undo(request, None)
            raise

    async def _wait(self, request: ResourceRequest, limit_ns: int, client: ClientWait) -> ResourceGrant | LockBusy:
        """Retry when the resource may be free: at a notification, or when a holder expires."""
        until_ns = self._clock.now().mono + limit_ns
        listener = self._database.listen(channel_of(request.slot))
        try:
            while True:  # ends when the time has ended
                answer = await self._try_committed(request)
                left_ns = until_ns - self._clock.now().mono
                if isinstance(answer, ResourceGrant) or left_ns <= 0:
                    return answer
                await client.wait(listener, min(left_ns, max(MS, round(answer.retry_after * NS))))
                if client.ended is not None:
                    return answer
        finally:
            listener.close()

    async def _undo(self, request: ResourceRequest, answer: ResourceGrant | LockBusy | None) -> None:
        """Undo a request: its grant and its block on readers. `answer` None: the result is unknown.

        Continues when the caller is cancelled, within a time limit.
        """
        if isinstance(answer, ResourceGrant) and not answer.fresh:
            return  # its holder knew it before
        expires_ns = None if not isinstance(answer, ResourceGrant) else answer.holder.granted_ns + request.ttl_ns
        where: dict[str, Any] = {"tenant": request.tenant, "resource": request.resource}

        async def work(tx: Tx) -> None:
            await self.lock_slot(tx, request.slot)
            if not isinstance(answer, LockBusy):
                await tx.query(_UNDO, {**where, "token": request.digest, "expires_ns": expires_ns})
            # Another writer that waits under the same name blocks readers again at its next try.
            await tx.query(_UNBLOCK_READERS, {**where, "owner": request.owner})
            tx.notify(channel_of(request.slot))

        async def bounded() -> None:
            try:
                async with asyncio.timeout(UNDO_S):
                    await self._database.write(work)
            except (HoldfastError, TimeoutError) as error:
                log_event(
                    _log, logging.WARNING, "a resource that its client no longer waits for was not released", error
                )

        task = asyncio.create_task(bounded(), name="resource undo")
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        await asyncio.shield(task)
