"""One fleet, and what happens to fleets: a worker that stops and comes back, messages that come again, servers that go.

The tests of this file share one fleet, two replicas of each part, which none of them breaks; each begins when the one
before has settled, and the checker looks at everything that ever happened there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.guards.bearer import CarriedFence
from holdfast.plane.locks import registry as families
from holdfast.plane.model import messages as subjects
from holdfast.types import NS
from support.fixtures.fleet import ON_SERVERS, skip_without_servers
from support.fleet.fleet import Fleet, fleet, started_servers, until
from support.fleet.fleet_checker import check, check_takeover, on_the_bus, promised, undisturbed_ns
from support.fleet.fleet_load import Client, Load
from support.fleet.fleet_wire import Wire
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables

pytestmark = pytest.mark.timeout(300)  # many processes, on machines that are busy

KINDS = {"job.submit", "work", "job.started", "job.result", "job.cancel"}


@pytest.fixture(scope="module", params=[ON_SERVERS])
def it(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
) -> Iterator[Fleet]:
    """The fleet."""
    skip_without_servers(request.param)
    with (
        started_servers(_postgres_servers(postgres_executables()[-1])) as servers,
        fleet(servers, tmp_path_factory.mktemp("fleet")) as started,
    ):
        yield started


@pytest.fixture
def client(it: Fleet) -> Iterator[Client]:
    """A client that submits jobs."""
    with Client(it) as made:
        yield made


def paused(it: Fleet, client: Client, key: str) -> str:
    """A job that waits between its check and its write."""
    return client.submit(key, {"pause": True, "place": str(it.directory)})


@pytest.mark.requires("R131")
def test_a_worker_paused_between_its_check_and_its_write_is_overtaken_and_then_refused(
    it: Fleet, client: Client
) -> None:
    with Load(it, "calm") as calm:
        until(lambda: len(calm.jobs) >= 20, "a quiet beginning")
    check(it, calm.jobs)
    calm_ns = undisturbed_ns(it, calm.jobs)
    with Load(it, "pause", payload={"takes": 0.02}) as load, Wire(it) as wire:
        job = paused(it, client, "paused")
        first = it.at_the_door(job)
        it.wait_for_state(job, "RUNNING")
        stopped_ns = it.now_ns()
        first.process.pause()
        second = it.at_the_door(job, after=first)
        assert second.fence > first.fence
        assert second.process is not first.process

        # The word of the one who was overtaken, as if it had been under way all the time. Until the scheduler has heard
        # of the second, only the storage behind the guard can know that the first is late.
        until(lambda: it.run_fence(job) == second.fence, "the scheduler to hear of the second")
        run = CarriedFence(families.WORKER_JOB.key(job=job), first.fence)
        wire.say([subjects.finished(job, 1, "late", run, {"status": "succeeded", "result": "late"})])
        until(lambda: not any(".job.result" in name for name in on_the_bus(it)), "the late result to be handled")
        assert it.state(job) == "RUNNING"

        # It comes back where it stopped: it has checked, its successor has only looked, and now it writes.
        it.go(first)
        first.process.resume()
        until(lambda: it.query("SELECT 1 FROM fleet_refused WHERE job = %s", job), "the late write to be refused")
        assert it.query("SELECT 1 FROM fleet_effect WHERE job = %s", job) == []
        it.go(second)
        it.wait_for_state(job, "SUCCEEDED")
    check(it, {*load.jobs, job})
    [(result,)] = it.query("SELECT result FROM plane_job WHERE id = %s", job)
    assert it.run_fence(job) == second.fence
    assert str(second.fence) in result
    runs = dict(it.query("SELECT pid, min(at_ns) FROM fleet_attempt WHERE job = %s GROUP BY pid", job))
    promise = promised(it, "a job that a worker was running")
    check_takeover(it, promise, stopped_ns, {job: runs[second.process.pid]}, calm_ns)


@pytest.mark.requires("R131")
def test_messages_that_come_again_late_and_shuffled_change_nothing(it: Fleet, client: Client) -> None:
    with Wire(it, copies=2, delay_s=3.0, seed=7) as wire, Load(it, "copies", payload={"takes": 0.05}) as load:
        large = client.submit("large", {"fill": "x" * 999_900, "fill_result": 999_900})
        broken = [client.submit(f"fails-{n}", topic="fails", max_attempts=2) for n in range(2)]
        it.dead.update(broken)
        stopped = [paused(it, client, f"stopped-{n}") for n in range(2)]
        for job in stopped:
            it.at_the_door(job)
            client.cancel(job)
            it.wait_for_state(job, "CANCELLED")
            it.open_door(job)
        until(lambda: {*wire.said} >= KINDS and len(load.jobs) > 40, "copies of every kind")
    check(it, {*load.jobs, *broken, *stopped, large})
    assert {it.state(job) for job in broken} == {"FAILED"}
    assert {it.state(job) for job in stopped} == {"CANCELLED"}
    assert {it.state(job) for job in (*load.jobs, large)} == {"SUCCEEDED"}


def effects_between(it: Fleet, after_ns: int, before_ns: int) -> int:
    """How many effects there were in a time."""
    [(number,)] = it.query("SELECT count(*) FROM fleet_effect WHERE at_ns BETWEEN %s AND %s", after_ns, before_ns)
    return int(number)


@pytest.mark.requires("R131")
def test_without_redis_work_stops_and_goes_on_by_itself(it: Fleet) -> None:
    ttl_ns = round(max(it.settings.worker.lease_ttl, it.settings.scheduler.job_ttl) * NS)
    way = it.servers.way_to_redis
    with Load(it, "cut") as load:
        until(lambda: len(load.jobs) >= 20, "work")
        way.refuse()
        way.reset()
        cut_ns, known = it.now_ns(), len(load.jobs)
        until(lambda: it.now_ns() > cut_ns + 2 * ttl_ns, "every lease to run out, and as long again")
        back_ns = it.now_ns()
        # Without leases no worker may run a job, and none has to: accepted jobs are kept.
        assert effects_between(it, cut_ns + ttl_ns, back_ns) == 0
        assert len(load.jobs) > known, "submissions need no lease"
        way.refuse(False)
        until(lambda: effects_between(it, back_ns, it.now_ns()) > 20, "work to continue")
    check(it, load.jobs)
    assert {it.state(job) for job in load.jobs} == {"SUCCEEDED"}


@pytest.mark.requires("R131")
@pytest.mark.parametrize("how", ["flushed", "restarted"])
def test_a_redis_that_forgets_everything_gives_higher_fences_and_repeats_no_effect(
    it: Fleet, client: Client, how: str
) -> None:
    with Load(it, how) as load:
        jobs = [paused(it, client, f"{how}-{n}") for n in range(2)]
        before = [it.at_the_door(job) for job in jobs]
        if how == "flushed":
            it.servers.redis.cli("FLUSHALL")
        else:
            it.servers.redis.restart(empty=True)
        # The leases are gone from one moment to the next, while both are between check and write.
        after = [it.at_the_door(run.job, after=run) for run in before]
        for old, new in zip(before, after, strict=True):
            assert new.fence > old.fence, "a fence went back"
            it.go(old)
            until(lambda: it.query("SELECT 1 FROM fleet_refused WHERE fence = %s", old.fence), "a refusal")  # noqa: B023
            it.go(new)
            it.wait_for_state(new.job, "SUCCEEDED")
    check(it, {*load.jobs, *jobs})


@pytest.mark.requires("R131")
def test_a_bus_that_crashes_and_a_database_that_cuts_everybody_off_lose_and_repeat_nothing(it: Fleet) -> None:
    cut = """
        SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name <> 'fleet test'
    """
    with Load(it, "servers", payload={"takes": 0.02}) as load:

        def more(number: int, what: str) -> None:
            enough = len(load.jobs) + number
            until(lambda: len(load.jobs) >= enough, what)

        for end in (it.servers.nats.kill, it.servers.nats.stop):
            more(10, "work")
            end()
            more(5, "submissions without a bus")
            it.servers.nats.start()  # at the same port, with what it had stored
            for _ in range(3):
                assert it.query(cut)[0][0] > 0
                more(5, "submissions after a cut")
    check(it, load.jobs)
    assert {it.state(job) for job in load.jobs} == {"SUCCEEDED"}
