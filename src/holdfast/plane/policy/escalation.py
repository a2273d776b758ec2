"""Armed escalation: switches risk classes to fail closed when work without the lock has begun to do harm.

Promises: any number of processes may be armed. If several see the same reason, one switches, and the history has one
entry (`source` escalation, with the numbers that it was decided by). It never switches back; the log tells an operator
how to. A class that a person has switched is left alone for a whole window (`plane.policy.escalation_rules`). No lease
is needed. While the database is down, it waits.

Clock: the wall clock, as for the counts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from holdfast.core.lease.error_policy import OnError
from holdfast.core.ports import Clock
from holdfast.flows.log import log_event
from holdfast.plane.policy.duplicate_counters import DuplicateCounters, SignalKind, SignalTotal
from holdfast.plane.policy.escalation_rules import EscalationEvidence, EscalationResult, EscalationRule, due, judge
from holdfast.plane.policy.model import ClassPolicy, PolicyConflict, PolicySource
from holdfast.plane.policy.store import PlanePolicy

_log: Final = logging.getLogger("holdfast.plane")


class Escalator:
    """Reads the signals and switches the policy."""

    def __init__(
        self, policy: PlanePolicy, signals: DuplicateCounters, clock: Clock, rule: EscalationRule, *, actor: str
    ) -> None:
        self.rule = rule
        self._policy = policy
        self._signals = signals
        self._clock = clock
        self._actor = actor
        self.switched = 0  # by this process, since its start

    async def check(self) -> list[ClassPolicy]:
        """Check once, and return the classes that were switched. Raises the errors of the database."""
        classes = await self._policy.current()
        now_ns = self._clock.now().wall
        wanted = [
            classes[risk]
            for risk in self.rule.classes
            if risk in classes and due(self.rule, classes[risk].mode, classes[risk].since_ns, now_ns)
        ]
        if not wanted:
            return []
        verdict = judge(self.rule, evidence(await self._signals.sums(self.rule.window_ns)))
        return [] if not verdict.escalate else [done for each in wanted if (done := await self._switch(each, verdict))]

    async def _switch(self, before: ClassPolicy, verdict: EscalationResult) -> ClassPolicy | None:
        try:
            after, changed = await self._policy.set(
                before.risk,
                OnError.FAIL_CLOSED,
                actor=self._actor,
                reason=verdict.because,
                source=PolicySource.ESCALATION,
                expect=before.revision,
            )
        except PolicyConflict:
            return None  # another process was faster, or a person has just decided
        if not changed:
            return None
        self.switched += 1
        log_event(
            *(_log, logging.ERROR, "error policy escalated"),
            risk=before.risk,
            before=str(before.mode),
            now=str(OnError.FAIL_CLOSED),
            because=verdict.because,
            per_second=verdict.rate,
            until="an operator switches it back",
            undo=f"holdfast policy set {before.risk} {before.mode} --reason …",
        )
        return after


def evidence(sums: Sequence[SignalTotal]) -> EscalationEvidence:
    """The evidence for the rule, from the counts. Exercises are no evidence."""
    return EscalationEvidence(
        fallbacks=sum(each.lately for each in sums if each.label.sign is SignalKind.FALLBACK),
        duplicates=sum(each.lately for each in sums if each.label.sign.duplicate),
        duplicates_before=sum(each.earlier for each in sums if each.label.sign.duplicate),
    )
