"""What the nodes of a quorum show of a key, put together to what operators see. Pure functions of the answers.

A key is free when it is free at a majority. Otherwise the owner at most nodes is shown: it may have fewer than a
majority (votes are split, or nodes are away), and it blocks every caller all the same. What one grant looks like
differs from node to node (each has its own clock), so the times shown are those of the earliest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.core.lease.quorum import assured, free_in_ns, majority, settled
from holdfast.types import NS, AuditRecord, Holding

SAME_ACT_NS = 60 * NS  # how far apart the clocks of two nodes may be for one act of an operator to be seen as one


def one_holding(seen: Sequence[Holding | None], nodes: int) -> Holding | None:
    """What is known of a key from what these nodes show of it. Nodes that did not answer are not among them."""
    if sum(each is None for each in seen) >= majority(nodes):
        return None
    grants: dict[str, list[Holding]] = {}
    for each in seen:
        if each is not None:
            grants.setdefault(f"{each.fingerprint} {each.owner}", []).append(each)
    if not grants:
        return None
    first, *rest = views = max(grants.values(), key=len)
    fences = [each.fence for each in views if each.fence is not None]
    granted = [each.granted_wall_ns for each in views if each.granted_wall_ns is not None]
    remaining = [0 if each is None else each.remaining_ns for each in seen]
    return replace(
        first,
        fence=settled(fences, nodes) or max(fences, default=None),
        granted_wall_ns=min(granted, default=None),
        remaining_ns=free_in_ns(remaining, nodes) or first.remaining_ns,
        waiters=max(each.waiters for each in (first, *rest)),
    )


def all_holdings(seen: Sequence[Sequence[Holding]], limit: int, nodes: int) -> list[Holding]:
    """What is known of many keys from the lists of these nodes, each sorted by key and cut at `limit`."""
    known = [{holding.key: holding for holding in each} for each in seen]
    # Of the keys beyond the end of a list that was cut, its node has not answered.
    ends = [each[-1].key if 0 < limit <= len(each) else None for each in seen]
    shown: list[Holding] = []
    for key in sorted({key for each in known for key in each}):
        answers = [each.get(key) for each, end in zip(known, ends, strict=True) if end is None or key <= end]
        holding = one_holding(answers, nodes)
        if holding is not None:
            shown.append(holding)
    return shown[: max(0, limit)]


def one_act(records: Sequence[AuditRecord], nodes: int) -> AuditRecord:
    """One act of an operator from what the nodes wrote down of it.

    Its fence is one that every later grant is above: not the highest, which the next majority need not know.
    """
    before = [each.previous_fence for each in records if each.previous_fence is not None]
    after = [each.fence for each in records]
    first = min(records, key=lambda each: each.wall_ns)
    return replace(
        first,
        previous_fence=settled(before, nodes) or max(before, default=None),
        fence=assured(after, nodes) or min(after),
    )


def all_acts(logs: Mapping[int, Sequence[AuditRecord]], limit: int, nodes: int) -> list[AuditRecord]:
    """The acts in the audit logs of the nodes, newest first."""
    acts: list[dict[int, AuditRecord]] = []
    for node, record in _in_order(logs):
        act = _told_before(acts, node, record)
        if act is None:
            acts.append({node: record})
        else:
            act[node] = record
    merged = [one_act(list(act.values()), nodes) for act in acts]
    return sorted(merged, key=lambda each: each.wall_ns)[::-1][: max(0, limit)]


def _told_before(acts: list[dict[int, AuditRecord]], node: int, record: AuditRecord) -> dict[int, AuditRecord] | None:
    """The act of which other nodes have a record and this is another view, if there is one."""
    for act in reversed(acts):
        first = next(iter(act.values()))
        if record.wall_ns - first.wall_ns > SAME_ACT_NS:
            return None
        if node not in act and _same(first, record):
            return act
    return None


def _in_order(logs: Mapping[int, Sequence[AuditRecord]]) -> Iterable[tuple[int, AuditRecord]]:
    entries = [(node, record) for node, log in logs.items() for record in reversed(log)]
    return sorted(entries, key=lambda entry: entry[1].wall_ns)


def _same(first: AuditRecord, second: AuditRecord) -> bool:
    return (first.action, first.key, first.actor, first.reason, first.previous_owner) == (
        second.action,
        second.key,
        second.actor,
        second.reason,
        second.previous_owner,
    )


def all_findings(answers: Mapping[int, Sequence[StoreFinding]], nodes: int) -> list[StoreFinding]:
    """The findings about a quorum: those of each node with its number, and one for each check that all nodes pass.

    A node that forgets a lease, for whatever reason, may vote for another holder; with a lease that exactly a majority
    has granted, one such node is enough.
    """
    found: list[StoreFinding] = []
    if len(answers) < nodes:
        away = ", ".join(str(node + 1) for node in range(nodes) if node not in answers)
        reason = "if one more node goes away, there may be no majority"
        found.append(StoreFinding("nodes", Severity.WARNING, f"no answer of {away} (of {nodes})", reason, "restore it"))
    else:
        found.append(StoreFinding("nodes", Severity.OK, f"all {nodes} answer"))
    checks = dict.fromkeys(each.check for findings in answers.values() for each in findings)
    for check in checks:
        of_nodes = {node: each for node, findings in answers.items() for each in findings if each.check == check}
        bad = {node: each for node, each in of_nodes.items() if each.severity is not Severity.OK}
        if not bad:
            found.append(next(iter(of_nodes.values())))
        found += [replace(each, found=f"node {node + 1}: {each.found}") for node, each in bad.items()]
    return found
