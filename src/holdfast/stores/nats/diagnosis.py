"""What a bucket of NATS JetStream promises as it is configured: facts, and what they mean.

Promises: reads the settings and the state of the bucket, the limits of the account, and the settings of the
servers where the account may see them; changes nothing. `findings` is pure. Does not promise to know `sync_interval`:
servers report it to their system account only, unless that exports `$SYS.REQ.SERVER.PING.JSZ` and this account imports
it. What is not known is not promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.errors import BackendError
from holdfast.stores.nats.bucket import BucketNames, problem
from holdfast.stores.nats.link import NatsLink
from holdfast.types import NS, Guarantee

OLDEST: Final = (2, 11)
_ONLY: Final = Guarantee.EFFICIENCY_ONLY
_FULL: Final = 0.8
_MB: Final = 1024**2
_SERVERS: Final = "$SYS.REQ.SERVER.PING.JSZ"


@dataclass(frozen=True, slots=True)
class NatsFacts:
    """What servers said about a bucket. None: unknown."""

    version: str
    config: Mapping[str, Any]  # of the stream
    state: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] | None = None
    limits: Mapping[str, Any] | None = None  # of the account, with what it uses
    sync_always: bool | None = None
    sync_interval_ns: int | None = None


async def probe(link: NatsLink, info: Mapping[str, Any], deadline_ns: int) -> NatsFacts:
    """Ask about what a bucket, whose information is given, depends on."""
    session = await link.session(deadline_ns)
    cluster = info.get("cluster")
    limits = await _asked(link, "$JS.API.INFO", {}, deadline_ns)
    leader = str((cluster or {}).get("leader") or "")
    servers = await _asked(link, _SERVERS, {"server_name": leader}, deadline_ns)
    config: Mapping[str, Any] = {}
    if servers is not None and (servers.get("server") or {}).get("name") == leader:
        config = (servers.get("data") or {}).get("config") or {}
    return NatsFacts(
        version=session.version,
        config=info.get("config") or {},
        state=info.get("state") or {},
        cluster=cluster,
        limits=limits,
        sync_always=bool(config.get("sync_always")) if config else None,
        sync_interval_ns=config.get("sync_interval"),
    )


async def _asked(link: NatsLink, subject: str, request: dict[str, Any], deadline_ns: int) -> Mapping[str, Any] | None:
    """The answer; None: this account may not ask, or gets no answer."""
    try:
        answer = await link.ask(subject, request, deadline_ns)
    except BackendError:
        return None
    return None if "error" in answer else answer


def findings(facts: NatsFacts, names: BucketNames, replicas: int) -> list[StoreFinding]:
    """What the facts mean for a bucket that shall have so many replicas."""
    return [
        _version(facts),
        _bucket(facts, names, replicas),
        _replicas(facts),
        _cluster(facts),
        _persistence(facts),
        _space(facts),
    ]


def _version(facts: NatsFacts) -> StoreFinding:
    shown = f"nats-server {facts.version or 'of an unknown version'}"
    numbers = tuple(int(part) for part in facts.version.split("-")[0].split(".") if part.isdigit())
    if not numbers or numbers >= OLDEST:
        return StoreFinding("version", Severity.OK, shown)
    reason = "older servers have no TTL for each message"
    return StoreFinding("version", Severity.CRITICAL, shown, reason, "upgrade to 2.11 or newer", _ONLY)


def _bucket(facts: NatsFacts, names: BucketNames, replicas: int) -> StoreFinding:
    config = facts.config
    trouble = problem(config, names, replicas)
    if trouble is None:
        found = f"{config.get('storage')} storage, discard {config.get('discard')}"
        return StoreFinding("bucket", Severity.OK, found)
    found, _, fix = trouble.partition("; ")
    reason = "such a bucket cannot keep leases, and is refused"
    return StoreFinding("bucket", Severity.CRITICAL, f"the bucket {names.bucket} {found}", reason, fix, _ONLY)


def _replicas(facts: NatsFacts) -> StoreFinding:
    number = int(facts.config.get("num_replicas", 1))
    if number > 1 and number % 2:
        return StoreFinding("replicas", Severity.OK, f"{number} replicas")
    if number > 1:
        reason = "one replica less would survive the failure of as many"
        return StoreFinding("replicas", Severity.NOTE, f"{number} replicas", reason, "use an odd number: 3 or 5")
    reason = "while its server is down, no lease is granted or renewed"
    fix = "use a cluster of three servers, and `nats stream edit --replicas 3` or url option replicas=3"
    return StoreFinding("replicas", Severity.NOTE, "one replica", reason, fix)


def _cluster(facts: NatsFacts) -> StoreFinding:
    cluster = facts.cluster or {}
    if facts.config.get("num_replicas", 1) == 1:
        return StoreFinding("cluster", Severity.OK, "one replica")
    if not cluster.get("leader"):
        reason = "without a leader, no lease is granted or renewed"
        fix = "start the missing servers, and check that all of them reach each other"
        return StoreFinding("cluster", Severity.CRITICAL, "the bucket has no leader", reason, fix)
    away = [
        f"{each.get('name')} is {'offline' if each.get('offline') else 'behind'}"
        for each in cluster.get("replicas") or ()
        if each.get("offline") or not each.get("current")
    ]
    if not away:
        return StoreFinding("cluster", Severity.OK, f"led by {cluster['leader']}, all replicas are current")
    reason = "if one more replica fails, no lease may be granted or renewed"
    return StoreFinding("cluster", Severity.WARNING, ", ".join(away), reason, "restore it")


def _persistence(facts: NatsFacts) -> StoreFinding:
    if facts.sync_always:
        return StoreFinding("persistence", Severity.OK, "sync_interval always")
    interval = facts.sync_interval_ns
    found = "sync_interval unknown (2 minutes by default)" if interval is None else f"sync_interval {interval / NS:g} s"
    fix = "set sync_interval: always in the configuration of the servers"
    if int(facts.config.get("num_replicas", 1)) > 1:
        reason = "a majority that loses its power at the same time forgets acknowledged leases"
        return StoreFinding("persistence", Severity.NOTE, found, reason, fix)
    reason = "a power failure forgets acknowledged leases, and they are granted again"
    if interval is None:
        fix += f"; to prove it, export {_SERVERS} from the system account and import it"
    return StoreFinding("persistence", Severity.WARNING, found, reason, f"{fix}, or use three replicas", _ONLY)


def _space(facts: NatsFacts) -> StoreFinding:
    limits = (facts.limits or {}).get("limits") or {}
    known = [
        ("the bucket", facts.state.get("bytes"), facts.config.get("max_bytes")),
        ("the account", (facts.limits or {}).get("storage"), limits.get("max_storage")),
    ]
    used = [(what, int(size or 0), int(limit)) for what, size, limit in known if limit and int(limit) > 0]
    messages, most = facts.state.get("messages"), facts.config.get("max_msgs")
    shares = [(size / limit, f"{what}: {size / _MB:.3g} of {limit / _MB:.4g} MiB") for what, size, limit in used]
    if most and int(most) > 0:
        shares.append((int(messages or 0) / int(most), f"the bucket: {messages} of {most} messages"))
    if not shares:
        return StoreFinding("space", Severity.OK, "no limit")
    share, found = max(shares)
    if share < _FULL:
        return StoreFinding("space", Severity.OK, found)
    reason = "when it is full, no lease is granted or renewed"
    return StoreFinding("space", Severity.WARNING, found, reason, "raise the limit of the bucket or of the account")
