"""Parts of the product at work, which say what they have acknowledged: `power_plane_child.py '["name", …arguments]'`.

`plane` is a whole plane as `holdfast up` opens it, in a state directory that is not there yet; `jobs` is one on another
database; `leases`, `files`, `ledger` and `policy` are the parts that keep files of their own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import holdfast
from holdfast.core.history.events import EventKind, Record
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.files import GuardedFiles
from holdfast.observe.ledger.writer import Ledger
from holdfast.plane.app import App
from holdfast.plane.model.outcome import Fatal
from holdfast.plane.model.records import Submission
from holdfast.plane.process.audit_ledger import plane_ledger
from holdfast.plane.process.components import Components
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import (
    CleanupSettings,
    LimitSettings,
    ReconcilerSettings,
    ReplayerSettings,
    Settings,
    SnapshotSettings,
    WorkerSettings,
)
from holdfast.plane.worker.context import Context
from holdfast.runtime.policy_switch import edit_policy_file
from support.power.harness import mark

ME: Final = Caller("test")
OWN: Final = tuple(part for part in PARTS if part != "api")
KEY: Final = "power:{}"

app: Final = App("power")


@app.job("work")
async def work(payload: Mapping[str, Any], *, ctx: Context) -> Any:
    """Do as the payload says."""
    if payload.get("fails"):
        raise Fatal("as it was told")
    return payload["number"]


def settings(database: str | None, **more: Any) -> Settings:
    """A plane whose loops come round quickly."""
    return Settings(
        database=database,
        worker=WorkerSettings(count=1, heartbeat=0.2, cancel_grace=1.0),
        reconciler=ReconcilerSettings(interval=0.2),
        replayer=ReplayerSettings(interval=0.2),
        snapshot=SnapshotSettings(interval=0.2),
        cleanup=CleanupSettings(interval=1.0),
        limits=LimitSettings(replay=0.5),
        **more,
    )


async def submit(components: Components, number: int) -> None:
    """Submit a job: most are done, some fail, some are cancelled, some have to wait for a long time."""
    fails, later = number % 7 == 3, number % 5 == 2
    wanted = Submission(
        "work",
        {"number": number, "fails": fails},
        idempotency_key=f"key-{number}",
        max_attempts=1,
        not_before_ns=2**61 if later else 0,
    )
    job, made = await components.service.submit(ME, wanted, pool="default")
    assert made
    mark({"submitted": job.id, "number": number})
    if later and number % 10 == 2:
        await components.service.cancel(ME, job.id)
        mark({"cancelling": job.id})
    elif later:
        return  # for the check after the crash: it still waits
    await _over(components, job.id)


async def _over(components: Components, job_id: str) -> None:
    async with asyncio.timeout(60):
        while True:
            job = await components.service.job(ME, job_id)
            if job.state.terminal:
                break
            await asyncio.sleep(0.005)  # between two looks at a database
    mark({"ended": job.id, "state": job.state, "fence": job.fence, "run_fence": job.run_fence})


async def _lend(components: Components, number: int) -> None:
    """Take a lease and a resource, and give one of them back."""
    lease = await components.locks.lock(KEY.format(number % 2), ttl=60).acquire(timeout=5)
    mark({"lease": lease.key, "fence": lease.fence})
    await lease.release()
    grant = await components.service.resources.acquire("default", f"kept-{number}", owner="me", ttl=3600)
    mark({"resource": f"kept-{number}", "fence": grant.holder.fence})


async def _plane(jobs: int) -> None:
    chosen = settings(None)
    with ExitStack() as stack:
        ledger = plane_ledger(chosen)
        assert ledger is not None
        stack.enter_context(ledger)
        async with Plane(chosen, OWN, app=app, audit=ledger) as plane:
            for some in _batched(jobs, 4):
                await asyncio.gather(*(submit(plane.components, number) for number in some))
                await _lend(plane.components, some[0])


def _batched(number: int, size: int) -> list[range]:
    return [range(begin, min(begin + size, number)) for begin in range(0, number, size)]


async def _jobs(database: str, jobs: int) -> None:
    async with Plane(settings(database, leases="memory://"), OWN, app=app) as plane:
        for some in _batched(jobs, 4):
            await asyncio.gather(*(submit(plane.components, number) for number in some))


def leases(url: str, grants: int) -> None:
    """Take leases, one after another. Of three, two are released, and the third is kept to the end."""
    with holdfast.connect(url) as locks:
        for number in range(grants):
            key = KEY.format(f"kept-{number}" if number % 3 == 0 else number % 3)
            lease = locks.lock(key, ttl=3600, auto_renew=False).acquire(timeout=10)
            mark({"lease": lease.key, "fence": lease.fence})
            if number % 3:
                lease.release()


def files(folder: str, times: int) -> None:
    """Replace guarded files, and delete them, each time under the next fence."""
    guarded = GuardedFiles(folder, key="file:{name}")
    for fence in range(1, times + 1):
        lease = CarriedFence("file:a", fence)
        with guarded.section(lease, "a") as file:
            mark({"entered": fence})
            if fence % 5 == 0:
                file.delete()
            else:
                file.replace(f"{fence} ".encode() * 2000)
        mark({"wrote": fence})


def ledger(path: str, records: int) -> None:
    """Note things, and say so when they are on the disk."""
    with Ledger(path, sync=0.0, file_bytes=4096) as made:
        for number in range(1, records + 1):
            made.note(Record(EventKind.GRANTED, at_ns=number, key="k", fence=number))
            assert made.flush()
            assert made.flush()  # the first returns when it is written, and before the disk is asked
            mark({"noted": number})


def policy(path: str, times: int) -> None:
    """Switch the error policy of one class after another."""
    for number in range(times):
        edit_policy_file(Path(path), f"class{number}", "fail_open")
        mark({"switched": f"class{number}"})


def plane(jobs: int) -> None:
    """A whole plane on one file."""
    asyncio.run(_plane(jobs))


def jobs(database: str, number: int) -> None:
    """A plane on a database server of the test."""
    asyncio.run(_jobs(database, number))


PROGRAMS: Final[Mapping[str, Callable[..., None]]] = {
    each.__name__: each for each in (plane, jobs, leases, files, ledger, policy)
}

if __name__ == "__main__":
    name, *arguments = json.loads(sys.argv[1])
    PROGRAMS[name](*arguments)
