"""Authentication: bearer tokens, roles and tenants.

Promises: a token is stored only as its digest, compared in constant time, and appears in no log, response or `repr`.
Without tokens every request is refused, unless the server is bound to the loopback interface and configured as open.
Even then web pages cannot use it: requests must be addressed to the loopback interface by name, and must not come from
another origin.

Roles: viewers read. Operators submit, cancel, retry and lock. Approvers decide about approvals; this is a separate
role, so that submitting and approving can be kept apart. Admins may do everything.

Required roles of routes. Every route of the API declares one; a test finds those that do not.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final
from urllib.parse import unquote

from fastapi import Depends, Path
from fastapi.params import Depends as Dependency
from fastapi.security import HTTPBearer
from pydantic import BeforeValidator
from starlette.requests import Request

from holdfast.errors import BadInput
from holdfast.plane.model.records import ID_CHARS_MAX
from holdfast.plane.service.service import Caller, NotAllowed, Service
from holdfast.types import LABEL_CHARS_MAX, check_label
from holdfast.web.schemas.jobs import LABEL_PATTERN

EVERY_TENANT: Final = "*"
TOKEN_CHARS_MIN: Final = 16
TOKEN_CHARS_MAX: Final = 1000

_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
# A name or an address, with an optional port: no user, path or spaces, which programs parse differently.
_HOST: Final = re.compile(r"(?P<name>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_PORT_MAX: Final = 65_535
_OPEN_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost"})


class Role(StrEnum):
    """The permissions of a caller."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller."""

    name: str
    roles: frozenset[Role]
    tenant: str | None  # None: every tenant

    @property
    def caller(self) -> Caller:
        """The same, for the service."""
        return Caller(self.name, self.tenant)

    def has(self, role: Role) -> bool:
        """Whether the caller has this role."""
        return role is Role.VIEWER or role in self.roles or Role.ADMIN in self.roles


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One configured token."""

    name: str  # of its owner; recorded in histories
    digest: str = field(repr=False)  # SHA-256 of the token, in hexadecimal
    roles: tuple[Role, ...] = (Role.VIEWER,)
    tenant: str = EVERY_TENANT
    expires: datetime | None = None  # refused from then on; None: never

    def check(self) -> TokenEntry:
        """This entry, or `BadInput`."""
        check_label("tokens.name", self.name)
        if _DIGEST.match(str(self.digest)) is None:
            raise BadInput("tokens.digest", "is not a SHA-256 in hexadecimal", "give that of the token, not the token")
        if not self.roles:
            raise BadInput("tokens.roles", "are empty", f"give some of {', '.join(Role)}")
        for role in self.roles:
            check_role(role)
        if self.tenant != EVERY_TENANT:
            check_label("tokens.tenant", self.tenant)
            if Role.ADMIN in self.roles:
                raise BadInput("tokens.tenant", "binds an admin", "admins need every tenant: use *, or another role")
        moment: object = self.expires  # the file may contain any value
        if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
            raise BadInput("tokens.expires", "is not a time", "write it with its offset: 2027-01-31T12:00:00Z")
        return self

    @property
    def principal(self) -> Principal:
        """The owner of the token."""
        tenant = None if self.tenant == EVERY_TENANT else self.tenant
        return Principal(self.name, frozenset(check_role(role) for role in self.roles), tenant)


def check_role(value: object) -> Role:
    """A role from its name, or `BadInput`."""
    try:
        return Role(value)  # type: ignore[arg-type]  # the enum refuses other types
    except ValueError:
        raise BadInput("tokens.roles", f"{value!r:.60} is not a role", f"use some of {', '.join(Role)}") from None


def digest_of(token: str) -> str:
    """The configured form of a token. The token must be random: a digest does not protect a guessable word."""
    if not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        raise BadInput("token", "is too short or too long", f"use {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters")
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Expired(Exception):
    """A token has expired."""


class Access:
    """Decides which requests are served. Clock: wall, for tokens that expire."""

    def __init__(
        self,
        tokens: Iterable[TokenEntry] = (),
        *,
        open_to_all: bool = False,
        host: str = "127.0.0.1",
        refresh: Callable[[], Iterable[TokenEntry] | None] | None = None,
    ) -> None:
        """`refresh` is called before each lookup: it returns the tokens if they have changed, else None.

        `host` is where the server listens. An open server serves requests addressed to it, and to `localhost`,
        `127.0.0.1` and `[::1]`.
        """
        self._tokens = _checked(tokens)
        if open_to_all and self._tokens:
            raise BadInput("tokens", "are given for a server that is open to all", "remove one of the two")
        self.open_to_all = open_to_all
        self._hosts = frozenset({*_OPEN_HOSTS, host.lower(), f"[{host.lower().strip('[]')}]"})
        self._refresh = refresh

    @classmethod
    def bound_to(
        cls,
        host: str,
        tokens: Iterable[TokenEntry] = (),
        refresh: Callable[[], Iterable[TokenEntry] | None] | None = None,
    ) -> Access:
        """For a server that listens at `host`: open on the loopback interface if there are no tokens, else refused."""
        entries = tuple(tokens)
        if not entries and not is_loopback(host):
            fix = "configure tokens, or bind to 127.0.0.1"
            raise BadInput("host", f"{host!r:.80} can be reached by other hosts, and there are no tokens", fix)
        return cls(entries, open_to_all=not entries, host=host, refresh=refresh)

    def principal(self, authorization: str | None) -> Principal | None:
        """The owner of this `Authorization` header; None: unknown. Compares every digest, whichever matches.

        Raises `Expired` for an expired token.
        """
        if self.open_to_all:
            return Principal("local", frozenset({Role.ADMIN}), None)
        changed = None if self._refresh is None else self._refresh()
        if changed is not None:
            self._tokens = _checked(changed)
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        given = hashlib.sha256(token.strip().encode("utf-8", "surrogatepass")).hexdigest()
        found: TokenEntry | None = None
        for digest, entry in ((each.digest, each) for each in self._tokens):
            if hmac.compare_digest(digest, given):
                found = entry
        if found is None:
            return None
        if found.expires is not None and found.expires <= datetime.now(UTC):
            raise Expired
        return found.principal

    def stranger(self, host: str | None, origin: str | None) -> str | None:
        """Why an open server must not serve a request with these headers; None: it may."""
        if not self.open_to_all:
            return None
        named = _HOST.fullmatch(host or "")
        if named is None or named["name"].lower() not in self._hosts or int(named["port"] or 0) > _PORT_MAX:
            return "this server has no tokens, and serves only requests addressed to the loopback interface"
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return "this server has no tokens, and serves no requests from pages of other sites"
        return None


def _checked(tokens: Iterable[TokenEntry]) -> tuple[TokenEntry, ...]:
    entries = tuple(entry.check() for entry in tokens)
    if len({entry.digest for entry in entries}) < len(entries):
        raise BadInput("tokens.digest", "is there twice", "give each owner a different token")
    return entries


def is_loopback(host: str) -> bool:
    """Whether a server that listens there can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _LOOPBACK_NAMES


BEARER: Final = HTTPBearer(auto_error=False, description="A token from the server's configuration.")


@dataclass(frozen=True)
class Needs:
    """A dependency that requires a role. `everywhere`: and a caller who is not bound to a tenant."""

    role: Role
    everywhere: bool = False

    async def __call__(self, request: Request, _bearer: Annotated[Any, Depends(BEARER)]) -> None:
        """Return, or raise `NotAllowed`."""
        principal = principal_of(request)
        if not principal.has(self.role):
            raise NotAllowed(f"this requires the role {self.role}")
        if self.everywhere and principal.tenant is not None:
            raise NotAllowed("this shows data of every tenant, and you are bound to one")


def needs(role: Role, *, everywhere: bool = False) -> Dependency:
    """The declaration of a route's required role."""
    made = Depends(Needs(role, everywhere))
    assert isinstance(made, Dependency)  # noqa: S101 - for the type checker: the function is declared to return Any
    return made


def principal_of(request: Request) -> Principal:
    """The caller. The intake admits only known callers."""
    principal = request.scope["state"]["principal"]
    if not isinstance(principal, Principal):
        raise NotAllowed("the caller is not known")
    return principal


def _caller(request: Request) -> Caller:
    return principal_of(request).caller


def _service(request: Request) -> Service:
    service = request.app.state.service
    if not isinstance(service, Service):
        raise TypeError("the application was not made by create_app")
    return service


Asking = Annotated[Caller, Depends(_caller)]
Serving = Annotated[Service, Depends(_service)]
Segment = Annotated[str, Path(min_length=1, max_length=2 * ID_CHARS_MAX), BeforeValidator(unquote)]
"""An id in an address: the intake leaves slashes in it encoded."""

TenantSegment = Annotated[
    str, Path(min_length=1, max_length=LABEL_CHARS_MAX, pattern=LABEL_PATTERN), BeforeValidator(unquote)
]
"""A tenant in an address."""


def own_tenant(caller: Caller, given: str | None) -> str:
    """The tenant on whose behalf the caller acts, or `NotAllowed`."""
    return caller.own(given)
