"""The components of a plane, opened together: database, bus, leases, jobs, and the service on top of them.

    async with open_components(settings) as components:
        await components.service.submit(caller, wanted)

Promises: missing tables are created, except for a read-only view. An error names the store that cannot be reached or
used, without its password. Everything that was opened is closed, in the reverse order, however the block ends. Any
number of processes may open the same stores at the same time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast import aio
from holdfast.aio.client import Locks
from holdfast.core.ports import Clock, Entropy, SharesTransactions
from holdfast.errors import Misconfigured
from holdfast.flows.demand import check_promise
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.bus.embedded.bus import EmbeddedBus
from holdfast.plane.bus.open import open_bus
from holdfast.plane.bus.registered_bus import check_bus, switch_bus
from holdfast.plane.db.migrations import prepare
from holdfast.plane.db.open import open_database
from holdfast.plane.db.ports import Audit, Bus, Database
from holdfast.plane.fleet.registry import Workers
from holdfast.plane.jobs.dead_letters import Undelivered
from holdfast.plane.jobs.store import JobStore
from holdfast.plane.locks.registry import APPROVAL, SCHEDULER_JOB, WORKFLOW_RUN, LockFamily
from holdfast.plane.policy.duplicate_counters import SIGNAL_SCHEMA
from holdfast.plane.policy.runtime import PolicyRuntime
from holdfast.plane.resources.locks import RESOURCE_SCHEMAS
from holdfast.plane.schedules.store import SCHEMA as SCHEDULE_SCHEMA
from holdfast.plane.schedules.store import Schedules
from holdfast.plane.service.schedules import ScheduleService
from holdfast.plane.service.service import Service, ServiceParts
from holdfast.plane.service.workflows import RunService
from holdfast.plane.settings.key_prefix import check_keys, switch_keys
from holdfast.plane.settings.lock_times import families_in_effect
from holdfast.plane.settings.settings import Settings
from holdfast.plane.workflows.definitions import Definitions
from holdfast.plane.workflows.run_quotas import RunQuotas
from holdfast.plane.workflows.run_store import RunStore
from holdfast.runtime.durable_files import make_directory
from holdfast.runtime.stalls import LoopSampler
from holdfast.runtime.system import SystemClock, SystemEntropy
from holdfast.stores.registry import state_directory
from holdfast.types import Guarantee

if TYPE_CHECKING:
    from holdfast.plane.bus.nats.bus import NatsBus

PREPARED: Final = "prepared"  # no job has this id; every role may acquire the lock of a job

_NO_LEASES: Final = "memory://"  # a read-only process acquires no lease, and must not need the lease store

TABLES: Final = (
    *("schema", "bus_schema", *RESOURCE_SCHEMAS, "policy_schema", "run_schema", "approval_schema"),
    *(SIGNAL_SCHEMA, SCHEDULE_SCHEMA),
)


@dataclass(frozen=True, slots=True)
class Components:
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
    approvals: Approvals
    runs: RunStore
    flows: RunService
    policing: PolicyRuntime
    prepare: Callable[[], Awaitable[None]]
    """Makes tables where they are missing, and begins to follow the policy. Once it has succeeded, it does nothing."""
    audit: Audit | None = None

    @property
    def schedules(self) -> Schedules:
        """The schedules."""
        return self.service.schedules.store


@asynccontextmanager
async def open_components(
    settings: Settings,
    *,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    instance: str | None = None,
    service_name: str = "plane",
    serving: bool = False,
    read_only: bool = False,
    prepare_now: bool = True,
    audit: Audit | None = None,
) -> AsyncIterator[Components]:
    """Open what the settings name, for as long as the block runs.

    `service_name` is the name of lease holders, and `instance` distinguishes replicas. `serving`: this is a process of
    the plane, which follows its error policy; other processes only send commands to it. `read_only`: a view of the
    database alone; nothing is created or written, and a missing schema is an error. Without `prepare_now` no store is
    used yet: the caller calls `Components.prepare` first.
    `audit` records lease events, writes that guards refused, and jobs that were to end twice.
    """
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    if settings.database is None and not read_only:
        make_state_directory()
    async with AsyncExitStack() as stack:
        # Leases are opened first and closed last, so that everything can be released at the end.
        observers = [] if audit is None else [audit]
        where = _NO_LEASES if read_only else settings.lease_url
        demanded = Guarantee.EFFICIENCY_ONLY if read_only else settings.guarantee
        locks = aio.connect(where, service=service_name, instance=instance, observers=observers, guarantee=demanded)
        await stack.enter_async_context(locks)
        database = open_database(settings.database_url, clock=clock, read_only=read_only)
        stack.push_async_callback(database.close)
        yield await stack.enter_async_context(
            build_components(
                *(settings, locks, database),
                clock=clock,
                entropy=entropy,
                serving=serving,
                read_only=read_only,
                prepare_now=prepare_now,
                audit=audit,
            )
        )


@asynccontextmanager
async def build_components(
    settings: Settings,
    locks: Locks,
    database: Database,
    *,
    clock: Clock,
    entropy: Entropy,
    serving: bool = False,
    read_only: bool = False,
    prepare_now: bool = True,
    audit: Audit | None = None,
) -> AsyncIterator[Components]:
    """The components on leases and a database that are already open, and that the caller closes afterwards."""
    async with AsyncExitStack() as stack:
        if serving:
            sampler = LoopSampler(asyncio.get_running_loop(), locks.manager.clock)
            locks.manager.watch(sampler)
            stack.callback(sampler.stop)
            sampler.start()
        bus = open_bus(None if read_only else settings.bus, database, clock, entropy, dead=Undelivered(database, clock))
        stack.push_async_callback(bus.close)
        parts = _build_parts(settings, locks, database, bus, (clock, entropy), serving=serving, audit=audit)
        preparation = _Preparation(parts, settings, stack, serving=serving, read_only=read_only)
        if prepare_now:
            await preparation.run()
        yield Components(
            *(settings, clock, entropy, database, bus, locks, parts.store, parts.workers),
            *(parts.service, parts.approvals, parts.runs, parts.flows, parts.policing, preparation.run, audit),
        )


class _Parts(NamedTuple):
    """The components that need no closing."""

    database: Database
    bus: EmbeddedBus | NatsBus
    locks: Locks
    store: JobStore
    workers: Workers
    policing: PolicyRuntime
    approvals: Approvals
    runs: RunStore
    flows: RunService
    service: Service


def _build_parts(
    settings: Settings,
    locks: Locks,
    database: Database,
    bus: EmbeddedBus | NatsBus,
    sources: tuple[Clock, Entropy],
    *,
    serving: bool,
    audit: Audit | None,
) -> _Parts:
    """Jobs, runs, approvals and the error policy, with the settings in effect. Uses no store yet."""
    clock, entropy = sources
    families = families_in_effect(settings)
    slots = settings.scheduler.tenant_slots
    store = JobStore(
        *(database, bus, clock, entropy),
        slots=slots,
        observer=audit,
        family=families[SCHEDULER_JOB.name],
        leases=locks.ports.store,
    )
    workers = Workers(database, clock)
    policing = PolicyRuntime.of(settings, database, locks, clock, serving=serving)
    policing.count_ends(lambda: store.duplicate_ends)
    approvals = Approvals(database, store, locks, settings.approvals.rules, family=families[APPROVAL.name])
    runs = RunStore(
        *(database, bus, Definitions(database, clock), approvals, clock, entropy),
        observer=audit,
        quotas=RunQuotas(settings.runs.live_per_tenant, settings.runs.per_tree),
        family=families[WORKFLOW_RUN.name],
    )
    flows = RunService(runs, approvals, bus)
    service_parts = ServiceParts(
        *(database, bus, locks, store, workers),
        approvals=approvals,
        flows=flows,
        schedules=ScheduleService(Schedules(database, approvals, clock)),
        policing=policing,
        audit=audit,
        families=families,
        settings=settings,
        names=settings.names.words,
    )
    service = Service(service_parts)
    return _Parts(database, bus, locks, store, workers, policing, approvals, runs, flows, service)


class _Preparation:
    """Creates missing tables, checks what all processes of a plane must share, and starts to follow the policy."""

    def __init__(
        self, parts: _Parts, settings: Settings, stack: AsyncExitStack, *, serving: bool, read_only: bool
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._stack = stack
        self._serving = serving
        self._read_only = read_only
        self._ready = False

    async def run(self) -> None:
        """Idempotent. A failed run can be repeated."""
        if self._ready:
            return
        parts, serving = self._parts, self._serving
        await prepare(parts.database)
        if isinstance(leases := parts.locks.ports.store, SharesTransactions):
            leases.ride(parts.database)  # in one file there is one writer
        demanded = Guarantee(self._settings.guarantee)
        if not self._read_only and demanded is not Guarantee.EFFICIENCY_ONLY:
            await check_promise(parts.locks.ports, demanded, "the plane (setting guarantee)")
        if not self._read_only:
            await check_keys(parts.database, self._settings.names.keys, serving=serving)
            await check_bus(parts.database, self._settings.bus, serving=serving)
        await parts.bus.prepare()
        await parts.service.resources.prepare()
        await parts.policing.begin(apply_files=serving)  # before this process takes a lock
        await parts.runs.prepare()
        await parts.approvals.prepare()
        await parts.service.schedules.store.prepare()
        # Not at the first signal: a process that opens a plane as its owner has then created all tables.
        await prepare(parts.database, SIGNAL_SCHEMA)
        if serving:
            await self._stack.enter_async_context(parts.policing.running())
        self._ready = True


async def make_tables(settings: Settings) -> None:
    """Create every missing table, and migrate the others. Needs only the database.

    That includes the tables of the leases, if they are in the database.
    """
    if settings.database is None:
        make_state_directory()
    database = open_database(settings.database_url)
    try:
        for name in TABLES:
            await prepare(database, name)
    finally:
        await database.close()
    if settings.leases_in_database:
        family: LockFamily = families_in_effect(settings)[SCHEDULER_JOB.name]
        async with aio.connect(settings.lease_url, service="plane") as locks, family.lock(locks, job=PREPARED):
            pass  # the first lease creates the tables


async def switch_plane_bus(settings: Settings) -> tuple[str | None, str]:
    """Switch the plane to the bus that the settings name; see `plane.bus.registered_bus`."""
    await make_tables(settings)
    database = open_database(settings.database_url)
    try:
        return await switch_bus(database, settings.bus)
    finally:
        await database.close()


async def switch_plane_keys(settings: Settings) -> tuple[str | None, str]:
    """Switch the plane to the key prefix that the settings name; see `plane.settings.key_prefix`."""
    await make_tables(settings)
    prefix = settings.names.keys
    async with aio.connect(settings.lease_url, service="plane") as locks:
        database = open_database(settings.database_url)
        try:
            return await switch_keys(database, locks, Workers(database, SystemClock()), prefix), prefix
        finally:
            await database.close()


def make_state_directory() -> None:
    """Create it for this user only: jobs contain private data."""
    directory = state_directory()
    try:
        make_directory(directory, 0o700, parents=True)
    except OSError as error:
        raise Misconfigured(
            f"there is no place for the database: {directory}: {error.strerror or error}; "
            "say where it should be with --database or database = in holdfast.toml"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Misconfigured(f"the database cannot be kept in {directory}, which cannot be written; use --database")
