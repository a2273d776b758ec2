"""The error policy while it runs: by code, by call, and by a file that is looked at whenever it matters.

The policy matters only when the store fails, so the file is checked then (one `stat`), and a switch takes effect
without a restart. The last word wins, whether it came by call or by file. A file that turns unreadable or wrong
changes nothing: the policy in force stays in force, and the log says why.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.history.events import Kind, Record
from holdfast.core.lease.error_policy import OnError, Policy, parse_busy_jitter, parse_mode, parse_policy
from holdfast.core.ports import Clock, Journal
from holdfast.errors import BadInput
from holdfast.flows.saying import say
from holdfast.runtime.mutex import Mutex
from holdfast.runtime.toml_text import NotToml, toml_of
from holdfast.types import check_label

_log = logging.getLogger("holdfast")

HISTORY_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Switch:
    """One change of the policy of one risk class."""

    wall_ns: int
    risk: str
    before: OnError
    after: OnError
    actor: str
    reason: str


def read_policy_file(path: Path) -> Policy:
    """A policy from a TOML file: `[risk]`, `[scheduler] busy_jitter`; or `BadInput` with the file and the line."""
    where = f"policy file {path.name}"
    try:
        table = toml_of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(where, f"cannot be read ({error.strerror})", "check the path and the rights") from error
    except (NotToml, UnicodeDecodeError) as error:
        raise BadInput(where, f"is not TOML: {error}", 'write e.g. [risk] low = "fail_open"') from error
    jitter = parse_busy_jitter(table.get("scheduler", {}), where)
    if "risk" not in table and jitter is None:
        raise BadInput(where, "has no [risk] table", 'write e.g. [risk] low = "fail_open"')
    return replace(parse_policy(table.get("risk", {}), where), busy_jitter=jitter)


class PolicySwitch:
    """The policy in force, and the ways to change it."""

    def __init__(self, policy: Policy, file: Path | None, clock: Clock, journal: Journal, actor: str) -> None:
        self._policy = policy
        self._file = file
        self._clock = clock
        self._journal = journal
        self._actor = actor
        self._mutex = Mutex()
        self._seen: tuple[int, int, int] | None = None
        self._history: list[Switch] = []
        self._filed: set[str] = set()  # the classes that the file named when it was last read
        self.busy_jitter: float | None = None  # of the file; 0 where it was taken out of it
        self.problem: str | None = None
        if file is not None:
            self._seen = _stamp(file)
            self._apply(read_policy_file(file), "file", str(file.name))

    def on_error(self, risk: str | None) -> OnError:
        """What a lock of this class does now, if the store fails."""
        if risk is None:
            return OnError.FAIL_CLOSED
        self.refresh()
        return self._policy.on_error(risk)

    def current(self) -> dict[str, str]:
        """The classes and their behaviour, as they are now."""
        self.refresh()
        return {risk: str(mode) for risk, mode in sorted(self._policy.classes.items())}

    def set(self, risk: str, mode: str, *, reason: str = "", actor: str | None = None) -> Switch:
        """Switch one risk class, now. Returns the change, which is also logged, counted and kept in `history`."""
        check_label("risk", risk)
        wanted = parse_mode("mode", mode)
        with self._mutex:
            return self._switch(risk, wanted, actor or self._actor, reason)

    def adopt(self, risk: str, mode: OnError, *, reason: str, actor: str, quiet: bool = False) -> bool:
        """Have a class do what was decided elsewhere. True: it did something else until now, and the log says so.

        `quiet`: nobody has used the policy yet, so it is where this process begins, and no change of it.
        """
        with self._mutex:
            if self._policy.on_error(risk) is not mode and not quiet:
                self._switch(risk, mode, actor, reason)
                return True
            self._policy = self._policy.with_class(risk, mode)  # it is named now, and does what it does
            return False

    def history(self) -> list[Switch]:
        """The changes since this process started, oldest first."""
        with self._mutex:
            return list(self._history)

    def refresh(self) -> None:
        """Look at the file again, if there is one and it has changed."""
        if self._file is None:
            return
        stamp = _stamp(self._file)
        if stamp == self._seen:
            return
        with self._mutex:
            if stamp == self._seen:
                return
            self._seen = stamp
            try:
                policy = read_policy_file(self._file)
            except BadInput as error:
                self.problem = str(error)
                text = "the policy file was not taken over; the policy in force stays"
                say(_log, logging.ERROR, text, file=self._file.name, error=self.problem)
                return
            self.problem = None
            self._apply(policy, "file", self._file.name)

    def _apply(self, policy: Policy, actor: str, reason: str) -> None:
        for risk, mode in policy.classes.items():
            if self._policy.on_error(risk) is not mode or risk not in self._policy.classes:
                self._switch(risk, mode, actor, reason)
        for risk in sorted(self._filed - policy.classes.keys()):  # taken out of the file: nobody vouches for it now
            if self._policy.on_error(risk) is not OnError.FAIL_CLOSED:
                self._switch(risk, OnError.FAIL_CLOSED, actor, reason)
        self._filed = set(policy.classes)
        if policy.busy_jitter is not None or self.busy_jitter is not None:
            self.busy_jitter = policy.busy_jitter or 0.0

    def _switch(self, risk: str, mode: OnError, actor: str, reason: str) -> Switch:
        now = self._clock.now().wall
        change = Switch(now, risk, self._policy.on_error(risk), mode, actor, reason)
        self._policy = self._policy.with_class(risk, mode)
        self._history = [*self._history[-HISTORY_MAX + 1 :], change]
        detail = f"{change.before} to {mode} by {actor}" + (f": {reason}" if reason else "")
        if not self._journal.tally(Kind.POLICY, "default"):
            return change
        self._journal.note(Record(Kind.POLICY, now, "", owner=actor, risk=risk, reason=str(mode), detail=detail))
        return change


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def policy_switch(policy: object, file: str | Path | None, clock: Clock, journal: Journal, actor: str) -> PolicySwitch:
    """What `connect` makes of its `policy` and `policy_file` arguments."""
    if file is not None and not isinstance(file, str | Path):
        raise BadInput("policy_file", f"{type(file).__name__} is not a path", "give the path of a TOML file")
    path = None if file is None else Path(file)
    return PolicySwitch(parse_policy({} if policy is None else policy), path, clock, journal, actor)
