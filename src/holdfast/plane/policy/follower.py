"""Applies the policy of the plane in one process: to its locks and its busy retries.

Promises:

- `begin` returns when the locks of this process follow the policy, so locks that are acquired later are under it.
- A change applies when its notification arrives, and within `poll_ns` if that was missed.
- While the database is down, the last known policy holds. Changes of a policy file still apply, and are written to the
  database when it is back.
- An unreadable or invalid file changes nothing and is logged. Neither does a busy jitter that the settings of this
  process rule out.

In a process of a plane, switch with `PlanePolicy.set` and not with `locks.policy.set`: that does not reach the other
processes and is overwritten by the policy of the plane.

Clock: the event loop's, for the pauses; the wall clock, for the order of changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from holdfast.core.histogram import Measure, MeasuredOutcome
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.error_policy import OnError, Policy
from holdfast.core.lease.policy_exercise import Exercise
from holdfast.core.ports import Clock
from holdfast.errors import BadInput, Closed, HoldfastError
from holdfast.flows.log import OutageLog, log_event
from holdfast.leases.connect import AnyLocks
from holdfast.plane.db.ports import Database
from holdfast.plane.policy.busy_jitter import BusyJitter
from holdfast.plane.policy.model import BUSY_JITTER, PolicySource, PolicyView
from holdfast.plane.policy.store import CHANNEL, PlanePolicy
from holdfast.runtime.policy_switch import PolicySwitch
from holdfast.types import NS

POLL_NS: Final = 5 * NS
FILE_NS: Final = NS
"""Interval at which the policy file is checked: one `stat`."""

_log: Final = logging.getLogger("holdfast.plane")


class _NullRecorder:
    """A recorder that records nothing: a change of the file is logged when it is applied, not when it is read."""

    def tally(self, _kind: EventKind, _family: str) -> bool:
        return False

    def note(self, record: Record) -> None:
        raise AssertionError(record)

    def measured(self, measure: Measure, family: str, outcome: MeasuredOutcome, ns: int) -> None:
        raise AssertionError(measure, family, outcome, ns)

    def waits(self, who: object, family: str) -> None:
        raise AssertionError(who, family)

    def waits_no_more(self, who: object) -> None:
        raise AssertionError(who)


class PolicyFollower:
    """Keeps the locks of one process on the policy of the plane."""

    def __init__(
        self,
        policy: PlanePolicy,
        database: Database,
        locks: AnyLocks,
        clock: Clock,
        *,
        actor: str,
        jitter: BusyJitter,
        settings: Mapping[str, OnError | float] | None = None,
        file: Path | None = None,
        exercises: Iterable[Exercise] = (),
        poll_ns: int = POLL_NS,
        file_ns: int = FILE_NS,
    ) -> None:
        """`settings`: the `[risk]` table and `BUSY_JITTER`, if set. `exercises`: those of the settings.

        `jitter` is switched here. `BadInput` for an unreadable policy file.
        """
        self._policy = policy
        self._database = database
        self._locks = locks
        self._clock = clock
        self._actor = actor
        self._jitter = jitter
        self._settings = dict(settings or {})
        self._exercises = {each.family: each for each in exercises}
        self._poll_ns = poll_ns
        self._file_ns = file_ns if file is not None else poll_ns
        self._file = None if file is None else PolicySwitch(Policy(), file, clock, _NullRecorder(), "file")
        self._file_name = "" if file is None else file.name
        self._applied: dict[str, OnError | float] = {}  # the content of the file at the last check
        self._unwritten: dict[str, tuple[OnError | float, int]] = {}  # not yet written to the database, and since when
        self._known: dict[str, OnError] = {}  # last read from the database
        self._running: list[Exercise] = []
        self._unread = OutageLog(
            _log,
            "the error policy could not be read; the last known one stays in force",
            "the error policy can be read again",
        )
        self.revision = 0  # of the policy in force
        self.failed = 0  # failed reads

    async def begin(self, *, apply_files: bool = True) -> None:
        """Apply the policy to the locks of this process before they are used. Raises the errors of the database.

        `apply_files`: also apply the files of this process to the plane. Read-only processes do not.
        """
        if apply_files:
            await self._policy.write_defaults()
            own = {risk: mode for risk, mode in self._settings.items() if risk not in self._file_entries()}
            if own:
                await self._policy.apply_file(own, actor=self._actor, reason="settings", source=PolicySource.START)
            self.check_file(here=False)
            await self._write()
        self._adopt(await self._policy.view(), first=True)
        shown = ", ".join(f"{risk} {mode}" for risk, mode in self._locks.policy.current().items())
        log_event(_log, logging.INFO, "error policy in force", revision=self.revision, policy=shown)

    async def run(self) -> None:
        """Follow until cancelled, or until the database is closed."""
        listener = self._database.listen(CHANNEL)
        loop = asyncio.get_running_loop()
        asked = loop.time()
        try:
            while True:  # ends with the process
                notified = await listener.wait(self._file_ns)
                self.check_file()
                if notified or self._unwritten or loop.time() - asked >= self._poll_ns / NS:
                    asked = loop.time()
                    await self.refresh()
        except Closed:
            return
        finally:
            listener.close()

    async def refresh(self) -> bool:
        """Read the policy now. False: the database did not answer, and the last known policy stays in force."""
        self._exercise()
        try:
            await self._write()
            if await self._policy.revision() != self.revision or self._differs():
                self._adopt(await self._policy.view())
        except HoldfastError as error:
            self.failed += 1
            self._unread.met(error)
            return False
        self._unread.ended(revision=self.revision)
        return True

    def check_file(self, *, here: bool = True) -> None:
        """Apply changes of the file in this process immediately: the database may be down.

        Not at the start, where only the database knows whether the content is new.
        """
        entries = self._file_entries()
        now_ns = self._clock.now().wall
        for risk, mode in entries.items():
            if self._applied.get(risk) != mode:
                self._unwritten[risk] = mode, now_ns
                if here:
                    self._switch(risk, mode, "file", self._file_name)
        self._applied = entries

    def _file_entries(self) -> dict[str, OnError | float]:
        if self._file is None:
            return {}
        entries: dict[str, OnError | float] = {risk: OnError(mode) for risk, mode in self._file.current().items()}
        if self._file.busy_jitter is not None:
            entries[BUSY_JITTER] = self._file.busy_jitter
        return entries

    async def _write(self) -> None:
        """Write the content of the file to the database, which knows whether it is new."""
        for risk, (mode, at_ns) in list(self._unwritten.items()):
            entries = {risk: mode}
            who, why = self._actor, f"policy file {self._file_name}"
            await self._policy.apply_file(entries, actor=who, reason=why, source=PolicySource.FILE, read_ns=at_ns)
            if self._unwritten.get(risk) == (mode, at_ns):
                del self._unwritten[risk]
            self.revision = -1  # forces a read of the result

    def _differs(self) -> bool:
        """Whether a local switch differs from the policy of the plane."""
        now = self._locks.policy.current()
        return any(now.get(risk) != mode for risk, mode in self._known.items() if risk not in self._unwritten)

    def _adopt(self, view: PolicyView, *, first: bool = False) -> None:
        for risk, class_policy in view.classes.items():
            if risk not in self._unwritten:
                self._switch(risk, class_policy.mode, class_policy.actor, class_policy.reason, quiet=first)
        if view.jitter is not None and BUSY_JITTER not in self._unwritten:
            self._switch(BUSY_JITTER, view.jitter.seconds, view.jitter.actor, view.jitter.reason, quiet=first)
        self._known = {risk: each.mode for risk, each in view.classes.items()}
        self._running = [each.plan for each in view.exercises]
        self._exercise()
        self.revision = view.revision

    def _exercise(self) -> None:
        """Exercises of the plane take precedence over those of the settings while they run."""
        now_ns = self._clock.now().wall
        running = {each.family: each for each in self._running if not each.over(now_ns)}
        wanted = {**self._exercises, **running}
        if [wanted[family] for family in sorted(wanted)] != self._locks.exercise.current():
            self._locks.exercise.replace(wanted.values())

    def _switch(self, risk: str, mode: OnError | float, actor: str, reason: str, *, quiet: bool = False) -> None:
        if not isinstance(mode, OnError):
            self._use_jitter(mode, actor, reason, quiet=quiet)
        elif self._locks.policy.current().get(risk) != mode:
            self._locks.policy.adopt(risk, mode, actor=actor, reason=reason, quiet=quiet)

    def _use_jitter(self, seconds: float, actor: str, reason: str, *, quiet: bool) -> None:
        before = self._jitter.seconds
        if seconds == before:
            return
        try:
            self._jitter.use(seconds)
        except BadInput as error:
            text = "a jitter of busy retries was refused; the current one stays"
            log_event(_log, logging.ERROR, text, error, jitter=seconds, stays=before)
            return
        if not quiet:
            detail = f"{before:g} s to {seconds:g} s by {actor}: {reason}"
            log_event(_log, logging.WARNING, f"jitter of busy retries switched: {detail}")
