"""Locks for systems outside the plane, on resources that they name: shared or exclusive, each holder with a proof.

Promises: an exclusive holder is alone; a grant's fence is above that of every earlier grant of the resource, also when
all records of it are gone; each holder has a token and an expiry of its own, so that no holder's renewal or silence
touches another's; renewal and release with anything but the token of a present holder is `NotOwner`, and changes
nothing. A writer that was turned away keeps new readers out for `WISH_NS`, and longer if it asks again within that
time. A resource belongs to one tenant: the two together are its name, and there is no other way to name it. The same
ask repeated with the same token gives the same grant, so that an answer that was lost can be asked for again.

Does not promise a turn among writers: whoever asks first after a release has it. Is not re-entrant, and a reader cannot
become a writer: it would wait for itself. `owner` is a label for people and proves nothing.

Both modes are rows of the plane's database, and not leases: readers and a writer must exclude each other in one atomic
step, which leases of several holders cannot offer on every engine; one mechanism also means one place to look.

Clock: that of the database (for SQLite, of this host, which is the only one that uses the file); never the caller's.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from holdfast.errors import BadInput, LockBusy, NotOwner
from holdfast.plane.jobrows import sql
from holdfast.plane.model import check_text, check_whole
from holdfast.plane.ports import Database, Row, Tx
from holdfast.plane.schema import prepare
from holdfast.ports import Clock, Entropy
from holdfast.types import MS, NS, Duration, check_key, check_label, duration_ns

SLOTS: Final = 256
TTL_S: Final = 30.0
TTL_LOW_NS: Final = 100 * MS
TTL_MAX_NS: Final = 3600 * NS
TIMEOUT_MAX_NS: Final = 30 * NS
WISH_NS: Final = 10 * NS
RETRY_MAX_NS: Final = 2 * NS  # well below WISH_NS, so that a writer who comes back as told keeps its place
TOKEN_CHARS_MIN: Final = 32
TOKEN_CHARS_MAX: Final = 200
OWNER_CHARS_MAX: Final = 200
PAGE_MAX: Final = 1000

_TOKEN: Final = re.compile(f"[!-~]{{{TOKEN_CHARS_MIN},{TOKEN_CHARS_MAX}}}\\Z")
_SLOT: Final = sql("resource_slot")
_HOLD: Final = {"sqlite": _SLOT, "postgres": f"{_SLOT} FOR UPDATE"}
_NOW: Final = sql("resource_now_postgres")
_FENCE: Final = sql("resource_fence")
_HOLDERS: Final = sql("resource_holders")
_GRANT: Final = sql("resource_grant")
_RENEW: Final = sql("resource_renew")
_RELEASE: Final = sql("resource_release")
_SWEEP: Final = sql("resource_sweep")
_LIST: Final = sql("resource_list")
_WISH: Final = sql("resource_wish")
_WISHED: Final = sql("resource_wished")
_UNWISH: Final = sql("resource_unwish")
_UNWISH_OVER: Final = sql("resource_unwish_over")


class Mode(StrEnum):
    """How a resource is held."""

    SHARED = "shared"  # with any number of others who share it
    EXCLUSIVE = "exclusive"  # alone


@dataclass(frozen=True, slots=True)
class ResourceHolder:
    """One holder of one resource, for anyone to see."""

    tenant: str
    resource: str
    mode: Mode
    owner: str
    fence: int
    granted_ns: int
    remaining_ns: int  # when it was looked at


@dataclass(frozen=True, slots=True)
class ResourceGrant:
    """What a holder gets. The token is its proof, and is shown to nobody else."""

    holder: ResourceHolder
    token: str = field(repr=False)


class ResourceLocks:
    """The resource locks of one plane."""

    def __init__(self, database: Database, clock: Clock, entropy: Entropy) -> None:
        self._database = database
        self._clock = clock
        self._entropy = entropy

    async def prepare(self) -> None:
        """Make the tables if they are not there."""
        await prepare(self._database, "resource_schema")

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
    ) -> ResourceGrant:
        """Take a resource, or `LockBusy` when it cannot be had within `timeout`.

        `token`: one that the caller has made up, so that it can ask again when it has not heard the answer; an ask with
        the token of a present holder gives the same grant, with its expiry set anew.
        """
        ask = _Ask(
            *_named(tenant, resource),
            check_text("owner", owner, OWNER_CHARS_MAX),
            check_mode(mode),
            _ttl_ns(ttl),
            self._entropy.token() if token is None else check_token(token),
        )
        limit_ns = duration_ns("timeout", timeout, high_ns=TIMEOUT_MAX_NS)
        if limit_ns == 0:
            return _granted(await self._database.write(lambda tx: self._try(tx, ask)))
        return await self._wait(ask, limit_ns)

    async def renew(self, tenant: str, resource: str, token: str, *, ttl: Duration = TTL_S) -> ResourceHolder:
        """Set the expiry of one holder to `ttl` from now, or `NotOwner`."""
        where, ttl_ns = _proof(tenant, resource, token), _ttl_ns(ttl)

        async def work(tx: Tx) -> ResourceHolder | None:
            now_ns, _ = await self._turn(tx, where["slot"])
            rows = await tx.query(_RENEW, {**where, "now_ns": now_ns, "expires_ns": now_ns + ttl_ns})
            return _holder(rows[0], now_ns) if rows else None

        renewed = await self._database.write(work)
        if renewed is None:
            raise NotOwner(key=resource)
        return renewed

    async def release(self, tenant: str, resource: str, token: str) -> ResourceHolder:
        """Give a resource back, or `NotOwner`. Returns what was held."""
        where = _proof(tenant, resource, token)

        async def work(tx: Tx) -> ResourceHolder | None:
            now_ns, _ = await self._turn(tx, where["slot"])
            rows = await tx.query(_RELEASE, {**where, "now_ns": now_ns})
            tx.ring(_channel(where["slot"]))
            return _holder(rows[0], now_ns) if rows else None

        released = await self._database.write(work)
        if released is None:
            raise NotOwner(key=resource)
        return released

    async def holders(self, tenant: str, resource: str) -> list[ResourceHolder]:
        """Who holds a resource now, first come first."""
        name, key = _named(tenant, resource)

        async def work(tx: Tx) -> list[ResourceHolder]:
            now_ns = await self._now(tx)
            rows = await tx.query(_HOLDERS, {"tenant": name, "resource": key, "now_ns": now_ns})
            return [_holder(row, now_ns) for row in rows]

        return await self._database.read(work)

    async def page(self, tenant: str, *, after: tuple[str, int] = ("", 0), limit: int = 100) -> list[ResourceHolder]:
        """Holders of a tenant's resources, by resource and fence. The next page comes after those of the last one."""
        check_label("tenant", tenant)
        check_whole("limit", limit, 1, PAGE_MAX)
        resource, fence = after

        async def work(tx: Tx) -> list[ResourceHolder]:
            now_ns = await self._now(tx)
            where = {"tenant": tenant, "resource": resource, "fence": fence, "now_ns": now_ns, "most": limit}
            return [_holder(row, now_ns) for row in await tx.query(_LIST, where)]

        return await self._database.read(work)

    # One transaction.

    async def _try(self, tx: Tx, ask: _Ask) -> ResourceGrant | LockBusy:
        """One ask. Busy is returned and not raised, because a writer's wish has to be committed with it."""
        slot, where = ask.slot, {"tenant": ask.tenant, "resource": ask.resource}
        now_ns, newest = await self._turn(tx, slot)
        await tx.query(_SWEEP, {"slot": slot, "now_ns": now_ns})
        await tx.query(_UNWISH_OVER, {"slot": slot, "now_ns": now_ns})
        rows = await tx.query(_HOLDERS, {**where, "now_ns": now_ns})
        own = next((row for row in rows if row["token"] == ask.digest), None)
        if own is not None:
            return await self._again(tx, ask, own, now_ns)
        holders = [_holder(row, now_ns) for row in rows]
        if ask.mode is Mode.EXCLUSIVE and holders:
            await tx.query(_WISH, {**where, "owner": ask.owner, "slot": slot, "until_ns": now_ns + WISH_NS})
            return _busy(ask, holders[0].owner, max(each.remaining_ns for each in holders))
        if any(each.mode is Mode.EXCLUSIVE for each in holders):
            return _busy(ask, holders[0].owner, holders[0].remaining_ns)
        if ask.mode is Mode.SHARED:
            wished = (await tx.query(_WISHED, {**where, "now_ns": now_ns}))[0]["until_ns"]
            if wished is not None:
                return _busy(ask, None, wished - now_ns)
        else:
            await tx.query(_UNWISH, {**where, "owner": ask.owner})
        # The clock is the floor, so that a database that was restored from a copy does not hand out old fences again.
        fence = max(newest + 1, now_ns // 1000)
        await tx.query(_FENCE, {"slot": slot, "fence": fence})
        values = {"token": ask.digest, "slot": slot, "mode": str(ask.mode), "owner": ask.owner, "fence": fence}
        await tx.query(_GRANT, {**where, **values, "now_ns": now_ns, "expires_ns": now_ns + ask.ttl_ns})
        holder = ResourceHolder(ask.tenant, ask.resource, ask.mode, ask.owner, fence, now_ns, ask.ttl_ns)
        return ResourceGrant(holder, ask.token)

    async def _again(self, tx: Tx, ask: _Ask, own: Row, now_ns: int) -> ResourceGrant:
        if own["mode"] != ask.mode:
            raise BadInput("mode", f"this token holds it {own['mode']}", "release it, and ask with another token")
        proof = {"tenant": ask.tenant, "resource": ask.resource, "token": ask.digest}
        rows = await tx.query(_RENEW, {**proof, "now_ns": now_ns, "expires_ns": now_ns + ask.ttl_ns})
        return ResourceGrant(_holder(rows[0], now_ns), ask.token)

    async def _turn(self, tx: Tx, slot: int) -> tuple[int, int]:
        """Wait for our turn at a slot. What time it then is, and the newest fence."""
        rows = await tx.query(_HOLD[tx.dialect], {"slot": slot})
        return await self._now(tx), rows[0]["fence"]

    async def _now(self, tx: Tx) -> int:
        if tx.dialect == "postgres":
            return int((await tx.query(_NOW))[0]["now_ns"])
        return self._clock.now().wall

    # Waiting.

    async def _wait(self, ask: _Ask, limit_ns: int) -> ResourceGrant:
        """Ask whenever the resource may have become free: at a ring, or when a holder's time is over."""
        until_ns = self._clock.now().mono + limit_ns
        bell = self._database.bell(_channel(ask.slot))
        try:
            while True:  # ends by `LockBusy` when the time is over
                answer = await self._database.write(lambda tx: self._try(tx, ask))
                left_ns = until_ns - self._clock.now().mono
                if isinstance(answer, ResourceGrant) or left_ns <= 0:
                    return _granted(answer)
                await bell.wait(min(left_ns, max(MS, round(answer.retry_after * NS))))
        finally:
            bell.close()


@dataclass(frozen=True, slots=True)
class _Ask:
    tenant: str
    resource: str
    owner: str
    mode: Mode
    ttl_ns: int
    token: str = field(repr=False)

    @property
    def slot(self) -> int:
        return _slot(self.tenant, self.resource)

    @property
    def digest(self) -> str:
        return _digest(self.token)


def check_mode(value: object) -> Mode:
    """A mode, also by its name, or `BadInput`."""
    try:
        return Mode(value)  # type: ignore[arg-type]  # the enum refuses what it is not
    except ValueError:
        raise BadInput("mode", f"{value!r:.60} is no mode", "use shared or exclusive") from None


def check_token(value: object) -> str:
    """A token that a caller has made up, or `BadInput`. Does not show it."""
    if isinstance(value, str) and _TOKEN.match(value) is not None:
        return value
    fix = f"give {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} printable ASCII characters, no spaces, that nobody can guess"
    raise BadInput("token", "is not usable", fix)


def _ttl_ns(ttl: Duration) -> int:
    return duration_ns("ttl", ttl, low_ns=TTL_LOW_NS, high_ns=TTL_MAX_NS)


def _named(tenant: str, resource: str) -> tuple[str, str]:
    return check_label("tenant", tenant), check_key("resource", resource)


def _proof(tenant: str, resource: str, token: object) -> dict[str, Any]:
    name, key = _named(tenant, resource)
    if not isinstance(token, str) or not token or len(token) > TOKEN_CHARS_MAX:
        raise NotOwner(key=key)  # no such token was ever given out
    return {"tenant": name, "resource": key, "token": _digest(token), "slot": _slot(name, key)}


def _digest(token: str) -> str:
    """What is stored of a token. It has 128 bits or more, so a plain digest cannot be turned back."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _slot(tenant: str, resource: str) -> int:
    return hashlib.sha256(f"{tenant}\0{resource}".encode("utf-8", "surrogatepass")).digest()[0] % SLOTS


def _channel(slot: int) -> str:
    return f"resource:{slot}"


def _granted(answer: ResourceGrant | LockBusy) -> ResourceGrant:
    if isinstance(answer, LockBusy):
        raise answer
    return answer


def _busy(ask: _Ask, holder: str | None, remaining_ns: int) -> LockBusy:
    why = "somebody waits to have it alone" if holder is None else f"held by {holder}"
    return LockBusy(
        f"resource {ask.resource!r} is busy: {why}",
        key=ask.resource,
        holder=holder,
        retry_after=min(remaining_ns, RETRY_MAX_NS) / NS,
    )


def _holder(row: Row, now_ns: int) -> ResourceHolder:
    return ResourceHolder(
        row["tenant"],
        row["resource"],
        Mode(row["mode"]),
        row["owner"],
        row["fence"],
        row["granted_ns"],
        max(0, row["expires_ns"] - now_ns),
    )
