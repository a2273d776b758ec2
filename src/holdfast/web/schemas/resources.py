"""What goes in and out over HTTP about resource locks. See `schemas`."""

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
    Asked,
    Cursor,
    Filter,
    Given,
    Label,
    Limit,
    ModeName,
    Named,
    OwnToken,
    Resource,
    Told,
    Ttl,
    moment,
)

_TENANT = "Only for callers who are not bound to a tenant."
_WHOLE_MAX = 2**53  # up to which every number of JSON is itself
_NEXT = "The `cursor` of the next page; null: there is none."


class AcquireResource(Asked):
    """A resource that somebody wants to have."""

    resource: Resource
    owner: Named = Field(description="Who has it, for people. Proves nothing.")
    mode: ModeName = "exclusive"
    ttl: Ttl = resources.TTL_S
    timeout: float = Field(0, ge=0, le=resources.TIMEOUT_MAX_NS / NS, description="How long to wait for it.")
    token: OwnToken | None = Field(
        None, description="Made up by the caller, at random, so that it can ask again if the answer is lost."
    )
    tenant: Label | None = Field(None, description=_TENANT)


class RenewResource(Asked):
    """A resource that somebody has and wants to keep."""

    resource: Resource
    token: Annotated[str, StringConstraints(max_length=resources.TOKEN_CHARS_MAX)]
    ttl: Ttl = resources.TTL_S
    tenant: Label | None = Field(None, description=_TENANT)


class ReleaseResource(Asked):
    """A resource that somebody has and gives back."""

    resource: Resource
    token: Annotated[str, StringConstraints(max_length=resources.TOKEN_CHARS_MAX)]
    tenant: Label | None = Field(None, description=_TENANT)


class ResourceFilter(Filter):
    """Which resources, and which page of their holders."""

    resource: Given[Resource] = None
    tenant: Given[Label] = Field(None, description=_TENANT)
    cursor: Given[Cursor] = Field(None, description="What the page before said in `next`.")
    limit: Limit = 100


class HolderShown(Told):
    """A holder of a resource. Its token is shown to nobody."""

    tenant: str
    resource: str
    mode: ModeName
    owner: str
    fence: int
    granted_at: datetime
    remaining: float

    @classmethod
    def of(cls, holder: resources.ResourceHolder) -> HolderShown:
        """For going out."""
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
    """What a new holder gets: the token is its proof, and is told this once."""

    token: str = Field(repr=False)

    @classmethod
    def to(cls, grant: resources.ResourceGrant) -> GrantShown:
        """For going out to the holder."""
        return cls(**HolderShown.of(grant.holder).model_dump(), token=grant.token)


class HolderPage(Told):
    """Some holders of resources, by tenant, then by resource, then first come first."""

    items: list[HolderShown]
    next: str | None = Field(description=_NEXT)


class ReleasedShown(Told):
    """What was given back."""

    released: HolderShown


# Taken away by force.


class BreakResource(Asked):
    """A resource that is to be taken from whoever holds it."""

    resource: Resource
    reason: Annotated[str, StringConstraints(pattern=SEEN_PATTERN, max_length=REASON_CHARS_MAX)] = Field(
        description="Why; kept for good."
    )
    fence: Annotated[int, Field(ge=1, le=_WHOLE_MAX), AS_WHOLE] | None = Field(
        None, description="Only from the holder with this fence; by default from all."
    )
    tenant: Label | None = Field(None, description=_TENANT)


class BreakFilter(Filter):
    """Which page of what was taken away."""

    tenant: Given[Label] = Field(None, description=_TENANT)
    cursor: Given[Cursor] = Field(None, description="What the page before said in `next`.")
    limit: Limit = 100


class BreakShown(Told):
    """A holder from whom a resource was taken, by whom, and why."""

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
        """For going out."""
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


class BrokenShown(Told):
    """Who held what was taken away, first come first; empty: nobody did."""

    broken: list[BreakShown]


class BreakPage(Told):
    """Some of what was taken away, newest first."""

    items: list[BreakShown]
    next: str | None = Field(description=_NEXT)
