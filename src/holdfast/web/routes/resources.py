"""Routes for resource locks: locks of external systems on resources that they name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from holdfast.plane.resources.model import BEFORE_ALL, HolderCursor
from holdfast.web import cursors
from holdfast.web.middleware.auth import Asking, Role, Serving, needs, own_tenant
from holdfast.web.middleware.json_body import JsonRoute
from holdfast.web.middleware.long_poll import client_wait
from holdfast.web.routes import health
from holdfast.web.schemas.resources import (
    AcquireResource,
    BreakFilter,
    BreakPage,
    BreakResource,
    BreakShown,
    BrokenShown,
    GrantShown,
    HolderPage,
    HolderShown,
    ReleasedShown,
    ReleaseResource,
    RenewResource,
    ResourceFilter,
)

RESOURCES = "resources"
BREAKS = "breaks"

router = APIRouter(tags=["resource locks"], route_class=JsonRoute)


@router.post("/resource-locks/acquire", dependencies=[needs(Role.OPERATOR)], summary="Take a resource")
async def acquire(
    body: AcquireResource, request: Request, service: Serving, caller: Asking, process_health: health.Asked
) -> GrantShown:
    """Acquire a resource, shared or exclusive. 409 with Retry-After while it is not available.

    A client that disconnects while it waits gets nothing and blocks no reader. A process that shuts down ends all
    waits: 503 with Retry-After.
    """
    tenant = own_tenant(caller, body.tenant)
    async with client_wait(request, process_health) as client:
        grant = await service.resources.acquire(
            tenant,
            body.resource,
            owner=body.owner,
            mode=body.mode,
            ttl=body.ttl,
            timeout=body.timeout,
            token=body.token,
            client=client,
        )
    return GrantShown.to(grant)


@router.post("/resource-locks/renew", dependencies=[needs(Role.OPERATOR)], summary="Keep a resource")
async def renew(body: RenewResource, service: Serving, caller: Asking) -> HolderShown:
    """Set a new expiry for one holder. 409 `lock not owned` without the token of a current holder."""
    tenant = own_tenant(caller, body.tenant)
    return HolderShown.of(await service.resources.renew(tenant, body.resource, body.token, ttl=body.ttl))


@router.post("/resource-locks/release", dependencies=[needs(Role.OPERATOR)], summary="Give a resource back")
async def release(body: ReleaseResource, service: Serving, caller: Asking) -> ReleasedShown:
    """Release a resource. 409 `lock not owned` without the token of a current holder."""
    tenant = own_tenant(caller, body.tenant)
    return ReleasedShown(released=HolderShown.of(await service.resources.release(tenant, body.resource, body.token)))


@router.post("/resource-locks/break", dependencies=[needs(Role.ADMIN)], summary="Take a resource away")
async def take_away(body: BreakResource, service: Serving, caller: Asking) -> BrokenShown:
    """Remove the holders of a resource by force. The record is kept forever, with the reason."""
    tenant = own_tenant(caller, body.tenant)
    broken = await service.breaks.force_release(
        tenant, body.resource, actor=caller.name, reason=body.reason, fence=body.fence
    )
    return BrokenShown(broken=[BreakShown.of(each) for each in broken])


@router.get("/resource-locks/broken", dependencies=[needs(Role.VIEWER)], summary="What was taken away")
async def taken_away(service: Serving, caller: Asking, which: Annotated[BreakFilter, Query()]) -> BreakPage:
    """Forced releases: the holders, who removed them and why, newest first."""
    after = cursors.after(BREAKS, which.cursor)
    found = await service.breaks.page(caller.scope(which.tenant), after=after, limit=which.limit + 1)
    items = found[: which.limit]
    place = items[-1].place if len(found) > which.limit else None
    return BreakPage(items=[BreakShown.of(each) for each in items], next=cursors.next_of(BREAKS, place))


@router.get("/resource-locks", dependencies=[needs(Role.VIEWER)], summary="Who holds which resource")
async def holders(service: Serving, caller: Asking, which: Annotated[ResourceFilter, Query()]) -> HolderPage:
    """Holders of the resources of a tenant, or of all that the caller may see; or of one resource name."""
    after = BEFORE_ALL
    if which.cursor is not None:
        after = HolderCursor.named(*cursors.place_in(RESOURCES, which.cursor), field="cursor")
    scope = caller.scope(which.tenant)
    found = await service.resources.page(scope, resource=which.resource, after=after, limit=which.limit + 1)
    items = found[: which.limit]
    last = items[-1].place if len(found) > which.limit else None
    following = None if last is None else cursors.cursor_of(RESOURCES, last.name, last.fence)
    return HolderPage(items=[HolderShown.of(each) for each in items], next=following)
