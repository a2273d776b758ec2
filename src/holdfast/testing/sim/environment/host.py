"""A simulated host: its own clocks and chance, and the real `aio.Locks` with the real keeper, over a simulated store.

Three domains can stop independently: the host as a whole, the thread of its event loop, the thread of its
keeper. A crash stops the host forever; what restarts is another `SimHost` that remembers nothing.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.aio.client import Locks
from holdfast.core.ports import Observer
from holdfast.runtime.asyncio_runtime import LoopRuntime
from holdfast.runtime.lease_manager import LeaseManager
from holdfast.runtime.policy_switch import policy_switch
from holdfast.runtime.recorder import Recorder
from holdfast.runtime.renewer import Ticks
from holdfast.stores.memory.store import MemoryEngine, MemoryTable
from holdfast.testing.sim.environment.clock import SimClock, SimEntropy
from holdfast.testing.sim.environment.domain import Domain
from holdfast.testing.sim.environment.loop import SimLoop, running_sim_loop
from holdfast.testing.sim.environment.network import Network
from holdfast.testing.sim.environment.store import LeaseServer, SimEngine
from holdfast.testing.sim.environment.timer import SimTicks
from holdfast.types import NS, Owner


class SimHost:
    """One process on one host."""

    def __init__(
        self,
        name: str,
        loop: SimLoop,
        network: Network,
        server: LeaseServer,
        *,
        clock: SimClock,
        entropy: SimEntropy,
        observer: Observer,
        policy: Mapping[str, str],
        request_timeout_ns: int,
        on_crash: Callable[[Exception], None],
        engine: SimEngine | None = None,
    ) -> None:
        """`engine`: its connections to the store; by default to this one server."""
        self.name = name
        self.clock = clock
        self.entropy = entropy
        self.chance = SimEntropy(f"{entropy.seed}/programs").random  # what its programs do; not what its locks draw
        self.crashed = False
        self.domain = Domain(name)
        self.loop_thread = Domain(f"{name}/loop", self.domain)
        self.keeper_thread = Domain(f"{name}/keeper", self.domain)
        self.context = self.loop_thread.context()
        self.engine = engine or SimEngine(network, server, name)
        self._loop = loop
        self._on_crash = on_crash
        owner = Owner("sim", name, 1, "a")
        recorder = Recorder([observer])
        runtime = LoopRuntime(loop)
        manager = LeaseManager(
            self.engine.blocking,
            clock=clock,
            entropy=entropy,
            recorder=recorder,
            policy=policy_switch(policy, None, clock, recorder, str(owner)),
            owner=lambda: owner,
            request_timeout_ns=request_timeout_ns,
            make_ticks=self._make_ticks,
            renewer_runtime=runtime,
        )
        self.locks = Locks(self.engine, manager, None, runtime)

    def _make_ticks(self, name: str, act: Callable[[list[Any]], Any]) -> Ticks:
        context = self.keeper_thread.context()
        return SimTicks(self._loop, self.clock, context, act, self._on_crash)

    def stop_for(self, ns: int, domain: Domain | None = None) -> None:
        """Stop the host, or one of its threads, for a while."""
        stopped = domain or self.domain
        stopped.stop()
        self._loop.call_after_ns(ns, stopped.resume, self._loop, context=_OUTSIDE)

    def suspend_for(self, ns: int) -> None:
        """Close the lid: nothing runs, and the monotonic clock stands still."""
        self.clock.slept(ns)
        self.stop_for(ns)

    def crash(self) -> None:
        """Stop forever."""
        self.crashed = True
        self.domain.stop()

    def bury(self) -> None:
        """The world is over: let what was stopped run to its end, cut off from everything."""
        self.engine.blocking.dead = self.engine.asynchronous().dead = True
        self.locks.manager.close()
        for domain in (self.domain, self.loop_thread, self.keeper_thread):
            while domain.stops:
                domain.resume(self._loop)


_OUTSIDE = Domain("outside").context()


def virtual_locks(table: MemoryTable | None = None, *, name: str = "host", seed: int = 0) -> Locks:
    """Make a `Locks` on the virtual time of the running loop, for tests of programs that use locks.

        async def scenario():
            locks = virtual_locks()
            async with locks.lock("job", ttl=30) as lease:
                await asyncio.sleep(3600)  # renewed every ten seconds of it, in no time
                lease.ensure_held()

        run_virtual(scenario())

    Several of them over one `virtual_table()` exclude each other, as processes do. There is no network in between.
    """
    loop = running_sim_loop()
    clock = SimClock(loop)
    engine = MemoryEngine(table or MemoryTable(clock))
    owner, recorder, runtime = Owner("virtual", name, 1, "a"), Recorder(()), LoopRuntime(loop)
    context = contextvars.copy_context()
    manager = LeaseManager(
        engine.asynchronous(),
        clock=clock,
        entropy=SimEntropy(f"{seed}/{name}"),
        recorder=recorder,
        policy=policy_switch(None, None, clock, recorder, str(owner)),
        owner=lambda: owner,
        request_timeout_ns=2 * NS,
        make_ticks=lambda _, act: SimTicks(loop, clock, context, act, _raise),
        renewer_runtime=runtime,
    )
    return Locks(engine, manager, None, runtime)


def virtual_table() -> MemoryTable:
    """A table of leases on the virtual time of the running loop, to be shared by several `virtual_locks`."""
    return MemoryTable(SimClock(running_sim_loop()))


def _raise(error: Exception) -> None:
    raise error
