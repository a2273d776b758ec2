"""The harness of a drill: a store, a directory, unique key names, and scenes that end as a history.

Promises: every key is below a random prefix of this run; all locks below it are released at the end, even after Ctrl-C;
no wait is longer than the remaining time of the drill. Does not promise to leave a given store unchanged: its fences
have risen, and it records the leases that had to be broken.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import holdfast
from holdfast.drills.env.clocks import MovedClocks
from holdfast.drills.env.processes import DrillWorkers, Stalled, WorkerHandle
from holdfast.drills.env.stores import StoreLink
from holdfast.drills.model import (
    DrillClaim,
    DrillPlan,
    FaultKind,
    FaultMoment,
    FaultSpan,
    Guard,
    MeasuredTakeover,
    SceneRecord,
)
from holdfast.drills.permission import PREFIX
from holdfast.drills.verdict.account import Account
from holdfast.drills.verdict.effects import Effects
from holdfast.errors import BackendError, BadInput
from holdfast.leases.sync.client import Locks
from holdfast.observe.ledger.reader import Findings, load
from holdfast.types import NS

_FREEZES_MAX: Final = 50
_REQUEST_S: Final = 2.0
_PROBE_S: Final = 1.0
_BREATHS: Final = 8
_ROUNDS_MAX: Final = 5


class ProgressCallback(Protocol):
    """Receives the progress of a drill."""

    def __call__(self, scene: str, text: str, *, good: bool | None = None) -> None:
        """One event. `good`: True as expected, False a problem."""
        ...


class DrillHarness:
    """The environment in which the scenes of one drill run."""

    def __init__(
        self, plan: DrillPlan, way: StoreLink, directory: Path, report: ProgressCallback, limit_s: float
    ) -> None:
        self.plan = plan
        self.way = way
        self.report = report
        self.directory = directory
        self.scenes: list[SceneRecord] = []
        self.cannot: list[str] = []
        self.prefix = f"{PREFIX}{secrets.token_hex(4)}:"
        self.end_ns = time.monotonic_ns() + round(limit_s * NS)

    @property
    def left_s(self) -> float:
        """The remaining time of the drill."""
        return max(0.0, (self.end_ns - time.monotonic_ns()) / NS)

    @contextmanager
    def scene(
        self,
        title: str,
        done: str,
        guard: Guard | None,
        *,
        request_timeout: float = _REQUEST_S,
        url: str | None = None,
        moved: MovedClocks | None = None,
    ) -> Iterator[SceneHarness]:
        """Run one scene. If it stalls, it has a broken claim, and the drill continues with the next one.

        `url`: the scene's own store. `moved`: the clocks of its workers, if they differ from the host's.
        """
        number = len(self.scenes) + 1
        place = self.directory / f"scene-{number}"
        place.mkdir()
        scene = SceneRecord(title, done, guard)
        self.scenes.append(scene)
        self.report(title, done)
        said = {
            "url": self.way.url if url is None else url,
            "scene": str(place),
            "prefix": f"{self.prefix}{number}:",
            "guard": str(guard or Guard.ON),
            "ttl": self.plan.ttl_s,
            "request_timeout": request_timeout,
            "moved": None if moved is None else str(moved.path),
        }
        setting = SceneHarness(self, scene, place, f"{self.prefix}{number}:", moved)
        try:
            with setting.account, DrillWorkers(said, self.end_ns) as crew:
                setting.crew = crew
                try:
                    yield setting
                except Stalled as stalled:
                    self.report(title, str(stalled), good=False)
                    scene.claims.append(DrillClaim("the scene runs to its end", kept=False, seen=str(stalled)))
                finally:
                    self.way.mend()
            setting.gather()
        finally:
            setting.account.close()

    def locks(self, request_timeout: float = _REQUEST_S, url: str | None = None) -> Locks:
        """The store of the drill, or of a scene, for the director. The caller closes it."""
        return holdfast.connect(self.way.url if url is None else url, service="drill", request_timeout=request_timeout)

    def clean(self) -> None:
        """Release all locks below our prefix."""
        self.way.mend()
        with suppress(BackendError), self.locks() as locks:  # an unreachable store expires the leases
            for look in locks.list(self.prefix):
                locks.force_release(look.key, reason="a drill is over")


class SceneHarness:
    """One scene while it runs."""

    crew: DrillWorkers

    def __init__(
        self, stage: DrillHarness, scene: SceneRecord, place: Path, prefix: str, moved: MovedClocks | None = None
    ) -> None:
        self.stage = stage
        self.scene = scene
        self.place = place
        self._prefix = prefix
        self._moved = moved
        self._version = 0
        self.acknowledged = 0  # writes that a worker got acknowledged
        self.account = Account(place / "account.db", scene.guard or Guard.ON)
        Effects(place / "effects.db", "director").close()  # created once, before several workers open it

    @property
    def prefix(self) -> str:
        """The prefix of all lock keys of this scene."""
        return self._prefix

    def key(self, name: str) -> str:
        """The key of a lock of this scene, with a balance behind it."""
        self.account.open(f"{self._prefix}{name}")
        return f"{self._prefix}{name}"

    def version(self) -> int:
        """A unique version number."""
        self._version += 1
        return self._version

    def report(self, text: str, *, good: bool | None = None) -> None:
        """Report progress."""
        self.stage.report(self.scene.title, text, good=good)

    def ask(self, actor: WorkerHandle, do: str, answer: str, **fields: Any) -> Any:
        """Send a command to a worker, and wait for the fields of its answer."""
        actor.order(do, **fields)
        return self.crew.next(answer, actor).fields

    def write(self, actor: WorkerHandle, **fields: Any) -> bool:
        """Have a worker write a new version based on what it read. Returns whether the write was acknowledged."""
        return self.wrote(self.ask(actor, "write", "wrote", version=self.version(), **fields))

    def wrote(self, told: Any) -> bool:
        """Count a worker's report of a write."""
        accepted = bool(told["accepted"])
        self.acknowledged += accepted
        return accepted

    def hold_up(self, actor: WorkerHandle) -> bool:
        """Have a worker write, and stop between check and write. False: it had lost its lease before."""
        actor.order("write", version=self.version(), held_up=True)
        return self.crew.next(("held_up", "wrote"), actor).name == "held_up"

    def played(self, act: Callable[[], bool]) -> None:
        """Repeat an act until it succeeds. False: a lease was lost because this machine was too slow."""
        for _ in range(_ROUNDS_MAX):
            if act():
                return
            self.report("a lease was lost because this machine was too slow; trying again")
        raise Stalled(f"this machine is too slow for leases of {self.stage.plan.ttl_s:g} s; use a longer --ttl")

    def freeze(self, actor: WorkerHandle) -> int:
        """Stop a worker, but not during a write to the store's own file: that would block all other workers."""
        with self.stage.locks(_PROBE_S) as probe:
            for _ in range(_FREEZES_MAX):  # the first one nearly always suffices
                at_ns = actor.freeze()
                try:
                    probe.ping()
                except BackendError:
                    actor.thaw()
                else:
                    return at_ns
        raise Stalled("the store could not be written while a worker was stopped")

    def thaw(self, actor: WorkerHandle, since_ns: int) -> None:
        """Continue a worker, and record how long it was stopped."""
        self.span(FaultKind.PAUSE, actor.name, since_ns, actor.thaw())

    def span(self, kind: FaultKind, who: str, from_ns: int, to_ns: int) -> None:
        """Record a fault that lasted for a while."""
        self.scene.spans.append(FaultSpan(kind, who, from_ns, to_ns))

    def moment(self, what: str, at_ns: int | None = None) -> int:
        """Record a momentary fault, now or then. Returns the time."""
        at_ns = time.time_ns() if at_ns is None else at_ns
        self.scene.moments.append(FaultMoment(what, at_ns))
        return at_ns

    def takeover(self, what: str, from_ns: int, to_ns: int, slo_ns: int | None = None) -> MeasuredTakeover:
        """Record the time until another worker could continue."""
        found = MeasuredTakeover(what, from_ns, to_ns, self.stage.plan.slo_ns if slo_ns is None else slo_ns)
        self.scene.takeovers.append(found)
        return found

    def claim(self, text: str, kept: bool, seen: str) -> None:
        """Record a condition that must hold."""
        self.scene.claims.append(DrillClaim(text, kept, seen))
        if not kept:
            self.report(f"{text}: {seen}", good=False)

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
        """Wait until the condition holds; `Stalled` if it never does."""
        limit = time.monotonic() + min(limit_s, self.stage.left_s)
        while not condition():
            if time.monotonic() > limit:
                raise Stalled(f"timed out waiting for {what}")
            time.sleep(0.01)  # between two checks of other processes

    def wait(self, seconds: float) -> None:
        """Let a fault or a load last for a while. Ends early at the time limit of the drill."""
        time.sleep(max(0.0, min(seconds, self.stage.left_s)))

    def breathe(self) -> None:
        """Wait for a fraction of the TTL, so that steps are distinguishable in pictures."""
        self.wait(self.stage.plan.ttl_s / _BREATHS)

    def gather(self) -> None:
        """Merge the workers' ledgers and the resource's own record into one history."""
        findings = Findings()
        with suppress(BadInput):  # there are no records
            told = load(self.place / "ledger", None, findings)
            self.scene.history += told if self._moved is None else map(self._moved.corrected, told)
        with Account(self.place / "account.db", self.scene.guard or Guard.ON) as account:
            self.scene.history += account.history()
        self.scene.unread, self.scene.dropped = findings.damaged, findings.dropped
        self.scene.history.sort(key=lambda record: record.at_ns)
