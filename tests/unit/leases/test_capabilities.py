"""A lock asks of a store only what the store says it can do."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.core.ports import Capabilities
from holdfast.errors import BadInput, Misconfigured
from holdfast.leases.lock_spec import describe
from holdfast.types import Guarantee

PLAIN = Capabilities(
    "plain", Guarantee.EFFICIENCY_ONLY, wakeups=False, fair=False, durable=False, shared=True, renewal=False
)


@pytest.mark.requires("R16")
def test_a_store_that_cannot_renew_is_not_asked_to() -> None:
    timing = describe("k", None, {"ttl": 10}, "me", PLAIN).timing
    assert not timing.auto_renew
    assert timing.loss_age_ns() == timing.valid_ns()  # it is not renewed, so its whole validity may be used


def test_a_store_without_a_queue_refuses_fair_locks_by_name() -> None:
    with pytest.raises(Misconfigured, match="fair: plain keeps no queue"):
        describe("k", None, {"ttl": 10, "fair": True}, "me", PLAIN)


def test_a_lock_that_demands_more_than_the_store_promises_is_refused() -> None:
    with pytest.raises(Misconfigured, match="plain promises efficiency_only, and fenced is demanded"):
        describe("k", None, {"ttl": 10, "guarantee": "fenced"}, "me", PLAIN)


def test_connect_refuses_a_guarantee_that_does_not_exist() -> None:
    for connect in (holdfast.connect, holdfast.aio.connect):
        with pytest.raises(BadInput, match="guarantee: 'best' is unknown; use one of"):
            connect("memory://", guarantee="best")


def test_locks_have_the_guarantee_of_connect_unless_they_name_another() -> None:
    with holdfast.connect("memory://", guarantee="fenced") as locks:
        assert locks.lock("k")._spec.guarantee is Guarantee.FENCED
        assert locks.lock("k", guarantee="efficiency_only")._spec.guarantee is Guarantee.EFFICIENCY_ONLY
        locks.lock("k").acquire().release()
