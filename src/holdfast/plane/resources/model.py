"""Resource locks: modes, holders, requests and the checks of input. Pure decisions, no I/O.

`locks` describes the guarantees.
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
READER_BLOCK_NS: Final = 10 * NS
RETRY_MAX_NS: Final = 2 * NS  # well below WISH_NS, so a writer that retries as told keeps readers blocked
TOKEN_CHARS_MIN: Final = 32
TOKEN_CHARS_MAX: Final = 200
OWNER_CHARS_MAX: Final = 200
PAGE_MAX: Final = 1000

_TOKEN: Final = re.compile(f"[!-~]{{{TOKEN_CHARS_MIN},{TOKEN_CHARS_MAX}}}\\Z")


class ResourceMode(StrEnum):
    """How a resource is locked."""

    SHARED = "shared"  # together with other shared holders
    EXCLUSIVE = "exclusive"  # alone


@dataclass(frozen=True, slots=True)
class ResourceHolder:
    """One holder of one resource, without its token."""

    tenant: str
    resource: str
    mode: ResourceMode
    owner: str
    fence: int
    granted_ns: int
    remaining_ns: int  # when it was read

    @property
    def place(self) -> HolderCursor:
        """Its cursor in a list: the next page starts after it."""
        return HolderCursor(self.tenant, self.resource, self.fence)


class HolderCursor(NamedTuple):
    """A cursor in the list of all holders, ordered by tenant, resource and grant."""

    tenant: str
    resource: str
    fence: int

    @property
    def text(self) -> str:
        """For a command line; `holder_cursor_of` reads it."""
        return f"{self.fence}~{self.name}"

    @property
    def name(self) -> str:
        """Tenant and resource in one text. No tenant name contains this separator."""
        return f"{self.tenant}~{self.resource}"

    @classmethod
    def named(cls, name: str, fence: int, field: str = "after") -> HolderCursor:
        """The cursor from a `name` and a fence, or `BadInput`."""
        tenant, mark, resource = name.partition("~")
        if not mark:
            raise BadInput(field, "is not a cursor of this list", "pass on the cursor of the page before, unchanged")
        return cls(tenant, resource, fence)


BEFORE_ALL: Final = HolderCursor("", "", 0)


def holder_cursor_of(text: str) -> HolderCursor:
    """The cursor in a text, or `BadInput`."""
    place = place_of(text)
    return HolderCursor.named(place.id, place.at_ns)


@dataclass(frozen=True, slots=True)
class ResourceGrant:
    """A grant. The token proves it and is returned to its holder alone."""

    holder: ResourceHolder
    token: str = field(repr=False)
    fresh: bool = True  # False: the token was a holder before this request


@dataclass(frozen=True, slots=True)
class ResourceBreak:
    """The audit record of one holder that an operator removed."""

    id: str
    at_ns: int
    tenant: str
    resource: str
    mode: ResourceMode
    owner: str
    fence: int
    actor: str
    reason: str

    @property
    def place(self) -> Place:
        """Its cursor in a list: the next page starts after it."""
        return Place(self.at_ns, self.id)


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """A request for a resource. `own`: the caller made up the token, and can repeat the request with it."""

    tenant: str
    resource: str
    owner: str
    mode: ResourceMode
    ttl_ns: int
    own: bool
    token: str = field(repr=False)

    @property
    def slot(self) -> int:
        """The slot that serializes transactions about the resource."""
        return slot_of(self.tenant, self.resource)

    @property
    def digest(self) -> str:
        """The stored form of the token."""
        return digest_of(self.token)

    def check_repetition(self, own: Row) -> None:
        """Return if the same request was granted as `own` under this token, else raise `BadInput`."""
        for name, given in (("mode", str(self.mode)), ("owner", self.owner)):
            if own[name] != given:
                raise BadInput(name, f"this token holds it as {own[name]}", "release it, and ask with another token")

    def busy(self, holder: str | None, remaining_ns: int) -> LockBusy:
        """The refusal. Without a holder, a waiting writer blocks new readers."""
        why = "a writer waits for it" if holder is None else f"held by {holder}"
        return LockBusy(
            f"resource {self.resource!r} is busy: {why}",
            key=self.resource,
            holder=holder,
            retry_after=min(remaining_ns, RETRY_MAX_NS) / NS,
        )


def check_mode(value: object) -> ResourceMode:
    """A mode from its name, or `BadInput`."""
    try:
        return ResourceMode(value)  # type: ignore[arg-type]  # the enum refuses other types
    except ValueError:
        raise BadInput("mode", f"{value!r:.60} is not a mode", "use shared or exclusive") from None


def check_token(value: object) -> str:
    """A token that a caller made up, or `BadInput`, which does not show it."""
    if isinstance(value, str) and _TOKEN.match(value) is not None:
        return value
    fix = f"give {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} random printable ASCII characters without spaces"
    raise BadInput("token", "is not usable", fix)


def check_owner(value: object) -> str:
    """A label for people, or `BadInput`."""
    return _not_blank("owner", check_text("owner", value, OWNER_CHARS_MAX))


def check_ttl(ttl: Duration) -> int:
    """The TTL of a resource lock in nanoseconds, or `BadInput`."""
    return duration_ns("ttl", ttl, low_ns=TTL_LOW_NS, high_ns=TTL_MAX_NS)


def check_resource(resource: object) -> str:
    """The name of a resource, or `BadInput`."""
    return _not_blank("resource", check_key("resource", resource))


def named(tenant: str, resource: str) -> tuple[str, str]:
    """The checked tenant and resource, or `BadInput`."""
    return check_label("tenant", tenant), check_resource(resource)


def proof(tenant: str, resource: str, token: object) -> dict[str, Any]:
    """The columns that identify one holder, or `NotOwner`."""
    name, key = named(tenant, resource)
    if not isinstance(token, str) or not token or len(token) > TOKEN_CHARS_MAX:
        raise NotOwner(key=key)  # no such token was ever granted
    return {"tenant": name, "resource": key, "token": digest_of(token), "slot": slot_of(name, key)}


def digest_of(token: str) -> str:
    """The stored form of a token. It has at least 128 bits, so a plain digest cannot be reversed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def slot_of(tenant: str, resource: str) -> int:
    """The counter from which a resource gets its fences."""
    return hashlib.sha256(f"{tenant}\0{resource}".encode("utf-8", "surrogatepass")).digest()[0] % SLOTS


def channel_of(slot: int) -> str:
    """The notification channel for the resources of a slot."""
    return f"resource:{slot}"


def holder_of(row: Row, now_ns: int) -> ResourceHolder:
    """A holder from its row."""
    return ResourceHolder(
        row["tenant"],
        row["resource"],
        ResourceMode(row["mode"]),
        row["owner"],
        row["fence"],
        row["granted_ns"],
        max(0, row["expires_ns"] - now_ns),
    )


def _not_blank(field_name: str, text: str) -> str:
    if not text.strip():
        raise BadInput(field_name, "is blank", "give a name that people can see")
    return text
