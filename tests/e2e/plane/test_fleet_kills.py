"""A whole fleet whose schedulers and API are killed, or frozen, in the middle of what they do, under load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from holdfast.plane.locks import registry as families
from holdfast.testing.proxy import FaultProxy
from holdfast.types import NS
from support.fleet.fleet import Fleet, Process, Run, Servers, fleet, on_the_fleet, until
from support.fleet.fleet_checker import check, check_takeover, promised, undisturbed_ns
from support.fleet.fleet_load import Client, Load

DECIDING = "a job that a scheduler was deciding"
STANDSTILL = "rows that a stopped process had locked"
STAGED = "a message that was stored in the outbox and not sent"


@contextmanager
def held_row(it: Fleet, job: str) -> Iterator[None]:
    """Block all writes to a job: a writer waits, and holds the lock of the job meanwhile."""
    with it.sql() as connection, connection.transaction():
        connection.execute("SELECT 1 FROM plane_job WHERE id = %s FOR UPDATE", (job,))
        yield


def scheduler_of(it: Fleet, job: str) -> Process:
    """The process that holds the lock of a job, by its own word in Redis."""
    key = families.SCHEDULER_JOB.key(job=job)
    found: list[Process] = []

    def held() -> bool:
        owner = str(it.servers.redis.cli("GET", key)).partition(" ")[0]  # plane@host:pid/instance
        found[:] = [each for each in it.planes if f":{each.pid}/" in owner]
        return bool(found)

    until(held, f"a scheduler that lives to hold the lock of {job}")
    return found[0]


def waiting(it: Fleet) -> set[int]:
    """The sessions that wait for something which a session of the test keeps. Those of killed processes wait on."""
    statement = """
        SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pg_blocking_pids(pid) && (
            SELECT array_agg(pid) FROM pg_stat_activity WHERE application_name = 'fleet test')
    """
    return {pid for (pid,) in it.query(statement)}


@on_the_fleet
@pytest.mark.timeout(300)
@pytest.mark.requires("R121", "R130", "R131")
def test_schedulers_killed_and_frozen_in_the_middle_of_a_decision_are_followed_within_the_promise(
    fleet_servers: Servers, tmp_path: Path
) -> None:
    with (
        fleet(fleet_servers, tmp_path, planes=2, workers=3) as it,
        FaultProxy(fleet_servers.nats.port) as way,
        Client(it) as client,
    ):
        # One of three is reached through a way that can be cut, so that it can be stopped between commit and publish.
        third = it.plane("--bus", it.bus.replace(str(fleet_servers.nats.port), str(way.port))).ready()
        with Load(it, "calm") as calm:
            until(lambda: len(calm.jobs) >= 20, "a quiet beginning")
        check(it, calm.jobs)
        calm_ns = undisturbed_ns(it, calm.jobs)
        with Load(it, "load") as load:
            staged = _kill_between_commit_and_publish(it, third, way)
            it.plane().ready()
            job = client.submit("decided", {"pause": True, "place": str(tmp_path)})
            run = it.at_the_door(job)
            it.wait_for_state(job, "RUNNING")
            frozen, frozen_ns = _stop_before_the_write(it, run, calm_ns)
            it.wait_for_state(job, "SUCCEEDED")
            frozen.resume()
        check(it, {*load.jobs, job})
        assert frozen.alive, "it was late, and goes on"
        ends = "SELECT job, at_ns FROM plane_event WHERE job = %s AND after = 'SUCCEEDED'"
        promise = max(promised(it, DECIDING), promised(it, STANDSTILL), key=lambda each: each.seconds)
        check_takeover(it, promise, frozen_ns, dict(it.query(ends, job)), calm_ns)
        began = "SELECT job, min(at_ns) FROM fleet_attempt WHERE job = ANY(%s) GROUP BY job"
        progress = dict(it.query(began, [*staged]))
        assert staged.keys() == progress.keys()
        check_takeover(it, promised(it, STAGED), min(staged.values()), progress, calm_ns)


def _kill_between_commit_and_publish(it: Fleet, victim: Process, way: FaultProxy) -> dict[str, int]:
    """Kill a scheduler that has written a state, and not yet sent what that tells. The jobs, and when they were."""
    way.stall("to_server")
    staged: dict[str, int] = {}

    def stuck() -> bool:
        late = "SELECT message_key, place FROM plane_outbox WHERE subject LIKE 'work.default.%%' AND place < %s"
        staged.update(it.query(late, it.now_ns() - NS // 2))
        return bool(staged)

    until(stuck, "a message that is staged and not sent")
    victim.kill()
    it.gone(victim)
    return staged


def _stop_before_the_write(it: Fleet, run: Run, calm_ns: int) -> tuple[Process, int]:
    """Kill a scheduler that has the lock of a job and waits for its row, and freeze the one that follows it there.

    The frozen one gets the row when it is free, and would keep it. Which one that is, and since when it could.
    """
    with held_row(it, run.job):
        it.go(run)
        killed = scheduler_of(it, run.job)
        until(lambda: waiting(it), "a scheduler in the middle of a decision")
        known = waiting(it)
        killed.kill()
        killed_ns = it.now_ns()
        it.gone(killed)
        frozen = scheduler_of(it, run.job)
        check_takeover(it, promised(it, DECIDING), killed_ns, {run.job: it.now_ns()}, calm_ns)
        until(lambda: waiting(it) - known, "the next one in the middle of the same decision")
        frozen.pause()
        frozen_ns = it.now_ns()
    return frozen, frozen_ns


class Caller(threading.Thread):
    """A client that submits a job once, and waits for a response that does not come."""

    def __init__(self, url: str, key: str) -> None:
        super().__init__()
        self._url = url
        self._key = key
        self.trouble: httpx.TransportError | None = None
        self.start()

    def run(self) -> None:
        """See `threading.Thread`."""
        wanted = {"topic": "effect", "payload": {}, "max_attempts": 20}
        where, headers = f"{self._url}/api/v1/jobs", {"idempotency-key": self._key}
        try:
            httpx.post(where, json=wanted, headers=headers, trust_env=False, timeout=60.0)
        except httpx.TransportError as error:
            self.trouble = error


@on_the_fleet
@pytest.mark.timeout(300)
@pytest.mark.requires("R131")
def test_an_api_killed_between_request_and_answer_gives_the_same_job_to_whoever_asks_again(
    fleet_servers: Servers, tmp_path: Path
) -> None:
    with fleet(fleet_servers, tmp_path, planes=1, workers=1) as it, Client(it) as client:
        assert it.api is not None
        # Before the commit: the request is being written.
        with it.sql() as connection, connection.transaction():
            connection.execute("LOCK TABLE plane_job IN EXCLUSIVE MODE")
            before = Caller(it.api.address, "before")
            until(lambda: waiting(it), "a request in the middle of its transaction")
            it.api.kill()
        api = it.open_api().ready()
        # After the commit: the job is there, and the answer is on its way.
        with FaultProxy(int(api.address.rpartition(":")[2])) as way:
            way.stall("to_client")
            after = Caller(f"http://127.0.0.1:{way.port}", "after")
            way.wait_held("to_client")
            [(first,)] = it.query("SELECT id FROM plane_job WHERE idempotency_key = 'after'")
            api.kill()
        it.open_api().ready()
        for each in (before, after):
            each.join()
            assert each.trouble is not None, "an answer came"
        jobs = {key: client.submit(key) for key in ("before", "after")}
        assert jobs["after"] == first
        assert {key: client.submit(key) for key in jobs} == jobs
        check(it, jobs.values())
        assert it.query("SELECT count(*) FROM plane_job") == [(2,)]


@on_the_fleet
@pytest.mark.timeout(300)
def test_two_apis_give_one_job_for_a_key_and_one_goes_on_when_the_other_is_killed(
    fleet_servers: Servers, tmp_path: Path
) -> None:
    with fleet(fleet_servers, tmp_path, planes=2, workers=2) as it, Client(it) as client:
        assert it.api is not None
        first, second = it.api, it.open_api().ready()

        def ask(api: Process, key: str) -> tuple[str, str]:
            wanted = {"topic": "effect", "payload": {}, "max_attempts": 20}
            headers = {"idempotency-key": key}
            answer = httpx.post(f"{api.address}/api/v1/jobs", json=wanted, headers=headers, trust_env=False, timeout=30)
            assert answer.status_code in (200, 201), answer.text
            return key, str(answer.json()["id"])

        keys = [f"both-{number}" for number in range(20)]
        with ThreadPoolExecutor(8) as pool:
            told = [pool.submit(ask, api, key) for key in keys for api in (first, second)]
        jobs = {each.result() for each in told}
        assert sorted(key for key, _ in jobs) == sorted(keys), "each key has one job, on any server"
        first.kill()
        jobs.add(("later", client.submit("later")))
        check(it, [job for _, job in jobs])
        assert it.query("SELECT count(*) FROM plane_job") == [(21,)]
