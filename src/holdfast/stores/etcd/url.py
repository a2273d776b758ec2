"""Where an etcd cluster is and how to talk to it: the URL, understood completely or refused.

    etcd://[user:password@]host[:port][,host2[:port]…][/prefix]
    etcds://…                                                      with TLS, verified

The prefix begins the names of all keys that the store writes (`holdfast` by default); it may have several parts.
Options for TLS: `ssl_ca_certs`, and with a client certificate `ssl_certfile` and `ssl_keyfile`. Certificates and host
names are always verified.

Promises: nothing is sent anywhere; no text made here contains a password, for no error shows the URL.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from holdfast.errors import BadInput
from holdfast.stores.tls_options import TLS_FILES, client_context
from holdfast.stores.url_parts import Endpoint, split_url, url_hosts, url_options

DEFAULT_PORT: Final = 2379
DEFAULT_PREFIX: Final = "holdfast"
PREFIX_MAX: Final = 120

_SHAPE = "write etcd://host:2379,host2:2379/prefix, or etcds:// for TLS"


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
    parts = split_url(url, ("etcd", "etcds"), "an etcd", _SHAPE)
    tls = parts.scheme.lower() == "etcds"
    userinfo, at, places = parts.netloc.rpartition("@")
    user, colon, password = userinfo.partition(":")
    if at and (not user or not colon or not password):
        raise BadInput("url user", "a user without a password, or the reverse", "write etcd://user:password@host")
    options = url_options(parts.query, TLS_FILES, tls_only=TLS_FILES, tls=tls, tls_scheme="etcds")
    return EtcdAddress(
        endpoints=url_hosts(places, DEFAULT_PORT, _SHAPE),
        username=unquote(user) if at else None,
        password=unquote(password) if at else None,
        tls=client_context(options) if tls else None,
        prefix=_prefix(parts.path),
    )


def _prefix(path: str) -> str:
    prefix = unquote(path).strip("/") or DEFAULT_PREFIX
    if not prefix.isprintable() or len(prefix) > PREFIX_MAX:
        raise BadInput(
            "url prefix", "is too long or has unprintable characters", f"use {PREFIX_MAX} characters at most"
        )
    return prefix
