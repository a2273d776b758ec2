"""The error policy of a running process: switched by code, by call or by a file, and exercised on purpose.

The policy matters only when the store fails, so the policy file is checked then (one `stat`), and a switch takes effect
without a restart. The latest switch wins, by call or by file. A file that becomes unreadable or wrong changes nothing:
the policy in force stays in force, and the log names the reason.

An edit of the file changes one risk class or the busy jitter and keeps the rest. Promises: a reader sees the old file
or the new one, and an edit survives a loss of power. A file that cannot be edited safely (an inline table, a class that
is named twice) is refused and left alone. Does not promise that two editors do not overwrite each other: edit in one
place, or use a plane, which keeps its policy in a database.

Exercises pretend store errors: `locks.exercise.begin("workflow.run", 0.01, duration=600)` makes one in a hundred
acquisitions meet one, for ten minutes. They are counted and logged apart from real fallbacks, so that no alert fires.

Clock: the wall clock, for the end of an exercise.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.error_policy import (
    BUSY_JITTER_MAX_NS,
    OnError,
    Policy,
    parse_busy_jitter,
    parse_mode,
    parse_policy,
)
from holdfast.core.lease.policy_exercise import Exercise, parse_exercise, refusal
from holdfast.core.ports import Clock, Entropy, Journal
from holdfast.core.strict_parsers import NotToml, toml_of
from holdfast.errors import BadInput
from holdfast.flows.log import log_event
from holdfast.runtime.durable_files import PRIVATE, replace_file
from holdfast.runtime.thread_runtime import Mutex
from holdfast.types import NS, Duration, check_label, duration_ns

_HEADING: Final = re.compile(r"\s*\[")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_WHAT: Final = "policy file"


def edited(text: str, risk: str, mode: OnError) -> str:
    """The text of a policy file in which one class does something else, or `BadInput`."""
    return _edited(text, "risk", risk, f'"{mode}"', {**_classes(text), risk: mode}, _classes)


def _edited(text: str, table: str, risk: str, value: str, wanted: object, read: Callable[[str], object]) -> str:
    """`read` finds what is `wanted` in the text that is returned."""
    heading = re.compile(rf"""\s*\[\s*(?:{table}|"{table}"|'{table}')\s*\]\s*(?:#.*)?$""")
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    name = risk if _BARE.match(risk) else f'"{risk}"'
    begin = next((number for number, line in enumerate(lines) if heading.match(line)), None)
    if begin is None:
        lines += [*([""] if lines and lines[-1].strip() else []), f"[{table}]", f"{name} = {value}"]
    else:
        end = next((n for n in range(begin + 1, len(lines)) if _HEADING.match(lines[n])), len(lines))
        own = re.compile(
            rf"""(\s*(?:{re.escape(risk)}|"{re.escape(risk)}"|'{re.escape(risk)}')\s*=\s*)"""
            r"""(?:"[\w.]*"|'[\w.]*'|[\d.]+)(.*)$"""
        )
        at = next((n for n in range(begin + 1, end) if own.match(lines[n])), None)
        if at is not None:
            lines[at] = own.sub(rf"\g<1>{value}\g<2>", lines[at])
        else:
            last = max((n for n in range(begin, end) if lines[n].strip()), default=begin)
            lines.insert(last + 1, f"{name} = {value}")
    made = ending.join(lines) + ending
    try:
        found = read(made)
    except BadInput:
        found = None
    if found != wanted:
        raise BadInput(_WHAT, "is written in a way that cannot be edited here", "edit it by hand")
    return made


def edit_policy_file(path: Path, risk: str, mode: OnError | str) -> tuple[OnError, OnError]:
    """Make a risk class do something else in a file, which is made if it is not there. Before, and after.

    A process that follows the file takes it over when it next matters, without a restart.
    """
    wanted = parse_mode("mode", mode)
    check_label("risk", risk)
    text = _replaced(path, lambda text: edited(text, risk, wanted))
    return _classes(text).get(risk, OnError.FAIL_CLOSED), wanted


def edit_jitter(path: Path, seconds: float) -> tuple[float, float]:
    """Set the busy jitter of a plane in its policy file, likewise. Before, and after."""
    value = f"{duration_ns('busy_jitter', seconds, high_ns=BUSY_JITTER_MAX_NS) / NS:.9g}"
    wanted = float(value)
    text = _replaced(path, lambda text: _edited(text, "scheduler", "busy_jitter", value, wanted, _jitter))
    return _jitter(text) or 0.0, wanted


def _replaced(path: Path, edit: Callable[[str], str]) -> str:
    """The text of the file before it was replaced."""
    place = path.resolve()  # a link stays a link
    try:
        text = place.read_bytes().decode("utf-8") if place.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadInput(f"{_WHAT} {path.name}", f"cannot be read: {reason}", "check the path and the rights") from None
    made = edit(text)
    try:
        rights = place.stat().st_mode & 0o7777 if place.exists() else PRIVATE
        replace_file(place, made.encode(), rights)
    except OSError as error:
        fix = "check the rights of its folder"
        raise BadInput(f"{_WHAT} {path.name}", f"cannot be written: {error.strerror}", fix) from None
    return text


def _classes(text: str) -> dict[str, OnError]:
    return dict(parse_policy(_tables(text).get("risk", {}), _WHAT).classes)


def _jitter(text: str) -> float | None:
    return parse_busy_jitter(_tables(text).get("scheduler", {}), _WHAT)


def _tables(text: str) -> Mapping[str, Any]:
    try:
        return toml_of(text)
    except NotToml as error:
        raise BadInput(_WHAT, f"is not TOML: {error}", 'write e.g. [risk] low = "fail_open"') from error


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

        `quiet`: the first policy of this process is not recorded as a change.
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
        """Read the file again if there is one and it has changed."""
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
                log_event(_log, logging.ERROR, text, file=self._file.name, error=self.problem)
                return
            self.problem = None
            self._apply(policy, "file", self._file.name)

    def _apply(self, policy: Policy, actor: str, reason: str) -> None:
        for risk, mode in policy.classes.items():
            if self._policy.on_error(risk) is not mode or risk not in self._policy.classes:
                self._switch(risk, mode, actor, reason)
        for risk in sorted(self._filed - policy.classes.keys()):  # removed from the file
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
        if not self._journal.tally(EventKind.POLICY, "default"):
            return change
        self._journal.note(Record(EventKind.POLICY, now, "", owner=actor, risk=risk, reason=str(mode), detail=detail))
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
        """Replace all running exercises. For a plane, which stores and checks them; nothing is refused here."""
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
                log_event(_log, logging.WARNING, "exercise of the error policy ended", family=family)
            elif after != before:
                log_event(_log, logging.WARNING, "exercise of the error policy begun", family=family, share=after.share)
        self._plans = MappingProxyType(plans)
        self.running = bool(plans)
