"""Routes for the plane: workers, snapshot, locks, inventory, tenants."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.web import cursors
from holdfast.web.middleware.auth import Asking, Role, Serving, TenantSegment, needs
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.schemas.plane import (
    FamilyShown,
    Inventory,
    LimitTenant,
    LockFilter,
    LockList,
    LockShown,
    SnapshotShown,
    TenantShown,
    WorkerList,
    WorkerShown,
)

LOCKS = "locks"

router = APIRouter(tags=["plane"], route_class=JsonRoute)


@router.get("/workers", dependencies=[needs(Role.VIEWER)], summary="List workers")
async def workers(service: Serving) -> WorkerList:
    """Every known worker, alive or not, by name."""
    return WorkerList(items=[WorkerShown.of(each) for each in await service.workers()])


@router.get("/snapshot", dependencies=[needs(Role.VIEWER)], summary="The worker snapshot")
async def snapshot(service: Serving) -> SnapshotShown:
    """The last worker snapshot."""
    return SnapshotShown.of(await service.snapshot())


@router.get("/locks", dependencies=[needs(Role.VIEWER, everywhere=True)], summary="List the locks that are held")
async def locks(service: Serving, which: Annotated[LockFilter, Query()]) -> LockList:
    """The holder of each lock, since when, for how long, and under which fence. Keys name objects of all tenants."""
    after = "" if which.cursor is None else cursors.place_in(LOCKS, which.cursor)[0]
    found, last = await service.locks(prefix=which.prefix, after=after, limit=which.limit)
    following = None if last is None else cursors.cursor_of(LOCKS, last, 0)
    return LockList(items=[LockShown.of(each) for each in found], next=following)


@router.get("/inventory", dependencies=[needs(Role.VIEWER)], summary="Every kind of lock that the plane takes")
async def inventory(service: Serving) -> Inventory:
    """The lock registry."""
    return Inventory(items=[FamilyShown(**each) for each in service.inventory()])


@router.get("/tenants/{tenant}/limits", dependencies=[needs(Role.VIEWER)], summary="The limits of a tenant")
async def limits(tenant: TenantSegment, service: Serving, caller: Asking) -> TenantShown:
    """The number of a tenant's jobs on workers, and its limit."""
    return TenantShown.of(await service.tenant(caller, tenant))


@router.put(
    "/tenants/{tenant}/limits",
    dependencies=[needs(Role.ADMIN, everywhere=True)],
    summary="Limit a tenant",
)
async def limit(tenant: TenantSegment, asked: LimitTenant, service: Serving) -> TenantShown:
    """Limit the number of a tenant's jobs on workers. Takes effect immediately, on every scheduler."""
    return TenantShown.of(await service.limit_tenant(tenant, asked.slots))
