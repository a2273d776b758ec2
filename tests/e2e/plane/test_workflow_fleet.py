"""Workflows on a fleet: engines that are killed, frozen, replaced or cut off, and a store of leases that is away.

The tests share one fleet with two engines. Each leaves it as it found it: the way to Redis open, the classes as they
are built in; the checker looks at all that ever happened there. What an engine counts is read as a monitoring system
reads it, by scraping its process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from holdfast.plane.locks.registry import WORKFLOW_RUN
from holdfast.testing.proxy import FaultProxy
from support.fixtures.fleet import ON_SERVERS, skip_without_servers
from support.fleet.fleet import Process, Servers, started_servers, until
from support.fleet.flow_faults import kill_engines, replace_engines
from support.fleet.flow_fleet import FlowFleet, on_servers
from support.fleet.flow_runs import Orders, check, furnish
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables

pytestmark = pytest.mark.timeout(300)  # many processes, on machines that are busy

FALLBACKS = "holdfast_workflow_lock_fallback_total"
HELD_BACK = "holdfast_engine_held_back_total"
PUT_OFF = 'holdfast_run_lock_backend_errors_total{part="engine"}'

# Steps that need the engine only: schedulers and workers never act without their leases.
LIGHT = {
    "name": "light",
    "risk": "low",
    "steps": {
        "first": {"kind": "transform", "input": 1},
        "pause": {"delay": "100ms", "after": "first"},
        "last": {"kind": "transform", "after": "pause", "input": 2},
    },
}
MIXED = {
    "name": "mixed",
    "risk": "low",
    "steps": {
        "note": {"kind": "transform", "input": "noted"},
        "pay": {"topic": "flow.effect", "after": "note", "risk": "high"},
    },
}
HEAVY = {"name": "heavy", "risk": "high", "steps": {"first": {"kind": "transform", "input": 1}}}
GATED = {"name": "gated", "steps": {"agreed": {"message": "?"}, "done": {"topic": "flow.effect", "after": "agreed"}}}


@pytest.fixture(scope="module", params=[ON_SERVERS])
def shaken(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
) -> Iterator[FlowFleet]:
    """The fleet."""
    skip_without_servers(request.param)
    with (
        started_servers(_postgres_servers(postgres_executables()[-1])) as servers,
        on_servers(servers, tmp_path_factory.mktemp("shaken")) as made,
    ):
        furnish(made, LIGHT, MIXED, HEAVY, GATED)
        yield made


def servers_of(it: FlowFleet) -> Servers:
    """The servers, which the type does not promise."""
    assert it.servers is not None
    return it.servers


@contextmanager
def without_redis(it: FlowFleet) -> Iterator[None]:
    """No way to the leases, for the length of the block."""
    way = servers_of(it).way_to_redis
    way.refuse()
    way.reset()
    try:
        yield
    finally:
        way.refuse(False)


def becomes(it: FlowFleet, run: str, status: str) -> None:
    """Return when a run has this status."""
    until(lambda: it.run(run)["status"] == status, f"{run} to be {status}")


def steps(it: FlowFleet, run: str) -> dict[str, str]:
    """How the steps of a run are."""
    return {name: step["status"] for name, step in it.run(run)["steps"].items()}


@pytest.mark.requires("R46", "R47")
def test_engines_killed_in_the_middle_of_runs_are_followed_and_nothing_is_done_twice(shaken: FlowFleet) -> None:
    kill_engines(shaken, 2, 5, 8)


@pytest.mark.requires("R131")
def test_engines_replaced_one_after_the_other_drain_and_waste_nothing(shaken: FlowFleet) -> None:
    replace_engines(shaken, 2, 6)


@pytest.mark.requires("R80", "R90", "R91", "R92", "R97", "R100", "R101", "R104", "R105", "R107")
def test_without_redis_each_risk_class_does_what_its_policy_says_and_all_goes_on_when_it_is_back(
    shaken: FlowFleet,
) -> None:
    it = shaken
    ttl = it.settings.engine.run_ttl
    with Orders(it, 7) as orders:
        until(lambda: orders.over >= 1, "runs in the middle of everything")
        fallbacks, held_back = it.metrics(FALLBACKS), it.metrics(HELD_BACK)
        with without_redis(it):
            cut = time.monotonic()
            # fail_open, which `low` is: runs continue, and their steps of the class `high` do not begin.
            light, mixed, heavy = (it.start(name) for name in ("light", "mixed", "heavy"))
            becomes(it, light, "succeeded")
            until(lambda: it.metrics(HELD_BACK) > held_back, "a step to be held back")
            assert steps(it, mixed) == {"note": "succeeded", "pay": "pending"}
            assert {line["fence"] for line in it.timeline(light)} == {None}, "a fence without a lease"
            assert it.metrics(FALLBACKS) > fallbacks

            # fail_closed and wait, switched by command while it is away: nothing of the class moves any more.
            closed = [_put_off(it, mode) for mode in ("fail_closed", "wait")]
            assert {it.run(run)["status"] for run in (*closed, heavy)} == {"pending"}
            until(lambda: time.monotonic() > cut + 2 * ttl, "every lease to have run out")
        for run in (*closed, heavy, mixed):
            becomes(it, run, "succeeded")
    check(it, orders.wanted)
    assert dict(it.effects())[f"{mixed}:pay@1"] == 1
    it.switch("low", "fail_open")
    # The store is back: nothing falls back any more.
    fallbacks = it.metrics(FALLBACKS)
    becomes(it, it.start("light"), "succeeded")
    assert it.metrics(FALLBACKS) == fallbacks
    assert [change["after"] for change in it.policy_history("low")[:3]] == ["fail_open", "wait", "fail_closed"]


def _put_off(it: FlowFleet, mode: str) -> str:
    """Switch the class `low` while there are no leases, and see engines try a new run in vain. The run."""
    it.switch("low", mode)
    fallbacks, put_off = it.metrics(FALLBACKS), it.metrics(PUT_OFF)
    run = it.start("light")
    until(lambda: it.metrics(PUT_OFF) >= put_off + 4, "engines to try in vain")
    assert it.metrics(FALLBACKS) == fallbacks
    return run


@pytest.mark.requires("R90", "R93", "R98", "R102", "R105")
def test_an_engine_that_alone_cannot_reach_the_leases_does_nothing_twice(shaken: FlowFleet) -> None:
    it = shaken
    with FaultProxy(servers_of(it).redis.port) as way:
        lone = it.engine("--leases", f"redis://{way.address}").ready()
        way.refuse()
        way.reset()
        # Two replicas have the lock of a run, one has only its own: the second writer has read what the first wrote.
        with Orders(it, 7) as orders:
            until(lambda: it.metric(lone, FALLBACKS) > 10, "fallbacks")
        check(it, orders.wanted)
        assert it.metric(lone, 'holdfast_engine_events_total{event="JobEnded",outcome="applied"}') > 0
        assert it.metric(lone, 'holdfast_run_guard_steps_total{outcome="unfenced"}') > 0
        way.refuse(False)
        lone.terminate()
        it.gone(lone)


def holder(it: FlowFleet, run: str) -> Process | None:
    """The engine that holds the lock of a run, by its own word in Redis."""
    owner = str(servers_of(it).redis.cli("GET", WORKFLOW_RUN.key(run=run))).partition(" ")[0]
    return next((each for each in it.engines if f":{each.pid}/" in owner), None)


_WAITING = """
    SELECT pid FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND datname = current_database() AND query LIKE '%plane_run%'
"""


@pytest.mark.requires("R47", "R52", "R87")
def test_an_engine_that_stood_still_between_lock_and_write_is_overtaken_and_refused(shaken: FlowFleet) -> None:
    it = shaken
    abandoned = 'holdfast_run_lock_abandoned_total{part="engine"}'
    run = it.start("gated")
    becomes(it, run, "waiting")

    def stuck() -> bool:
        it.decide({run: "approve"})
        return bool(it.query(_WAITING)) and holder(it, run) is not None

    with psycopg.connect(it.settings.database_url, autocommit=True) as data:
        with data.transaction():
            data.execute("SELECT 1 FROM plane_run WHERE id = %s FOR UPDATE", (run,))
            until(stuck, "an engine that has the lock, and waits for the row")
            frozen = holder(it, run)
            assert frozen is not None
            counted = it.metric(frozen, abandoned)
            frozen.pause()
            # It has read nothing yet. What it said to the database is lost, so that its rows are not locked.
            for (pid,) in it.query(_WAITING):
                data.execute("SELECT pg_terminate_backend(%s)", (pid,))
        becomes(it, run, "succeeded")  # by another, after the lock has run out
        before = it.timeline(run)
        frozen.resume()
        until(lambda: it.metric(frozen, abandoned) > counted, "the late write to be refused")
    assert it.timeline(run) == before
    assert dict(it.effects())[f"{run}:done@1"] == 1
