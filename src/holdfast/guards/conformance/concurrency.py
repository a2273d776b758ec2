"""Guard kit: many concurrent writers, in threads or tasks and in processes of their own."""

# ruff: noqa: D103 - the name of a check is the sentence that it proves

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from holdfast.guards.conformance.adapter import Factory, OpenedSubject
from holdfast.guards.conformance.checks import GuardChapter
from holdfast.guards.conformance.concurrent_writers import (
    WriterSettings,
    WriterTally,
    audit_blind,
    audit_sections,
    update_in_sections,
    write_blindly,
)
from holdfast.guards.conformance.environment import GuardWorld, world_of
from holdfast.guards.conformance.subprocesses import children_at_work

chapter = GuardChapter()
check = chapter.check

Job: TypeAlias = Callable[[GuardWorld, WriterSettings, OpenedSubject], Coroutine[Any, Any, WriterTally]]
Audit: TypeAlias = Callable[[OpenedSubject, Sequence[WriterTally]], Awaitable[None]]


@check(proves=("R47",))
async def concurrent_writers_lose_no_acknowledged_update(world: GuardWorld) -> None:
    await _in_threads(world, update_in_sections, audit_sections)


@check(proves=("R47",))
async def concurrent_writers_never_leave_a_lower_fence_on_top(world: GuardWorld) -> None:
    await _in_threads(world, write_blindly, audit_blind)


@check(processes=True, proves=("R47", "R71"))
async def concurrent_processes_lose_no_acknowledged_update(world: GuardWorld) -> None:
    await _in_processes(world, update_in_sections, audit_sections)


@check(processes=True, proves=("R47", "R71"))
async def concurrent_processes_never_leave_a_lower_fence_on_top(world: GuardWorld) -> None:
    await _in_processes(world, write_blindly, audit_blind)


async def _in_threads(world: GuardWorld, job: Job, audit: Audit) -> None:
    resource = world.fresh()
    work = [world.borrow(resource, partial(job, world, writer)) for writer in _writers(world.threads)]
    tallies = await world.together(work)
    await audit(await world.open(resource), tallies)


async def _in_processes(world: GuardWorld, job: Job, audit: Audit) -> None:
    resource = world.fresh()
    tasks = [
        partial(_work, world.factory, world.asynchronous, resource, job, each) for each in _writers(world.processes)
    ]
    tallies = children_at_work(tasks, world.patience_s)
    await audit(await world.open(resource), tallies)


def _work(factory: Factory, asynchronous: bool, resource: str, job: Job, writer: WriterSettings) -> WriterTally:
    """One writer, in a process of its own."""
    world = world_of(factory, asynchronous=asynchronous)
    return world.drive(world.borrow(resource, partial(job, world, writer)))


def _writers(count: int) -> list[WriterSettings]:
    origin_ns = time.monotonic_ns()
    return [WriterSettings(number, count, origin_ns, secrets.randbits(32)) for number in range(count)]
