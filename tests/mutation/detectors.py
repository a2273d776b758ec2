"""Detectors of mutants: simulated worlds, the conformance kits on real stores and guards, and ordinary tests."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import pytest

from holdfast.guards import conformance as guard_kit
from holdfast.leases.lease_base import HeldLease
from holdfast.stores.registry import open_engine
from holdfast.testing import conformance as store_kit
from holdfast.testing.sim.worlds.world import run_seed
from holdfast.testing.simulate import replay_command
from holdfast.types import MS, NS
from mutation.mutant import Components, Survived
from support.fixtures.buses import Buses
from support.fixtures.redis import play_blocking
from support.fixtures.scheduling import Planes
from support.fixtures.workflows import FlowStage
from support.guards.subjects_redis import StringSubject
from support.guards.subjects_sqlite import prepared
from support.harness.leases import Stage
from support.servers.etcd import EtcdCluster, etcd_executables, start_cluster, start_etcd
from support.servers.redis import RedisServer, redis_executables, start_redis

SEEDS_MAX = (
    320  # in a full campaign the unchanged code breaks no rule in any of them (tests/simulation/test_simulation.py)
)


@dataclass(frozen=True)
class Seed:
    """A simulated world: the checkers of its history must find one of these rules broken.

    The seed that finds it quickest is tried first, then the others: what a seed draws changes with the simulator.
    """

    server: ClassVar[bool] = False

    number: int
    rules: frozenset[str]
    text: str = ""  # what the violation must say, for rules that have several ways to be broken

    @property
    def who(self) -> str:
        """A world of the simulator."""
        return f"simulator, seed {self.number}"

    @property
    def sign(self) -> str:
        """The rules."""
        rules = " or ".join(sorted(self.rules, key=lambda rule: int(rule[1:])))
        return f"{rules}: {self.text}" if self.text else rules

    @property
    def claimant(self) -> str:
        """The test that runs the worlds without mutants."""
        return "tests/simulation/test_simulation.py::test_no_rule_is_broken_whatever_goes_wrong"

    def finds(self, seed: int) -> bool:
        """Whether one world shows it."""
        return any(each.rule in self.rules and self.text in each.text for each in run_seed(seed).violations)

    def detect(self, components: Components) -> None:
        """Try the best world, then the others."""
        for seed in dict.fromkeys((self.number, *range(SEEDS_MAX))):
            if self.finds(seed):
                return
        raise Survived(f"{self.sign} broken in none of {SEEDS_MAX} worlds; look at one: {replay_command(self.number)}")


def broken(number: int, *rules: str, text: str = "") -> Seed:
    """The simulator finds it by one of these rules, soonest in the world of this number."""
    return Seed(number, frozenset(rules), text)


@dataclass(frozen=True)
class Sentence:
    """A sentence of the contract of stores, tried on one of them."""

    server: ClassVar[bool] = False

    name: str
    says: str
    asynchronous: bool = False
    store: ClassVar[str] = "sqlite"

    @property
    def who(self) -> str:
        """The sentence and the store."""
        return f"contract of stores, on {self.store}: *{self.name}*"

    @property
    def sign(self) -> str:
        """What the kit says."""
        return self.says

    @property
    def claimant(self) -> str:
        """The test of the kit, with this check."""
        parameter = self.name.replace(" ", "_")
        return f"tests/integration/contract/test_conformance.py::test_the_store_keeps_its_contract[{parameter}]"

    def url(self, components: Components) -> str:
        """Where the store is."""
        return f"sqlite:///{components.folder}/leases.db"

    def detect(self, components: Components) -> None:
        """Run the one check."""
        url = self.url(components)
        check = next(each for each in store_kit.CHECKS if each.name == self.name)
        kind = store_kit.AsyncioWorld if self.asynchronous else store_kit.BlockingWorld
        world: store_kit.World = kind(partial(_opened, url, self.asynchronous), patience_ns=2 * NS)
        _expect(self.says, lambda: store_kit.run_check(check, world))


@dataclass(frozen=True)
class RedisSentence(Sentence):
    """The same, on a real Redis."""

    server: ClassVar[bool] = True
    store: ClassVar[str] = "redis"

    def url(self, components: Components) -> str:
        """Where the store is."""
        return components.redis_url()


@dataclass(frozen=True)
class PostgresSentence(Sentence):
    """The same, on a real Postgres."""

    server: ClassVar[bool] = True
    store: ClassVar[str] = "postgres"

    def url(self, components: Components) -> str:
        """Where the store is: a database without tables."""
        return str(components.fixture("newest_postgres_url"))


def _opened(url: str, asynchronous: bool) -> Any:
    engine = open_engine(url)
    return engine.asynchronous() if asynchronous else engine.blocking


@dataclass(frozen=True)
class GuardSentence:
    """A sentence of the contract of guards, tried on guarded rows of a SQLite file."""

    server: ClassVar[bool] = False
    guard: ClassVar[str] = "rows of SQLite"

    name: str
    says: str

    @property
    def who(self) -> str:
        """The sentence and the guard."""
        return f"contract of guards, on {self.guard}: *{self.name}*"

    @property
    def sign(self) -> str:
        """What the kit says."""
        return self.says

    @property
    def claimant(self) -> str:
        """The test of the kit."""
        return "tests/unit/guards/test_conformance.py::test_rows_of_a_sqlite_file_keep_the_contract"

    def factory(self, components: Components) -> Callable[[str], Any]:
        """Opens a resource."""
        return prepared(components.folder)

    def detect(self, components: Components) -> None:
        """Run the one check."""
        check = next(each for each in guard_kit.CHECKS if each.name == self.name)
        _expect(self.says, lambda: guard_kit.run_check(check, self.factory(components)))


@dataclass(frozen=True)
class RedisGuardSentence(GuardSentence):
    """The same, on guarded keys of a real Redis."""

    server: ClassVar[bool] = True
    guard: ClassVar[str] = "keys of Redis"

    @property
    def claimant(self) -> str:
        """The test of the kit on Redis."""
        return "tests/integration/guards/test_redis_conformance.py::test_guarded_keys_keep_the_contract"

    def factory(self, components: Components) -> Callable[[str], Any]:
        """Opens a resource."""
        return partial(StringSubject, components.redis_url().partition("?")[0])


@dataclass(frozen=True)
class Test:
    """An ordinary test of the suite, called with what it asks for: it must fail where it says so.

    `given` are the values of its parameters, where it is a test with several cases; a text that names an attribute of
    the test's own module stands for it.
    """

    __test__: ClassVar[bool] = False  # for pytest it is none
    server: ClassVar[bool] = False

    module: str
    name: str
    at: str  # a piece of the line of the test, or of the message, with which it must fail
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """The id of the test."""
        return f"`{self.claimant}`"

    @property
    def claimant(self) -> str:
        """The test itself."""
        return f"tests/{self.module.replace('.', '/')}.py::{self.name}"

    @property
    def sign(self) -> str:
        """The assertion."""
        return f"`{self.at}`"

    def detect(self, components: Components) -> None:
        """Call it on a stage of its own."""
        # A task that an earlier hunt left behind logs its traceback when it is collected; on Python 3.11 that breaks
        # the parser if it happens in the middle of an import.
        gc.collect()
        module = importlib.import_module(self.module)
        function = getattr(module, self.name)
        given = {name: getattr(module, str(value), value) for name, value in self.given.items()}
        wanted = [name for name in inspect.signature(function).parameters if name not in given]
        with pytest.MonkeyPatch.context() as patch:
            _expect(self.at, lambda: _call(function, given, wanted, components, patch), module.__file__)


class ServerTest(Test):
    """The same, with a real server."""

    server: ClassVar[bool] = True


def _call(
    function: Callable[..., Any],
    given: dict[str, Any],
    wanted: list[str],
    components: Components,
    patch: pytest.MonkeyPatch,
) -> None:
    if not inspect.iscoroutinefunction(function):
        with ExitStack() as servers:
            function(**given, **{name: _argument(name, components, servers) for name in wanted})
        return
    if set(wanted) & {"stage", "tasks"}:
        others = {name: components.fixture(name) for name in wanted if name not in {"stage", "tasks"}}
        _play(function, {**given, **others}, next(name for name in wanted if name not in others), patch)
        return

    async def run() -> None:
        async with AsyncExitStack() as stack:
            await function(**given, **{name: await _opened_for(name, components, stack) for name in wanted})

    asyncio.run(run())


def _own_redis(_: Components, servers: ExitStack) -> Callable[..., RedisServer]:
    return lambda **options: servers.enter_context(start_redis(redis_executables()[-1], **options))


def _own_cluster(servers: ExitStack, **options: Any) -> EtcdCluster:
    return servers.enter_context(start_cluster(etcd_executables()[0], **options))


_ARGUMENTS: dict[str, Callable[[Components, ExitStack], Any]] = {
    "tmp_path": lambda components, _: components.folder,
    "play": lambda _, __: play_blocking,
    "own_redis": _own_redis,
    "server": lambda components, servers: _own_redis(components, servers)(),
    "etcd_url": lambda _, servers: servers.enter_context(start_etcd(etcd_executables()[0])).url,
    "own_etcd": lambda _, servers: lambda: servers.enter_context(start_etcd(etcd_executables()[0])),
    "etcd_cluster": lambda _, servers: partial(_own_cluster, servers),
}


def _argument(name: str, components: Components, servers: ExitStack) -> Any:
    return _ARGUMENTS[name](components, servers) if name in _ARGUMENTS else components.fixture(name)


class _Hasty(Buses):
    """A test that fails leaves handlers behind; they are not waited for."""

    async def open(self, **options: Any) -> tuple[Any, Any]:
        return await super().open(**{"grace_ns": 50 * MS, **options})


async def _opened_for(name: str, components: Components, stack: AsyncExitStack) -> Any:
    """What a test of the plane asks for, on SQLite, and servers of its own: all of it is closed after the test."""
    database = f"sqlite:///{components.folder}/plane.db?synchronous=normal"
    if name == "buses":
        buses = _Hasty(database, None)
        stack.push_async_callback(buses.close)
        return buses
    if name == "flow_stage":
        return FlowStage(database, f"sqlite:///{components.folder}/leases.db", stack)
    if name in ("plane", "planes", "sqlite_planes"):
        planes = Planes(database, f"sqlite:///{components.folder}/leases.db")
        stack.push_async_callback(planes.close)
        return await planes.open() if name == "plane" else planes
    return _argument(name, components, stack.enter_context(ExitStack()))


def _play(
    function: Callable[..., Awaitable[None]], given: dict[str, Any], name: str, patch: pytest.MonkeyPatch
) -> None:
    """A scenario about leases, on the asyncio stage, as `tests/unit/leases/conftest.py` sets it."""
    stage = Stage("asyncio")
    begin = HeldLease.__init__

    def kept(lease: HeldLease, *args: Any, **kwargs: Any) -> None:
        begin(lease, *args, **kwargs)
        stage.leases.append(lease)

    patch.setattr(HeldLease, "__init__", kept)
    try:
        stage.play(function(**given, **{name: stage}))  # type: ignore[arg-type]  # an async def makes a coroutine
    finally:
        stage.tidy()


def _expect(sign: str, act: Callable[[], None], file: str | None = None) -> None:
    """It must fail, and show the sign: in the message, or in the line of the test that was reached."""
    try:
        act()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what `pytest.raises` raises when nothing was is no `Exception`
        lines = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if sign in str(error) or any(sign in line for line in lines):
            return
        where = f" at `{lines[-1]}`" if lines else ""
        raise Survived(f"found, but not by {sign!r}: {type(error).__name__}{where}: {error}") from error
    raise Survived(f"not found: {sign!r} holds all the same")
