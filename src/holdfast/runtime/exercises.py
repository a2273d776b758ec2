"""Exercises of the error policy while the process runs: begun by call, or by a plane for all its replicas.

    locks.exercise.begin("workflow.run", 0.01, duration=600)     # one in a hundred, for ten minutes

Off, it costs the flow one look at an attribute. What is drawn is counted and logged as exercised, apart from what fell
back because a store failed, so that no alert rings for it.

Clock: the wall clock, for the end of an exercise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from holdfast.core.lease.error_policy import OnError
from holdfast.core.lease.policy_exercise import Exercise, parse_exercise, refusal
from holdfast.core.ports import Clock, Entropy
from holdfast.flows.saying import say
from holdfast.runtime.mutex import Mutex
from holdfast.runtime.policies import PolicySwitch
from holdfast.types import Duration, duration_ns

_log = logging.getLogger("holdfast")


class ExerciseSwitch:
    """The exercises in force, and the ways to change them."""

    def __init__(self, policy: PolicySwitch, clock: Clock, entropy: Entropy) -> None:
        self._policy = policy
        self._clock = clock
        self._entropy = entropy
        self._mutex = Mutex()
        self._plans: Mapping[str, Exercise] = MappingProxyType({})
        self.running = False  # read by every acquisition, so that an exercise costs nothing while there is none

    def begin(
        self,
        family: str,
        share: float,
        *,
        duration: Duration | None = None,
        risk: str | None = None,
        force: bool = False,
    ) -> Exercise:
        """Let a share of the acquisitions of a family meet a pretended store error, for that long.

        `BadInput` where it would be an outage (`risk` is not fail_open, or no class is), unless it is forced.
        """
        now_ns = self._clock.now().wall
        until_ns = None if duration is None else now_ns + duration_ns("duration", duration, low_ns=1)
        wanted = parse_exercise(family, share, until_ns=until_ns, risk=risk, forced=force)
        modes = {name: OnError(mode) for name, mode in self._policy.current().items()}
        if (refused := refusal(wanted, modes)) is not None:
            raise refused
        with self._mutex:
            self._put([*(each for each in self._plans.values() if each.family != family), wanted])
        return wanted

    def end(self, family: str) -> bool:
        """End the exercise of a family. False: there was none."""
        with self._mutex:
            left = [each for each in self._plans.values() if each.family != family]
            ended = len(left) < len(self._plans)
            self._put(left)
        return ended

    def replace(self, exercises: Iterable[Exercise]) -> None:
        """Have exactly these, whatever there was. For whoever keeps them elsewhere; nothing is refused here."""
        with self._mutex:
            self._put(exercises)

    def current(self) -> list[Exercise]:
        """The exercises that are not over, by family."""
        now_ns = self._clock.now().wall
        return [each for _, each in sorted(self._plans.items()) if not each.over(now_ns)]

    def drawn(self, family: str, risk: str | None, on_error: Callable[[str | None], OnError]) -> bool:
        """Whether this acquisition is to meet a pretended error."""
        plan = self._plans.get(family)
        if plan is None or risk is None:
            return False
        if plan.over(self._clock.now().wall):
            self.end(family)
            return False
        return plan.concerns(risk, on_error(risk)) and plan.draws(self._entropy.below)

    def forked(self) -> None:
        """In a child process: a thread that changed them at that moment does not exist here, and holds nothing up."""
        self._mutex = Mutex()

    def _put(self, exercises: Iterable[Exercise]) -> None:
        plans = {each.family: each for each in exercises}
        for family in sorted(plans.keys() | self._plans.keys()):
            before, after = self._plans.get(family), plans.get(family)
            if after is None:
                say(_log, logging.WARNING, "exercise of the error policy ended", family=family)
            elif after != before:
                say(_log, logging.WARNING, "exercise of the error policy begun", family=family, share=after.share)
        self._plans = MappingProxyType(plans)
        self.running = bool(plans)
