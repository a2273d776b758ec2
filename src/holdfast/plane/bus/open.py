"""Which bus a URL means. Imports NATS only when it is requested, so that its client stays optional.

Promises: a URL is understood or refused before anything is sent; no password appears in any text made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from holdfast.core.backoff import Backoff
from holdfast.core.ports import Clock, Entropy
from holdfast.errors import BadInput, Misconfigured
from holdfast.plane.bus.delivery_rules import ERROR_BACKOFF
from holdfast.plane.bus.embedded.bus import GRACE_NS, POLL_NS, EmbeddedBus
from holdfast.plane.bus.inflight import Dead
from holdfast.plane.bus.nats.naming import STREAM
from holdfast.plane.db.ports import Database
from holdfast.stores.registry import redacted

if TYPE_CHECKING:
    from holdfast.plane.bus.nats.bus import NatsBus
    from holdfast.plane.bus.nats.connection import NatsConnection


_SCHEMES: Final = ("nats", "tls")
_OPTIONS: Final = ("replicas", "stream")
_REPLICAS: Final = ("1", "2", "3", "4", "5")
_EXAMPLES: Final = "use nats://host:4222, or none for the bus in the database"


def open_bus(
    url: str | None,
    database: Database,
    clock: Clock,
    entropy: Entropy,
    *,
    dead: Dead | None = None,
    backoff: Backoff = ERROR_BACKOFF,
    poll_ns: int = POLL_NS,
    grace_ns: int = GRACE_NS,
) -> EmbeddedBus | NatsBus:
    """Open the bus that a URL names; None: the one in the database. Await its `prepare` before anything else.

    `nats://user:password@host:4222,other:4222` takes `?stream=NAME` (several planes on one server) and `?replicas=3`.
    `dead` gets messages that are not delivered again; without it the bus publishes, and refuses to consume.
    `backoff` is for errors that bring no delay of their own. `poll_ns`: how often to look for what no hint told of.
    `grace_ns`: how long handlers may continue when their consumer ends.
    """
    if url is None:
        return EmbeddedBus(database, clock, entropy, dead=dead, backoff=backoff, poll_ns=poll_ns, grace_ns=grace_ns)
    connection = nats_connection(url)
    from holdfast.plane.bus.nats.bus import NatsBus

    return NatsBus(connection, database, clock, entropy, dead=dead, backoff=backoff, poll_ns=poll_ns, grace_ns=grace_ns)


def nats_connection(url: str) -> NatsConnection:
    """The connection of a bus on NATS, which connects when it is first used; `open_bus` says what the URL takes."""
    if not isinstance(url, str):
        raise BadInput("url", f"{type(url).__name__} is not a URL", _EXAMPLES)
    head, _, query = url.partition("?")
    scheme, mark, places = head.partition("://")
    if not mark or scheme.lower() not in _SCHEMES or not places.strip("/"):
        raise BadInput("url", f"{redacted(url)!r} is not a bus", _EXAMPLES)
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS or name in options:
            problem = "is given twice" if name in options else "is not an option"
            raise BadInput("url", f"{name!r} {problem}", f"use {' and '.join(_OPTIONS)}, each at most once")
        options[name] = value
    replicas = options.get("replicas", "1")
    if replicas not in _REPLICAS:
        raise BadInput("replicas", f"{replicas!r} is out of range", "give a whole number from 1 to 5")
    try:
        from holdfast.plane.bus.nats.connection import NatsConnection
        from holdfast.plane.bus.nats.naming import NatsNames
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nats":
            raise
        raise Misconfigured('nats:// needs a client that is not installed: pip install "holdfast[nats]"') from error
    servers = [f"{scheme.lower()}://{place}" for place in places.rstrip("/").split(",") if place]
    return NatsConnection(servers, redacted(head), NatsNames(options.get("stream", STREAM)), replicas=int(replicas))
