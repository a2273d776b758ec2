"""What a Redis or Valkey server promises as it is configured: facts, and what they mean.

Promises: the facts come from the server itself (INFO, CONFIG GET, and a script that does nothing); none of the commands
changes anything. A fact that the user may not read is unknown, and an unknown fact proves nothing. `findings` is pure.
Does not promise to see a failover that something else than Sentinel or a cluster performs (a managed service).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.stores.redis.commands import Driver
from holdfast.stores.redis.protocol import Reply, ReplyError, pack
from holdfast.types import Guarantee

OLDEST: Final = (6, 2)
_ONLY: Final = Guarantee.EFFICIENCY_ONLY
_PARAMETERS: Final = ("appendfsync", "min-replicas-to-write", "min-replicas-max-lag")


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """What a server said about itself. None: unknown."""

    product: str = "redis"
    version: tuple[int, ...] | None = None
    role: str | None = None
    max_memory: int | None = None
    policy: str | None = None
    append_only: bool | None = None
    append_fsync: str | None = None
    replicas: int | None = None
    min_replicas: int | None = None
    failover: str = ""  # "Sentinel", "a cluster"; empty: none was seen
    wait_replicas: int = 0  # of the URL
    scripts: str = ""  # the error of a script; empty: they run


async def probe(driver: Driver, deadline_ns: int, *, sentinel: bool, wait_replicas: int) -> RedisFacts:
    """Ask the server."""
    commands = [pack(("INFO",)), pack(("EVAL", "return 1", "0")), pack(("PUBSUB", "NUMSUB", "__sentinel__:hello"))]
    commands += [pack(("CONFIG", "GET", name)) for name in _PARAMETERS]
    replies = await driver.call_all(b"".join(commands), len(commands), deadline_ns)
    replies += [None] * (len(commands) - len(replies))
    info, script, heard = replies[:3]
    info = _info(info)
    settings = [_setting(reply) for reply in replies[3:]]
    watched = isinstance(heard, list) and len(heard) == 2 and isinstance(heard[1], int) and heard[1] > 0
    replicas = _number(info.get("connected_slaves"))
    clustered = info.get("cluster_enabled") == "1" and replicas != 0
    failover = "Sentinel" if sentinel or watched else "a cluster" if clustered else ""
    version = info.get("valkey_version") or info.get("redis_version")
    return RedisFacts(
        product="valkey" if "valkey_version" in info else "redis",
        version=None if version is None else tuple(int(part) for part in version.split(".") if part.isdigit()),
        role=info.get("role"),
        max_memory=_number(info.get("maxmemory")),
        policy=info.get("maxmemory_policy"),
        append_only=None if "aof_enabled" not in info else info["aof_enabled"] == "1",
        append_fsync=settings[0],
        replicas=replicas,
        min_replicas=_number(settings[1]),
        failover=failover,
        wait_replicas=wait_replicas,
        scripts=str(script).partition("'")[0].strip()[:80] if isinstance(script, ReplyError) else "",
    )


def findings(facts: RedisFacts) -> list[StoreFinding]:
    """What the facts mean."""
    return [
        _version(facts),
        _scripts(facts),
        _role(facts),
        _eviction(facts),
        _persistence(facts),
        _failover(facts),
        _replicas(facts),
    ]


def _version(facts: RedisFacts) -> StoreFinding:
    if facts.version is None:
        return _unknown("version", "INFO")
    shown = f"{facts.product} {'.'.join(map(str, facts.version))}"
    if facts.version >= OLDEST:
        return StoreFinding("version", Severity.OK, shown)
    return StoreFinding(
        "version", Severity.CRITICAL, shown, "the scripts need 6.2 (SET with GET)", "upgrade to 6.2 or newer", _ONLY
    )


def _scripts(facts: RedisFacts) -> StoreFinding:
    if not facts.scripts:
        return StoreFinding("scripts", Severity.OK, "the user may run scripts")
    reason = "acquire needs a script: the lease and its fence are one step"
    fix = "grant +eval +evalsha to the user (holdfast access redis prints the whole account)"
    return StoreFinding("scripts", Severity.CRITICAL, f"scripts are refused: {facts.scripts}", reason, fix, _ONLY)


def _role(facts: RedisFacts) -> StoreFinding:
    if facts.role is None:
        return _unknown("role", "INFO")
    if facts.role == "master":
        return StoreFinding("role", Severity.OK, "a primary")
    return StoreFinding(
        "role", Severity.CRITICAL, "a replica", "it accepts no lease", "name the primary in the URL", _ONLY
    )


def _eviction(facts: RedisFacts) -> StoreFinding:
    if facts.policy is None:
        return _unknown("eviction", "INFO")
    limited = facts.max_memory != 0
    found = f"maxmemory-policy {facts.policy}, maxmemory {facts.max_memory if limited else 'unlimited'}"
    if facts.policy == "noeviction":
        return StoreFinding("eviction", Severity.OK, found)
    fix = "CONFIG SET maxmemory-policy noeviction, or give leases a server of their own"
    if not limited:
        return StoreFinding("eviction", Severity.NOTE, found, "with a limit it would evict locks that are held", fix)
    reason = "a full server deletes locks while they are held, and grants them again"
    return StoreFinding("eviction", Severity.CRITICAL, found, reason, fix, _ONLY)


def _persistence(facts: RedisFacts) -> StoreFinding:
    if facts.append_only is None or (facts.append_only and facts.append_fsync is None):
        return _unknown("persistence", "INFO and CONFIG GET")
    fix = "CONFIG SET appendonly yes and appendfsync always, and write both to the configuration file"
    if not facts.append_only:
        reason = "a restart forgets the newest leases, and grants them again while their holders work"
        return StoreFinding("persistence", Severity.WARNING, "appendonly no", reason, fix, _ONLY)
    found = f"appendonly yes, appendfsync {facts.append_fsync}"
    if facts.append_fsync == "always":
        return StoreFinding("persistence", Severity.OK, found)
    reason = "a power failure forgets the leases of the last second, and the restarted server grants them again"
    return StoreFinding("persistence", Severity.WARNING, found, reason, fix, _ONLY)


def _failover(facts: RedisFacts) -> StoreFinding:
    if not facts.failover:
        return StoreFinding("failover", Severity.OK, "no automatic failover was seen")
    found = f"automatic failover by {facts.failover}"
    if facts.wait_replicas:
        found += f", wait_replicas={facts.wait_replicas}"
    reason = "replication is asynchronous: a promoted replica may not know a lease, and grants it again"
    fix = "for correctness use a store with consensus or a quorum, or guard every write with the fence"
    return StoreFinding("failover", Severity.WARNING, found, reason, fix, _ONLY)


def _replicas(facts: RedisFacts) -> StoreFinding:
    if facts.replicas is None:
        return _unknown("replicas", "INFO")
    if facts.replicas == 0:
        return StoreFinding("replicas", Severity.OK, "no replicas")
    known = "unknown" if facts.min_replicas is None else facts.min_replicas
    found = f"{facts.replicas} replicas, min-replicas-to-write {known}"
    if facts.min_replicas:
        return StoreFinding("replicas", Severity.OK, found)
    reason = "a primary that is cut off from its replicas goes on granting leases"
    fix = "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 5"
    return StoreFinding("replicas", Severity.WARNING if facts.failover else Severity.NOTE, found, reason, fix)


def _unknown(check: str, command: str) -> StoreFinding:
    return StoreFinding(
        check,
        Severity.WARNING,
        "unknown",
        f"the user may not run {command}, and what is not known is not promised",
        "grant +info +config|get for `holdfast doctor` and for locks that demand a guarantee",
        _ONLY,
    )


def _info(reply: Reply) -> dict[str, str]:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value.strip() for name, _, value in pairs}


def _setting(reply: Reply) -> str | None:
    match reply:
        case [bytes(_), bytes(value)]:
            return value.decode(errors="replace")
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
