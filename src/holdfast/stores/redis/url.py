"""Where a Redis or Valkey server is and how to talk to it: the URL, understood completely or refused.

    redis://[user:password@]host[:port][/db]        valkey:// is the same
    rediss://…                                      with TLS, verified; valkeys:// is the same
    unix:///path/to.sock?db=0                       redis+unix:// is the same
    redis+sentinel://[user:password@]host[:port],host[:port]/name[/db]      the primary that these Sentinels name
    rediss+sentinel://…                             with TLS to both
    redis+cluster://[user:password@]host[:port],host[:port]                 the cluster that these nodes belong to
    rediss+cluster://…                              with TLS to all nodes

Options: `prefix` goes before every lock name (none by default: the Redis key *is* the lock name), `namespace` begins
the names of what the store keeps besides locks (default `holdfast`), `db`, and for TLS `ssl_ca_certs`, `ssl_certfile`,
`ssl_keyfile`, `ssl_cert_reqs` (`required`, or `none` to trust any server) and `ssl_check_hostname`. An acquire waits
for `wait_replicas` replicas for at most `wait_timeout` (100ms by default), or it is undone. Sentinels with a password
of their own have `sentinel_password`, and `sentinel_username`.

Promises: nothing is sent anywhere; no text made here contains a password, for no error shows the URL.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode

from holdfast.core.duration_text import parse_duration_ns
from holdfast.errors import BadInput
from holdfast.stores.registry import redacted
from holdfast.stores.tls_options import TLS_FILES, client_context
from holdfast.stores.url_parts import split_url, url_options
from holdfast.types import MS, NS, check_key, check_label

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
WAIT_NS = 100 * MS
REPLICAS_MAX = 16
DB_MAX = 65_535  # what a server really has is its own setting; this only refuses nonsense

_TCP = ("redis", "valkey", "rediss", "valkeys")
_TLS = ("rediss", "valkeys")
_UNIX = ("unix", "redis+unix")
_TLS_OPTIONS = (*TLS_FILES, "ssl_cert_reqs", "ssl_check_hostname")
_OPTIONS = ("prefix", "namespace", "db", "wait_replicas", "wait_timeout", *_TLS_OPTIONS)
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_SENTINEL_SHAPE = "write redis+sentinel://host:26379,host:26379/name/0"
_SHAPE = "write redis://[user:password@]host:6379/0 or unix:///path/to.sock?db=0"


class CredentialProvider(Protocol):
    """Makes the user and password of each new connection, as the credential providers of redis-py do."""

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """The password, or the user and the password."""
        ...

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The same, awaited."""
        ...


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A parsed URL. Safe to print: the password is not part of its text, and `str()` is how errors name the server."""

    host: str
    port: int
    path: str | None  # a unix socket, instead of host and port
    db: int
    username: str | None
    password: str | None = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)
    prefix: str
    namespace: str
    wait_replicas: int = 0  # an acquire counts only when so many replicas have it
    wait_ns: int = WAIT_NS
    service: str = ""  # the name under which Sentinels know it; it must be a primary then
    credentials: CredentialProvider | None = field(default=None, repr=False)  # instead of user and password

    def find(self, deadline_ns: int) -> RedisAddress:
        """See `ServerSource`: an address is a source of itself."""
        return self

    async def find_async(self) -> RedisAddress:
        """See `ServerSource`."""
        return self

    def follow(self, moved: Callable[[RedisAddress], None]) -> None:
        """See `ServerSource`: it never changes."""

    def close(self) -> None:
        """See `ServerSource`."""

    def __str__(self) -> str:
        if self.service and not self.host:
            return f"primary {self.service!r} (not found yet)"
        if self.path is not None:
            return redacted(f"unix:{self.path}")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class ServerSource(Protocol):
    """Where new connections go. An address is one; `sentinel.PrimarySource` asks Sentinels."""

    def find(self, deadline_ns: int) -> RedisAddress:
        """The server of a new connection. The deadline is one of `time.monotonic_ns`. Raises store errors."""
        ...

    async def find_async(self) -> RedisAddress:
        """The same on an event loop. The caller limits the time."""
        ...

    def follow(self, moved: Callable[[RedisAddress], None]) -> None:
        """Call this bound method, from any thread, when leases have moved to another server. Kept weakly."""
        ...

    def close(self) -> None:
        """End threads. They start again when the source is asked again."""
        ...


def parse_redis_url(url: str) -> RedisAddress:
    """Understand a URL, or raise `BadInput` that names the part and the fix."""
    parts = split_url(url, (*_TCP, *_UNIX), "a Redis", _SHAPE)
    scheme = parts.scheme.lower()
    try:
        port = parts.port
    except ValueError:
        raise BadInput("url", "its port is not a number from 0 to 65535", _SHAPE) from None
    tls = scheme in _TLS
    options = url_options(parts.query, _OPTIONS, tls_only=_TLS_OPTIONS, tls=tls, tls_scheme="rediss")
    if scheme in _UNIX:
        host, port, path, db_text = "", 0, _socket_path(parts), options.get("db", "")
    else:
        host, path, db_text = _host(parts), None, _db_text(parts.path, options)
        port = DEFAULT_PORT if port is None else port
        if not port:
            raise BadInput("url", "port 0 is no port", _SHAPE)
    if parts.username and parts.password is None:
        raise BadInput("url user", "a user without a password", "write redis://user:password@host")
    return RedisAddress(
        host=host,
        port=port,
        path=path,
        db=_db(db_text),
        username=unquote(parts.username) if parts.username else None,
        password=None if parts.password is None else unquote(parts.password),
        tls=_context(options) if tls else None,
        prefix=check_key("url option prefix", options["prefix"]) if options.get("prefix") else "",
        namespace=check_label("url option namespace", options.get("namespace", "holdfast")),
        wait_replicas=_wait_replicas(options),
        wait_ns=parse_duration_ns(
            "url option wait_timeout", options.get("wait_timeout", "100ms"), low_ns=MS, high_ns=60 * NS
        ),
    )


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """The Sentinels of a primary, and how to talk to the primary: an address without a host."""

    sentinels: tuple[RedisAddress, ...]
    primary: RedisAddress


def parse_sentinel_url(url: str) -> SentinelAddress:
    """Understand a URL that names Sentinels, or raise `BadInput` that names the part and the fix."""
    scheme, _, rest = url.partition("://")
    head, _, query = rest.partition("?")
    # A password may hold a slash or a comma only as %2F or %2C, as in any URL: here both would end it.
    servers, _, path = head.partition("/")
    user, at, hosts = servers.rpartition("@")
    options = parse_qsl(query, keep_blank_values=True)
    own = {name: value for name, value in options if name in _SENTINEL_OPTIONS}
    if sum(name in _SENTINEL_OPTIONS for name, _ in options) != len(own):
        raise BadInput("url option", "sentinel_username or sentinel_password is given twice", "give it once")
    if own.keys() == {"sentinel_username"}:
        raise BadInput("url option sentinel_username", "a user without a password", "give sentinel_password too")
    passed = [each for each in options if each[0] not in own]
    base = scheme.lower().partition("+")[0]
    name, slash, db = path.partition("/")
    service = unquote(name)
    if not service or not service.isprintable() or " " in service:
        raise BadInput("url", "names no primary", f"{_SENTINEL_SHAPE}, where name is the one that Sentinels monitor")
    primary = parse_redis_url(f"{base}://{user}{at}localhost{slash}{db}?{urlencode(passed)}")
    names = hosts.split(",")
    if not all(names):
        raise BadInput("url host", "a Sentinel has no name", _SENTINEL_SHAPE)
    tail = urlencode([each for each in passed if each[0] in _TLS_OPTIONS])
    secret = own.get("sentinel_password")
    account = "" if secret is None else f"{quote(own.get('sentinel_username', ''), safe='')}:{quote(secret, safe='')}@"
    sentinels = tuple(
        parse_redis_url(f"{base}://{account}{each if _has_port(each) else f'{each}:{SENTINEL_PORT}'}?{tail}")
        for each in names
    )
    if len(set(map(str, sentinels))) != len(sentinels):
        raise BadInput("url host", "a Sentinel is named twice", "name each one once")
    return SentinelAddress(sentinels, replace(primary, host="", port=0, service=service))


def parse_cluster_url(url: str) -> tuple[RedisAddress, ...]:
    """Understand a URL that names nodes of a cluster, or raise `BadInput` that names the part and the fix."""
    scheme, _, rest = url.partition("://")
    head, _, query = rest.partition("?")
    servers, _, path = head.partition("/")
    user, at, hosts = servers.rpartition("@")
    names = hosts.split(",")
    if not all(names):
        raise BadInput("url host", "a node has no name", "write redis+cluster://host:6379,host:6379")
    base = scheme.lower().partition("+")[0]
    seeds = tuple(parse_redis_url(f"{base}://{user}{at}{each}/{path}?{query}") for each in names)
    if seeds[0].db:
        raise BadInput("url db", "a cluster has database 0 only", "leave it out")
    if len(set(map(str, seeds))) != len(seeds):
        raise BadInput("url host", "a node is named twice", "name each one once")
    return seeds


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


def _wait_replicas(options: Mapping[str, str]) -> int:
    text = options.get("wait_replicas", "0")
    if not (text.isascii() and text.isdigit()) or len(text) > 2 or int(text) > REPLICAS_MAX:
        raise BadInput("url option wait_replicas", "is not a number of replicas", f"give 0 to {REPLICAS_MAX}")
    if "wait_timeout" in options and not int(text):
        raise BadInput("url option wait_timeout", "there is nothing to wait for", "give wait_replicas too")
    return int(text)


def _host(parts: SplitResult) -> str:
    """A name or an address that can be looked up; what no resolver takes would be found out only in use."""
    host = parts.hostname or "localhost"
    if not host.isprintable() or " " in host:
        raise BadInput("url host", "has a space or an unprintable character in it", _SHAPE)
    return host


def _socket_path(parts: SplitResult) -> str:
    if parts.hostname:
        raise BadInput("url", "a unix socket has no host", "write three slashes: unix:///path/to.sock")
    path = unquote(parts.path)
    if path in ("", "/"):
        raise BadInput("url", "names no socket", "write unix:///path/to.sock")
    if "\0" in path:
        raise BadInput("url", "the path contains a zero byte", "remove it")
    return path


def _db_text(path: str, options: dict[str, str]) -> str:
    in_path = path.removeprefix("/")
    if in_path and "db" in options:
        raise BadInput("url option db", "the database is given twice", "give it in the path or as an option")
    return in_path or options.get("db", "")


def _db(text: str) -> int:
    if not text:
        return 0
    # Python itself refuses to read thousands of digits, with an error that is not ours.
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(DB_MAX)) or int(text) > DB_MAX:
        raise BadInput("url db", "the database is not a number", f"give 0 to {DB_MAX}, as in redis://host:6379/0")
    return int(text)


def _context(options: dict[str, str]) -> ssl.SSLContext:
    """Set up TLS, verified unless the URL requests less."""
    required = _choice(options, "ssl_cert_reqs", {"required": True, "none": False}, default=True)
    named = _choice(options, "ssl_check_hostname", {"true": True, "false": False}, default=required)
    context = client_context(options)
    if named and not required:
        raise BadInput("url option ssl_check_hostname", "cannot be checked with ssl_cert_reqs=none", "drop one of them")
    context.check_hostname = named
    if not required:
        context.verify_mode = ssl.CERT_NONE
    return context


def _choice(options: dict[str, str], name: str, choices: dict[str, bool], *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in choices:
        raise BadInput(f"url option {name}", f"{text[:20]!r} is not a choice", f"use one of {', '.join(choices)}")
    return choices[text.lower()]
