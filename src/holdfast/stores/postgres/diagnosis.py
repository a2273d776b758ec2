"""What a Postgres server promises as it is configured: facts, and what they mean.

Promises: the facts come from the server itself, in one statement that changes nothing (`sql/diagnosis.sql`), for the
role and the database of the URL. `findings` is pure. Does not promise to know what fails over to a standby: no server
knows that, so each standby counts as one that may be promoted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.stores.postgres.connection import Row
from holdfast.types import MS, NS, Guarantee

OLDEST: Final = 140000
_ONLY: Final = Guarantee.EFFICIENCY_ONLY
_WAITS_FOR_STANDBY: Final = ("on", "remote_write", "remote_apply")


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """What a server said about itself, and about the role that asked. None: unknown, or no limit."""

    version: int
    pooled: bool
    read_only: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    standby_names: str
    standbys: int
    statement_ms: int
    idle_session_ms: int
    sessions_left: int
    missing_rights: str


def facts_of(row: Row, greeted_pid: int) -> PostgresFacts:
    """The facts in the row of `diagnosis.sql`, asked on a connection whose greeting named this process."""
    texts = ["" if each is None else each.decode("utf-8", "replace") for each in row]
    version, pid, read_only, fsync, pages, commit, names, standbys, statement, transaction, idle = texts[:11]
    limits = [int(each) for each in (statement, transaction) if each and int(each) > 0]
    return PostgresFacts(
        version=int(version),
        pooled=pid != str(greeted_pid),
        read_only=read_only == "t",
        fsync=fsync == "t",
        full_page_writes=pages == "t",
        synchronous_commit=commit,
        standby_names=names,
        standbys=int(standbys),
        statement_ms=min(limits, default=0),
        idle_session_ms=int(idle or 0),
        sessions_left=min(int(each) for each in texts[11:14] if each),
        missing_rights=texts[14],
    )


def findings(facts: PostgresFacts, timeout_ns: int, pool_max: int) -> list[StoreFinding]:
    """What the facts mean for requests with this time limit, from a process with so many connections."""
    return [
        _version(facts),
        _role(facts),
        _permissions(facts),
        _persistence(facts),
        _replicas(facts),
        _pooler(facts),
        _connections(facts, pool_max),
        _statement_timeout(facts, timeout_ns),
        _idle_timeout(facts),
    ]


def _version(facts: PostgresFacts) -> StoreFinding:
    major, minor = divmod(facts.version, 10_000)
    shown = f"postgres {major}.{minor}"
    if facts.version >= OLDEST:
        return StoreFinding("version", Severity.OK, shown)
    return StoreFinding(
        "version", Severity.CRITICAL, shown, "the functions need Postgres 14", "upgrade to 14 or newer", _ONLY
    )


def _role(facts: PostgresFacts) -> StoreFinding:
    if not facts.read_only:
        return StoreFinding("role", Severity.OK, "a primary")
    found = "a standby, or a database that only reads"
    fix = "name the primary in the URL; without target_session_attrs, of several hosts the primary is chosen"
    return StoreFinding("role", Severity.CRITICAL, found, "it accepts no lease", fix, _ONLY)


def _permissions(facts: PostgresFacts) -> StoreFinding:
    if not facts.missing_rights:
        return StoreFinding("permissions", Severity.OK, "the user has the rights that leases need")
    found = f"the user misses {facts.missing_rights}"
    fix = "holdfast access postgres prints the roles and their rights; an owner creates the tables with its own URL"
    return StoreFinding("permissions", Severity.CRITICAL, found, "no lease can be granted", fix, _ONLY)


def _persistence(facts: PostgresFacts) -> StoreFinding:
    off = [name for name, on in (("fsync", facts.fsync), ("full_page_writes", facts.full_page_writes)) if not on]
    if not off:
        return StoreFinding("persistence", Severity.OK, "fsync on; grants and renewals wait for the disk")
    reason = "a power failure loses or damages leases that were granted, and they are granted again"
    fix = f"set {' and '.join(f'{name} = on' for name in off)} in postgresql.conf"
    return StoreFinding("persistence", Severity.WARNING, ", ".join(f"{name} off" for name in off), reason, fix, _ONLY)


def _replicas(facts: PostgresFacts) -> StoreFinding:
    if not facts.standbys:
        return StoreFinding("replicas", Severity.OK, "no standby is connected")
    names, commit = facts.standby_names, facts.synchronous_commit
    found = f"{facts.standbys} standbys, synchronous_standby_names {names!r}, synchronous_commit {commit}"
    # The store raises `off` to `on` for grants and renewals, and leaves every other level as it is.
    if names and commit in (*_WAITS_FOR_STANDBY, "off"):
        return StoreFinding("replicas", Severity.OK, found)
    reason = "a standby that is promoted may not know the newest leases, and grants them again"
    fix = "set synchronous_standby_names (and leave synchronous_commit on), or guard every write with the fence"
    return StoreFinding("replicas", Severity.WARNING, found, reason, fix, _ONLY)


def _pooler(facts: PostgresFacts) -> StoreFinding:
    if not facts.pooled:
        return StoreFinding("pooler", Severity.OK, "a direct connection")
    reason = "a pooler such as PgBouncer delivers no notifications: waiters poll, and take over later"
    fix = "for short waits, use a URL that reaches the server directly"
    return StoreFinding("pooler", Severity.NOTE, "a pooler is in between", reason, fix)


def _connections(facts: PostgresFacts, pool_max: int) -> StoreFinding:
    left = max(0, facts.sessions_left)
    found = f"{left} more sessions are possible"
    if left > pool_max:
        return StoreFinding("connections", Severity.OK, found)
    reason = f"a process may need {pool_max + 1}; without one, a renewal cannot connect again and its lease is lost"
    fix = "raise max_connections or the limit of the role or database, or lower url option pool_max"
    return StoreFinding("connections", Severity.WARNING, found, reason, fix)


def _statement_timeout(facts: PostgresFacts, timeout_ns: int) -> StoreFinding:
    limit_ns = facts.statement_ms * MS
    found = f"statements may take {limit_ns / NS:.3g} s" if limit_ns else "none"
    if not limit_ns or limit_ns >= timeout_ns:
        return StoreFinding("statement_timeout", Severity.OK, found)
    reason = f"the server ends requests that may still wait for a row or the disk ({timeout_ns / NS:.3g} s)"
    fix = "ALTER ROLE … SET statement_timeout (and transaction_timeout) to at least the request timeout"
    return StoreFinding("statement_timeout", Severity.WARNING, found, reason, fix)


def _idle_timeout(facts: PostgresFacts) -> StoreFinding:
    limit_ns = facts.idle_session_ms * MS
    if not limit_ns:
        return StoreFinding("idle_timeout", Severity.OK, "none")
    reason = "it is shorter than the time between two renewals: each renewal has to connect first"
    fix = "ALTER ROLE … SET idle_session_timeout = 0, or to more than a third of the longest TTL"
    return StoreFinding(
        *("idle_timeout", Severity.WARNING, f"idle sessions end after {limit_ns / NS:.3g} s", reason, fix),
        ttl_above_ns=3 * limit_ns,
    )
