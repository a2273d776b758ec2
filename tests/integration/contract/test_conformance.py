"""The kit x every engine x both colors, one case per sentence. A new engine is one line in ENGINES."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from holdfast.core.ports import Capabilities, Store
from holdfast.stores.redis import protocol
from holdfast.stores.registry import open_engine
from holdfast.testing.conformance import AsyncioWorld, BlockingWorld, Check, checks_for, run_check
from holdfast.types import Guarantee
from support.servers.etcd import etcd_executables, start_etcd
from support.servers.nats import NatsExecutable, NatsServer, nats_executables, own_bucket
from support.servers.postgres import PostgresExecutable, PostgresServer, postgres_executables
from support.servers.redis import RedisExecutable, redis_executables, start_redis
from support.servers.redis_cluster import RedisClusterServers, start_cluster
from support.servers.sentinel import SentinelDeployment, start_sentinels


@dataclass(frozen=True)
class Subject:
    """An engine under test: how to find its URL, and what it claims, which is compared with what it says itself."""

    name: str
    url: Callable[[pytest.FixtureRequest], str]
    claims: Capabilities
    server: bool = False


def _claims(engine: str, *, durable: bool, shared: bool, many: bool = True, fair: bool = True) -> Capabilities:
    return Capabilities(engine, Guarantee.FENCED, wakeups=True, fair=fair, durable=durable, shared=shared, many=many)


def _memory(_request: pytest.FixtureRequest) -> str:
    return f"memory://{uuid.uuid4().hex}"


def _file(request: pytest.FixtureRequest) -> str:
    path: Path = request.getfixturevalue("tmp_path")
    return f"sqlite:///{path}/leases.db"


def _redis(executable: RedisExecutable) -> Callable[[pytest.FixtureRequest], str]:
    def url(request: pytest.FixtureRequest) -> str:
        started: dict[str, str] = request.getfixturevalue("redis_urls")
        return started[executable.path]

    return url


def _etcd(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("etcd_for_all")
    return url


def _sentinel(request: pytest.FixtureRequest) -> str:
    deployment: SentinelDeployment = request.getfixturevalue("sentinel_deployment")
    return deployment.url


def _cluster(request: pytest.FixtureRequest) -> str:
    cluster: RedisClusterServers = request.getfixturevalue("redis_cluster")
    return cluster.url


def _nats(executable: NatsExecutable) -> Callable[[pytest.FixtureRequest], str]:
    def url(request: pytest.FixtureRequest) -> str:
        server: Callable[[NatsExecutable], NatsServer] = request.getfixturevalue("nats_servers")
        return own_bucket(server(executable))

    return url


def _postgres(executable: PostgresExecutable) -> Callable[[pytest.FixtureRequest], str]:
    def url(request: pytest.FixtureRequest) -> str:
        started: Callable[[PostgresExecutable], str] = request.getfixturevalue("postgres_urls")
        return started(executable)

    return url


ENGINES = [
    Subject("memory", _memory, _claims("memory", durable=False, shared=False)),
    Subject("sqlite", _file, _claims("sqlite", durable=True, shared=True)),
    *(
        Subject(str(executable), _redis(executable), _claims("redis", durable=False, shared=True), server=True)
        for executable in redis_executables()
    ),
    *(
        Subject(str(executable), _etcd, _claims("etcd", durable=True, shared=True, many=False), server=True)
        for executable in etcd_executables()
    ),
    *(
        Subject(f"sentinel-of-{executable}", _sentinel, _claims("redis", durable=False, shared=True), server=True)
        for executable in redis_executables()[-1:]
    ),
    *(
        Subject(f"cluster-of-{executable}", _cluster, _claims("redis", durable=False, shared=True), server=True)
        for executable in redis_executables()[-1:]
    ),
    *(
        Subject(str(each), _nats(each), _claims("nats", durable=True, shared=True, fair=False), server=True)
        for each in nats_executables()
    ),
    *(
        Subject(str(executable), _postgres(executable), _claims("postgres", durable=True, shared=True), server=True)
        for executable in postgres_executables()
    ),
]


@pytest.fixture(scope="session")
def redis_urls() -> Iterator[dict[str, str]]:
    """Every Redis of this machine, running, for all cases of this worker: each case has keys of its own."""
    with ExitStack() as servers:
        yield {each.path: servers.enter_context(start_redis(each)).url for each in redis_executables()}


@pytest.fixture(scope="session")
def etcd_for_all() -> Iterator[str]:
    """An etcd, running, for all cases of this worker: each case has keys of its own."""
    with start_etcd(etcd_executables()[0]) as server:
        yield server.url


@pytest.fixture(scope="session")
def sentinel_deployment() -> Iterator[SentinelDeployment]:
    """A primary behind Sentinels for all cases of this worker."""
    with start_sentinels(redis_executables()[-1]) as deployment:
        yield deployment


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisClusterServers]:
    """A cluster of three primaries for all cases of this worker."""
    with start_cluster(redis_executables()[-1]) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_urls(
    _postgres_servers: Callable[[PostgresExecutable], PostgresServer],
) -> Iterator[Callable[[PostgresExecutable], str]]:
    """Every Postgres of this machine, each with one database for all cases of this worker."""
    with ExitStack() as databases:

        @cache
        def url(executable: PostgresExecutable) -> str:
            return databases.enter_context(_postgres_servers(executable).database())

        yield url


@pytest.fixture(autouse=True)
def only_text_is_packed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No number reaches hiredis, in any command of any check: it may crash when a signal handler raises meanwhile."""
    others: set[object] = set()
    pack = protocol._pack

    def spy(words: tuple[protocol.Word, ...]) -> bytes:
        others.update(word for word in words if type(word) not in (str, bytes))
        return pack(words)

    monkeypatch.setattr(protocol, "_pack", spy)
    yield
    assert not others


_HERE = "tests/integration/contract/test_conformance.py::test_the_store_keeps_its_contract"


def _marks(subject: Subject, check: Check | None = None) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.server] if subject.server else []
    if check is not None and check.proves:
        marks.append(pytest.mark.requires(*check.proves, by=f"{_HERE}[{check.name.replace(' ', '_')}]"))
    return marks


@pytest.mark.parametrize(
    ("subject", "check", "colour"),
    [
        pytest.param(
            subject,
            check,
            colour,
            marks=_marks(subject, check),
            id=f"{subject.name}-{colour}-{check}".replace(" ", "_"),
        )
        for subject in ENGINES
        for check in checks_for(subject.claims)
        for colour in ("blocking", "asyncio")
    ],
)
def test_the_store_keeps_its_contract(
    subject: Subject,
    check: Check,
    colour: str,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    url = subject.url(request)
    if subject.server:
        record_property("server", subject.name)

    def opener() -> Store:
        engine = open_engine(url)
        return engine.asynchronous() if colour == "asyncio" else engine.blocking

    world_class = AsyncioWorld if colour == "asyncio" else BlockingWorld
    run_check(check, world_class(opener, elsewhere=url))


@pytest.mark.parametrize("subject", [pytest.param(each, id=each.name, marks=_marks(each)) for each in ENGINES])
def test_an_engine_claims_what_is_checked_here(subject: Subject, request: pytest.FixtureRequest) -> None:
    engine = open_engine(subject.url(request))
    assert engine.capabilities == subject.claims
    assert engine.blocking.capabilities == subject.claims
    assert engine.blocking is engine.blocking

    async def on_a_loop() -> Capabilities:
        store = engine.asynchronous()
        await store.close()
        return store.capabilities

    assert asyncio.run(on_a_loop()) == subject.claims
