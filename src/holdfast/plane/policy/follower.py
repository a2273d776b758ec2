"""A process follows the policy of its plane: what the database says is what its locks and its busy retries do.

Promises: `begin` returns when the locks of this process do what the policy says, so whoever takes locks after it takes
them under the policy. From then on a change arrives when its bell rings, and within `poll_ns` where that was missed.
While the database is down the last known policy holds; a policy file is followed all the same, and what it says is told
to the database when that is back. A file that turns unreadable or wrong changes nothing, and the log says why. So it is
with a busy jitter that the settings of this process rule out: what was in force stays in force.

In a process of a plane `locks.policy.set` is not the way to switch: it does not reach the others, and what the plane
says replaces it. `PlanePolicy.set` is.

Clock: the event loop's, for the pauses; the wall clock, for the order of words.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from holdfast.core.histogram import Measure, Outcome
from holdfast.core.history.events import Kind, Record
from holdfast.core.lease.error_policy import OnError, Policy
from holdfast.core.lease.policy_exercise import Exercise
from holdfast.core.ports import Clock
from holdfast.errors import BadInput, Closed, HoldfastError
from holdfast.flows.log import Trouble, say
from holdfast.leases.connect import AnyLocks
from holdfast.plane.db.ports import Database
from holdfast.plane.policy.busy_jitter import BusyJitter
from holdfast.plane.policy.model import BUSY_JITTER, PolicyView, Source
from holdfast.plane.policy.store import CHANNEL, PlanePolicy
from holdfast.runtime.policy_switch import PolicySwitch
from holdfast.types import NS

POLL_NS: Final = 5 * NS
FILE_NS: Final = NS
"""How often the policy file is looked at: one `stat`."""

_log: Final = logging.getLogger("holdfast.plane")


class _Quiet:
    """What the file says is logged when it is taken over, and not when it is read."""

    def tally(self, _kind: Kind, _family: str) -> bool:
        return False

    def note(self, record: Record) -> None:
        raise AssertionError(record)

    def measured(self, measure: Measure, family: str, outcome: Outcome, ns: int) -> None:
        raise AssertionError(measure, family, outcome, ns)

    def waits(self, who: object, family: str) -> None:
        raise AssertionError(who, family)

    def waits_no_more(self, who: object) -> None:
        raise AssertionError(who)


class PolicyFollower:
    """Keeps the locks of one process at the policy of the plane."""

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
        """`settings` is the `[risk]` table and, if they set it, `BUSY_JITTER`; `exercises` are those of the settings.

        `jitter` is what is switched here. `BadInput` for a policy file that cannot be read.
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
        self._file = None if file is None else PolicySwitch(Policy(), file, clock, _Quiet(), "file")
        self._file_name = "" if file is None else file.name
        self._said: dict[str, OnError | float] = {}  # by the file, when it was last looked at
        self._unsaid: dict[str, tuple[OnError | float, int]] = {}  # what the database has not heard yet, and since when
        self._known: dict[str, OnError] = {}  # what the database has said last
        self._running: list[Exercise] = []
        self._unread = Trouble(
            _log,
            "the error policy could not be looked up; what was last known goes on to hold",
            "the error policy can be looked up again",
        )
        self.revision = 0  # of the policy that is in force here
        self.failed = 0  # looks that did not come to pass

    async def begin(self, *, speak: bool = True) -> None:
        """Bring the locks of this process to the policy, before they are used. Raises what the database does.

        `speak`: also say what the files of this process say. Whoever only looks does not.
        """
        if speak:
            await self._policy.build_in()
            own = {risk: mode for risk, mode in self._settings.items() if risk not in self._file_words()}
            if own:
                await self._policy.say(own, actor=self._actor, reason="settings", source=Source.START)
            self.look_at_file(here=False)
            await self._tell()
        self._take(await self._policy.view(), first=True)
        shown = ", ".join(f"{risk} {mode}" for risk, mode in self._locks.policy.current().items())
        say(_log, logging.INFO, "error policy in force", revision=self.revision, policy=shown)

    async def run(self) -> None:
        """Follow until cancelled, or until the database is closed."""
        bell = self._database.bell(CHANNEL)
        loop = asyncio.get_running_loop()
        asked = loop.time()
        try:
            while True:  # ends with the process
                rung = await bell.wait(self._file_ns)
                self.look_at_file()
                if rung or self._unsaid or loop.time() - asked >= self._poll_ns / NS:
                    asked = loop.time()
                    await self.refresh()
        except Closed:
            return
        finally:
            bell.close()

    async def refresh(self) -> bool:
        """Ask the database now. False: it did not answer, and what was known goes on to hold."""
        self._exercise()
        try:
            await self._tell()
            if await self._policy.revision() != self.revision or self._drifted():
                self._take(await self._policy.view())
        except HoldfastError as error:
            self.failed += 1
            self._unread.met(error)
            return False
        self._unread.ended(revision=self.revision)
        return True

    def look_at_file(self, *, here: bool = True) -> None:
        """What the file newly says holds here at once: the database may be what is down.

        Not at the start, where only the database knows whether it is new.
        """
        words = self._file_words()
        now_ns = self._clock.now().wall
        for risk, mode in words.items():
            if self._said.get(risk) != mode:
                self._unsaid[risk] = mode, now_ns
                if here:
                    self._switch(risk, mode, "file", self._file_name)
        self._said = words

    def _file_words(self) -> dict[str, OnError | float]:
        if self._file is None:
            return {}
        words: dict[str, OnError | float] = {risk: OnError(mode) for risk, mode in self._file.current().items()}
        if self._file.busy_jitter is not None:
            words[BUSY_JITTER] = self._file.busy_jitter
        return words

    async def _tell(self) -> None:
        """Tell the database what the file has said. It knows whether that is new."""
        for risk, (mode, at_ns) in list(self._unsaid.items()):
            words = {risk: mode}
            who, why = self._actor, f"policy file {self._file_name}"
            await self._policy.say(words, actor=who, reason=why, source=Source.FILE, said_ns=at_ns)
            if self._unsaid.get(risk) == (mode, at_ns):
                del self._unsaid[risk]
            self.revision = -1  # whatever came of it is looked up

    def _drifted(self) -> bool:
        """Whether somebody has switched here what is the plane's to switch."""
        now = self._locks.policy.current()
        return any(now.get(risk) != mode for risk, mode in self._known.items() if risk not in self._unsaid)

    def _take(self, view: PolicyView, *, first: bool = False) -> None:
        for risk, standing in view.classes.items():
            if risk not in self._unsaid:
                self._switch(risk, standing.mode, standing.actor, standing.reason, quiet=first)
        if view.jitter is not None and BUSY_JITTER not in self._unsaid:
            self._switch(BUSY_JITTER, view.jitter.seconds, view.jitter.actor, view.jitter.reason, quiet=first)
        self._known = {risk: each.mode for risk, each in view.classes.items()}
        self._running = [each.plan for each in view.exercises]
        self._exercise()
        self.revision = view.revision

    def _exercise(self) -> None:
        """Exercises of the plane come before those of the settings, until they are over."""
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
            text = "a jitter of busy retries was not taken over; the one in force stays"
            say(_log, logging.ERROR, text, error, jitter=seconds, stays=before)
            return
        if not quiet:
            detail = f"{before:g} s to {seconds:g} s by {actor}: {reason}"
            say(_log, logging.WARNING, f"jitter of busy retries switched: {detail}")
