"""What resource locks are about: modes, holders, asks, and what may be said about them. Decisions only; no I/O.

`resource_locks` says what holds.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from holdfast.errors import BadInput, LockBusy, NotOwner
from holdfast.plane.db.ports import Row
from holdfast.plane.jobs.queries import place_of
from holdfast.plane.model.paging import Place
from holdfast.plane.model.records import check_text
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

    @property
    def place(self) -> HolderPlace:
        """Where it stands in a list: the next page comes after it."""
        return HolderPlace(self.tenant, self.resource, self.fence)


class HolderPlace(NamedTuple):
    """A place in the list of all holders, which is by tenant, then by resource, then first come first."""

    tenant: str
    resource: str
    fence: int

    @property
    def text(self) -> str:
        """For a command line; `holder_place_of` reads it."""
        return f"{self.fence}~{self.name}"

    @property
    def name(self) -> str:
        """The two that name a resource, in one text. No tenant has this sign in its name."""
        return f"{self.tenant}~{self.resource}"

    @classmethod
    def named(cls, name: str, fence: int, field: str = "after") -> HolderPlace:
        """The place of a `name` and a fence, or `BadInput`."""
        tenant, mark, resource = name.partition("~")
        if not mark:
            raise BadInput(field, "is not a place in this list", "pass on what the page before said, unchanged")
        return cls(tenant, resource, fence)


BEFORE_ALL: Final = HolderPlace("", "", 0)


def holder_place_of(text: str) -> HolderPlace:
    """The place that a text names, or `BadInput`."""
    place = place_of(text)
    return HolderPlace.named(place.id, place.at_ns)


@dataclass(frozen=True, slots=True)
class ResourceGrant:
    """What a holder gets. The token is its proof, and is shown to nobody else."""

    holder: ResourceHolder
    token: str = field(repr=False)
    fresh: bool = True  # False: the token held it before this ask, so its holder may know already


@dataclass(frozen=True, slots=True)
class ResourceBreak:
    """The audit record of one holder from whom an operator took a resource."""

    id: str
    at_ns: int
    tenant: str
    resource: str
    mode: Mode
    owner: str
    fence: int
    actor: str
    reason: str

    @property
    def place(self) -> Place:
        """Where it stands in a list: the next page comes after it."""
        return Place(self.at_ns, self.id)


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody asks for. `own`: they made the token up, and can ask again with it."""

    tenant: str
    resource: str
    owner: str
    mode: Mode
    ttl_ns: int
    own: bool
    token: str = field(repr=False)

    @property
    def slot(self) -> int:
        """Where transactions about the resource take turns."""
        return slot_of(self.tenant, self.resource)

    @property
    def digest(self) -> str:
        """What is stored of the token."""
        return digest_of(self.token)

    def again(self, own: Row) -> None:
        """Return if this is the ask that was granted as `own` under the same token, else `BadInput`."""
        for name, given in (("mode", str(self.mode)), ("owner", self.owner)):
            if own[name] != given:
                raise BadInput(name, f"this token holds it as {own[name]}", "release it, and ask with another token")

    def busy(self, holder: str | None, remaining_ns: int) -> LockBusy:
        """What is said when it cannot be had now. Without a holder, somebody waits to have it alone."""
        why = "somebody waits to have it alone" if holder is None else f"held by {holder}"
        return LockBusy(
            f"resource {self.resource!r} is busy: {why}",
            key=self.resource,
            holder=holder,
            retry_after=min(remaining_ns, RETRY_MAX_NS) / NS,
        )


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


def check_owner(value: object) -> str:
    """A label for people, or `BadInput`."""
    return _not_blank("owner", check_text("owner", value, OWNER_CHARS_MAX))


def check_ttl(ttl: Duration) -> int:
    """How long something is held, or `BadInput`."""
    return duration_ns("ttl", ttl, low_ns=TTL_LOW_NS, high_ns=TTL_MAX_NS)


def check_resource(resource: object) -> str:
    """The name of a resource, or `BadInput`."""
    return _not_blank("resource", check_key("resource", resource))


def named(tenant: str, resource: str) -> tuple[str, str]:
    """The two that are the name of a resource, or `BadInput`."""
    return check_label("tenant", tenant), check_resource(resource)


def proof(tenant: str, resource: str, token: object) -> dict[str, Any]:
    """The columns by which one holder is found, or `NotOwner`."""
    name, key = named(tenant, resource)
    if not isinstance(token, str) or not token or len(token) > TOKEN_CHARS_MAX:
        raise NotOwner(key=key)  # no such token was ever given out
    return {"tenant": name, "resource": key, "token": digest_of(token), "slot": slot_of(name, key)}


def digest_of(token: str) -> str:
    """What is stored of a token. It has 128 bits or more, so a plain digest cannot be turned back."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def slot_of(tenant: str, resource: str) -> int:
    """The counter from which a resource gets its fences."""
    return hashlib.sha256(f"{tenant}\0{resource}".encode("utf-8", "surrogatepass")).digest()[0] % SLOTS


def channel_of(slot: int) -> str:
    """Where those who wait for a resource of a slot listen."""
    return f"resource:{slot}"


def holder_of(row: Row, now_ns: int) -> ResourceHolder:
    """From a row to a holder."""
    return ResourceHolder(
        row["tenant"],
        row["resource"],
        Mode(row["mode"]),
        row["owner"],
        row["fence"],
        row["granted_ns"],
        max(0, row["expires_ns"] - now_ns),
    )


def _not_blank(field_name: str, text: str) -> str:
    if not text.strip():
        raise BadInput(field_name, "is blank", "give a name that people can see")
    return text
