"""The escalation rule, armed: switches classes to fail closed when running without the lock has begun to do harm.

Promises: any number of processes may be armed; of those that see the same reason one switches, and the history has one
line (`source` escalation, with the numbers that it was decided by). It never switches back, and says in the log how a
person does. What a person has switched stands for a whole window before it is judged (`plane.policy.escalation_rules`).
No lease is needed for it. A database that is down is waited for.

Clock: the wall clock, as the counts have it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from holdfast.core.lease.error_policy import OnError
from holdfast.core.ports import Clock
from holdfast.flows.log import say
from holdfast.plane.policy.duplicate_counters import Sign, Signals, Sum
from holdfast.plane.policy.escalation_rules import Evidence, Rule, Verdict, due, judge
from holdfast.plane.policy.model import PolicyMoved, Source, Standing
from holdfast.plane.policy.store import PlanePolicy

_log: Final = logging.getLogger("holdfast.plane")


class Escalator:
    """Looks at the signals and speaks to the policy."""

    def __init__(self, policy: PlanePolicy, signals: Signals, clock: Clock, rule: Rule, *, actor: str) -> None:
        self.rule = rule
        self._policy = policy
        self._signals = signals
        self._clock = clock
        self._actor = actor
        self.switched = 0  # by this process, since its start

    async def look(self) -> list[Standing]:
        """Look once, and switch what is to be switched; the classes that were. Raises what the database does."""
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

    async def _switch(self, before: Standing, verdict: Verdict) -> Standing | None:
        try:
            after, changed = await self._policy.set(
                before.risk,
                OnError.FAIL_CLOSED,
                actor=self._actor,
                reason=verdict.because,
                source=Source.ESCALATION,
                expect=before.revision,
            )
        except PolicyMoved:
            return None  # another process was quicker, or a person has just decided
        if not changed:
            return None
        self.switched += 1
        say(
            *(_log, logging.ERROR, "error policy escalated"),
            risk=before.risk,
            before=str(before.mode),
            now=str(OnError.FAIL_CLOSED),
            because=verdict.because,
            per_second=verdict.rate,
            until="somebody says otherwise",
            undo=f"holdfast policy set {before.risk} {before.mode} --reason …",
        )
        return after


def evidence(sums: Sequence[Sum]) -> Evidence:
    """What the rule wants to know, from what was counted. Exercises are no evidence."""
    return Evidence(
        fallbacks=sum(each.lately for each in sums if each.label.sign is Sign.FALLBACK),
        duplicates=sum(each.lately for each in sums if each.label.sign.duplicate),
        duplicates_before=sum(each.earlier for each in sums if each.label.sign.duplicate),
    )
