"""The guarantee that a lock demands, compared with the one that its store has as it is configured."""

from __future__ import annotations

from holdfast.core.diagnosis import grade, limiting
from holdfast.core.lease.spec import LockSpec
from holdfast.core.ports import Diagnosable, Ports
from holdfast.errors import Misconfigured
from holdfast.types import Guarantee


async def check_guarantee(ports: Ports, spec: LockSpec, timeout_ns: int | None = None) -> None:
    """Refuse a lock whose store promises less than the lock demands."""
    await check_promise(ports, spec.guarantee, f"lock {spec.key!r}", timeout_ns)


async def check_promise(ports: Ports, demanded: Guarantee, by: str, timeout_ns: int | None = None) -> None:
    """Refuse a store that promises less than is demanded. It is asked once, and after a failover.

    A store that cannot be diagnosed has what its engine claims.
    """
    if ports.known.findings is None:
        store, limit_ns = ports.store, ports.request_timeout_ns
        if timeout_ns:
            limit_ns = min(limit_ns, timeout_ns)
        ports.known.findings = await store.diagnose(limit_ns) if isinstance(store, Diagnosable) else ()
    best = ports.store.capabilities.guarantee
    if grade(best, ports.known.findings).covers(demanded):
        return
    finding = limiting(ports.known.findings, demanded)
    why = "" if finding is None else f": {finding.check}: {finding.found}: {finding.reason}; {finding.fix}"
    raise Misconfigured(
        f"guarantee: {by} demands {demanded}, and this {ports.store.capabilities.engine} promises "
        f"{grade(best, ports.known.findings)}{why} (`holdfast doctor` shows everything)"
    )
