"""Probes the servers of a plane: whether an address accepts, whether it answers, and how long that takes.

A driver that fails says "timeout" in three situations that need different actions: no process listens, a process hangs,
and a process is slow. So each server also gets one connection and the smallest request of its protocol, without a
driver: `PING` for Redis, a request for encryption for Postgres; NATS speaks first. None of them needs a password.

Promises: read-only. A file is asked for its write lock and gives it back without a write. Every probe ends within
`--timeout`.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.errors import HoldfastError
from holdfast.ops.runbooks.collectors.locks import PINGS, about_redis
from holdfast.ops.runbooks.evidence.locks import StoreFact, WireFact
from holdfast.ops.runbooks.evidence.servers import ClockFact, DiskSpace, RoomFact
from holdfast.ops.runbooks.model import EvidenceSource, NotGiven, RunbookStep
from holdfast.ops.runbooks.sources import CLOSE_NS, RunbookContext
from holdfast.plane.bus.open import open_bus
from holdfast.plane.db.ports import Row, Tx
from holdfast.plane.db.sqlite.disk_space import ROOM_KEPT
from holdfast.plane.db.sqlite.write_lock import busy_file
from holdfast.plane.model import messages as subjects
from holdfast.runtime.gather import begun, in_thread, pause, together, within
from holdfast.runtime.wire_probe import probe
from holdfast.types import MS, NS

WIRE_SHARE: Final = 0.9
"""The share of a step's time for one answer of a server: a slow one must be told from one that hangs."""
_PORTS: Final = {"redis": 6379, "rediss": 6379, "valkey": 6379, "valkeys": 6379, "nats": 4222, "tls": 4222}
_POSTGRES_PORT: Final = 5432
_HELLO: Final = {"redis": b"PING\r\n", "postgres": b"\x00\x00\x00\x08\x04\xd2\x16\x2f"}  # 8 bytes: "may I use TLS?"

_ABOUT_POSTGRES: Final = """
SELECT pg_is_in_recovery() AS standby, current_setting('max_connections') AS most,
    (SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
    (SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock') AS blocked,
    CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000000 AS BIGINT) AS now_ns
"""
_OLDEST_POSTGRES: Final = """
SELECT pid, COALESCE(NULLIF(application_name, ''), usename) AS name, state,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - xact_start) AS BIGINT) AS age,
    (SELECT COUNT(*) FROM pg_stat_activity AS waiter WHERE activity.pid = ANY(pg_blocking_pids(waiter.pid))) AS blocks
FROM pg_stat_activity AS activity
WHERE xact_start IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()
ORDER BY blocks DESC, xact_start LIMIT 1
"""


def address_of(url: str) -> tuple[str, str, int] | None:
    """The protocol, host and port of a server; None: a file, or nothing that a probe can connect to."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower() if scheme.lower().endswith("+unix") else scheme.lower().partition("+")[0]
    with suppress(ValueError):
        parts = urlsplit(f"{scheme}://{rest.rpartition('@')[2].partition(',')[0]}")
        if scheme in _PORTS:
            protocol = "nats" if scheme in {"nats", "tls"} else "redis" if scheme in {"redis", "valkey"} else "tls"
            return protocol, parts.hostname or "localhost", parts.port or _PORTS[scheme]
        if scheme in {"postgres", "postgresql"}:
            host = parts.hostname or dict(parse_qsl(url.partition("?")[2])).get("host") or "localhost"
            return "postgres", unquote(host), parts.port or _POSTGRES_PORT
        if scheme in {"unix", "redis+unix"}:
            return "redis", unquote(parts.path), 0
    return None


async def wire(url: str, limit_s: float) -> WireFact | None:
    """One connection and the smallest request; None: the URL names no address."""
    found = address_of(url)
    if found is None:
        return None
    protocol, host, port = found
    # A handshake of TLS needs the certificates of the driver, which tells the rest.
    hello = None if protocol == "tls" else _HELLO.get(protocol, b"")
    place = f"{host}/.s.PGSQL.{port}" if host.startswith("/") and port else host
    seen = await probe(place, port, hello, limit_s)
    address = f"{host}:{port}" if port else host
    return WireFact(address, seen.connected, seen.answered, seen.problem, seen.refused, limit_s)


async def _probed(scene: RunbookContext, url: str) -> WireFact | None:
    return await wire(url, scene.given.patience * WIRE_SHARE)


async def _asked(scene: RunbookContext, ask: Callable[[], Awaitable[object]]) -> tuple[list[float], str]:
    """How long each of some requests took, and the error that ended them."""
    took: list[float] = []
    for _ in range(PINGS):
        began = scene.clock.now().mono
        try:
            await ask()
        except HoldfastError as trouble:
            return took, str(trouble)  # waiting longer adds nothing
        took.append((scene.clock.now().mono - began) / NS)
    return took, ""


def _fact(
    engine: str, took: Sequence[float], error: str, about: Mapping[str, str] | None, found: WireFact | None
) -> StoreFact:
    answered = len(took)
    slowest, fastest = max(took, default=None), min(took, default=None)
    return StoreFact(engine, answered + bool(error), answered, slowest, error, about, found, fastest)


async def lease_store(scene: RunbookContext) -> StoreFact:
    """Whether the lease store answers. No answer is a finding here, not a failure of the step."""
    locks = scene.locks()
    engine = locks.capabilities.engine
    wired = begun(lambda: _probed(scene, scene.lease_url))
    took, error = await _asked(scene, locks.ping)
    found = await wired
    if engine == "sqlite" and took and _path(scene.lease_url) != _path(scene.settings.database_url):
        error = error or await in_thread(lambda: busy_file(_path(scene.lease_url)))
    about = await about_redis(scene) if engine == "redis" and took else None
    return _fact(engine, took, error, about, found)


async def database(scene: RunbookContext) -> StoreFact:
    """Whether the database answers, and what Postgres reports about connections, locks and transactions."""
    url = scene.settings.database_url
    engine = "sqlite" if url.lower().startswith("sqlite") else "postgres"
    wired = begun(lambda: _probed(scene, url))
    about: Mapping[str, str] | None = None
    try:
        opened = await within(scene.request_ns * 2, scene.database)
    except NotGiven:
        raise
    except HoldfastError as trouble:
        return _fact(engine, (), str(trouble), None, await wired)
    took, error = await _asked(scene, lambda: opened.read(lambda tx: tx.query("SELECT 1 AS one")))
    if took and engine == "postgres":
        try:
            about = await opened.read(_about_postgres)
        except HoldfastError as trouble:
            error = error or str(trouble)
    if took and engine == "sqlite":
        error = error or await in_thread(lambda: busy_file(_path(url)))
    return _fact(engine, took, error, about, await wired)


async def _about_postgres(tx: Tx) -> Mapping[str, str]:
    row: Row = (await tx.query(_ABOUT_POSTGRES))[0]
    oldest = await tx.query(_OLDEST_POSTGRES)
    found = {
        "role": "standby" if row["standby"] else "primary",
        "connections": f"{row['used']} of {row['most']}",
        "blocked": str(row["blocked"]),
    }
    for each in oldest:
        found["oldest_transaction"] = f"{each['age'] or 0} s, pid {each['pid']}, {each['name']}, {each['state']}"
        found["blocks"] = str(each["blocks"])
        found["pid"] = str(each["pid"])
    return found


async def bus(scene: RunbookContext) -> StoreFact:
    """Whether the message bus answers. The embedded one is in the database."""
    url = scene.settings.bus
    if url is None:
        return StoreFact("the embedded bus", 1, 1, 0.0)  # it is as well as the database
    wired = begun(lambda: _probed(scene, url))
    took: list[float] = []
    try:
        opened = open_bus(url, await scene.database(), scene.clock, scene.entropy)
        try:
            took, error = await _asked(
                scene, lambda: within(scene.request_ns * 2, lambda: opened.pending(subjects.SUBMIT, subjects.SCHEDULER))
            )
        finally:
            await together({"": opened.close}, CLOSE_NS)
    except HoldfastError as trouble:
        error = str(trouble)
    found = await wired
    if not took and found is not None and found.answered is not None:  # without the database, only its address is asked
        took, error = [found.answered], ""
    return _fact("nats", took, error, None, found)


def _path(url: str) -> str:
    """The file of a SQLite URL."""
    return unquote(url.partition("?")[0].partition("://")[2])[1:]


async def room(scene: RunbookContext) -> RoomFact:
    """The free space of every directory of this host that the plane writes to."""
    places = {"database": scene.settings.database_url, "lease store": scene.lease_url}
    files = {what: Path(_path(url)).parent for what, url in places.items() if url.lower().startswith("sqlite")}
    if scene.ledger is not None:
        files["audit ledger"] = Path(scene.ledger)
    if not files:
        raise NotGiven("no store is a file on this host; the disks of servers are seen by their own tools only")
    return await in_thread(lambda: RoomFact(tuple(_space(what, path) for what, path in files.items()), ROOM_KEPT))


def _space(what: str, path: Path) -> DiskSpace:
    there = path if path.exists() else path.parent
    try:
        usage = shutil.disk_usage(there)
    except OSError as error:
        return DiskSpace(what, str(path.absolute()), None, None, error.strerror or str(error))
    return DiskSpace(what, str(path.absolute()), usage.free, usage.total)


async def clocks(scene: RunbookContext) -> ClockFact:
    """How far the clock of this host is from that of the database server."""
    if scene.settings.database_url.lower().startswith("sqlite"):
        return ClockFact(0.0, 0.0)
    opened = await scene.database()
    best: tuple[int, int] | None = None
    for _ in range(3):
        before = scene.clock.now()
        row = (await opened.read(lambda tx: tx.query(_SERVER_NOW)))[0]
        after = scene.clock.now()
        took = after.mono - before.mono
        offset = before.wall + took // 2 - row["now_ns"]
        best = min(best or (took, offset), (took, offset))
        await pause(MS)
    if best is None:
        raise NotGiven("no measurement")
    return ClockFact(best[1] / NS, best[0] / NS)


_SERVER_NOW: Final = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000000 AS BIGINT) AS now_ns"

STORE_STEP: Final = RunbookStep(
    "store",
    "whether the lease store answers, how quickly, and what it reports about itself",
    ("holdfast locks", "redis-cli PING", "redis-cli INFO"),
    EvidenceSource.LEASES,
    lease_store,
)
DATABASE_STEP: Final = RunbookStep(
    "database",
    "whether the database answers, how quickly, and whether it can be written",
    ("psql DATABASE -c 'SELECT 1'", "sqlite3 FILE 'PRAGMA quick_check'"),
    EvidenceSource.DATABASE,
    database,
)
BUS_STEP: Final = RunbookStep(
    "bus", "whether the message bus answers, and how quickly", ("nats server ping",), EvidenceSource.BUS, bus
)
ROOM_STEP: Final = RunbookStep(
    "room", "free space on the disks of this host that the plane writes to", ("df -h",), EvidenceSource.SETTINGS, room
)
CLOCK_STEP: Final = RunbookStep(
    "clock",
    "how far the clock of this host is from that of the database",
    ("timedatectl", "chronyc tracking"),
    EvidenceSource.DATABASE,
    clocks,
)
