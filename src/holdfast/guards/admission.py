"""Checks that every guard makes before and after a step: which leases are admitted, and what an outcome means.

Promises:

- `admit` refuses a lease without a fence, unless the guard allows degraded leases.
- It refuses a lease that is known to be lost before anything is sent: with `FencedOut` if the storage has a newer
  fence, else with `LeaseLost`.
- Every refusal is counted, logged and reported to the observer.

Does not promise that an admitted step is accepted: a lease can be lost a microsecond later. The storage checks that.

Each guard has its own `statistics()`. `REFUSALS` counts the refusals of all guards of this process, for metrics. The
number of guard names is bounded: beyond a hundred, guards share one name. A guard without refusals is listed with zero,
so that its first refusal is an increase.

Clock: none of its own. The lease judges whether it is held; records contain wall-clock time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from string import Formatter
from threading import RLock as Mutex  # a signal handler may enter it again
from typing import Final, NamedTuple, TypeVar

from holdfast.core.failpoints import reach
from holdfast.core.history.events import EventKind, Record
from holdfast.core.lease.fencing import Absent, Accepted, Outcome, Present, Rule, Stale, Unregistered
from holdfast.core.metric_reading import Reading
from holdfast.core.ports import Clock, Observer
from holdfast.errors import BadInput, FencedOut, HoldfastError, NotEntered, RowExists, RowMissing, Unfenced
from holdfast.flows.log import log_event, log_fields
from holdfast.guards.bearer import Bearer, CarriedFence
from holdfast.leases.lease_base import Degraded, Granted, HeldLease
from holdfast.runtime.system import SystemClock
from holdfast.types import check_label

V = TypeVar("V")

log = logging.getLogger("holdfast.guards")


@dataclass(frozen=True, slots=True)
class GuardStatistics:
    """What one guard has decided since it was made. `refused` is the number to alert on."""

    entered: int = 0  # registrations before a read
    accepted: int = 0  # writes
    refused: int = 0  # stale: the storage, or its memory, had met a newer fence
    lost: int = 0  # not sent: the lease was no longer held, though no newer fence was seen
    not_entered: int = 0  # the registration of a section was gone
    missing: int = 0  # nothing to update or delete
    existing: int = 0  # something where an insert was requested
    unfenced: int = 0  # steps of degraded leases, where those are allowed: unprotected
    unfenced_refused: int = 0  # degraded leases sent away


class Presented(NamedTuple):
    """One step of one holder, after `admit`. `fence` is None for a degraded lease where those are allowed."""

    resource: str
    key: str
    owner: str
    fence: int | None
    rule: Rule
    began_ns: int | None = None  # on the wall clock; None when the step is not recorded

    @property
    def checked_fence(self) -> int:
        """The fence, where the rule says that there is one."""
        if self.fence is None:
            raise RuntimeError("a step without a fence")
        return self.fence


class Admission:
    """The checks of one guard. Safe from any thread."""

    def __init__(
        self,
        guard: str,
        family: str = "default",
        *,
        key: str | None = None,
        names: tuple[str, ...] = ("resource",),
        allow_degraded: bool = False,
        observer: Observer | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`guard` names it in logs and metrics; `key` is the template of the lock's name, filled from `names`.

        `family` is the lock's, for records.
        """
        self.guard = check_label("guard", guard)
        self._family = family
        self._key = None if key is None else _check_template(key, names)
        self._allow_degraded = bool(allow_degraded)
        self._observer = observer
        self._clock = clock or SystemClock()
        self._mutex = Mutex()
        self._counts = dict.fromkeys((each.name for each in fields(GuardStatistics)), 0)
        self._refusals = REFUSALS
        self._shown = self._refusals.begin(self.guard)

    def statistics(self) -> GuardStatistics:
        """The counts so far."""
        with self._mutex:
            return GuardStatistics(**self._counts)

    async def admit(
        self,
        bearer: Bearer,
        resource: str,
        rule: Rule,
        seen: Callable[[], Awaitable[int | None]],
        names: Mapping[str, object] | None = None,
    ) -> Presented:
        """Let a holder in, or raise. `seen` asks the storage for its fence, and is called only if the lease is lost."""
        presented = self._present(bearer, resource, rule, names or {"resource": resource})
        if isinstance(bearer, HeldLease) and not bearer.held:
            newest = None if presented.fence is None else await seen()
            if newest is not None and newest > presented.checked_fence:
                raise self._stale(EventKind.WRITE, presented, newest)
            self.lost()
            bearer.ensure_held()  # raises LeaseLost, with the reason
        reach("guard.admitted")
        return presented

    def lost(self) -> None:
        """Count a step that was not taken because the lease was known to be lost, or about to be."""
        self._count("lost")

    def repeated(self, presented: Presented, detail: str) -> None:
        """Report a step that was refused because it would have ended what had ended already."""
        self._note(EventKind.DUPLICATE, presented, ok=False, detail=detail)

    def entered(self, presented: Presented, outcome: Outcome[V]) -> V | None:
        """What a registration brought: the value, or None where there is nothing yet. Raises if it was refused."""
        value = None if isinstance(outcome, Absent) else self._value(EventKind.READ, presented, outcome)
        self._count("unfenced" if presented.fence is None else "entered")
        self._note(EventKind.READ, presented, ok=True)
        return value

    def written(self, presented: Presented, outcome: Outcome[V]) -> V:
        """The result of a write, or the error that explains its refusal."""
        value = self._value(EventKind.WRITE, presented, outcome)
        self._count("unfenced" if presented.fence is None else "accepted")
        self._note(EventKind.WRITE, presented, ok=True)
        return value

    def _value(self, kind: EventKind, presented: Presented, outcome: Outcome[V]) -> V:
        if isinstance(outcome, Accepted):
            return outcome.value
        raise self._refusal(kind, presented, outcome)

    def _refusal(
        self, kind: EventKind, presented: Presented, outcome: Stale | Absent | Present | Unregistered
    ) -> HoldfastError:
        what = presented.resource
        if isinstance(outcome, Stale):
            return self._stale(kind, presented, outcome.seen)
        if isinstance(outcome, Absent):
            self._count("missing")
            return RowMissing(f"{what} does not exist")
        if isinstance(outcome, Present):
            self._count("existing")
            return RowExists(f"{what} exists already")
        self._count("not_entered")
        fence = presented.checked_fence
        return NotEntered(
            f"{what} carries the fence {outcome.seen}, not {fence} under which it was entered: that was rolled back or "
            "overwritten; enter again and read again",
            fence=fence,
            seen=outcome.seen,
            resource=what,
        )

    def _stale(self, kind: EventKind, presented: Presented, seen: int) -> FencedOut:
        fence = presented.checked_fence
        self._count("refused")
        self._note(kind, presented, ok=False, detail=f"seen {seen}", facts={"seen": seen})
        whose = {"guard": self.guard, "resource": presented.resource, "key": presented.key, "owner": presented.owner}
        told = {**whose, "fence": fence, "seen": seen}
        log_fields(log, logging.WARNING, f"refused a stale {kind}", told, per=self.guard)
        return FencedOut(
            f"{presented.resource}: fence {fence} of {presented.key} is stale, {seen} was seen; nothing was changed",
            fence=fence,
            seen=seen,
            key=presented.key,
            resource=presented.resource,
        )

    def _present(self, bearer: Bearer, resource: str, rule: Rule, names: Mapping[str, object]) -> Presented:
        """Read the fence off a lease, and refuse what has none or belongs to another lock."""
        if not isinstance(bearer, Granted | Degraded | CarriedFence):
            raise BadInput(
                "lease",
                f"{type(bearer).__name__} is not a lease",
                "pass what acquire() returned; a fence that travelled here is a CarriedFence(key, fence)",
            )
        if self._key is not None and (wanted := self._key.format(**names)) != bearer.key:
            raise BadInput(
                "lease",
                f"{bearer.key!r} is not the lock of {resource}",
                f"hold {wanted!r}; fences of two locks do not compare",
            )
        fence = bearer.fence
        if fence is None:
            if not self._allow_degraded:
                self._count("unfenced_refused")
                raise Unfenced(
                    f"{resource}: the lease of {bearer.key} is degraded and has no fence, so a stale writer could not "
                    "be told; this guard must be made with allow_degraded=True to accept that"
                )
            rule = Rule.NONE
        owner = "" if isinstance(bearer, CarriedFence) else bearer.owner
        began_ns = None if self._observer is None else self._clock.now().wall
        return Presented(resource, bearer.key, owner, fence, rule, began_ns)

    def _count(self, name: str) -> None:
        with self._mutex:
            self._counts[name] += 1
        self._refusals.count(self._shown, name)

    def _note(
        self,
        kind: EventKind,
        presented: Presented,
        *,
        ok: bool,
        detail: str = "",
        facts: Mapping[str, int] | None = None,
    ) -> None:
        if self._observer is None:
            return
        at_ns = self._clock.now().wall
        shown = f"{self.guard} {presented.resource} {detail}".rstrip()
        record = Record(
            kind,
            at_ns,
            presented.key,
            self._family,
            owner=presented.owner,
            fence=presented.fence,
            began_ns=presented.began_ns,
            ok=ok,
            detail=shown,
            resource=f"{self.guard} {presented.resource}",
            facts=facts,
        )
        try:
            self._observer.note(record)
        except Exception as error:  # noqa: BLE001 - it is the caller's; the write is done or refused, and must look so
            text = "the observer of a guard raised; the step itself is not affected"
            log_event(log, logging.ERROR, text, error, guard=self.guard)


def _check_template(template: object, names: tuple[str, ...]) -> str:
    fix = f"use text with places such as 'invoice:{{{names[0]}}}'; there is {', '.join(names)}"
    if not isinstance(template, str):
        raise BadInput("key", f"{type(template).__name__} is not a template", fix)
    try:
        places = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise BadInput("key", f"{template!r} is not a template ({error})", fix) from None
    if unknown := [place for place in places if place not in names]:
        raise BadInput("key", f"{{{unknown[0]}}} in {template!r} names nothing", fix)
    return template


GUARDS_MAX: Final = 100
OTHER: Final = "other"
REASONS: Final[Mapping[str, str]] = {
    "refused": "stale",
    "lost": "lost",
    "not_entered": "not_entered",
    "unfenced_refused": "unfenced",
}


class Refusals:
    """Counts of many guards. Safe from any thread."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._counts: dict[str, dict[str, int]] = {}

    def begin(self, guard: str) -> str:
        """Know of a guard. Returns the name under which its refusals are counted."""
        with self._mutex:
            name = guard if guard in self._counts or len(self._counts) < GUARDS_MAX else OTHER
            self._counts.setdefault(name, dict.fromkeys(REASONS.values(), 0))
        return name

    def count(self, name: str, decided: str) -> None:
        """Count a decision of a guard (a field of `GuardStatistics`), if it is a refusal."""
        reason = REASONS.get(decided)
        if reason is not None:
            with self._mutex:
                self._counts[name][reason] += 1

    def reading(self) -> Reading:
        """What was refused up to now."""
        with self._mutex:
            counts = {(name, reason): n for name, by_reason in self._counts.items() for reason, n in by_reason.items()}
        return Reading("guards", {"refused": counts})

    def forked(self) -> None:
        """In a child process: a thread that counted at that moment does not exist here, and holds nothing up."""
        self._mutex = threading.RLock()


REFUSALS: Final = Refusals()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=REFUSALS.forked)
