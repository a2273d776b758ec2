"""Guarded worlds: what the leases protect is behind the real guards, which run at the far end of the simulated network.

Requests come late, out of order, not at all, and where the protocol allows for it twice; the process that serves them
is killed at its failpoints and before it answers, and another opens what it left. What continues record is what has
really become of the storage, step by step, so a guard cannot talk itself out of anything.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core.failpoints import armed
from holdfast.core.history.events import EventKind, Record
from holdfast.errors import BackendError, FencedOut, Unavailable
from holdfast.guards.bearer import CarriedFence
from holdfast.testing.sim.environment.domain import Domain
from holdfast.testing.sim.environment.network import Server
from holdfast.testing.sim.environment.store import answered
from holdfast.testing.sim.worlds.guarded_storage import STORAGES, Order, Storage
from holdfast.testing.sim.worlds.profile import Scene
from holdfast.testing.sim.worlds.sessions import Session
from holdfast.types import MS, NS

if TYPE_CHECKING:
    from holdfast.testing.sim.worlds.world import SimWorld

UNANSWERED = "answer"  # the step is done, and the process dies before it says so
DELETES_EVERY = 5
SHORTEST_OUTAGE_NS = 10 * MS


class _Killed(BaseException):
    """The process that serves is killed here. Nothing in it may catch this, or clean up so that it would show."""


class GuardedResource(Server):
    """One number behind a real guard, and the process that serves it."""

    def __init__(self, world: SimWorld, key: str, storage: Callable[[Path, str], Storage], folder: Path) -> None:
        super().__init__(f"guard:{key}")
        self.key = key
        self._world = world
        self._open = storage
        self._folders = (folder / f"{key}-{number}" for number in itertools.count())
        self._folder = next(self._folders)
        self._folder.mkdir()
        self._storage = storage(self._folder, key)
        self._left: Path | None = None  # what the process that was killed has left
        self._chance = world.entropy(f"guard/{key}").random
        self._numbers = itertools.count(1)
        self._found = self._storage.found()
        self._applied = [0]  # every number that the storage took, in order; a deletion has one too
        self._voids = {0}  # the numbers of deletions: what is there after them is nothing
        self._acknowledged: list[int] = []

    # At the near end.

    async def read(self, host: str, owner: str, fence: int) -> int:
        """Register the fence, and read. Reading again does no harm, so it may arrive twice."""
        return int(await self._ask(host, "enter", fence, lambda: self._serve_read(owner, fence), once=False))

    async def write(self, host: str, owner: str, fence: int, based_on: int, late_ns: int = 0) -> int:
        """Write a number that is new, or delete."""
        number = next(self._numbers)
        exists = based_on not in self._voids
        # "Nothing" looks the same before and after: a repetition could not be told by what it was made from.
        deletes = exists and not self._storage.repeatable and self._chance.randrange(DELETES_EVERY) == 0
        if deletes:
            self._voids.add(number)
        order = Order(number, deletes, based_on if exists else None)
        served = lambda: self._serve_write(owner, fence, order, based_on)  # noqa: E731 - sent, perhaps twice
        await self._ask(host, "write", fence, served, once=not self._storage.repeatable, late_ns=late_ns)
        self._acknowledged.append(number)
        return number

    async def _ask(
        self, host: str, verb: str, fence: int, act: Callable[[], object], *, once: bool, late_ns: int = 0
    ) -> Any:
        what = f"{verb} {self.key}"
        answer = self._world.network.call(host, self, what, act, once=once, late_ns=late_ns)
        outcome = await answered(self._world.loop, answer, what, self._world.swarm.request_timeout_ns)
        if outcome is None:
            raise FencedOut(f"{what}: a newer fence than {fence} was here", fence=fence, seen=self._found.fence or 0)
        return outcome

    # At the far end.

    def _serve_read(self, owner: str, fence: int) -> int | BackendError | None:
        """Runs at the server: the number that stands for what was read; None if it is refused."""
        carried = CarriedFence(self.key, fence)
        ok, outcome = self._step(lambda: self._storage.enter(carried))
        before, self._found = self._found, self._storage.found()
        if self._found.number != before.number:
            self._complain(f"reading has changed {before.number} into {self._found.number}")
        self._watch_fence(before.fence, fence)
        if ok is not None or self._registered(before.fence, fence):
            self._note(EventKind.READ, owner, fence, ok=ok is not False, value=self._applied[-1])
        if isinstance(outcome, BackendError):
            return outcome
        if not ok:
            return None
        if outcome != self._found.number:
            self._complain(f"{outcome} was read where {self._found.number} is")
        return self._applied[-1]

    def _serve_write(self, owner: str, fence: int, order: Order, based_on: int) -> bool | BackendError | None:
        """Runs at the server: True when it is done, now or already; None if it is refused."""
        carried = CarriedFence(self.key, fence)
        ok, outcome = self._step(lambda: self._storage.write(carried, order))
        before, self._found = self._found, self._storage.found()
        self._watch_fence(before.fence, fence)
        if self._found.number != before.number:
            if self._found.number != (None if order.deletes else order.number):
                self._complain(f"{self._found.number} is there where {order.number} was to be written")
            self._applied.append(order.number)
            self._note(EventKind.WRITE, owner, fence, ok=True, value=order.number, based_on=based_on)
            if ok is False:
                self._complain(f"{order.number} was refused and written all the same")
        elif ok is False:
            self._note(EventKind.WRITE, owner, fence, ok=False, value=order.number, based_on=based_on)
        elif self._registered(before.fence, fence):  # killed after the door, or found to be a repetition
            self._note(EventKind.READ, owner, fence, ok=True, value=self._applied[-1])
        if isinstance(outcome, BackendError):
            return outcome
        if ok and order.number not in self._applied:
            self._complain(f"{order.number} was acknowledged under fence {fence}, and is not there")
        return True if ok else None

    def _step(self, act: Callable[[], object]) -> tuple[bool | None, object]:
        """Have the guard take a step. Returns whether it was admitted (None: unknown forever), and its answer."""
        point = self._doom()
        try:
            with contextlib.ExitStack() as stack:
                if point is not None and point != UNANSWERED:
                    stack.enter_context(armed(point, self._kill))
                outcome = act()
            if point == UNANSWERED:
                self._kill()
        except FencedOut:
            return False, None
        except _Killed:
            self._world.trace(self.name, f"killed at {point}")
            self._world.counts[f"failpoint {point}"] += 1
            self._begin_again()
            return None, Unavailable(f"{self.name} closed the connection")
        except Exception as error:  # noqa: BLE001 - whatever else a guard says to a proper step is a finding
            self._complain(f"answers {error!r}")
            return None, Unavailable(f"{self.name} has failed")
        return True, outcome

    def _doom(self) -> str | None:
        """Where this step is to end, if it ever comes by there."""
        world = self._world
        if world.stopping or self._chance.randrange(1000) >= world.swarm.dies:
            return None
        return self._chance.choice([*self._storage.points, UNANSWERED])

    def _kill(self) -> None:
        """The files stay as they are at this moment; no later action of the process has an effect."""
        self._left = next(self._folders)
        shutil.copytree(self._folder, self._left)
        raise _Killed

    def _begin_again(self) -> None:
        """Another process opens what the one before has left, after a while."""
        if self._left is None:
            raise RuntimeError("nothing was left")
        self._storage.close()
        shutil.rmtree(self._folder)
        self._folder, self._left = self._left, None
        self._storage = self._open(self._folder, self.key)
        self.down = True
        outage = SHORTEST_OUTAGE_NS + self._chance.randrange(self._world.swarm.longest_ttl_ns() // 2)
        self._world.loop.call_after_ns(outage, setattr, self, "down", False, context=_NOBODY)

    # What is seen.

    def _registered(self, before: int | None, fence: int) -> bool:
        return self._found.fence == fence != before

    def _watch_fence(self, before: int | None, fence: int) -> None:
        after = self._found.fence
        if after != before and (after is None or after != fence or (before is not None and after < before)):
            self._complain(f"fence {fence} came, and what is remembered went from {before} to {after}")

    def _note(
        self, kind: EventKind, owner: str, fence: int, *, ok: bool, value: int, based_on: int | None = None
    ) -> None:
        now = self._world.loop.now_ns
        self._world.note(Record(kind, now, self.key, owner=owner, fence=fence, ok=ok, value=value, based_on=based_on))

    def _complain(self, what: str) -> None:
        self._world.complain(self.name, what)

    # Its end.

    def audit(self) -> None:
        """After a last restart everything that was acknowledged is still there, and nothing else."""
        with contextlib.suppress(_Killed):
            self._kill()
        self._begin_again()
        found = self._storage.found()
        if found != self._found:
            self._complain(f"a restart has made {found} of {self._found}")
        last = self._applied[-1]
        if found.number != (None if last in self._voids else last):
            self._complain(f"{found.number} is there, and {last} was written last")
        for number in sorted(set(self._acknowledged) - set(self._applied)):
            self._complain(f"{number} was acknowledged, and was never written")

    def close(self) -> None:
        """Let go of the files."""
        self._storage.close()


class Stint(Session):
    """A visit as in a busy world, but what is written takes its time to be worked out, now and then a whole lease."""

    def _think_s(self) -> float:
        return self._draw.choice([0, self.ttl_ns / NS]) * self._draw.random()


class GuardedScene(Scene):
    """Real guards, in a folder of this world's own that goes with it."""

    sessions = Stint

    def __init__(self, world: SimWorld) -> None:
        super().__init__(world)
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-world-"))
        self._resources: list[GuardedResource] = []

    def resource(self, key: str) -> GuardedResource:
        """A number behind the guard that the swarm says."""
        kind = self._world.swarm.guards[len(self._resources)]
        resource = GuardedResource(self._world, key, STORAGES[kind], self._folder)
        self._resources.append(resource)
        return resource

    async def after_recovery(self) -> None:
        """What was acknowledged must be there."""
        for resource in self._resources:
            resource.audit()

    def close(self) -> None:
        """Nothing stays behind."""
        for resource in self._resources:
            resource.close()
        shutil.rmtree(self._folder)


_NOBODY = Domain("guards").context()
