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

import difflib
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import BadInput
from holdfast.stores.tls_options import TLS_FILES, client_context

DEFAULT_PORT: Final = 4222
DEFAULT_BUCKET: Final = "holdfast"
REPLICAS: Final = ("1", "2", "3", "4", "5")
SERVERS_MAX: Final = 16

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
    if not url.isascii() and url != url.encode("utf-8", "replace").decode():
        raise BadInput("url", "holds bytes that are no text", "write it in UTF-8")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadInput("url", "is not a URL", _SHAPE) from None
    scheme = parts.scheme.lower()
    if scheme not in ("nats", "tls"):
        raise BadInput("url", f"{scheme}:// is not a NATS URL", _SHAPE)
    if parts.fragment:
        raise BadInput("url", "has a '#' part", "write a '#' in a password as %23")
    if parts.path.strip("/"):
        raise BadInput("url", "has a path, which NATS does not know", "write the bucket as ?bucket=NAME")
    options = _options(parts.query, tls=scheme == "tls")
    userinfo, at, places = parts.netloc.rpartition("@")
    return NatsAddress(
        servers=tuple(f"{scheme}://{place}" for place in _servers(places)),
        credentials=MappingProxyType(_credentials(userinfo) if at else {}),
        tls=client_context(options) if scheme == "tls" else None,
        bucket=check_bucket("url option bucket", options.get("bucket", DEFAULT_BUCKET)),
        replicas=_replicas(options.get("replicas", "1")),
    )


def _servers(places: str) -> list[str]:
    found: list[str] = []
    for place in places.split(","):
        try:
            one = urlsplit(f"//{place}")
            host, port = one.hostname or ("localhost" if not places else ""), one.port
        except ValueError:
            raise BadInput("url host", "one is not a host with a port from 1 to 65535", _SHAPE) from None
        if not host or not host.isprintable() or " " in host or port == 0 or "@" in place:
            raise BadInput("url host", "one is empty, has a space, user or port 0", _SHAPE)
        server = f"{f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}"
        if server in found:
            raise BadInput("url host", f"{server} is given twice", "give each server once")
        found.append(server)
    if len(found) > SERVERS_MAX:
        raise BadInput("url host", f"{len(found)} servers", f"give at most {SERVERS_MAX}")
    return found


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


def _options(query: str, *, tls: bool) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(_OPTIONS)}"
            # The name is shown only if it looks like one: an unescaped '?' in a password would end up here.
            raise BadInput("url option", f"{repr(name) if near else 'one'} is not an option of this store", hint)
        if name in options:
            raise BadInput(f"url option {name}", "is given twice", "give it once")
        if name in TLS_FILES and not tls:
            raise BadInput(f"url option {name}", "is for TLS, and this URL is not", "write tls:// for TLS")
        options[name] = value
    return options


def check_bucket(field: str, text: str) -> str:
    """Return the name of a bucket, or raise `BadInput`."""
    if _BUCKET.fullmatch(text) is None:
        raise BadInput(field, f"{text[:70]!r} is not a name", "use up to 64 letters, digits, _ and -")
    return text


def _replicas(text: str) -> int:
    if text not in REPLICAS:
        raise BadInput("url option replicas", f"{text[:20]!r} is out of range", "give a whole number from 1 to 5")
    return int(text)
