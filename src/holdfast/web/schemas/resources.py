"""Bodies of requests and responses about resource locks. See `jobs`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from holdfast.plane.model.caller import REASON_CHARS_MAX
from holdfast.plane.resources import model as resources
from holdfast.types import NS
from holdfast.web.schemas.jobs import (
    AS_WHOLE,
    SEEN_PATTERN,
    Cursor,
    Given,
    Label,
    Limit,
    ModeName,
    Named,
    OwnToken,
    QueryFilter,
    RequestBody,
    Resource,
    ResponseBody,
    Ttl,
    moment,
)

_TENANT = "Only for callers who are not bound to a tenant."
_WHOLE_MAX = 2**53  # up to which JSON numbers are exact
_NEXT = "The `cursor` of the next page; null: there is none."


class AcquireResource(RequestBody):
    """A resource to acquire."""

    resource: Resource
    owner: Named = Field(description="A label of the holder for people. Proves nothing.")
    mode: ModeName = "exclusive"
    ttl: Ttl = resources.TTL_S
    timeout: float = Field(0, ge=0, le=resources.TIMEOUT_MAX_NS / NS, description="How long to wait for it.")
    token: OwnToken | None = Field(
        None, description="Random, made up by the caller, who can then repeat the request after a lost answer."
    )
    tenant: Label | None = Field(None, description=_TENANT)


class RenewResource(RequestBody):
    """A held resource to renew."""

    resource: Resource
    token: Annotated[str, StringConstraints(max_length=resources.TOKEN_CHARS_MAX)]
    ttl: Ttl = resources.TTL_S
    tenant: Label | None = Field(None, description=_TENANT)


class ReleaseResource(RequestBody):
    """A held resource to release."""

    resource: Resource
    token: Annotated[str, StringConstraints(max_length=resources.TOKEN_CHARS_MAX)]
    tenant: Label | None = Field(None, description=_TENANT)


class ResourceFilter(QueryFilter):
    """Which resources, and which page of their holders."""

    resource: Given[Resource] = None
    tenant: Given[Label] = Field(None, description=_TENANT)
    cursor: Given[Cursor] = Field(None, description="The `next` of the page before.")
    limit: Limit = 100


class HolderShown(ResponseBody):
    """A holder of a resource, without its token."""

    tenant: str
    resource: str
    mode: ModeName
    owner: str
    fence: int
    granted_at: datetime
    remaining: float

    @classmethod
    def of(cls, holder: resources.ResourceHolder) -> HolderShown:
        """From the holder."""
        return cls(
            tenant=holder.tenant,
            resource=holder.resource,
            mode=holder.mode.value,
            owner=holder.owner,
            fence=holder.fence,
            granted_at=moment(holder.granted_ns),
            remaining=holder.remaining_ns / NS,
        )


class GrantShown(HolderShown):
    """A new holder. The token is its proof, and is returned only this once."""

    token: str = Field(repr=False)

    @classmethod
    def to(cls, grant: resources.ResourceGrant) -> GrantShown:
        """From the grant."""
        return cls(**HolderShown.of(grant.holder).model_dump(), token=grant.token)


class HolderPage(ResponseBody):
    """A page of holders, by tenant, resource and grant."""

    items: list[HolderShown]
    next: str | None = Field(description=_NEXT)


class ReleasedShown(ResponseBody):
    """The released holder."""

    released: HolderShown


# Forced releases.


class BreakResource(RequestBody):
    """A resource to release by force."""

    resource: Resource
    reason: Annotated[str, StringConstraints(pattern=SEEN_PATTERN, max_length=REASON_CHARS_MAX)] = Field(
        description="The reason; kept forever."
    )
    fence: Annotated[int, Field(ge=1, le=_WHOLE_MAX), AS_WHOLE] | None = Field(
        None, description="Only the holder with this fence; by default all."
    )
    tenant: Label | None = Field(None, description=_TENANT)


class BreakFilter(QueryFilter):
    """Which page of forced releases."""

    tenant: Given[Label] = Field(None, description=_TENANT)
    cursor: Given[Cursor] = Field(None, description="What the page before said in `next`.")
    limit: Limit = 100


class BreakShown(ResponseBody):
    """A holder that was removed by force, by whom, and why."""

    at: datetime
    tenant: str
    resource: str
    mode: ModeName
    owner: str
    fence: int
    actor: str
    reason: str

    @classmethod
    def of(cls, record: resources.ResourceBreak) -> BreakShown:
        """From the record."""
        return cls(
            at=moment(record.at_ns),
            tenant=record.tenant,
            resource=record.resource,
            mode=record.mode.value,
            owner=record.owner,
            fence=record.fence,
            actor=record.actor,
            reason=record.reason,
        )


class BrokenShown(ResponseBody):
    """The removed holders, in the order of their grants; empty: there were none."""

    broken: list[BreakShown]


class BreakPage(ResponseBody):
    """A page of forced releases, newest first."""

    items: list[BreakShown]
    next: str | None = Field(description=_NEXT)
