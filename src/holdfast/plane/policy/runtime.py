"""The error policy in one process of a plane: follows it, counts its cost, and escalates if armed.

    policing = PolicyRuntime.of(settings, database, locks, clock, serving=True)
    await policing.begin()                 # the locks of this process follow the policy
    async with policing.running():         # … from now on; counts are written and the rule is checked
        ...
    policing.policy, policing.signals      # to switch classes, and to report duplicates

`open_components` does this for every process of a plane, as `Components.policing`. The engine reports duplicates to
`components.policing.signals`. A lock spec with a risk class follows the policy automatically.

Promises: no lease is needed. While the database is down, the process only keeps the counts in memory. No error in here
ends the process.

Clock: the event loop's, for the pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.aio.client import Locks
from holdfast.core.history.events import EventKind
from holdfast.core.lease.error_policy import OnError
from holdfast.core.ports import Clock
from holdfast.errors import HoldfastError
from holdfast.flows.log import OutageLog, log_event
from holdfast.plane.db.ports import Database
from holdfast.plane.locks import registry as families
from holdfast.plane.policy.busy_jitter import BusyJitter
from holdfast.plane.policy.duplicate_counters import DuplicateCounters, SignalKind, SignalLabel
from holdfast.plane.policy.escalation import Escalator
from holdfast.plane.policy.follower import PolicyFollower
from holdfast.plane.policy.model import BUSY_JITTER
from holdfast.plane.policy.store import PlanePolicy
from holdfast.plane.settings.lock_times import families_in_effect
from holdfast.types import NS

if TYPE_CHECKING:
    from holdfast.plane.settings.settings import Settings

FLUSH_S: Final = 3.0
LAST_FLUSH_S: Final = 2.0
AGAIN_S: Final = 1.0
JITTER_SETTING: Final = "scheduler.busy_jitter"

_log: Final = logging.getLogger("holdfast.plane")


class PolicyRuntime:
    """The error policy as one process follows it."""

    def __init__(
        self,
        policy: PlanePolicy,
        signals: DuplicateCounters,
        follower: PolicyFollower,
        locks: Locks,
        jitter: BusyJitter,
        escalator: Escalator | None = None,
        *,
        flush_s: float = FLUSH_S,
    ) -> None:
        """`jitter`: the source of the retry delays in this process."""
        self.policy = policy
        self.signals = signals
        self.follower = follower
        self.escalator = escalator
        self.locks = locks
        self.jitter = jitter
        self._flush_s = flush_s

    @classmethod
    def of(cls, settings: Settings, database: Database, locks: Locks, clock: Clock, *, serving: bool) -> PolicyRuntime:
        """From the settings. Without `serving` no policy file is read: a read-only process changes nothing."""
        policy = PlanePolicy(database, clock)
        who = locks.manager.owner
        locks.manager.recorder.name_items(
            {name: family.pattern for name, family in families_in_effect(settings).items()}
        )
        # The process is named after its owner: host, process id and, unless one was given, a random part.
        signals = DuplicateCounters(
            database, clock, process=f"{who}/{locks.manager.entropy.token()[:8]}", recorder=locks.manager.recorder
        )
        exercise, jitter = settings.exercise.plan, BusyJitter(settings)
        spoken: dict[str, OnError | float] = dict(settings.risk)
        if settings.scheduler.busy_jitter or settings.origin(JITTER_SETTING).kind != "default":
            spoken[BUSY_JITTER] = settings.scheduler.busy_jitter
        file = settings.policy_file if serving else None
        follower = PolicyFollower(
            policy,
            database,
            locks,
            clock,
            actor=who,
            jitter=jitter,
            settings=spoken,
            file=None if file is None else Path(file),
            exercises=[] if exercise is None else [exercise],
        )
        rule = settings.escalation.rule
        escalator = Escalator(policy, signals, clock, rule, actor=who) if settings.escalation.armed else None
        return cls(policy, signals, follower, locks, jitter, escalator)

    def count_ends(self, duplicate_ends: Callable[[], int]) -> None:
        """Count ends of jobs that had ended, which the store refuses and counts, as duplicates."""
        self.signals.follow(SignalKind.END, duplicate_ends)

    async def begin(self, *, apply_files: bool = True) -> None:
        """See `PolicyFollower.begin`."""
        await self.follower.begin(apply_files=apply_files)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow, count and escalate inside the block; then write the remaining counts."""
        tasks = [
            asyncio.create_task(_restarted(self.follower.run), name="follow the error policy"),
            asyncio.create_task(_restarted(self._count), name="write signals of the error policy"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            try:
                async with asyncio.timeout(LAST_FLUSH_S):
                    await self.signals.flush()
            except TimeoutError:
                log_event(_log, logging.WARNING, "the last signals could not be written in time")

    def statistics(self) -> dict[str, float | Mapping[Any, float]]:
        """The counts of this process, for metrics. The locks count fallbacks by family and risk class themselves."""
        recorder, modes = self.locks.manager.recorder, self.locks.policy.current()
        fallbacks = recorder.by_risk(EventKind.FELL_BACK)
        return {
            "run_fallbacks": sum(n for (family, _), n in fallbacks.items() if family == families.WORKFLOW_RUN.name),
            "input_fail_open": self.signals.input_fail_open,
            "exercises": {each.family: each.share for each in self.locks.exercise.current()},
            "duplicates": {str(each): self.signals.totals[SignalLabel(each)] for each in SignalKind if each.duplicate},
            "modes": {(risk, str(each)): int(each == mode) for risk, mode in modes.items() for each in OnError},
            "escalations": 0 if self.escalator is None else self.escalator.switched,
            "armed": self.escalator is not None,
            "busy_jitter_ns": round(self.jitter.seconds * NS),
            "revision": self.follower.revision,
            "failed": {"follow": self.follower.failed, "signals": self.signals.failed},
        }

    async def _count(self) -> None:
        trouble = OutageLog(
            _log, "the escalation rule could not be checked", "the escalation rule can be checked again"
        )
        while True:  # ends with the process
            await asyncio.sleep(self._flush_s)
            if await self.signals.flush() and self.escalator is not None:
                try:
                    await self.escalator.check()
                    trouble.ended()
                except HoldfastError as error:
                    trouble.met(error)


async def _restarted(work: Callable[[], Awaitable[None]]) -> None:
    """Run until it ends or is cancelled. An unexpected error is logged, and it starts again."""
    while True:  # ends with the process
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whatever the error, the process keeps following its policy
            log_event(_log, logging.ERROR, "following the error policy failed and starts again", error)
            await asyncio.sleep(AGAIN_S)
        else:
            return
