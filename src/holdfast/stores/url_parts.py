"""The parts that URLs of stores have in common: the split, the hosts and the options. Pure.

Promises: an error names the part and the fix, and shows no password: an option's name is shown only if it looks like
one, because an unescaped '?' in a password would end up there.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

from holdfast.errors import BadInput

HOSTS_MAX: Final = 16


class Endpoint(NamedTuple):
    """One server, as clients reach it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def split_url(url: str, schemes: Collection[str], product: str, shape: str) -> SplitResult:
    """Split a URL that has one of these schemes. `product` and `shape` are for the error."""
    if not url.isascii() and url != url.encode("utf-8", "replace").decode():
        raise BadInput("url", "holds bytes that are no text", "write it in UTF-8")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadInput("url", "is not a URL", shape) from None
    if parts.scheme.lower() not in schemes:
        raise BadInput("url", f"{parts.scheme.lower()}:// is not {product} URL", shape)
    if parts.fragment:
        raise BadInput("url", "has a '#' part", "write a '#' in a password as %23")
    return parts


def url_hosts(places: str, default_port: int, shape: str) -> tuple[Endpoint, ...]:
    """The hosts between commas, each with a port or the default one. No text at all: this host."""
    found: list[Endpoint] = []
    for place in places.split(","):
        try:
            one = urlsplit(f"//{place}")
            host, port = one.hostname or ("localhost" if not places else ""), one.port
        except ValueError:
            raise BadInput("url host", "one is not a host with a port from 1 to 65535", shape) from None
        if not _is_name(host) or port == 0 or "@" in place:
            raise BadInput("url host", "one is empty, is no possible name, or has a user or port 0", shape)
        endpoint = Endpoint(host, default_port if port is None else port)
        if endpoint in found:
            raise BadInput("url host", f"{endpoint} is given twice", "give each server once")
        found.append(endpoint)
    if len(found) > HOSTS_MAX:
        raise BadInput("url host", f"{len(found)} servers", f"give at most {HOSTS_MAX}")
    return tuple(found)


def _is_name(host: str) -> bool:
    try:
        return bool(host.encode("idna")) and host.isprintable() and " " not in host
    except UnicodeError:
        return False


def url_options(
    query: str, known: Collection[str], *, tls_only: Collection[str], tls: bool, tls_scheme: str
) -> dict[str, str]:
    """The options of a query, each known and given once. `tls_only`: those that need a URL with TLS."""
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
            raise BadInput("url option", f"{repr(name) if near else 'one'} is not an option of this store", hint)
        if name in options:
            raise BadInput(f"url option {name}", "is given twice", "give it once")
        if name in tls_only and not tls:
            raise BadInput(f"url option {name}", "is for TLS, and this URL is not", f"write {tls_scheme}:// for TLS")
        options[name] = value
    return options
