"""The blocking driver and the clock: a deadline that is over is over, wherever it is found out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.errors import Unavailable
from holdfast.stores.redis import sync_driver
from holdfast.stores.redis.sync_driver import Connection
from holdfast.stores.redis.url import parse_redis_url
from holdfast.types import MS, NS
from support.servers.scripted_redis import ScriptedRedis

NOW = 10**15


@pytest.mark.parametrize("late_ns", [0, MS // 2, MS, 3 * MS // 2, 2 * MS, NS])
def test_a_deadline_that_passed_while_connecting_is_no_wait_without_end(
    monkeypatch: pytest.MonkeyPatch, late_ns: int
) -> None:
    """By how much it was late must not be taken for a time limit that is set already."""
    connect = sync_driver._connect

    def slow(*words: object) -> object:
        clock.monotonic_ns = lambda: NOW + NS + late_ns
        return connect(address, NOW + 100 * NS)

    clock = SimpleNamespace(monotonic_ns=lambda: NOW)
    monkeypatch.setattr(sync_driver, "time", clock)
    monkeypatch.setattr(sync_driver, "_connect", slow)
    with ScriptedRedis(lambda _: None) as server:
        address = parse_redis_url(server.url)
        with pytest.raises(Unavailable, match="no time was left"):
            Connection(address, NOW + NS)
        assert server.heard == []
