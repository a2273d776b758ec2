"""Where an etcd cluster is and how to talk to it: the URL, understood completely or refused.

    etcd://[user:password@]host[:port][,host2[:port]…][/prefix]
    etcds://…                                                      with TLS, verified

The prefix begins the names of all keys that the store writes (`holdfast` by default); it may have several parts.
Options for TLS: `ssl_ca_certs`, and with a client certificate `ssl_certfile` and `ssl_keyfile`. Certificates and host
names are always verified.

Promises: nothing is sent anywhere; no text made here contains a password, for no error shows the URL.
"""

from __future__ import annotations

import difflib
import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import BadInput
from holdfast.stores.tls_options import TLS_FILES, client_context

DEFAULT_PORT: Final = 2379
DEFAULT_PREFIX: Final = "holdfast"
ENDPOINTS_MAX: Final = 16
PREFIX_MAX: Final = 120

_SHAPE = "write etcd://host:2379,host2:2379/prefix, or etcds:// for TLS"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One member of the cluster, as clients reach it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """A parsed URL. Safe to print: the password is not part of its text."""

    endpoints: tuple[Endpoint, ...]
    username: str | None
    password: str | None = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)
    prefix: str

    def __str__(self) -> str:
        return ",".join(map(str, self.endpoints))


def parse_etcd_url(url: str) -> EtcdAddress:
    """Understand a URL, or raise `BadInput` that names the part and the fix."""
    if not url.isascii() and url != url.encode("utf-8", "replace").decode():
        raise BadInput("url", "holds bytes that are no text", "write it in UTF-8")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadInput("url", "is not a URL", _SHAPE) from None
    scheme = parts.scheme.lower()
    if scheme not in ("etcd", "etcds"):
        raise BadInput("url", f"{scheme}:// is not an etcd URL", _SHAPE)
    if parts.fragment:
        raise BadInput("url", "has a '#' part", "write a '#' in a password as %23")
    userinfo, at, places = parts.netloc.rpartition("@")
    user, colon, password = userinfo.partition(":")
    if at and (not user or not colon or not password):
        raise BadInput("url user", "a user without a password, or the reverse", "write etcd://user:password@host")
    options = _options(parts.query, tls=scheme == "etcds")
    return EtcdAddress(
        endpoints=_endpoints(places),
        username=unquote(user) if at else None,
        password=unquote(password) if at else None,
        tls=client_context(options) if scheme == "etcds" else None,
        prefix=_prefix(parts.path),
    )


def _endpoints(places: str) -> tuple[Endpoint, ...]:
    found: list[Endpoint] = []
    for place in places.split(","):
        try:
            one = urlsplit(f"//{place}")
            host, port = one.hostname or ("localhost" if not places else ""), one.port
        except ValueError:
            raise BadInput("url host", "one is not a host with a port from 1 to 65535", _SHAPE) from None
        if not _is_name(host) or port == 0:
            raise BadInput("url host", "one is empty, is no possible name or has port 0", _SHAPE)
        endpoint = Endpoint(host, DEFAULT_PORT if port is None else port)
        if endpoint in found:
            raise BadInput("url host", f"{endpoint} is given twice", "give each member once")
        found.append(endpoint)
    if len(found) > ENDPOINTS_MAX:
        raise BadInput("url host", f"{len(found)} endpoints", f"give at most {ENDPOINTS_MAX}")
    return tuple(found)


def _is_name(host: str) -> bool:
    try:
        return bool(host.encode("idna")) and host.isprintable() and " " not in host
    except UnicodeError:
        return False


def _prefix(path: str) -> str:
    prefix = unquote(path).strip("/") or DEFAULT_PREFIX
    if not prefix.isprintable() or len(prefix) > PREFIX_MAX:
        raise BadInput(
            "url prefix", "is too long or has unprintable characters", f"use {PREFIX_MAX} characters at most"
        )
    return prefix


def _options(query: str, *, tls: bool) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in TLS_FILES:
            near = difflib.get_close_matches(name, TLS_FILES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(TLS_FILES)}"
            # The name is shown only if it looks like one: an unescaped '?' in a password would end up here.
            raise BadInput("url option", f"{repr(name) if near else 'one'} is not an option of this store", hint)
        if name in options:
            raise BadInput(f"url option {name}", "is given twice", "give it once")
        if not tls:
            raise BadInput(f"url option {name}", "is for TLS, and this URL is not", "write etcds:// for TLS")
        options[name] = value
    return options
