"""The guarantee that a lock demands, compared with the one that its store has as it is configured."""

from __future__ import annotations

from holdfast.core.diagnosis import grade, limiting
from holdfast.core.lease.spec import LockSpec
from holdfast.core.ports import Diagnosable, Ports
from holdfast.errors import Misconfigured


async def check_guarantee(ports: Ports, spec: LockSpec, timeout_ns: int | None = None) -> None:
    """Refuse a lock whose store promises less than the lock demands. The store is asked once, and after a failover.

    A store that cannot be diagnosed has what its engine claims, which was checked when the lock was described.
    """
    if ports.known.findings is None:
        store, limit_ns = ports.store, ports.request_timeout_ns
        if timeout_ns:
            limit_ns = min(limit_ns, timeout_ns)
        ports.known.findings = await store.diagnose(limit_ns) if isinstance(store, Diagnosable) else ()
    best = ports.store.capabilities.guarantee
    if grade(best, ports.known.findings).covers(spec.guarantee):
        return
    finding = limiting(ports.known.findings, spec.guarantee)
    why = "" if finding is None else f": {finding.check}: {finding.found}: {finding.reason}; {finding.fix}"
    raise Misconfigured(
        f"guarantee: lock {spec.key!r} demands {spec.guarantee}, and this {ports.store.capabilities.engine} promises "
        f"{grade(best, ports.known.findings)}{why} (`holdfast doctor` shows everything)"
    )
