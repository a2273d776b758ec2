"""What an etcd cluster promises as it is: facts, and what they mean.

Promises: the members of the URL are asked, each for itself, and no other address is; nothing is changed. A member that
does not answer is a finding, and no error, as long as another one answers. `findings` is pure. Does not promise to see
`--unsafe-no-fsync`, or the quota of a version before 3.6: these servers do not report them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.errors import BackendError
from holdfast.stores.etcd.gateway import Gateway
from holdfast.stores.etcd.messages import Message
from holdfast.types import MS, Guarantee

OLDEST: Final = (3, 4)
SLOW_NS: Final = 250 * MS  # a quarter of etcd's default election timeout
LAG_MOST: Final = 1000  # log entries
DEFAULT_QUOTA: Final = 2 * 1024**3
_FULL: Final = 0.8
_LOSES_DATA: Final = ((3, 5, 0), (3, 5, 3))  # from, and up to without
_ONLY: Final = Guarantee.EFFICIENCY_ONLY
_MB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """What one member said about itself."""

    version: tuple[int, ...]
    cluster: str
    leads: bool
    has_leader: bool
    size: int  # of its database, in bytes
    quota: int | None  # None: its version does not report it
    index: int
    applied: int
    took_ns: int  # for the answer


@dataclass(frozen=True, slots=True)
class EtcdFacts:
    """What was found out about a cluster. None: unknown."""

    members: Mapping[str, MemberFacts | str]  # of each in the URL: the facts, or why there are none
    voters: int | None = None
    alarms: Sequence[str] | None = None
    accounts: bool | None = None  # whether clients need a user


async def probe(gateway: Gateway, deadline_ns: int) -> EtcdFacts:
    """Ask the members. Raises when none of them answers."""
    members: dict[str, MemberFacts | str] = {}
    failed: BackendError | None = None
    for place, (answer, took_ns) in (await gateway.each("/v3/maintenance/status", _status, deadline_ns)).items():
        if isinstance(answer, BackendError):
            members[place], failed = str(answer), answer
        else:
            members[place] = _member(answer, took_ns)
    if failed is not None and all(isinstance(each, str) for each in members.values()):
        raise failed

    async def asked(path: str, message: Message) -> Mapping[str, Any] | None:
        try:
            answer: Mapping[str, Any] = await gateway.call(path, message, deadline_ns, dict)
        except BackendError:
            return None
        return answer

    listed = await asked("/v3/cluster/member/list", {"linearizable": False})
    alarms = await asked("/v3/maintenance/alarm", {"action": "GET"})
    accounts = await asked("/v3/auth/status", {})
    return EtcdFacts(
        members,
        None if listed is None else sum(not each.get("isLearner") for each in listed.get("members", ())),
        None if alarms is None else sorted({str(each.get("alarm")) for each in alarms.get("alarms", ())}),
        # A user without the role root may not ask, and there are users only then.
        True if accounts is None else bool(accounts.get("enabled")),
    )


def _status(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, dict) or not isinstance(answer.get("header"), dict):
        raise TypeError("a status is an object")
    _member(answer, 0)
    return answer


def _member(answer: Mapping[str, Any], took_ns: int) -> MemberFacts:
    header, leader = answer["header"], int(answer.get("leader", 0))
    quota = int(answer.get("dbSizeQuota", 0))
    return MemberFacts(
        version=tuple(int(part) for part in str(answer.get("version", "")).split("-")[0].split(".") if part.isdigit()),
        cluster=str(header.get("cluster_id")),
        leads=bool(leader) and leader == int(header.get("member_id", 0)),
        has_leader=bool(leader),
        size=int(answer.get("dbSize", 0)),
        quota=quota or None,
        index=int(answer.get("raftIndex", 0)),
        applied=int(answer.get("raftAppliedIndex", 0)),
        took_ns=took_ns,
    )


def findings(facts: EtcdFacts) -> list[StoreFinding]:
    """What the facts mean."""
    answered = {place: each for place, each in facts.members.items() if isinstance(each, MemberFacts)}
    return [
        _version(answered),
        _cluster(answered),
        _members(facts),
        _quorum(facts, answered),
        _leader(answered),
        _alarms(facts),
        _space(answered),
        _slow(answered),
        _accounts(facts),
    ]


def _version(members: Mapping[str, MemberFacts]) -> StoreFinding:
    oldest = min(each.version for each in members.values())
    shown = f"etcd {'.'.join(map(str, oldest))}"
    if oldest < OLDEST:
        reason = "transactions within transactions need 3.4"
        return StoreFinding("version", Severity.CRITICAL, shown, reason, "upgrade to 3.4 or newer", _ONLY)
    first, fixed = _LOSES_DATA
    affected = [each.version for each in members.values() if first <= each.version < fixed]
    if affected:
        shown = f"etcd {'.'.join(map(str, affected[0]))}"
        reason = (
            "a member that is killed under load may lose entries, and then disagree with the others (3.5.0 to 3.5.2)"
        )
        return StoreFinding("version", Severity.WARNING, shown, reason, "upgrade to 3.5.3 or newer", _ONLY)
    return StoreFinding("version", Severity.OK, shown)


def _cluster(members: Mapping[str, MemberFacts]) -> StoreFinding:
    ids = {each.cluster for each in members.values()}
    if len(ids) == 1:
        return StoreFinding("cluster", Severity.OK, "one cluster")
    reason = "they know nothing of each other: the same lock is granted once in each"
    fix = "name only members of one cluster in the URL"
    return StoreFinding("cluster", Severity.CRITICAL, f"members of {len(ids)} clusters", reason, fix, _ONLY)


def _members(facts: EtcdFacts) -> StoreFinding:
    if facts.voters is None:
        return _unknown("members")
    named = len(facts.members)
    found = f"{facts.voters} voting members, {named} in the URL"
    if facts.voters == 1:
        reason = "while it is down, no lease is granted or renewed"
        return StoreFinding("members", Severity.NOTE, found, reason, "add members until there are three")
    if facts.voters % 2 == 0:
        reason = f"one member less would survive the failure of as many ({(facts.voters - 1) // 2})"
        return StoreFinding("members", Severity.NOTE, found, reason, "use an odd number of members")
    if named < facts.voters:
        reason = "while those in the URL are down, this client has no other to ask"
        return StoreFinding("members", Severity.NOTE, found, reason, "name every member in the URL")
    return StoreFinding("members", Severity.OK, found)


def _quorum(facts: EtcdFacts, answered: Mapping[str, MemberFacts]) -> StoreFinding:
    away = [place for place in facts.members if place not in answered]
    if not away:
        return StoreFinding("quorum", Severity.OK, f"all {len(answered)} of the URL answer")
    left = (facts.voters or len(facts.members)) - len(away)
    spare = left - ((facts.voters or len(facts.members)) // 2 + 1)
    reason = f"{spare} more may fail" if spare > 0 else "if one more fails, no lease is granted or renewed"
    return StoreFinding("quorum", Severity.WARNING, f"no answer of {', '.join(away)}", reason, "restore it")


def _leader(members: Mapping[str, MemberFacts]) -> StoreFinding:
    alone = [place for place, each in members.items() if not each.has_leader]
    if not alone:
        known = next((place for place, each in members.items() if each.leads), "a member that is not in the URL")
        return StoreFinding("leader", Severity.OK, known)
    reason = "without a leader, no lease is granted or renewed"
    fix = "start the missing members, and check that all of them reach each other"
    severity = Severity.CRITICAL if len(alone) == len(members) else Severity.WARNING
    return StoreFinding("leader", severity, f"{', '.join(alone)} knows no leader", reason, fix)


def _alarms(facts: EtcdFacts) -> StoreFinding:
    if facts.alarms is None:
        return _unknown("alarms")
    if not facts.alarms:
        return StoreFinding("alarms", Severity.OK, "none")
    found = ", ".join(facts.alarms)
    if "CORRUPT" in facts.alarms:
        reason = "members disagree about what is stored, leases too"
        return StoreFinding("alarms", Severity.CRITICAL, found, reason, "restore the cluster from a backup", _ONLY)
    reason = "the database is full: no lease is granted or renewed"
    fix = "compact the history, `etcdctl defrag`, `etcdctl alarm disarm`, and set --auto-compaction-retention"
    return StoreFinding("alarms", Severity.CRITICAL, found, reason, fix)


def _space(members: Mapping[str, MemberFacts]) -> StoreFinding:
    fullest = max(members.values(), key=lambda each: each.size / (each.quota or DEFAULT_QUOTA))
    quota = fullest.quota or DEFAULT_QUOTA
    known = "" if fullest.quota else ", the default (this version does not report its own)"
    found = f"{fullest.size / _MB:.3g} MiB of a quota of {quota / _MB:.4g} MiB{known}"
    if fullest.size < _FULL * quota:
        return StoreFinding("space", Severity.OK, found)
    reason = "with a full database, no lease is granted or renewed"
    fix = "set --auto-compaction-retention, compact the history and `etcdctl defrag`, or raise --quota-backend-bytes"
    return StoreFinding("space", Severity.WARNING, found, reason, fix)


def _slow(members: Mapping[str, MemberFacts]) -> StoreFinding:
    newest = max(each.index for each in members.values())
    slow = [f"{place} answered after {each.took_ns / MS:.3g} ms" for place, each in members.items() if _is_slow(each)]
    slow += [
        f"{place} is {newest - each.applied} entries behind"
        for place, each in members.items()
        if newest - each.applied > LAG_MOST
    ]
    if not slow:
        longest = max(each.took_ns for each in members.values())
        return StoreFinding("slow_member", Severity.OK, f"each answered within {longest / MS:.3g} ms")
    reason = "requests to it wait, and a slow leader is voted out: renewals pause for the election"
    fix = "give its host a faster disk, more CPU or a nearer network"
    return StoreFinding("slow_member", Severity.WARNING, "; ".join(slow), reason, fix)


def _is_slow(member: MemberFacts) -> bool:
    return member.took_ns > SLOW_NS


def _accounts(facts: EtcdFacts) -> StoreFinding:
    if facts.accounts:
        return StoreFinding("permissions", Severity.OK, "clients need a user")
    reason = "whatever reaches the cluster can delete leases, which are then granted again"
    fix = "run what `holdfast access etcd` prints, and `etcdctl auth enable`"
    return StoreFinding("permissions", Severity.NOTE, "authentication is off", reason, fix)


def _unknown(check: str) -> StoreFinding:
    reason = "no member answered this question to this user"
    return StoreFinding(check, Severity.NOTE, "unknown", reason, "ask with a user that has the role root")
