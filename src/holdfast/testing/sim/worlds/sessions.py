"""What the programs of a simulated world do with their locks: every way to take one, under it a read-modify-write.

A session is one task. All outcomes that a careful program must expect are expected here (busy, lost, no answer, fenced
out); any other, above all an unrequested cancellation, is a finding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar

from holdfast.aio.lease import AnyLease
from holdfast.errors import BackendError, FencedOut, LeaseLost, LockBusy, NotOwner, PolicyDenied
from holdfast.leases.lock_spec import LockSettings
from holdfast.testing.sim.environment.host import SimHost
from holdfast.types import MS, NS

if TYPE_CHECKING:
    from holdfast.testing.sim.worlds.world import SimWorld

EXPECTED = (LockBusy, LeaseLost, BackendError, FencedOut, PolicyDenied, NotOwner)
BETWEEN = "between check and write"  # the failpoint that tempts most


class Session:
    """One visit of one client to one key."""

    CANCEL_AFTER_S: ClassVar[tuple[float, ...]] = (0.001, 0.01, 0.1, 2)  # when an impatient client gives up, at most

    def __init__(self, world: SimWorld, host: SimHost) -> None:
        self._world = world
        self._host = host
        self._draw = host.chance
        self.key = self._choose_key()
        self.ttl_ns = self._draw.choice(world.swarm.ttls_ns)
        self._kind = self._draw.choice(self._kinds())

    def __str__(self) -> str:
        return f"{self._kind.__name__.strip('_')} {self.key}"

    def _kinds(self) -> list[Callable[[], Awaitable[None]]]:
        """What it may come for, as often as is likely."""
        return [
            *[self._block] * 4,
            *[self._acquire] * 3,
            self._try,
            self._hold,
            self._by_hand,
            self._risky,
            self._token,
        ]

    def _choose_key(self) -> str:
        return self._draw.choice(self._world.keys)

    def idle_s(self) -> float:
        """How long its client rests afterwards."""
        return self._draw.randrange(100 * MS) / NS

    async def run(self) -> None:
        """Visit, and then continue for a moment: what a visit leaves behind in its task shows only after it."""
        try:
            await self._kind()
        except EXPECTED as error:
            self._world.trace(self._host.name, f"{self}: {type(error).__name__}")
        await asyncio.sleep(self._draw.randrange(1, 5) / 1000)

    def _settings(self) -> LockSettings:
        settings: LockSettings = {"ttl": self.ttl_ns / NS}
        if self._draw.random() < 0.8:
            settings["timeout"] = self._draw.choice([0, 0.05, 1, 5])
        if self._draw.random() < 0.25:
            settings["fair"] = True
        if self._draw.random() < 0.1:
            settings["at_least"] = self.ttl_ns / NS / 2
        if self._draw.random() < 0.1:
            settings["max_hold"] = self.ttl_ns / NS * 2
        if self._draw.random() < 0.1:
            settings["stall_after"] = self.ttl_ns / NS
        if self._draw.random() < 0.2:
            settings["on_loss"] = "flag"
        return settings

    async def _block(self) -> None:
        async with self._host.locks.lock(self.key, **self._settings()) as lease:
            await self._section(lease)

    async def _acquire(self) -> None:
        lease = await self._host.locks.lock(self.key, **self._settings()).acquire()
        try:
            await self._section(lease)
        finally:
            await lease.release()

    async def _try(self) -> None:
        lease = await self._host.locks.lock(self.key, ttl=self.ttl_ns / NS).try_acquire()
        if lease is not None:
            try:
                await self._section(lease)
            finally:
                await lease.release()

    async def _hold(self) -> None:
        lease = await self._host.locks.hold(self.key, ttl=self.ttl_ns / NS)
        if lease is not None:
            await self._section(lease, lingers=self._draw.random() < 0.5)

    async def _by_hand(self) -> None:
        """Renewal by the holder itself."""
        lock = self._host.locks.lock(self.key, ttl=self.ttl_ns / NS, auto_renew=False, timeout=2)
        async with lock as lease:
            for _ in range(self._draw.randrange(4)):
                await self._section(lease, lingers=self._draw.random() < 0.2)
                await lease.renew()

    async def _risky(self) -> None:
        """With an error policy: continue without the store, or wait for it."""
        risk = self._draw.choice(["low", "patient"])
        settings = self._settings()
        settings["timeout"] = self._draw.choice([1, 5, 20])
        async with self._host.locks.lock(self.key, risk=risk, **settings) as lease:
            await self._section(lease)

    async def _token(self) -> None:
        """The bare primitive. It checks no time for its user, who therefore does nothing protected."""
        ttl = self.ttl_ns / NS
        token = await self._host.locks.acquire_token(self.key, ttl)
        if token:
            await asyncio.sleep(self._pause_s())
            if self._draw.random() < 0.5:
                await self._host.locks.renew_token(self.key, token, ttl)
            await self._host.locks.release_token(self.key, token)

    async def _section(self, lease: AnyLease, *, lingers: bool = False) -> None:
        """The protected work: read, decide, check, write, a few times. Who lingers stays until its time has run out."""
        with self._world.believing(self._host, lease):
            for _ in range(self._draw.randint(1, 4)):
                await self._act(lease)
                await asyncio.sleep(self._pause_s())
            if lingers:
                await asyncio.sleep(1.1 * lease.remaining())

    async def _act(self, lease: AnyLease) -> None:
        """One step of the protected work."""
        lease.ensure_held()
        lease.progress()
        self._world.step(self._host, lease)
        fence = lease._fence()  # noqa: SLF001 - a degraded lease has none, and then nothing is written
        if fence is not None:
            await self._update(lease, fence)

    async def _update(self, lease: AnyLease, fence: int) -> None:
        """The classic mistake is to check and then to be paused before the write; the failpoint does exactly that."""
        resource, host = self._world.resources[self.key], self._host.name
        version = await resource.read(host, lease.owner, fence)
        if think := self._think_s():
            await asyncio.sleep(think)
        lease.ensure_held()
        self._world.step(self._host, lease)
        if self._world.failpoint(self._host, BETWEEN):
            await asyncio.sleep(0)
        await resource.write(host, lease.owner, fence, version, self._world.lateness_ns(self._host))

    def _think_s(self) -> float:
        """How long it takes to work out, from what was read, what to write."""
        return 0

    def _pause_s(self) -> float:
        if self._draw.random() < 0.15:
            return self._draw.randrange(2 * self.ttl_ns) / NS
        return self._draw.randrange(50 * MS) / NS


async def visits(world: SimWorld, host: SimHost, make: type[Session]) -> None:
    """One client: session after session until the world says stop, some of them cancelled in mid-flight."""
    draw = host.chance
    while not world.stopping:
        session = make(world, host)
        task = asyncio.get_running_loop().create_task(session.run())
        cancelled = draw.randrange(1000) < world.swarm.cancels
        if cancelled:
            await asyncio.wait([task], timeout=draw.choice(make.CANCEL_AFTER_S) * draw.random())
            task.cancel()
            if draw.random() < 0.3:
                await asyncio.wait([task], timeout=0.005 * draw.random())
                task.cancel()
        await asyncio.wait([task])
        world.judge_session(host, str(session), task, cancelled)
        await asyncio.sleep(session.idle_s())
