"""Where a Postgres database is and how to reach it: the URL, understood completely or refused.

    postgresql://[user:password@]host[:port][,host2…]/database[?option=value]      postgres:// is the same

Takes every option of Postgres's own library (`sslmode`, `sslrootcert`, `host` for a unix socket, …). Options of this
store: `schema` (default `holdfast`) contains the tables, and `pool_max` is the most connections of each kind of store
in a process (default 10). One more connection listens for releases while a caller waits.

Promises: nothing is sent anywhere; no text made here contains a password. Another host means verified TLS
(`runtime.postgres_driver`), unless the URL says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import BadInput
from holdfast.runtime.postgres_driver import tls_options
from holdfast.stores.registry import redacted
from holdfast.types import check_label

POOL_MAX: Final = 10
DEFAULT_SCHEMA: Final = "holdfast"

_OPTIONS: Final = ("schema", "pool_max", "pool_timeout")  # the last is of the plane's database, which may be the same
_POOL_MOST: Final = 1000
_SCHEMA_BYTES_MAX: Final = 63  # Postgres cuts longer names silently, and two names become one
_SHAPE: Final = "write postgresql://user:password@host:5432/database"
_DEFAULT_PORT: Final = "5432"
_IDENTITY: Final = ("host", "hostaddr", "dbname", "user", "service")
_DEFAULTS: Final = {
    "application_name": "holdfast",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "target_session_attrs": "read-write",  # of several hosts the one that can be written
}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server to try. `name` is a host that has to be resolved first; None: the library knows where."""

    name: str | None
    port: str
    options: Mapping[str, Any] = field(repr=False)

    def conninfo(self, address: str | None) -> bytes:
        """The connection string, for one address of the host."""
        resolved = {} if address is None else {"hostaddr": address}
        return make_conninfo(**{**self.options, **resolved}).encode()


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A parsed URL. `str()` is how errors name the server: without the password."""

    shown: str
    places: tuple[ServerAddress, ...] = field(repr=False)
    schema: str  # quoted
    pool_max: int

    def __str__(self) -> str:
        return self.shown

    def is_same_database(self, other: PostgresAddress) -> bool:
        """Whether both name the same database of the same servers, for the same user. False: not for certain."""
        return self._identity() == other._identity()

    def _identity(self) -> list[list[Any]]:
        return [[place.name, place.port, *map(place.options.get, _IDENTITY)] for place in self.places]


def parse_postgres_url(url: str) -> PostgresAddress:
    """Understand a URL, or raise `BadInput` that names the part and the fix."""
    shown = redacted(url)
    if "\0" in url or (not url.isascii() and url != url.encode("utf-8", "replace").decode()):
        raise BadInput("url", "holds bytes that are no text", "write it in UTF-8")
    head, mark, query = url.partition("?")
    scheme, _, place = head.partition("://")
    ours = _own_options(query)
    theirs = "&".join(pair for pair in query.split("&") if pair.partition("=")[0] not in _OPTIONS)
    plain = f"{scheme.lower()}://{place}{mark if theirs else ''}{theirs}"
    try:
        given = conninfo_to_dict(plain)
        tls = tls_options(plain)
    except (psycopg.Error, UnicodeError):  # its text may hold the password; and %ff is no text
        raise BadInput("url", f"{shown} is not understood by Postgres's own library", _SHAPE) from None
    options = {**_DEFAULTS, **tls, **given, "client_encoding": "utf8"}
    return PostgresAddress(
        redacted(plain), tuple(_places(options, shown)), _schema(ours.get("schema")), _pool_max(ours.get("pool_max"))
    )


def _own_options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _OPTIONS:
            if name in options:
                raise BadInput(f"url option {name}", "is given twice", "give it once")
            options[name] = value
    return options


def _places(options: Mapping[str, Any], shown: str) -> list[ServerAddress]:
    """One for each host. libpq itself would wait for a silent host as long as the system does."""
    lists = {name: str(options[name]).split(",") for name in ("host", "hostaddr", "port") if options.get(name)}
    hosts, addresses = lists.get("host"), lists.get("hostaddr")
    number = len(hosts or addresses or [""])
    if addresses is not None and len(addresses) != number:
        raise BadInput("url", f"{shown} has {number} hosts and {len(addresses)} addresses", "give one for each host")
    ports = lists.get("port", [""])
    ports = ports * number if len(ports) == 1 else ports
    if len(ports) != number:
        raise BadInput("url", f"{shown} has {number} hosts and {len(ports)} ports", "give one port, or one for each")
    found = []
    for at in range(number):
        host = hosts[at] if hosts else ""
        address = addresses[at] if addresses else ""
        named = {"host": host, "hostaddr": address, "port": ports[at]}
        rest = {name: value for name, value in options.items() if name not in named}
        rest.update({name: value for name, value in named.items() if value})
        resolved = not host or bool(address) or host.startswith(("/", "@"))
        found.append(ServerAddress(None if resolved else host, ports[at] or _DEFAULT_PORT, rest))
    return found


def _schema(name: str | None) -> str:
    if name is None:
        name = DEFAULT_SCHEMA
    check_label("url option schema", name)
    if len(name.encode()) > _SCHEMA_BYTES_MAX or name.startswith("pg_"):
        raise BadInput("url option schema", f"{name!r} is not a schema's name", "use at most 63 bytes, not 'pg_…'")
    return f'"{name}"'  # a label has no quotes


def _pool_max(text: str | None) -> int:
    if text is None:
        return POOL_MAX
    digits = text.isascii() and text.isdecimal() and len(text) <= len(str(_POOL_MOST))  # Python reads only so many
    if not digits or not 1 <= int(text) <= _POOL_MOST:
        raise BadInput("url option pool_max", f"{text!r} is out of range", f"give a whole number up to {_POOL_MOST}")
    return int(text)
