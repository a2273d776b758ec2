"""Commands and queries of the error policy, for the command line and the HTTP API.

    async with policy_at(settings) as service:       # opens only the database
        report = await service.show()
        await service.set("high", "fail_closed", actor="ada", reason="duplicates", source=PolicySource.COMMAND)

Promises: needs only the database of the plane, so it works while the lease store or the bus is down. Counts are sums
over all processes.

Clock: the wall clock, for people.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from holdfast.core.lease.error_policy import OnError
from holdfast.core.ports import Clock
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Database
from holdfast.plane.policy.busy_jitter import check_jitter
from holdfast.plane.policy.duplicate_counters import SIGNAL_SCHEMA, DuplicateCounters, SignalKind, SignalTotal
from holdfast.plane.policy.escalation import evidence
from holdfast.plane.policy.escalation_rules import judge
from holdfast.plane.policy.model import ClassPolicy, JitterPolicy, PlaneExercise, PolicyChange, PolicySource
from holdfast.plane.policy.store import PlanePolicy
from holdfast.plane.settings.settings import Settings
from holdfast.runtime.system import SystemClock
from holdfast.types import NS, Duration

NEAR_ZERO: Final = 0.001  # fallbacks a second that need no hint


@dataclass(frozen=True, slots=True)
class ClassReport:
    """One risk class: its mode, and its recent fallbacks."""

    standing: ClassPolicy
    fallbacks: int
    exercised: int
    rate: float  # fallbacks a second

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        counts = {"fallbacks": self.fallbacks, "rate": self.rate, "exercised": self.exercised}
        return {**self.standing.as_dict(), **counts}


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """The current error policy and its recent effects."""

    at_ns: int
    window_ns: int
    classes: Sequence[ClassReport]
    families: dict[str, int]  # fallbacks in the window
    duplicates: dict[str, tuple[int, int]]  # by kind: in the window, and in the window before it
    exercises: Sequence[PlaneExercise]
    rate: float
    jitter: JitterPolicy | None  # of busy retries; None: it was never switched
    hints: Sequence[str]  # what to do next, for people

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "at_ns": self.at_ns,
            "window": self.window_ns / NS,
            "rate": self.rate,
            "classes": [each.as_dict() for each in self.classes],
            "fallbacks_by_family": dict(self.families),
            "duplicates": {
                sign: {"lately": lately, "before": before} for sign, (lately, before) in self.duplicates.items()
            },
            "exercises": [each.as_dict() for each in self.exercises],
            "busy_jitter": None if self.jitter is None else self.jitter.as_dict(),
            "hints": list(self.hints),
        }


class PolicyService:
    """The error policy of a plane: queries and changes."""

    def __init__(self, policy: PlanePolicy, signals: DuplicateCounters, clock: Clock, settings: Settings) -> None:
        """`settings`: the escalation rule, and the limits of the busy jitter."""
        self.policy = policy
        self._signals = signals
        self._clock = clock
        self._settings = settings
        self._rule = settings.escalation.rule

    @classmethod
    def on(cls, database: Database, clock: Clock, settings: Settings) -> PolicyService:
        """For a process outside the plane."""
        return cls(
            PlanePolicy(database, clock), DuplicateCounters(database, clock, process="read-only"), clock, settings
        )

    async def show(self) -> PolicyReport:
        """The mode of each class, and recent fallbacks and duplicates."""
        view = await self.policy.view()
        sums = await self._signals.sums(self._rule.window_ns)
        classes = [self._class(each, sums) for _, each in sorted(view.classes.items())]
        families: dict[str, int] = {}
        for each in sums:
            if each.label.sign is SignalKind.FALLBACK and each.lately:
                families[each.label.family] = families.get(each.label.family, 0) + each.lately
        duplicates = {str(each): _both(sums, each) for each in SignalKind if each.duplicate}
        verdict = judge(self._rule, evidence(sums))
        return PolicyReport(
            at_ns=self._clock.now().wall,
            window_ns=self._rule.window_ns,
            classes=classes,
            families=families,
            duplicates=duplicates,
            exercises=view.exercises,
            rate=verdict.rate,
            jitter=view.jitter,
            hints=hints(classes, view.exercises, verdict.rate, verdict.because, escalate=verdict.escalate),
        )

    async def set(
        self,
        risk: str,
        mode: OnError | str,
        *,
        actor: str,
        reason: str,
        source: PolicySource,
        expect: int | None = None,
    ) -> tuple[ClassPolicy, bool]:
        """See `PlanePolicy.set`."""
        return await self.policy.set(risk, mode, actor=actor, reason=reason, source=source, expect=expect)

    async def set_jitter(
        self, seconds: float, *, actor: str, reason: str, source: PolicySource, expect: int | None = None
    ) -> tuple[JitterPolicy, bool]:
        """See `PlanePolicy.set_jitter`. `BadInput` if the settings rule this jitter out."""
        check_jitter(self._settings, seconds)
        return await self.policy.set_jitter(seconds, actor=actor, reason=reason, source=source, expect=expect)

    async def history(
        self, limit: int = 100, risk: str | None = None, *, below: int | None = None
    ) -> list[PolicyChange]:
        """See `PlanePolicy.history`."""
        return await self.policy.history(limit, risk, below=below)

    async def begin_exercise(
        self,
        family: str,
        share: float,
        *,
        duration: Duration,
        actor: str,
        reason: str = "",
        risk: str | None = None,
        force: bool = False,
    ) -> PlaneExercise:
        """See `PlanePolicy.begin_exercise`."""
        return await self.policy.begin_exercise(
            family, share, duration=duration, actor=actor, reason=reason, risk=risk, force=force
        )

    async def end_exercise(self, family: str, *, actor: str) -> bool:
        """See `PlanePolicy.end_exercise`."""
        return await self.policy.end_exercise(family, actor=actor)

    def _class(self, standing: ClassPolicy, sums: Sequence[SignalTotal]) -> ClassReport:
        own = [each for each in sums if each.label.risk == standing.risk]
        fallbacks, _ = _both(own, SignalKind.FALLBACK)
        exercised, _ = _both(own, SignalKind.EXERCISED)
        return ClassReport(standing, fallbacks, exercised, fallbacks * NS / self._rule.window_ns)


def _both(sums: Sequence[SignalTotal], sign: SignalKind) -> tuple[int, int]:
    own = [each for each in sums if each.label.sign is sign]
    return sum(each.lately for each in own), sum(each.earlier for each in own)


def hints(
    classes: Sequence[ClassReport], exercises: Sequence[PlaneExercise], rate: float, because: str, *, escalate: bool
) -> list[str]:
    """Next steps for an operator, most urgent first."""
    found = []
    open_classes = [each.standing.risk for each in classes if each.standing.mode is OnError.FAIL_OPEN]
    if escalate:
        found.append(f"work without locks does harm: {because}")
        found += [
            f"stop it for class {risk}: holdfast policy set {risk} fail_closed --reason …" for risk in open_classes
        ]
    elif rate > NEAR_ZERO:
        found.append("the lease store fails; work continues under local locks")
        found.append("check the store: holdfast locks, with the same --config or --database as here")
        found.append("if duplicates begin to rise, stop it: holdfast policy set CLASS fail_closed --reason …")
    for each in classes:
        if each.standing.source is PolicySource.ESCALATION:
            found.append(
                f"class {each.standing.risk} fails closed since an escalation; when the store works again and the "
                f"duplicates are understood: holdfast policy set {each.standing.risk} fail_open --reason …"
            )
    found += [
        f"the exercise of {each.plan.family} is forced and may fail work; end it: "
        f"holdfast policy exercise {each.plan.family} 0"
        for each in exercises
        if each.plan.forced
    ]
    return found


@asynccontextmanager
async def policy_at(
    settings: Settings, *, clock: Clock | None = None, read_only: bool = False
) -> AsyncIterator[PolicyService]:
    """The policy of the plane in the settings. `read_only`: nothing is created or written."""
    clock = clock or SystemClock()
    database = open_database(settings.database_url, clock=clock, read_only=read_only)
    try:
        if not read_only:  # later readers find all tables
            await prepare(database, SIGNAL_SCHEMA)
        yield PolicyService.on(database, clock, settings)
    finally:
        await database.close()
