"""The settings of workflows, their loops, and approvals."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.approving import ApprovalRules
from holdfast.plane import families
from holdfast.plane.setting_keys import failures, key, lead, renew_every
from holdfast.plane.setting_kinds import Rules, Seconds, Whole


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The workflow engine."""

    concurrency: int = key(32, Whole(1, 10_000), "messages of each subject that are handled at once")
    run_ttl: float = key(
        families.WORKFLOW_RUN.ttl, Seconds(1.0, 3600.0), "how long a silent engine keeps the lock of a run"
    )
    run_renew_every: float | None = renew_every("run_ttl")
    run_failures: int = failures()


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The loop that tells runs what they have missed."""

    interval: float = key(5.0, Seconds(0.1, 3600.0), "between two ticks")
    lead: str = lead()
    renew_every: float | None = renew_every()
    failures: int = failures()
    patience: float = key(10.0, Seconds(0.1, 3600.0), "how long a message may take before it counts as missed")
    live_per_tenant: int = key(10_000, Whole(1, 10_000_000), "unfinished runs that one tenant may have")
    per_tree: int = key(
        2_000, Whole(1, 1_000_000), "runs that one run may start, directly and through them, with itself"
    )


@dataclass(frozen=True, slots=True)
class DelaySettings:
    """The loop that comes for runs whose time has come."""

    interval: float = key(5.0, Seconds(0.1, 3600.0), "between two ticks")
    lead: str = lead()
    renew_every: float | None = renew_every()
    failures: int = failures()


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    """Which jobs wait for a person."""

    rules: ApprovalRules = key(  # noqa: RUF009 - rules are frozen, so one default serves all
        ApprovalRules(), Rules(), "what needs approval, or is refused; the first that matches"
    )
    lock_ttl: float = key(
        families.APPROVAL.ttl, Seconds(1.0, 3600.0), "how long a decision that went silent keeps the lock of its job"
    )
    lock_renew_every: float | None = renew_every("lock_ttl")
    lock_failures: int = failures()
