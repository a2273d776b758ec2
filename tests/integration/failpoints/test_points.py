"""The table of failpoints is the source's own, every point of it is reached, and what is armed does what it says."""

from __future__ import annotations

import ast
import asyncio
import re
import threading
import uuid
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import aio
from holdfast.core.failpoints import ARMED, POINTS, areach, armed, reach, recorded
from holdfast.errors import BadInput, LeaseLost
from holdfast.guards import CarriedFence
from holdfast.guards.files import GuardedFiles
from holdfast.guards.messages import Inbox, stamped
from holdfast.guards.records import SqliteRecord
from holdfast.plane.approvals.service import Approvals
from holdfast.plane.db.open import open_database
from holdfast.plane.schedules.store import Schedules
from holdfast.testing import faults
from support.fixtures.buses import Buses, Recorder, how, message, nothing_pending, on_nats
from support.fixtures.scheduling import Planes, holds
from support.source_tree import PACKAGE, ROOT, modules

HERE = "guard.noted"  # a point in ordinary code
AWAITED = "flow.acquire.ask"
LIMIT_S = 20.0

# Which test reaches which points. All of them together are all that there are.
BY_LEASES = {"flow.", "runtime.lost"}
BY_FILES = {"store.sqlite."}
BY_REDIS = {"store.redis."}
BY_ETCD = {"store.etcd."}
BY_POSTGRES_LEASES = {"store.postgres."}
BY_NATS_LEASES = {"store.nats.", "runtime.loop."}
BY_GUARDS = {"guard."}
BY_NATS = {"plane.nats.", "plane.outbox."}
BY_POSTGRES = {"plane.postgres."}
BY_LIVES = {
    "plane.sqlite.",
    "plane.job.",
    "plane.run.",
    "plane.heartbeat.",
    "plane.worker.",
    "plane.bus.",
    "plane.loop.",
}


BY_SCHEDULES = {"plane.schedule."}


def of(prefixes: set[str]) -> set[str]:
    return {name for name in POINTS if name.startswith(tuple(prefixes))}


def all_reached(points: list[str], prefixes: set[str]) -> None:
    hits = Counter(points)
    print(*(f"{hits[name]:5} {name}" for name in sorted(of(prefixes))), sep="\n")  # shown with -rP
    assert of(prefixes) - set(hits) == set()


# The table.


def calls() -> Counter[tuple[str, str]]:
    """Every point that the source names, and by which verb."""
    found: Counter[tuple[str, str]] = Counter()
    for path in modules():
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "reach(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"reach", "areach"}:
                assert isinstance(node.args[0], ast.Constant), f"{path}:{node.lineno} does not name its point"
                found[node.func.id, str(node.args[0].value)] += 1
    return found


def test_every_point_of_the_source_is_in_the_table_and_every_point_of_the_table_in_the_source() -> None:
    assert {(verb, point) for verb, point in calls()} == {
        ("areach" if point.awaited else "reach", point.name) for point in POINTS.values()
    }


def test_asynchronous_code_looks_whether_anything_is_armed_before_it_makes_a_coroutine() -> None:
    """Except where it has looked already, to do something else altogether."""
    unguarded = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in modules()
        for number, before, line in _pairs(path)
        if "await areach(" in line and "if ARMED:" not in before + line and _function(path, number) != "_watched"
    ]
    assert unguarded == []


def _pairs(path: Path) -> list[tuple[int, str, str]]:
    """Each line with the one before it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(number, before, line) for number, (before, line) in enumerate(pairwise(lines), 2)]


def _function(path: Path, line: int) -> str:
    """The name of the function that a line is in."""
    found = ""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            found = node.name
    return found


def test_each_point_says_what_is_true_there_in_one_line_of_the_documentation() -> None:
    page = (ROOT / "docs" / "failpoints.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z.]+)` \| (.+) \|$", page, re.MULTILINE))
    assert rows == {point.name: point.meaning for point in POINTS.values()}


def test_every_point_is_reached_by_a_test_that_says_so() -> None:
    named = BY_LEASES | BY_FILES | BY_REDIS | BY_ETCD | BY_NATS_LEASES | BY_GUARDS | BY_NATS | BY_POSTGRES | BY_LIVES
    named |= BY_POSTGRES_LEASES | BY_SCHEDULES
    assert of(named) == set(POINTS)


# What is armed.


def test_nothing_is_armed_and_nothing_is_remembered_outside_the_blocks() -> None:
    with armed(HERE, lambda: None), recorded() as points:
        reach(HERE)
    reach(HERE)
    assert points == [HERE]
    assert not ARMED


def test_an_act_is_called_each_time_or_only_the_time_that_was_asked_for() -> None:
    each, third = Counter[str](), Counter[str]()
    with armed(HERE, lambda: each.update("x")):
        for _ in range(4):
            reach(HERE)
    with armed(HERE, lambda: third.update("x"), hit=3):
        for number in range(5):
            reach(HERE)
            assert third["x"] == (number >= 2)
    assert each["x"] == 4


def test_records_of_blocks_inside_each_other_are_apart() -> None:
    with recorded() as outer:
        reach(HERE)
        with recorded() as inner:
            reach(HERE)
        with recorded() as other:
            pass
    assert (outer, inner, other) == ([HERE, HERE], [HERE], [])


@pytest.mark.parametrize(("point", "hit"), [("nowhere", None), ("", None), ("*", None), (HERE, 0), (HERE, -1)])
def test_what_cannot_be_armed_is_refused(point: str, hit: int | None) -> None:
    with pytest.raises(BadInput), armed(point, lambda: None, hit=hit):
        pass
    assert not ARMED


def test_a_point_that_nobody_declared_is_refused_as_soon_as_anything_is_armed() -> None:
    with armed(HERE, lambda: None), pytest.raises(BadInput, match="nowhere"):
        reach("nowhere")


def test_an_act_that_waits_is_refused_where_nobody_can_wait() -> None:
    with armed(HERE, lambda: asyncio.sleep(0)), pytest.raises(BadInput, match="ordinary code"):
        reach(HERE)


@pytest.mark.asyncio
async def test_faults_wait_in_the_colour_of_the_point() -> None:
    hold = faults.Hold()
    with armed(AWAITED, hold):
        task = asyncio.create_task(areach(AWAITED))
        assert await hold.areached(LIMIT_S)
        assert not task.done()
        hold.open()
        await task
        await areach(AWAITED)  # it is open for those who come later, too
    with armed(AWAITED, faults.delay(0.001)):
        await areach(AWAITED)
    with armed(AWAITED, faults.cancel()):
        task = asyncio.create_task(areach(AWAITED))
        await asyncio.wait([task])
    assert task.cancelled()
    with armed(AWAITED, faults.lose()), pytest.raises(faults.Lost):
        await areach(AWAITED)


def test_faults_block_where_the_code_does() -> None:
    hold = faults.Hold()
    with armed(HERE, hold):
        thread = threading.Thread(target=reach, args=(HERE,))
        thread.start()
        assert hold.reached(LIMIT_S)
        hold.open()
        thread.join(LIMIT_S)
    with armed(HERE, faults.delay(0.001)):
        reach(HERE)
    with armed(HERE, faults.fail(OSError("here"))), pytest.raises(OSError, match="here"):
        reach(HERE)
    with armed(HERE, faults.cancel()), pytest.raises(BadInput, match="no task"):
        reach(HERE)


def test_the_same_flow_meets_the_same_fault_in_blocking_code() -> None:
    with holdfast.connect("memory://") as locks, armed("flow.acquire.granted", faults.delay(0.001)):
        assert locks.lock("k", ttl=30).acquire().release()


# Every point is reached.


def test_every_point_of_leases_is_reached() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    policy = {"open": "fail_open"}
    with recorded() as points, holdfast.connect(url, policy=policy) as locks, holdfast.connect(url) as others:
        held = others.lock("k", ttl=30).acquire()
        waiter = threading.Thread(target=lambda: locks.lock("k", ttl=30).acquire().release())
        with (
            armed("flow.acquire.sleep", faults.Hold()) as _,
            armed("flow.acquire.sleep", lambda: held.release(), hit=1),
        ):
            waiter.start()
            waiter.join(LIMIT_S)
        with armed("flow.acquire.answered", faults.lose()), pytest.raises(holdfast.Timeout):
            locks.lock("k", ttl=30).acquire()
        lease = locks.lock("k", ttl=30).acquire(timeout=LIMIT_S)
        lease.renew()
        others.force_release("k", reason="to lose it")
        with pytest.raises(LeaseLost):
            lease.renew()
        with armed("flow.acquire.ask", faults.lose(), hit=1):
            degraded: Any = locks.lock("d", ttl=1, risk="open").acquire()
        while not degraded.guaranteed and degraded.held:
            threading.Event().wait(0.005)
        degraded.release()
    all_reached(points, BY_LEASES)


def test_every_point_of_the_lease_file_is_reached(tmp_path: Path) -> None:
    with recorded() as points, holdfast.connect(f"sqlite:///{tmp_path / 'leases.db'}") as locks:
        assert locks.lock("k", ttl=30).acquire().release()
    all_reached(points, BY_FILES)


@pytest.mark.asyncio
async def test_every_point_of_redis_is_reached(redis_url: str) -> None:
    with recorded() as points:
        with holdfast.connect(redis_url) as blocking:
            assert blocking.lock("k", ttl=30).acquire().release()
        async with aio.connect(redis_url) as locks:
            assert await (await locks.lock("k", ttl=30).acquire()).release()
    all_reached(points, BY_REDIS)


@pytest.mark.asyncio
async def test_every_point_of_etcd_is_reached(etcd_url: str) -> None:
    with recorded() as points:
        with holdfast.connect(etcd_url) as blocking:
            assert blocking.lock("k", ttl=30).acquire().release()
        async with aio.connect(etcd_url) as locks:
            assert await (await locks.lock("k", ttl=30).acquire()).release()
    all_reached(points, BY_ETCD)


@pytest.mark.asyncio
async def test_every_point_of_postgres_leases_is_reached(postgres_url: str) -> None:
    with recorded() as points:
        with holdfast.connect(postgres_url) as blocking:
            assert blocking.lock("k", ttl=30).acquire().release()
        async with aio.connect(postgres_url) as locks:
            assert await (await locks.lock("k", ttl=30).acquire()).release()
    all_reached(points, BY_POSTGRES_LEASES)


def test_every_point_of_nats_leases_is_reached(nats_leases: str) -> None:
    with recorded() as points, holdfast.connect(nats_leases) as locks:
        assert locks.lock("k", ttl=30).acquire().release()
    all_reached(points, BY_NATS_LEASES)


def test_every_point_of_guards_is_reached(tmp_path: Path) -> None:
    lease = CarriedFence("k", 7)
    with recorded() as points:
        with GuardedFiles(tmp_path).section(lease, "k") as file:
            file.replace(b"content")
        record = SqliteRecord(tmp_path / "fences.db")
        Inbox(record).admit(stamped(lease))
        record.close()
    all_reached(points, BY_GUARDS)


@pytest.mark.asyncio
async def test_every_point_of_postgres_is_reached(postgres_url: str) -> None:
    database = open_database(postgres_url)
    with recorded() as points:
        await database.write(lambda tx: tx.query("SELECT 1"))
        await database.close()
    all_reached(points, BY_POSTGRES)


@pytest.mark.asyncio
async def test_every_point_of_schedules_is_reached(sqlite_planes: Planes) -> None:
    plane = await sqlite_planes.open()
    approvals = Approvals(plane.database, plane.store, plane.locks)
    schedules = Schedules(plane.database, approvals, plane.clock)
    await schedules.prepare()
    with recorded() as points:
        assert await schedules.fire("default", "none") is None
    all_reached(points, BY_SCHEDULES)


@pytest.mark.asyncio
@on_nats
async def test_every_point_of_nats_and_of_the_outbox_is_reached(buses: Buses) -> None:
    with recorded() as points:
        bus, database = await buses.open()
        handler = Recorder()
        async with bus.consume(how(), handler):
            await database.write(lambda tx: bus.stage(tx, [message("1")]))
            await handler.until(1)

            async def forgotten() -> bool:
                return "plane.outbox.forgotten" in points and "plane.nats.acked" in points

            await holds(forgotten)
            await nothing_pending(bus)
    all_reached(points, BY_NATS)
