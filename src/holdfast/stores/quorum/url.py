"""The nodes of a quorum, and how to talk to them: the URL, understood completely or refused.

    redlock://[user:password@]host[:port],[user:password@]host[:port],…[/db]

Three, five, seven or nine Redis or Valkey servers that know nothing of each other; not replicas of one. The options are
those of `stores.redis.url` and hold for every node; besides them there are `tls` (`true`: each node is reached with
TLS) and `hedge`, in seconds: how much longer than the others a node may take to answer before it is not waited for
(0.05).

Promises: nothing is sent anywhere; no text made here contains a password, for no error shows the URL.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from holdfast.core.duration_text import parse_duration_ns
from holdfast.core.lease.quorum import NODES_MAX, NODES_MIN
from holdfast.errors import BadInput
from holdfast.stores.redis.url import RedisAddress, parse_redis_url
from holdfast.types import MS, NS

HEDGE_NS = 50 * MS
_HEDGE_MAX_S = 60.0
_SHAPE = "write redlock://host1:6379,host2:6379,host3:6379/0"


class QuorumAddress(NamedTuple):
    """A parsed URL. Safe to print, as its nodes are."""

    nodes: tuple[RedisAddress, ...]
    hedge_ns: int


def parse_quorum_url(url: str) -> QuorumAddress:
    """Understand a URL, or raise `BadInput` that names the part and the fix."""
    rest = url.partition("://")[2]
    head, _, query = rest.partition("?")
    # A password may hold a slash or a comma only as %2F or %2C, as in any URL: here both would end it.
    servers, _, path = head.partition("/")
    options = parse_qsl(query, keep_blank_values=True)
    own = [(name, value) for name, value in options if name in ("tls", "hedge")]
    if len(dict(own)) != len(own):
        raise BadInput("url option", "tls or hedge is given twice", "give it once")
    passed = urlencode([each for each in options if each not in own])
    scheme = "rediss" if _tls(dict(own).get("tls")) else "redis"
    tail = (f"/{path}" if path else "") + (f"?{passed}" if passed else "")
    names = servers.split(",")
    if not NODES_MIN <= len(names) <= NODES_MAX or len(names) % 2 == 0:
        raise BadInput(
            "url", f"names {len(names)} nodes", f"name an odd number from {NODES_MIN} to {NODES_MAX}; {_SHAPE}"
        )
    if not all(name.rpartition("@")[2] for name in names):
        raise BadInput("url host", "a node has no name", _SHAPE)
    nodes = tuple(parse_redis_url(f"{scheme}://{name}{tail}") for name in names)
    places = [str(node) for node in nodes]
    twice = sorted({place for place in places if places.count(place) > 1})
    if twice:
        raise BadInput("url host", f"{twice[0]} is named twice, and would vote twice", "name each node once")
    return QuorumAddress(nodes, _hedge_ns(dict(own).get("hedge")))


def _tls(text: str | None) -> bool:
    choices = {None: False, "true": True, "false": False}
    if text not in choices:
        raise BadInput("url option tls", "is not a choice", "use true or false")
    return choices[text]


def _hedge_ns(text: str | None) -> int:
    if text is None:
        return HEDGE_NS
    return parse_duration_ns("url option hedge", text, low_ns=MS, high_ns=round(_HEDGE_MAX_S * NS))
