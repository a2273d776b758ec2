"""Who is asking, and what they may do: bearer tokens, roles and tenants.

Promises: a token is kept only as its digest, and is compared in time that does not depend on where it differs; it
appears in no log, answer or `repr`. Without tokens nobody gets in, unless the server is bound to the loopback interface
and was told to be open; then a web page that somebody visits still cannot use it: requests must be addressed to the
loopback interface by name, and must not come from another origin.

Roles: everybody may look (viewer). Operators submit, cancel, retry and lock. Approvers decide what waits for a person;
that is a power of its own, so that who submits and who approves can be kept apart. Admins may do everything.
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
from typing import Final

from holdfast.errors import BadInput
from holdfast.plane.service.service import Caller
from holdfast.types import check_label

EVERY_TENANT: Final = "*"
TOKEN_CHARS_MIN: Final = 16
TOKEN_CHARS_MAX: Final = 1000

_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
# A name or an address, and perhaps a port: no user, path or spaces, which other programs would read differently.
_HOST: Final = re.compile(r"(?P<name>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_PORT_MAX: Final = 65_535
_OPEN_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost"})


class Role(StrEnum):
    """What somebody may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose token was right."""

    name: str
    roles: frozenset[Role]
    tenant: str | None  # None: every tenant

    @property
    def caller(self) -> Caller:
        """The same, as the service knows them."""
        return Caller(self.name, self.tenant)

    def has(self, role: Role) -> bool:
        """Whether they may do what takes this role."""
        return role is Role.VIEWER or role in self.roles or Role.ADMIN in self.roles


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token as it is configured."""

    name: str  # whose it is; stands in the history of what they do
    digest: str = field(repr=False)  # SHA-256 of the token, in hexadecimal
    roles: tuple[Role, ...] = (Role.VIEWER,)
    tenant: str = EVERY_TENANT
    expires: datetime | None = None  # from when on it is refused; None: never

    def check(self) -> TokenEntry:
        """The entry itself, or `BadInput`."""
        check_label("tokens.name", self.name)
        if _DIGEST.match(str(self.digest)) is None:
            raise BadInput("tokens.digest", "is not a SHA-256 in hexadecimal", "give that of the token, not the token")
        if not self.roles:
            raise BadInput("tokens.roles", "are none", f"give some of {', '.join(Role)}")
        for role in self.roles:
            check_role(role)
        if self.tenant != EVERY_TENANT:
            check_label("tokens.tenant", self.tenant)
            if Role.ADMIN in self.roles:
                raise BadInput("tokens.tenant", "binds an admin", "admins rule every tenant: use *, or another role")
        moment: object = self.expires  # anything may stand in the file
        if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
            raise BadInput("tokens.expires", "is not a moment", "write it with its offset: 2027-01-31T12:00:00Z")
        return self

    @property
    def principal(self) -> Principal:
        """Who has the token."""
        tenant = None if self.tenant == EVERY_TENANT else self.tenant
        return Principal(self.name, frozenset(check_role(role) for role in self.roles), tenant)


def check_role(value: object) -> Role:
    """A role, also by its name, or `BadInput`."""
    try:
        return Role(value)  # type: ignore[arg-type]  # the enum refuses what it is not
    except ValueError:
        raise BadInput("tokens.roles", f"{value!r:.60} is no role", f"use some of {', '.join(Role)}") from None


def digest_of(token: str) -> str:
    """What is configured of a token. It has to be a random one: a digest does not protect a guessable word."""
    if not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        raise BadInput("token", "is too short or too long", f"use {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters")
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Expired(Exception):
    """A token was valid, and is not any more."""


class Access:
    """Who gets in. Clock: wall, for tokens that expire."""

    def __init__(
        self,
        tokens: Iterable[TokenEntry] = (),
        *,
        open_to_all: bool = False,
        host: str = "127.0.0.1",
        refresh: Callable[[], Iterable[TokenEntry] | None] | None = None,
    ) -> None:
        """`refresh` is called before each lookup: it returns the tokens if they have changed, else None.

        `host` is where the server listens. One that is open to all serves requests addressed to it, and to `localhost`,
        `127.0.0.1` and `[::1]`.
        """
        self._tokens = _checked(tokens)
        if open_to_all and self._tokens:
            raise BadInput("tokens", "are given for a server that is open to all", "do without one of the two")
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
            raise BadInput("host", f"{host!r:.80} can be reached by others, and there are no tokens", fix)
        return cls(entries, open_to_all=not entries, host=host, refresh=refresh)

    def principal(self, authorization: str | None) -> Principal | None:
        """Whose `Authorization` header this is; None: nobody's. Every digest is compared, whichever fits.

        Raises `Expired` for a token whose time is over.
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
            return "this server has no tokens, and serves no requests of pages from elsewhere"
        return None


def _checked(tokens: Iterable[TokenEntry]) -> tuple[TokenEntry, ...]:
    entries = tuple(entry.check() for entry in tokens)
    if len({entry.digest for entry in entries}) < len(entries):
        raise BadInput("tokens.digest", "is there twice", "give everybody a token of their own")
    return entries


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _LOOPBACK_NAMES
