"""The thread that listens for the waiters of leases in Postgres. No server is needed."""

from __future__ import annotations

import gc
from typing import Any

from holdfast.stores.postgres.engine import open_engine
from holdfast.stores.postgres.listener import PostgresSubscription


def test_a_waiter_that_an_interrupt_has_lost_is_forgotten() -> None:
    engine: Any = open_engine("postgresql://alice@127.0.0.1:1/leases")
    listener = engine._listener
    lost, kept = PostgresSubscription(listener), PostgresSubscription(listener)
    for each in (lost, kept):
        assert listener.opened(each, lambda: None) is False
    del lost, each
    gc.collect()
    assert list(listener._subscriptions) == [kept.entry]
    engine.close()
    assert not listener._subscriptions
