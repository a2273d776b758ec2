"""Routes for resource locks: locks of outside systems on resources that they name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.web import paging
from holdfast.web.auth import Role
from holdfast.web.bodies import JsonRoute
from holdfast.web.rights import Asking, Serving, needs, own_tenant
from holdfast.web.schemas_plane import (
    AcquireResource,
    GrantShown,
    HolderPage,
    HolderShown,
    ReleasedShown,
    ReleaseResource,
    RenewResource,
    ResourceFilter,
)

RESOURCES = "resources"

router = APIRouter(tags=["resource locks"], route_class=JsonRoute)


@router.post("/resource-locks/acquire", dependencies=[needs(Role.OPERATOR)], summary="Take a resource")
async def acquire(asked: AcquireResource, service: Serving, caller: Asking) -> GrantShown:
    """Take a resource, shared or alone. 409 with Retry-After while it cannot be had."""
    grant = await service.resources.acquire(
        own_tenant(caller, asked.tenant),
        asked.resource,
        owner=asked.owner,
        mode=asked.mode,
        ttl=asked.ttl,
        timeout=asked.timeout,
        token=asked.token,
    )
    return GrantShown.to(grant)


@router.post("/resource-locks/renew", dependencies=[needs(Role.OPERATOR)], summary="Keep a resource")
async def renew(asked: RenewResource, service: Serving, caller: Asking) -> HolderShown:
    """Set the time of one holder anew. 409 `lock not owned` without the token of a present holder."""
    tenant = own_tenant(caller, asked.tenant)
    return HolderShown.of(await service.resources.renew(tenant, asked.resource, asked.token, ttl=asked.ttl))


@router.post("/resource-locks/release", dependencies=[needs(Role.OPERATOR)], summary="Give a resource back")
async def release(asked: ReleaseResource, service: Serving, caller: Asking) -> ReleasedShown:
    """Give a resource back. 409 `lock not owned` without the token of a present holder."""
    tenant = own_tenant(caller, asked.tenant)
    return ReleasedShown(released=HolderShown.of(await service.resources.release(tenant, asked.resource, asked.token)))


@router.get("/resource-locks", dependencies=[needs(Role.VIEWER)], summary="Who holds which resource")
async def holders(service: Serving, caller: Asking, which: Annotated[ResourceFilter, Query()]) -> HolderPage:
    """The holders of a tenant's resources, or of one resource."""
    tenant = own_tenant(caller, which.tenant)
    if which.resource is not None:
        found = await service.resources.holders(tenant, which.resource)
        return HolderPage(items=[HolderShown.of(each) for each in found], next=None)
    after = ("", 0) if which.cursor is None else paging.place_in(RESOURCES, which.cursor)
    found = await service.resources.page(tenant, after=after, limit=which.limit + 1)
    items = found[: which.limit]
    more = len(found) > which.limit
    following = paging.cursor_of(RESOURCES, items[-1].resource, items[-1].fence) if more else None
    return HolderPage(items=[HolderShown.of(each) for each in items], next=following)
