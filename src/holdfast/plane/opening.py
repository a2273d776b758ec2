"""What every part of a plane stands on, opened together: database, bus, leases, jobs, and the service on top of them.

    async with opened(settings) as ground:
        await ground.service.submit(caller, wanted)

Promises: tables are made where they are missing; what cannot be reached or used is said with its place and without its
password; whatever was opened is closed, in the reverse order, however the block ends. Any number of processes may open
the same places at once.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from holdfast import aio
from holdfast.aio.locks import Locks
from holdfast.errors import Misconfigured
from holdfast.plane.buses import open_bus
from holdfast.plane.databases import open_database
from holdfast.plane.jobstore import JobStore
from holdfast.plane.ports import Bus, Database
from holdfast.plane.schema import prepare
from holdfast.plane.service import Parts, Service
from holdfast.plane.settings import Settings
from holdfast.plane.undelivered import Undelivered
from holdfast.plane.workers import Workers
from holdfast.ports import Clock, Entropy
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.stores.registry import state_directory


@dataclass(frozen=True, slots=True)
class Ground:
    """Everything opened."""

    settings: Settings
    clock: Clock
    entropy: Entropy
    database: Database
    bus: Bus
    locks: Locks
    store: JobStore
    workers: Workers
    service: Service


@asynccontextmanager
async def opened(
    settings: Settings,
    *,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    instance: str | None = None,
) -> AsyncIterator[Ground]:
    """Open what the settings name, for as long as the block runs. `instance` tells replicas apart, for people."""
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    if settings.database is None:
        _make_state_directory()
    async with AsyncExitStack() as stack:
        # Leases are opened first and closed last: what is released at the end is released while they are there.
        locks = aio.connect(settings.lease_url, service="plane", instance=instance)
        await stack.enter_async_context(locks)
        database = open_database(settings.database_url, clock=clock)
        stack.push_async_callback(database.close)
        await prepare(database)
        bus = open_bus(settings.bus, database, clock, entropy, dead=Undelivered(database, clock))
        stack.push_async_callback(bus.close)
        await bus.prepare()
        store = JobStore(database, bus, clock, entropy, slots=settings.scheduler.tenant_slots)
        workers = Workers(database, clock)
        service = Service(Parts(database, bus, locks, store, workers))
        await service.resources.prepare()
        yield Ground(settings, clock, entropy, database, bus, locks, store, workers, service)


def _make_state_directory() -> None:
    """Only this user: jobs carry what a team works on."""
    directory = state_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Misconfigured(
            f"there is no place for the database: {directory}: {error.strerror or error}; "
            "say where it should be with --database or database = in holdfast.toml"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Misconfigured(f"the database cannot be kept in {directory}, which cannot be written; use --database")
