"""URLs: of stores, databases, buses and servers. Nothing is opened, and no password is ever repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fuzzing.target import Target, argument, refused
from holdfast.core.ports import Clock
from holdfast.errors import BadInput, HoldfastError
from holdfast.guards.http.client import origin_of
from holdfast.plane.bus.nats.bus import NatsBus
from holdfast.plane.bus.open import open_bus
from holdfast.plane.db.open import open_database
from holdfast.plane.db.sqlite.database import SqliteDatabase
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.stores.redis.protocol import handshake, own_account
from holdfast.stores.redis.url import DB_MAX, RedisAddress, parse_redis_url
from holdfast.stores.registry import open_engine, redacted

SECRET: Final = "hunter2-CANARY-hunter2"
CLOCK: Final[Clock] = SystemClock()

SCHEMES: Final = (
    b"redis",
    b"rediss",
    b"etcd",
    b"etcds",
    b"unix",
    b"sqlite",
    b"memory",
    b"postgresql",
    b"nats",
    b"tls",
    b"valkey+",
    b"://",
)
OPTIONS: Final = (b"?db=", b"&prefix=", b"namespace=", b"ssl_ca_certs=", b"busy_timeout=", b"synchronous=full")
CORNERS: Final = (b"%00", b"%ff", b"[::1]", b"]:", b":65536", b"@", b"#", b"\xd9\xa7", b"/:memory:", b"file:", b"1e999")


def store_url(data: bytes) -> None:
    """Whatever `$HOLDFAST_URL` says."""
    url = argument(data)
    try:
        engine = open_engine(url)
    except HoldfastError as error:
        refused(error)
        return
    shown = repr(engine)
    shown.encode("utf-8")
    close = getattr(engine, "close", None)
    if close is not None:
        close()


def redis_url(data: bytes) -> None:
    """The same with what a connection will do with it: every part must be such that it can be sent and looked up."""
    try:
        address = parse_redis_url(argument(data))
    except BadInput as error:
        refused(error)
        return
    _usable(address)
    packed, replies = handshake(address, own_account(address))
    assert 1 <= replies <= 3
    assert packed.startswith(b"*")
    other = replace(address, password="another")  # what is shown may hold the same word, and does not come from it
    assert (repr(address), str(address)) == (repr(other), str(other))


def _usable(address: RedisAddress) -> None:
    assert 0 <= address.db <= DB_MAX
    str(address).encode("utf-8")
    if address.path is None:
        assert 1 <= address.port <= 65_535
        assert address.host.isprintable(), "a host that no resolver takes"
        assert " " not in address.host
    else:
        assert "\0" not in address.path, "a path that no system call takes"


def secret_url(data: bytes) -> None:
    """A password stands in it, and everything around it may be wrong."""
    before, _, after = argument(data).partition("\n")
    url = f"{before or 'redis'}://user:{SECRET}@{after}"
    assert SECRET not in redacted(url)
    for attempt in (open_engine, open_database, parse_redis_url, bus_of):
        try:
            made = attempt(url)
        except HoldfastError as error:
            refused(error, secret=SECRET)
        else:
            assert SECRET not in str(made)


def bus_of(url: str) -> NatsBus:
    database = SqliteDatabase("unused.db")
    made = open_bus(url, database, CLOCK, SystemEntropy())
    assert isinstance(made, NatsBus)
    return made


def database_url(data: bytes) -> None:
    """Whatever `database` says."""
    try:
        open_database(argument(data))
    except HoldfastError as error:
        refused(error)


def bus_url(data: bytes) -> None:
    """Whatever `bus` says."""
    try:
        bus_of(argument(data))
    except HoldfastError as error:
        refused(error)


def origin(data: bytes) -> None:
    """The URL of a request that carries a fence: leases are shown to the origins that were named, and to no other."""
    try:
        found = origin_of("url", argument(data))
    except BadInput as error:
        refused(error)
        return
    assert found.isascii()
    assert origin_of("url", found) == found


TARGETS: Final = (
    Target("store-url", store_url, "understood or refused, and nothing is sent", (*SCHEMES, *OPTIONS, *CORNERS)),
    Target("redis-url", redis_url, "every part can be used for what it is there for", (*SCHEMES, *OPTIONS, *CORNERS)),
    Target("secret-url", secret_url, "no password in any text", (*SCHEMES, *OPTIONS, *CORNERS, b"\n")),
    Target("database-url", database_url, "understood or refused", (*SCHEMES, *CORNERS, b"pool_max=", b"pool_timeout=")),
    Target("bus-url", bus_url, "understood or refused", (*SCHEMES, *CORNERS, b"?stream=", b"replicas=", b",")),
    Target("origin", origin, "one origin has one text", (b"https://", b"http://", b":443", b"\xc3\x9f", *CORNERS)),
)
