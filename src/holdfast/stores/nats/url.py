"""Where a NATS server or cluster is and how to talk to it: the URL, understood completely or refused.

    nats://[user:password@]host[:port][,host2[:port]…][?bucket=NAME&replicas=3]
    tls://…                                                      with TLS, verified

`token@` in the place of `user:password@` is a token. The credentials hold for all hosts. Options: `bucket` (default
`holdfast`), `replicas` (1 to 5: how many servers keep the bucket when it is created, and the least that an existing one
must have), and for TLS `ssl_ca_certs`, and with a client certificate `ssl_certfile` and `ssl_keyfile`. Certificates
and host names are always verified.

Promises: nothing is sent anywhere; no text made here contains a password, for no error shows the URL.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from holdfast.errors import BadInput
from holdfast.stores.tls_options import TLS_FILES, client_context
from holdfast.stores.url_parts import split_url, url_hosts, url_options

DEFAULT_PORT: Final = 4222
DEFAULT_BUCKET: Final = "holdfast"
REPLICAS: Final = ("1", "2", "3", "4", "5")

_OPTIONS: Final = ("bucket", "replicas", *TLS_FILES)
_BUCKET: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHAPE: Final = "write nats://host:4222,host2:4222?bucket=holdfast, or tls:// for TLS"


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """A parsed URL. Safe to print: the password is not part of its text, and `str()` is how errors name the servers."""

    servers: tuple[str, ...]  # as the client takes them, without credentials
    credentials: Mapping[str, str] = field(repr=False)  # options of the client: user and password, or token, or none
    tls: ssl.SSLContext | None = field(repr=False)
    bucket: str
    replicas: int

    def __str__(self) -> str:
        return ",".join(each.partition("://")[2] for each in self.servers)


def parse_nats_url(url: str) -> NatsAddress:
    """Understand a URL, or raise `BadInput` that names the part and the fix."""
    parts = split_url(url, ("nats", "tls"), "a NATS", _SHAPE)
    scheme = parts.scheme.lower()
    if parts.path.strip("/"):
        raise BadInput("url", "has a path, which NATS does not know", "write the bucket as ?bucket=NAME")
    tls = scheme == "tls"
    options = url_options(parts.query, _OPTIONS, tls_only=TLS_FILES, tls=tls, tls_scheme="tls")
    userinfo, at, places = parts.netloc.rpartition("@")
    return NatsAddress(
        servers=tuple(f"{scheme}://{place}" for place in url_hosts(places, DEFAULT_PORT, _SHAPE)),
        credentials=MappingProxyType(_credentials(userinfo) if at else {}),
        tls=client_context(options) if tls else None,
        bucket=check_bucket("url option bucket", options.get("bucket", DEFAULT_BUCKET)),
        replicas=_replicas(options.get("replicas", "1")),
    )


def _credentials(userinfo: str) -> dict[str, str]:
    if "@" in userinfo:
        raise BadInput(
            "url user", "is given for more than one host", "give it once, before the first host; write an '@' as %40"
        )
    user, colon, password = userinfo.partition(":")
    if not user or (colon and not password):
        raise BadInput("url user", "a user without a password, or the reverse", "write nats://user:password@host")
    if not colon:
        return {"token": unquote(user)}
    return {"user": unquote(user), "password": unquote(password)}


def check_bucket(field: str, text: str) -> str:
    """Return the name of a bucket, or raise `BadInput`."""
    if _BUCKET.fullmatch(text) is None:
        raise BadInput(field, f"{text[:70]!r} is not a name", "use up to 64 letters, digits, _ and -")
    return text


def _replicas(text: str) -> int:
    if text not in REPLICAS:
        raise BadInput("url option replicas", f"{text[:20]!r} is out of range", "give a whole number from 1 to 5")
    return int(text)
