"""What must hold on a disk after the power failed, by what had been acknowledged: `check_*` raise `Lost`, or count.

Everything is opened again with the code of production, in this process, which is not recorded.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import holdfast
from holdfast.errors import BadInput, HoldfastError, RowMissing
from holdfast.guards.bearer import CarriedFence
from holdfast.guards.files import GuardedFiles
from holdfast.observe.ledger.reader import Findings, load
from holdfast.plane.model.job_states import JobState
from holdfast.plane.process.components import Components, open_components
from holdfast.plane.process.plane import Plane
from holdfast.plane.settings.settings import Settings
from holdfast.runtime.run_sync import run_now
from holdfast.runtime.system import SystemClock
from holdfast.stores.registry import DEFAULT_FILE
from holdfast.stores.sqlite.engine import SqliteEngine
from holdfast.types import NS, AcquireRequest, Busy, Instant
from support.power import power_plane_child as child
from support.power.harness import Trace

STATE: Final = Path("state") / "holdfast"
PLANE: Final = STATE / DEFAULT_FILE

Said = Mapping[str, Any]


class Lost(AssertionError):
    """Something that was acknowledged is not there, or not as it was."""


@dataclass
class Tally:
    """How much was tried."""

    crashes: int = 0
    acknowledged: int = 0  # of all crashes together

    def count(self, said: Sequence[object]) -> None:
        """One crash was looked at."""
        self.crashes += 1
        self.acknowledged += len(said)


def sharpest(trace: Trace) -> list[int]:
    """The moments at which something has just been acknowledged."""
    return [moment for moment, _ in trace.said()]


# SQLite files.


def check_sound(path: Path) -> None:
    """The file is a sound database."""
    with closing(sqlite3.connect(path)) as connection:
        for question in ("integrity_check", "foreign_key_check"):
            answer = connection.execute(f"PRAGMA {question}").fetchall()
            if answer not in ([("ok",)], []):
                raise Lost(f"{path.name}: {question} says {answer[:3]}")


def check_leases(image: Path, said: Iterable[Said]) -> None:
    """A lease that is acquired after the crash has a higher fence than all before it; or it is still held."""
    before: dict[str, int] = {}
    for each in said:
        if "lease" in each:
            before[each["lease"]] = max(each["fence"], before.get(each["lease"], 0))
    with holdfast.connect(f"sqlite:///{image}") as locks:
        for key, fence in before.items():
            lock = locks.lock(key, ttl=60)
            lease = lock.try_acquire()
            now = lock.inspect().fence if lease is None else lease.fence - 1
            if now is None or now < fence:
                raise Lost(f"{key}: fence {fence} was given out before the crash, and {now} is the newest after it")
            if lease is not None:
                lease.release()
    check_sound(image)


class SetBack:
    """The clock of a machine that came up a year behind, as one with an empty battery does."""

    def now(self) -> Instant:
        now = SystemClock().now()
        return now._replace(wall=now.wall - 365 * 86_400 * NS)


def check_fence_without_a_clock(image: Path, said: Iterable[Said]) -> None:
    """The next fence is higher than all that were given out, although the clock says that they are of next year."""
    engine = SqliteEngine(str(image), clock=SetBack())
    try:
        answer = run_now(engine.blocking.acquire(AcquireRequest("next", "token", "owner", "default", NS), 10 * NS))
    finally:
        engine.close()
    highest = max(each["fence"] for each in said)
    if isinstance(answer, Busy) or answer.fence <= highest:
        raise Lost(f"fence {highest} was given out before the crash, and {answer} after it")


# The plane.


async def check_jobs(components: Components, said: Iterable[Said]) -> None:
    """Every job that was acknowledged is there, and those that had ended have ended so."""
    service = components.service
    for each in said:
        if "submitted" in each:
            job = await _job(components, each["submitted"])
            if job.payload["number"] != each["number"]:
                raise Lost(f"job {job.id} is another one")
        elif "ended" in each:
            job = await _job(components, each["ended"])
            now, then = (job.state, job.fence, job.run_fence), (each["state"], each["fence"], each["run_fence"])
            if now != then:
                raise Lost(f"job {job.id} had ended as {then}, and is {now}")
            ends = [event for event in await service.events(child.ME, job.id) if event.after.terminal]
            if len(ends) != 1:
                raise Lost(f"job {job.id} has {len(ends)} ends")
        elif "resource" in each:
            fences = [holder.fence for holder in await service.resources.holders("default", each["resource"])]
            if fences != [each["fence"]]:
                raise Lost(f"{each['resource']} was held under {each['fence']}, and is held under {fences}")


async def _job(components: Components, job_id: str) -> Any:
    try:
        return await components.service.job(child.ME, job_id)
    except RowMissing:
        raise Lost(f"job {job_id} is gone") from None


def check_plane(image: Path, said: Sequence[Said], *, leases: bool = True) -> None:
    """The plane in one file, opened as it is opened every day."""
    if not said:
        return  # there may be nothing at all yet

    async def look() -> None:
        async with open_components(Settings(database=f"sqlite:///{image / PLANE}")) as components:
            await check_jobs(components, said)

    try:
        asyncio.run(look())
        if leases:
            check_leases(image / PLANE, said)
        check_sound(image / PLANE)
    except (HoldfastError, sqlite3.Error) as error:
        raise Lost(f"{type(error).__name__}: {error}") from error


async def check_ends(chosen: Settings, said: Sequence[Said], limit_s: float = 60.0) -> None:
    """Every acknowledged job ends exactly once after the plane is started again."""
    submitted = {each["submitted"]: each["number"] for each in said if "submitted" in each}
    cancelled = {each["cancelling"] for each in said if "cancelling" in each}
    async with asyncio.timeout(limit_s), Plane(chosen, child.OWN, app=child.app) as plane:
        for job_id, number in submitted.items():
            waits = number % 5 == 2 and job_id not in cancelled
            job = await _job(plane.components, job_id)
            while not (job.state.terminal or waits):
                await asyncio.sleep(0.01)  # between two looks at a database
                job = await _job(plane.components, job_id)
            expected = {JobState.FAILED} if number % 7 == 3 else {JobState.SUCCEEDED}
            if number % 5 == 2:  # it may have been cancelled by a caller who did not hear of it
                expected = {JobState.CANCELLED} if not waits else {JobState.PENDING, JobState.CANCELLED}
            if job.state not in expected:
                raise Lost(f"job {job_id} (number {number}) is {job.state}")
            ends = [each for each in await plane.components.service.events(child.ME, job_id) if each.after.terminal]
            if len(ends) != int(job.state.terminal):
                raise Lost(f"job {job_id} has {len(ends)} ends")


# Files.


def check_files(folder: Path, said: Iterable[Said]) -> None:
    """The content is that of one fence, whole; nothing acknowledged is undone; older fences are refused."""
    spoken = list(said)
    wrote = max((each["wrote"] for each in spoken if "wrote" in each), default=0)
    entered = max((each["entered"] for each in spoken if "entered" in each), default=0)
    guarded = GuardedFiles(folder, key="file:{name}")
    seen = guarded.seen("a") or 0
    if seen < entered:
        raise Lost(f"fence {entered} was registered, and {seen} is remembered")
    data = guarded.enter(CarriedFence("file:a", seen + 1), "a")
    found = _content_fence(data)
    if found is None:
        allowed = {fence for fence in (0, wrote, wrote + 1) if fence % 5 == 0}
        found = max(allowed, default=-1)
    if not wrote <= found <= seen:
        raise Lost(f"fence {wrote} has written, {seen} is remembered, and the content is of {found}")


def _content_fence(data: bytes | None) -> int | None:
    if data is None:
        return None
    words = set(data.split())
    if len(words) != 1 or len(data.split()) != 2000:
        raise Lost("the content is torn")
    return int(words.pop())


def check_ledger(path: Path, said: Sequence[Said]) -> None:
    """Every record that was on the disk is there, in order; nothing is there that was never noted."""
    noted = max((each["noted"] for each in said), default=0)
    findings = Findings()
    try:
        fences = [record.fence for record in load(path, findings=findings)]
    except BadInput:  # no ledger, or no file in it
        fences = []
    missing = set(range(1, noted + 1)) - set(fences)
    if missing:
        raise Lost(f"{len(missing)} of {noted} records that were on the disk are gone: {findings.skipped[:3]}")
    if fences != sorted(set(fences), key=lambda fence: fence or 0):
        raise Lost(f"records are there twice, or out of order: {fences}")


def check_policy(path: Path, said: Sequence[Said]) -> None:
    """The file is whole, and has everything that was ever switched."""
    try:
        classes = tomllib.loads(path.read_text() if path.exists() else "").get("risk", {})
    except tomllib.TOMLDecodeError as error:
        raise Lost(f"the policy file is torn: {error}") from None
    missing = {each["switched"] for each in said} - classes.keys()
    if missing:
        raise Lost(f"{sorted(missing)} were switched, and are not any more")
