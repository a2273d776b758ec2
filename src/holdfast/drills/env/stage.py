"""What a drill stands on: a store, a place for files, names that nobody else has, and scenes that end as a history.

Promises: every key is below a random prefix of this run; whatever is still held under it at the end is given back, also
after Ctrl-C; no wait is longer than the drill has left. Does not promise to leave a given store as it was in every
byte: its fences have risen, and it remembers the leases that had to be broken.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import holdfast
from holdfast.drills.env.clocks import Moved
from holdfast.drills.env.processes import Actor, Crew, Stalled
from holdfast.drills.env.stores import Way
from holdfast.drills.model import Claim, Guard, Moment, Plan, Scene, Span, SpanKind, Takeover
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


class Tell(Protocol):
    """Is told what goes on, for whoever watches."""

    def __call__(self, scene: str, text: str, *, good: bool | None = None) -> None:
        """One thing that happened. `good`: that it is as it must be, or that it is not."""
        ...


class Stage:
    """Where the scenes of one drill are played."""

    def __init__(self, plan: Plan, way: Way, directory: Path, tell: Tell, limit_s: float) -> None:
        self.plan = plan
        self.way = way
        self.tell = tell
        self.directory = directory
        self.scenes: list[Scene] = []
        self.cannot: list[str] = []
        self.prefix = f"{PREFIX}{secrets.token_hex(4)}:"
        self.end_ns = time.monotonic_ns() + round(limit_s * NS)

    @property
    def left_s(self) -> float:
        """How much time the drill has left."""
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
        moved: Moved | None = None,
    ) -> Iterator[Setting]:
        """One arrangement. What stalls in it is a broken claim of the scene, and the drill goes on with the next.

        `url`: a store of the scene's own. `moved`: the clocks of its workers, where those are not everybody's.
        """
        number = len(self.scenes) + 1
        place = self.directory / f"scene-{number}"
        place.mkdir()
        scene = Scene(title, done, guard)
        self.scenes.append(scene)
        self.tell(title, done)
        said = {
            "url": self.way.url if url is None else url,
            "scene": str(place),
            "prefix": f"{self.prefix}{number}:",
            "guard": str(guard or Guard.ON),
            "ttl": self.plan.ttl_s,
            "request_timeout": request_timeout,
            "moved": None if moved is None else str(moved.path),
        }
        setting = Setting(self, scene, place, f"{self.prefix}{number}:", moved)
        try:
            with setting.account, Crew(said, self.end_ns) as crew:
                setting.crew = crew
                try:
                    yield setting
                except Stalled as stalled:
                    self.tell(title, str(stalled), good=False)
                    scene.claims.append(Claim("the scene is played to its end", kept=False, seen=str(stalled)))
                finally:
                    self.way.mend()
            setting.gather()
        finally:
            setting.account.close()

    def locks(self, request_timeout: float = _REQUEST_S, url: str | None = None) -> Locks:
        """The same store, or that of a scene, for whoever directs. The caller closes it."""
        return holdfast.connect(self.way.url if url is None else url, service="drill", request_timeout=request_timeout)

    def clean(self) -> None:
        """Give back whatever is still held under our names."""
        self.way.mend()
        with suppress(BackendError), self.locks() as locks:  # a store that is away forgets the leases by itself
            for look in locks.list(self.prefix):
                locks.force_release(look.key, reason="a drill is over")


class Setting:
    """One scene while it is played."""

    crew: Crew

    def __init__(self, stage: Stage, scene: Scene, place: Path, prefix: str, moved: Moved | None = None) -> None:
        self.stage = stage
        self.scene = scene
        self.place = place
        self._prefix = prefix
        self._moved = moved
        self._version = 0
        self.acknowledged = 0  # writes of which a worker was told that they are done
        self.account = Account(place / "account.db", scene.guard or Guard.ON)
        Effects(place / "effects.db", "director").close()  # made by one, before there are several

    @property
    def prefix(self) -> str:
        """What the names of all locks of this scene begin with."""
        return self._prefix

    def key(self, name: str) -> str:
        """The name of a lock of this scene, with a balance behind it."""
        self.account.open(f"{self._prefix}{name}")
        return f"{self._prefix}{name}"

    def version(self) -> int:
        """A version that nobody else writes."""
        self._version += 1
        return self._version

    def tell(self, text: str, *, good: bool | None = None) -> None:
        """Say what goes on."""
        self.stage.tell(self.scene.title, text, good=good)

    def ask(self, actor: Actor, do: str, answer: str, **fields: Any) -> Any:
        """Tell a worker to do something, and wait for what it says of it: the fields of that."""
        actor.order(do, **fields)
        return self.crew.next(answer, actor).fields

    def write(self, actor: Actor, **fields: Any) -> bool:
        """Have a worker write a new version on top of what it read. Whether it was told that this is done."""
        return self.wrote(self.ask(actor, "write", "wrote", version=self.version(), **fields))

    def wrote(self, told: Any) -> bool:
        """Count what a worker says of a write."""
        accepted = bool(told["accepted"])
        self.acknowledged += accepted
        return accepted

    def hold_up(self, actor: Actor) -> bool:
        """Have a worker write, and stop at the moment between check and write. False: it had lost its lease before."""
        actor.order("write", version=self.version(), held_up=True)
        return self.crew.next(("held_up", "wrote"), actor).name == "held_up"

    def played(self, act: Callable[[], bool]) -> None:
        """Play something until it could be played. False: a lease was lost because this machine was too slow."""
        for _ in range(_ROUNDS_MAX):
            if act():
                return
            self.tell("a lease was lost because this machine was too slow; once more")
        raise Stalled(f"this machine is too slow for leases of {self.stage.plan.ttl_s:g} s; give a longer --ttl")

    def freeze(self, actor: Actor) -> int:
        """Stop a worker, but not in the middle of a write to the store's own file: that would hold up everybody."""
        with self.stage.locks(_PROBE_S) as probe:
            for _ in range(_FREEZES_MAX):  # nearly always the first one does
                at_ns = actor.freeze()
                try:
                    probe.ping()
                except BackendError:
                    actor.thaw()
                else:
                    return at_ns
        raise Stalled("the store could not be written while a worker was stopped")

    def thaw(self, actor: Actor, since_ns: int) -> None:
        """Let a worker go on, and note for how long it stood still."""
        self.span(SpanKind.PAUSE, actor.name, since_ns, actor.thaw())

    def span(self, kind: SpanKind, who: str, from_ns: int, to_ns: int) -> None:
        """Note that something bad went on for a while."""
        self.scene.spans.append(Span(kind, who, from_ns, to_ns))

    def moment(self, what: str, at_ns: int | None = None) -> int:
        """Note that something bad happened, now or then: when."""
        at_ns = time.time_ns() if at_ns is None else at_ns
        self.scene.moments.append(Moment(what, at_ns))
        return at_ns

    def takeover(self, what: str, from_ns: int, to_ns: int, slo_ns: int | None = None) -> Takeover:
        """Note how long it took until somebody else could go on."""
        found = Takeover(what, from_ns, to_ns, self.stage.plan.slo_ns if slo_ns is None else slo_ns)
        self.scene.takeovers.append(found)
        return found

    def claim(self, text: str, kept: bool, seen: str) -> None:
        """Note something that had to be so."""
        self.scene.claims.append(Claim(text, kept, seen))
        if not kept:
            self.tell(f"{text}: {seen}", good=False)

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
        """Return when it is so; `Stalled` when it does not come to be."""
        limit = time.monotonic() + min(limit_s, self.stage.left_s)
        while not condition():
            if time.monotonic() > limit:
                raise Stalled(f"waited in vain for {what}")
            time.sleep(0.01)  # between two looks at what other processes do

    def wait(self, seconds: float) -> None:
        """Let a fault or a load go on for a while; that it lasts is the point. Cut short when the drill is over."""
        time.sleep(max(0.0, min(seconds, self.stage.left_s)))

    def breathe(self) -> None:
        """Let a moment pass, as work does: a part of the TTL, so that pictures can tell one step from the next."""
        self.wait(self.stage.plan.ttl_s / _BREATHS)

    def gather(self) -> None:
        """Make one history of what the workers' ledgers and the resource itself recorded."""
        findings = Findings()
        with suppress(BadInput):  # nobody had anything to record
            told = load(self.place / "ledger", None, findings)
            self.scene.history += told if self._moved is None else map(self._moved.corrected, told)
        with Account(self.place / "account.db", self.scene.guard or Guard.ON) as account:
            self.scene.history += account.history()
        self.scene.unread, self.scene.dropped = findings.damaged, findings.dropped
        self.scene.history.sort(key=lambda record: record.at_ns)
