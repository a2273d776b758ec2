"""Collects facts from the lease store, the policy, metrics and the audit ledger. Read-only.

Every function takes a `RunbookContext` and returns a fact, or raises; the runner turns both into evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.errors import BackendError
from holdfast.ops.runbooks.evidence.ledger import ledger_fact, ledger_facts
from holdfast.ops.runbooks.evidence.locks import (
    ClassFact,
    FamilyHeld,
    ForcedFact,
    HeldFact,
    LockFact,
    LocksFact,
    PolicyFact,
)
from holdfast.ops.runbooks.evidence.metrics import MetricQuery, queried, scraped
from holdfast.ops.runbooks.model import EvidenceSource, Fact, NotGiven, RunbookStep
from holdfast.ops.runbooks.sources import RunbookContext
from holdfast.plane.locks.registry import FAMILIES, LockFamily, Release
from holdfast.plane.policy.escalation_rules import EscalationEvidence, judge
from holdfast.plane.service.policy import PolicyService
from holdfast.plane.settings.lock_times import family_in_effect
from holdfast.runtime.gather import in_thread
from holdfast.types import NS

PINGS: Final = 5
LOOKED_AT: Final = 5000
LATE_SHARE: Final = 1 / 3
"""Renewal happens when two thirds of the TTL are left. A lease with less than this share has missed renewals."""

_SECTIONS: Final = ("replication", "memory", "stats", "persistence", "server", "commandstats")
_ABOUT: Final = (
    *("role", "connected_slaves", "master_link_status", "master_last_io_seconds_ago"),
    *("maxmemory_policy", "maxmemory", "used_memory", "evicted_keys", "loading", "aof_enabled"),
    *("uptime_in_seconds", "rdb_last_bgsave_status", "aof_last_write_status", "cmdstat_flushall", "cmdstat_flushdb"),
)


def lock_step(name: str, looks_at: str, *families: LockFamily, argument: str = "") -> RunbookStep:
    """A step that inspects locks by name; `argument` fills the placeholder in their keys."""
    ids = {place: argument for family in families for place in family.places}
    by_hand = tuple(f"holdfast inspect {shown_key(family)}" for family in families)
    by_hand += tuple(f"redis-cli PTTL {shown_key(family)}" for family in families)

    async def gather(scene: RunbookContext) -> LocksFact:
        wanted = [family_in_effect(scene.settings, family) for family in families]
        keys = {
            family.key(**{place: scene.arguments[ids[place]] for place in family.places}): family for family in wanted
        }
        now_ns, locks = scene.clock.now().wall, scene.locks()
        looks = [(await locks.inspect(key), scene.ttl(family.name)) for key, family in keys.items()]
        return LocksFact(tuple(LockFact.of(look, now_ns, ttl) for look, ttl in looks))

    return RunbookStep(name, looks_at, by_hand, EvidenceSource.LEASES, gather, about=argument)


def shown_key(family: LockFamily) -> str:
    """The key of a family with its placeholders as people write them."""
    return family.pattern.replace("{", "<").replace("}", ">")


async def held(scene: RunbookContext) -> HeldFact:
    """All held locks, by family."""
    found = await scene.locks().list("", LOOKED_AT)
    now_ns = scene.clock.now().wall
    families: dict[str, list[LockFact]] = {}
    for look in found:
        families.setdefault(look.family or "?", []).append(LockFact.of(look, now_ns, scene.ttl(look.family or "")))
    return HeldFact(
        tuple(_family(name, locks) for name, locks in sorted(families.items())), complete=len(found) < LOOKED_AT
    )


def _family(name: str, locks: list[LockFact]) -> FamilyHeld:
    late = sorted((each for each in locks if is_late(name, each)), key=lambda each: each.remaining or 0.0)
    oldest = max(locks, key=lambda each: each.age or 0.0)
    return FamilyHeld(name, len(locks), sum(each.waiters for each in locks), oldest, tuple(late[:20]))


def is_late(family: str, lock: LockFact) -> bool:
    """Whether a lease that should be renewed has less time left than any renewed lease would."""
    known = FAMILIES.get(family)
    if known is None or known.release is Release.EXPIRY or lock.ttl is None or lock.remaining is None:
        return False
    return lock.remaining < lock.ttl * LATE_SHARE


async def forced(scene: RunbookContext) -> ForcedFact:
    """Locks that operators broke recently."""
    since = scene.clock.now().wall / 1e9 - scene.given.window
    records = await scene.locks().audit(1000)
    return ForcedFact(tuple(each for each in records if each.at.timestamp() >= since), scene.given.window)


async def about_redis(scene: RunbookContext) -> Mapping[str, str] | None:
    """What the server reports about replication and eviction; None if this user may not ask."""
    from holdfast.stores.redis.asyncio_driver import Mux
    from holdfast.stores.redis.protocol import ReplyError, pack
    from holdfast.stores.redis.url import parse_redis_url

    driver = Mux(parse_redis_url(scene.lease_url))
    try:
        deadline = driver.deadline(scene.request_ns)
        said = [await driver.call(pack(("INFO", section)), deadline) for section in _SECTIONS]
    except BackendError:
        return None
    finally:
        await driver.close()
    if any(isinstance(each, ReplyError) or not isinstance(each, bytes) for each in said):
        return None
    pairs = (line.partition(":") for each in said for line in each.decode("utf-8", "replace").splitlines())
    values = {name: value.strip() for name, _, value in pairs}
    return {name: values[name] for name in _ABOUT if name in values}


async def policy(scene: RunbookContext) -> PolicyFact:
    """The modes of the risk classes, and the counters of all processes."""
    rule = scene.settings.escalation.rule
    database = await scene.database()
    report = await PolicyService.on(database, scene.clock, scene.settings).show()
    lately = sum(now for now, _ in report.duplicates.values())
    before = sum(was for _, was in report.duplicates.values())
    fallbacks = sum(each.fallbacks for each in report.classes)
    verdict = judge(rule, EscalationEvidence(fallbacks, lately, before))
    return PolicyFact(
        classes=tuple(
            ClassFact(
                each.standing.risk,
                str(each.standing.mode),
                str(each.standing.source),
                each.fallbacks,
                each.exercised,
            )
            for each in report.classes
        ),
        rate=report.rate,
        limit=rule.rate,
        window_s=rule.window_ns / NS,
        duplicates=report.duplicates,
        escalate=verdict.escalate,
        because=verdict.because,
        armed=scene.settings.escalation.armed,
    )


def metrics_step(name: str, looks_at: str, *queries: MetricQuery) -> RunbookStep:
    """A step that queries metrics."""

    async def gather(scene: RunbookContext) -> Fact:
        asked = tuple(query.under(scene.settings.names.metrics) for query in queries)
        if scene.given.prometheus is not None:
            return await queried(scene.given.prometheus, asked, limit_ns=scene.request_ns)
        if not scene.given.metrics:
            raise NotGiven("no metrics")
        return await scraped(
            scene.given.metrics, asked, scene.clock, spacing_s=scene.given.spacing, limit_ns=scene.request_ns
        )

    by_hand = tuple(query.promql for query in queries)
    return RunbookStep(
        name, looks_at, by_hand, EvidenceSource.METRICS, gather, lambda scene: scene.given.spacing, queries
    )


def ledger_step(name: str, looks_at: str, hint: str = "") -> RunbookStep:
    """A step that reads the recent records of the audit ledger, of all keys."""

    async def gather(scene: RunbookContext) -> Fact:
        path, limit_ns = ledger_place(scene)
        return await in_thread(lambda: ledger_fact(path, scene.clock, scene.given.window, limit_ns=limit_ns))

    return RunbookStep(name, looks_at, (hint or "holdfast check LEDGER --since 15m",), EvidenceSource.LEDGER, gather)


def history_step(name: str, looks_at: str, argument: str, *families: LockFamily) -> RunbookStep:
    """A step that reads the lock history of one job or run; the histories of several share one reading."""

    async def at_once(scene: RunbookContext, ids: Sequence[str]) -> Mapping[str, Fact]:
        path, limit_ns = ledger_place(scene)
        wanted = [family_in_effect(scene.settings, family) for family in families]
        groups = {
            each: frozenset(family.key(**dict.fromkeys(family.places, each)) for family in wanted) for each in ids
        }
        return await in_thread(lambda: ledger_facts(path, scene.clock, scene.given.window, groups, limit_ns=limit_ns))

    async def gather(scene: RunbookContext) -> Fact:
        wanted = scene.arguments[argument]
        return (await at_once(scene, (wanted,)))[wanted]

    hint = f"holdfast history {shown_key(families[0])} --ledger LEDGER"
    return RunbookStep(name, looks_at, (hint,), EvidenceSource.LEDGER, gather, about=argument, at_once=at_once)


def ledger_place(scene: RunbookContext) -> tuple[str, int]:
    """The path of the ledger, and the time limit of one reading; or `NotGiven`."""
    if scene.ledger is None:
        raise NotGiven("no audit ledger")
    return scene.ledger, round(scene.given.patience * NS * 4 / 5)


POLICY_STEP: Final = RunbookStep(
    "policy",
    "the mode of each risk class, how often locks fell back, and whether work is done twice",
    ("holdfast policy show",),
    EvidenceSource.DATABASE,
    policy,
)
FORCED_STEP: Final = RunbookStep(
    "forced", "locks that operators broke recently", ("holdfast audit",), EvidenceSource.LEASES, forced
)
HELD_STEP: Final = RunbookStep(
    "held",
    "every held lock, by family, and late renewals",
    ("holdfast locks",),
    EvidenceSource.LEASES,
    held,
)
