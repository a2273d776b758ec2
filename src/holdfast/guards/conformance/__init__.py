"""The contract of a guard, as a kit that applications can run on their own guards.

    from holdfast.guards.conformance import check_guard

    def open_invoice(resource: str) -> Subject: ...     # a module-level function; opens the same storage anywhere

    if __name__ == "__main__":                          # the kit starts other processes
        check_guard(open_invoice)                       # or asynchronous=True, for an `AsyncSubject`

Promises: each sentence of the contract is proven by trying to break it at a resource of its own: rising fences in
order, equal and lower ones, reads that register, things that are deleted, fences at the edges of 64 bits, things that
are no fences, concurrent writers in threads (or tasks) and processes, and writers that are killed. Does not promise
what the kit cannot cause: power failures, failovers of the storage, clients that bypass the guard.

Resources are named `kit-…`, and are left behind: use a table, folder or database of its own. Clock: waits are bounded,
and nothing is asserted about speed. With a test runner, make one case per check:

    @pytest.mark.parametrize("check", checks_for(deletes=True), ids=str)
    def test_my_guard(check): run_check(check, open_invoice)
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import BadInput, FencedOut
from holdfast.guards.conformance import concurrency, crashes, rules, values
from holdfast.guards.conformance.adapter import AsyncSubject, Factory, Subject
from holdfast.guards.conformance.checks import Check, Nonconforming, Violation
from holdfast.guards.conformance.environment import GuardWorld, world_of
from holdfast.guards.conformance.subprocesses import check_picklable

__all__ = [
    "CHECKS",
    "AsyncSubject",
    "Check",
    "Factory",
    "Nonconforming",
    "Report",
    "Subject",
    "Violation",
    "check_guard",
    "checks_for",
    "run_check",
]

CHECKS: tuple[Check, ...] = (
    *rules.chapter.checks,
    *values.chapter.checks,
    *concurrency.chapter.checks,
    *crashes.chapter.checks,
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of the whole kit has proven, and what it was told to leave out."""

    proven: tuple[str, ...]
    left_out: tuple[str, ...]


def checks_for(*, deletes: bool = True, processes: bool = True) -> list[Check]:
    """Pick the checks that a guard must pass. `deletes`: it can delete. `processes`: the factory can be pickled."""
    return [check for check in CHECKS if (deletes or not check.deletes) and (processes or not check.processes)]


def run_check(check: Check, factory: Factory, *, asynchronous: bool = False, threads: int = 8) -> None:
    """Run one check, and close what it opened. Raises `Violation`, or the guard's own error.

    `threads` is the number of concurrent writers; half as many where each is a process.
    """
    _check_arguments(factory, threads, check.processes)
    world = world_of(factory, asynchronous=asynchronous, threads=threads, processes=max(2, threads // 2))
    world.drive(_run(check, world))


def check_guard(
    factory: Factory, *, asynchronous: bool = False, deletes: bool = True, processes: bool = True, threads: int = 8
) -> Report:
    """Run every check; raise `Nonconforming` with all that failed.

    `factory` is given the name of a resource and opens it over the same storage, again at each call; it is called in
    other threads and, unless `processes` is False, in other processes. The leases that the subject is given are those
    of a lock with the resource's name. Without `deletes` the subject's `delete` is never called.
    """
    _check_arguments(factory, threads, processes)
    proven: list[str] = []
    broken: list[tuple[str, BaseException]] = []
    wanted = checks_for(deletes=deletes, processes=processes)
    for check in wanted:
        try:
            run_check(check, factory, asynchronous=asynchronous, threads=threads)
            proven.append(check.name)
        except Exception as error:  # noqa: BLE001 - whatever a guard raises is a finding, and the other checks still run
            broken.append((check.name, error))
    if broken:
        raise Nonconforming(broken)
    return Report(tuple(proven), tuple(check.name for check in CHECKS if check not in wanted))


async def _run(check: Check, world: GuardWorld) -> None:
    try:
        await check.run(world)
    except FencedOut as refusal:
        what = f"fence {refusal.fence} was refused ({refusal.seen} seen) where it should have been accepted: {refusal}"
        raise Violation(what) from refusal
    finally:
        await world.close()


def _check_arguments(factory: object, threads: object, processes: bool) -> None:
    if not callable(factory):
        raise BadInput(
            "factory", f"{type(factory).__name__} is not a function", "give one that opens a subject by name"
        )
    if isinstance(threads, bool) or not isinstance(threads, int) or not 2 <= threads <= 256:
        raise BadInput("threads", f"{threads!r} writers", "give a whole number from 2 to 256")
    if processes:
        check_picklable(factory)
