"""Locks for systems outside the plane, on resources that they name: shared or exclusive, each holder with a proof.

Promises: an exclusive holder is alone; a grant's fence is above that of every earlier grant of the resource, also when
all records of it are gone; each holder has a token and an expiry of its own, so that no holder's renewal or silence
touches another's; renewal and release with anything but the token of a present holder is `NotOwner`, and changes
nothing. A writer that was turned away keeps new readers out for `WISH_NS`, and longer if it asks again within that
time. A resource belongs to one tenant: the two together are its name, and there is no other way to name it. The same
ask repeated with the same token gives the same grant, so that an answer that was lost can be asked for again; another
mode or owner under that token is refused. Whoever is known to have gone away before the answer holds nothing and keeps
nobody out. What an operator takes away is gone at once, and leaves a record for good.

Does not promise a turn among writers: whoever asks first after a release has it. Is not re-entrant, and a reader cannot
become a writer: it would wait for itself. `owner` is a label for people and proves nothing. A holder from whom a
resource was taken is not told: it finds out at its next renewal, and what it writes is refused where fences are checked
once somebody else has been there.

Both modes are rows of the plane's database, and not leases: readers and a writer must exclude each other in one atomic
step, which leases of several holders cannot offer on every engine; one mechanism also means one place to look.

Clock: that of the database (for SQLite, of this host, which is the only one that uses the file); never the caller's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from holdfast.core.ports import Clock, Entropy
from holdfast.errors import Closed, HoldfastError, LockBusy, NotOwner, Timeout
from holdfast.flows.log import say
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.ports import Database, Row, Tx
from holdfast.plane.db.statements import sql
from holdfast.plane.model.records import check_whole
from holdfast.plane.resources.client_wait import Parting, Patience
from holdfast.plane.resources.model import (
    BEFORE_ALL,
    PAGE_MAX,
    TIMEOUT_MAX_NS,
    TTL_S,
    WISH_NS,
    Ask,
    HolderPlace,
    Mode,
    ResourceGrant,
    ResourceHolder,
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

UNDO_S: Final = 5.0  # for giving back what nobody waits for; after that it ends with its time

_SLOT: Final = sql("resource_slot")
_HOLD: Final = {"sqlite": _SLOT, "postgres": f"{_SLOT} FOR UPDATE"}
_NOW: Final = sql("resource_now_postgres")
_FENCE: Final = sql("resource_fence")
_HOLDERS: Final = sql("resource_holders")
_GRANT: Final = sql("resource_grant")
_RENEW: Final = sql("resource_renew")
_RELEASE: Final = sql("resource_release")
_UNDO: Final = sql("resource_undo")
_SWEEP: Final = sql("resource_sweep")
_LIST_ALL: Final = sql("resource_list_all")
_LIST_TENANT: Final = sql("resource_list_tenant")
_WISH: Final = sql("resource_wish")
_WISHED: Final = sql("resource_wished")
_UNWISH: Final = sql("resource_unwish")
_UNWISH_OVER: Final = sql("resource_unwish_over")

_log: Final = logging.getLogger("holdfast.plane")

RESOURCE_SCHEMAS: Final = ("resource_schema", "resource_break_schema")


class ResourceLocks:
    """The resource locks of one plane."""

    def __init__(self, database: Database, clock: Clock, entropy: Entropy) -> None:
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self._undoing: set[asyncio.Task[None]] = set()  # the event loop itself would let them be collected

    async def prepare(self) -> None:
        """Make the tables if they are not there."""
        for name in RESOURCE_SCHEMAS:
            await prepare(self._database, name)

    async def acquire(
        self,
        tenant: str,
        resource: str,
        *,
        owner: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        ttl: Duration = TTL_S,
        timeout: Duration = 0.0,
        token: str | None = None,
        patience: Patience | None = None,
    ) -> ResourceGrant:
        """Take a resource, or `LockBusy` when it cannot be had within `timeout`.

        `token`: one that the caller has made up, so that it can ask again when it has not heard the answer; an ask with
        the token of a present holder gives the same grant, with its expiry set anew. `patience`: how the wait is ended
        from outside. For somebody who has left, it ends with `LockBusy` and leaves nothing behind. In a process that
        begins to end, it ends with `Closed`, and the wish of a writer stands: it may come back elsewhere in time.
        """
        ask = Ask(
            *named(tenant, resource),
            check_owner(owner),
            check_mode(mode),
            check_ttl(ttl),
            token is not None,
            self._entropy.token() if token is None else check_token(token),
        )
        limit_ns = duration_ns("timeout", timeout, high_ns=TIMEOUT_MAX_NS)
        patience = patience or Patience()
        answer = await (self._wait(ask, limit_ns, patience) if limit_ns else self._asked(ask))
        if patience.ended is Parting.LEFT:
            await self._undo(ask, answer)
            raise LockBusy(f"nobody waits for resource {ask.resource!r} any more", key=ask.resource)
        if isinstance(answer, LockBusy):
            raise Closed("the plane is shutting down") if patience.ended is Parting.CLOSING else answer
        return answer

    async def renew(self, tenant: str, resource: str, token: str, *, ttl: Duration = TTL_S) -> ResourceHolder:
        """Set the expiry of one holder to `ttl` from now, or `NotOwner`."""
        where, ttl_ns = proof(tenant, resource, token), check_ttl(ttl)

        async def work(tx: Tx) -> ResourceHolder | None:
            now_ns, _ = await self.turn(tx, where["slot"])
            rows = await tx.query(_RENEW, {**where, "now_ns": now_ns, "expires_ns": now_ns + ttl_ns})
            return holder_of(rows[0], now_ns) if rows else None

        renewed = await self._database.write(work)
        if renewed is None:
            raise NotOwner(key=resource)
        return renewed

    async def release(self, tenant: str, resource: str, token: str) -> ResourceHolder:
        """Give a resource back, or `NotOwner`. Returns what was held."""
        where = proof(tenant, resource, token)

        async def work(tx: Tx) -> ResourceHolder | None:
            now_ns, _ = await self.turn(tx, where["slot"])
            rows = await tx.query(_RELEASE, {**where, "now_ns": now_ns})
            tx.ring(channel_of(where["slot"]))
            return holder_of(rows[0], now_ns) if rows else None

        released = await self._database.write(work)
        if released is None:
            raise NotOwner(key=resource)
        return released

    async def holders(self, tenant: str, resource: str) -> list[ResourceHolder]:
        """Who holds a resource now, first come first."""
        name, key = named(tenant, resource)

        async def work(tx: Tx) -> list[ResourceHolder]:
            now_ns = await self._now(tx)
            rows = await tx.query(_HOLDERS, {"tenant": name, "resource": key, "now_ns": now_ns})
            return [holder_of(row, now_ns) for row in rows]

        return await self._database.read(work)

    async def page(
        self,
        tenant: str | None = None,
        *,
        resource: str | None = None,
        after: HolderPlace = BEFORE_ALL,
        limit: int = 100,
    ) -> list[ResourceHolder]:
        """Holders of the resources of a tenant, or of all, in the order of their places; or of those of one name.

        The next page comes after the `place` of the last one.
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
            now_ns = await self._now(tx)
            return [holder_of(row, now_ns) for row in await tx.query(statement, {**where, "now_ns": now_ns})]

        return await self._database.read(work)

    async def turn(self, tx: Tx, slot: int) -> tuple[int, int]:
        """As part of a transaction, wait for our turn at a slot. What time it then is, and the newest fence."""
        rows = await tx.query(_HOLD[tx.dialect], {"slot": slot})
        return await self._now(tx), rows[0]["fence"]

    # One transaction.

    async def _try(self, tx: Tx, ask: Ask) -> ResourceGrant | LockBusy:
        """One ask. Busy is returned and not raised, because a writer's wish has to be committed with it."""
        slot, where = ask.slot, {"tenant": ask.tenant, "resource": ask.resource}
        now_ns, newest = await self.turn(tx, slot)
        await tx.query(_SWEEP, {"slot": slot, "now_ns": now_ns})
        await tx.query(_UNWISH_OVER, {"slot": slot, "now_ns": now_ns})
        rows = await tx.query(_HOLDERS, {**where, "now_ns": now_ns})
        own = next((row for row in rows if row["token"] == ask.digest), None)
        if own is not None:
            return await self._again(tx, ask, own, now_ns)
        holders = [holder_of(row, now_ns) for row in rows]
        if ask.mode is Mode.EXCLUSIVE and holders:
            await tx.query(_WISH, {**where, "owner": ask.owner, "slot": slot, "until_ns": now_ns + WISH_NS})
            return ask.busy(holders[0].owner, max(each.remaining_ns for each in holders))
        if any(each.mode is Mode.EXCLUSIVE for each in holders):
            return ask.busy(holders[0].owner, holders[0].remaining_ns)
        if ask.mode is Mode.SHARED:
            wished = (await tx.query(_WISHED, {**where, "now_ns": now_ns}))[0]["until_ns"]
            if wished is not None:
                return ask.busy(None, wished - now_ns)
        else:
            await tx.query(_UNWISH, {**where, "owner": ask.owner})
        # The clock is the floor, so that a database that was restored from a copy does not hand out old fences again.
        fence = max(newest + 1, now_ns // 1000)
        await tx.query(_FENCE, {"slot": slot, "fence": fence})
        values = {"token": ask.digest, "slot": slot, "mode": str(ask.mode), "owner": ask.owner, "fence": fence}
        await tx.query(_GRANT, {**where, **values, "now_ns": now_ns, "expires_ns": now_ns + ask.ttl_ns})
        holder = ResourceHolder(ask.tenant, ask.resource, ask.mode, ask.owner, fence, now_ns, ask.ttl_ns)
        return ResourceGrant(holder, ask.token)

    async def _again(self, tx: Tx, ask: Ask, own: Row, now_ns: int) -> ResourceGrant:
        ask.again(own)
        where = {"tenant": ask.tenant, "resource": ask.resource, "token": ask.digest}
        rows = await tx.query(_RENEW, {**where, "now_ns": now_ns, "expires_ns": now_ns + ask.ttl_ns})
        return ResourceGrant(holder_of(rows[0], now_ns), ask.token, fresh=False)

    async def _now(self, tx: Tx) -> int:
        if tx.dialect == "postgres":
            return int((await tx.query(_NOW))[0]["now_ns"])
        return self._clock.now().wall

    # Asking, waiting, and leaving.

    async def _asked(self, ask: Ask) -> ResourceGrant | LockBusy:
        """One ask, committed. If nobody will ever know whether it was granted, it is not."""
        try:
            return await self._database.write(lambda tx: self._try(tx, ask))
        except (asyncio.CancelledError, Timeout):
            if not ask.own:  # whoever made its token up can ask again, and would lose what it is told then
                await self._undo(ask, None)
            raise

    async def _wait(self, ask: Ask, limit_ns: int, patience: Patience) -> ResourceGrant | LockBusy:
        """Ask whenever the resource may have become free: at a ring, or when a holder's time is over."""
        until_ns = self._clock.now().mono + limit_ns
        bell = self._database.bell(channel_of(ask.slot))
        try:
            while True:  # ends when the time is over
                answer = await self._asked(ask)
                left_ns = until_ns - self._clock.now().mono
                if isinstance(answer, ResourceGrant) or left_ns <= 0:
                    return answer
                await patience.wait(bell, min(left_ns, max(MS, round(answer.retry_after * NS))))
                if patience.ended is not None:
                    return answer
        finally:
            bell.close()

    async def _undo(self, ask: Ask, answer: ResourceGrant | LockBusy | None) -> None:
        """Take back what an ask has left behind: its grant and its wish. `answer` None: it is not known what that was.

        Goes on when whoever waits for it is cancelled, and not for ever.
        """
        if isinstance(answer, ResourceGrant) and not answer.fresh:
            return  # its holder has heard of it before
        expires_ns = None if not isinstance(answer, ResourceGrant) else answer.holder.granted_ns + ask.ttl_ns
        where: dict[str, Any] = {"tenant": ask.tenant, "resource": ask.resource}

        async def work(tx: Tx) -> None:
            await self.turn(tx, ask.slot)
            if not isinstance(answer, LockBusy):
                await tx.query(_UNDO, {**where, "token": ask.digest, "expires_ns": expires_ns})
            # Somebody else who waits under the same name has its wish back at its next try.
            await tx.query(_UNWISH, {**where, "owner": ask.owner})
            tx.ring(channel_of(ask.slot))

        async def bounded() -> None:
            try:
                async with asyncio.timeout(UNDO_S):
                    await self._database.write(work)
            except (HoldfastError, TimeoutError) as error:
                say(_log, logging.WARNING, "a resource that nobody waits for was not given back", error)

        task = asyncio.create_task(bounded(), name="resource undo")
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        await asyncio.shield(task)
