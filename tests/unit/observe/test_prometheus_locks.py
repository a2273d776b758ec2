"""The locks of an application among its own metrics: any store, any number of `Locks`, and no number twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast.core.histogram import LADDER_NS
from holdfast.core.tuning.fleet_burstiness import GROUPS
from holdfast.errors import BadInput
from holdfast.observe import prometheus
from holdfast.types import NS

FAMILY = "billing"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def scraped(registry: CollectorRegistry) -> Iterator[Any]:
    """Every sample, as Prometheus would read it."""
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        yield from family.samples


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"holdfast_{name}", labels)


@pytest.mark.requires("R32")
@pytest.mark.parametrize("url", ["memory://scraped", "sqlite:///{}/leases.db"])
def test_the_numbers_of_a_store_are_scraped(url: str, tmp_path: Path, registry: CollectorRegistry) -> None:
    check_scrape(url.format(tmp_path), registry)


@pytest.mark.requires("R32")
def test_the_numbers_of_a_redis_are_scraped(redis_url: str, registry: CollectorRegistry) -> None:
    check_scrape(redis_url, registry)


def check_scrape(locks_url: str, registry: CollectorRegistry) -> None:
    own = Counter("orders", "The application's own.", registry=registry)
    own.inc()
    with holdfast.connect(locks_url, policy={"money": "fail_closed"}) as locks, holdfast.connect(locks_url) as operator:
        prometheus.register(locks, families=["mail"], registry=registry)
        assert value(registry, "lock_not_owned_total", family="mail") == 0
        assert value(registry, "lock_fallback_total", family="mail", risk="money") == 0
        with locks.lock("a", ttl=0.6, family=FAMILY):
            assert locks.lock("a", ttl=30, family=FAMILY).try_acquire() is None
            assert value(registry, "locks_held", family=FAMILY) == 1
            until(lambda: (value(registry, "lock_renewed_total", family=FAMILY) or 0) >= 1)
        taken = locks.lock("b", ttl=30, family=FAMILY).acquire()
        operator.force_release("b", reason="drill")
        assert not taken.release()
        with operator.lock("c", ttl=30), pytest.raises(holdfast.AcquireTimeout):
            locks.lock("c", ttl=30, family=FAMILY).acquire(timeout=0.05)
    for outcome, number in (("granted", 2), ("busy", 2)):
        assert value(registry, "lock_wait_seconds_count", family=FAMILY, outcome=outcome) == number
        assert value(registry, "lock_wait_seconds_bucket", family=FAMILY, outcome=outcome, le="+Inf") == number
    assert value(registry, "lock_hold_seconds_count", family=FAMILY, outcome="released") == 2
    assert value(registry, "lock_not_owned_total", family=FAMILY) == 1
    assert (value(registry, "lock_busy_total", family=FAMILY) or 0) >= 1
    assert (value(registry, "lock_renew_remaining_seconds_count", family=FAMILY) or 0) >= 1
    assert (value(registry, "lock_renew_seconds_count", outcome="answered") or 0) >= 1
    assert value(registry, "lock_busy_fano", bucket="500ms") is not None
    groups = [value(registry, "lock_busy_groups_total", group=f"{group:02}") for group in range(GROUPS)]
    assert sum(each or 0 for each in groups) == value(registry, "lock_busy_total", family=FAMILY)
    assert value(registry, "locks_held", family=FAMILY) == 0, "a `Locks` that is closed can still be read"
    assert "orders_total" in {each.name for each in scraped(registry)}


def until(condition: Any) -> None:
    gate = threading.Event()
    for _ in range(4_000):
        if condition():
            return
        gate.wait(0.005)
    raise AssertionError("it did not come true")


def test_several_locks_are_added_up_and_each_number_is_there_once(registry: CollectorRegistry) -> None:
    with holdfast.connect("memory://") as one, holdfast.connect("memory://") as other:
        first = prometheus.register(one, registry=registry)
        prometheus.register(other, registry=registry)
        prometheus.register(other, families=["mail"], registry=registry)
        for locks in (one, other, other):
            with locks.lock("k", ttl=30, family=FAMILY):
                assert value(registry, "locks_held", family=FAMILY) == 1
        assert value(registry, "lock_granted_total", family=FAMILY) == 3
        assert value(registry, "lock_hold_seconds_count", family=FAMILY, outcome="released") == 3
        assert value(registry, "lock_granted_total", family="mail") == 0
        names = [(each.name, tuple(sorted(each.labels.items()))) for each in scraped(registry)]
        assert len(names) == len(set(names))

        first.end()
        first.end()
        with one.lock("k", ttl=30, family=FAMILY):
            assert value(registry, "locks_held", family=FAMILY) == 0, "it is read no more"
        assert value(registry, "lock_granted_total", family=FAMILY) == 3, "and what it had counted does not fall"
        prometheus.register(one, registry=registry)


def test_a_locks_that_comes_back_is_counted_from_what_it_has(registry: CollectorRegistry) -> None:
    with holdfast.connect("memory://") as locks:
        ended = prometheus.register(locks, registry=registry)
        with locks.lock("k", ttl=30):
            pass
        ended.end()
        assert value(registry, "lock_granted_total", family="default") == 1
        prometheus.register(locks, registry=registry)
        with locks.lock("k", ttl=30):
            pass
        assert value(registry, "lock_granted_total", family="default") == 2


def test_the_worst_of_several_is_shown_where_a_sum_would_say_nothing(registry: CollectorRegistry) -> None:
    with holdfast.connect("memory://") as one, holdfast.connect("memory://") as other:
        for each in (one, other):
            prometheus.register(each, registry=registry)
            each.manager.tail.observe(100_000_000)
        assert value(registry, "lock_renew_tail_seconds") == one.statistics().renew_tail


def test_buckets_are_the_ladder_in_both_formats(registry: CollectorRegistry) -> None:
    with holdfast.connect("memory://") as locks:
        prometheus.register(locks, registry=registry)
        with locks.lock("k", ttl=30):
            pass
        wait = [each for each in scraped(registry) if each.name == "holdfast_lock_wait_seconds_bucket"]
        assert [float(each.labels["le"]) for each in wait] == [*(bound / NS for bound in LADDER_NS), float("inf")]
        encode, content_type = choose_encoder("application/openmetrics-text")
        assert "openmetrics" in content_type
        assert encode(registry).endswith(b"# EOF\n")


def test_two_registries_do_not_know_of_each_other(registry: CollectorRegistry) -> None:
    second = CollectorRegistry()
    with holdfast.connect("memory://") as locks:
        prometheus.register(locks, registry=registry)
        assert value(second, "keeper_heartbeat_age_seconds") is None
        prometheus.register(locks, registry=second)
        assert value(second, "keeper_heartbeat_age_seconds") == 0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((object(), {}), "locks"),
        ((None, {"families": "billing"}), "families"),
        ((None, {"families": [""]}), "families"),
    ],
)
def test_bad_input_is_said_with_what_to_do(
    arguments: tuple[Any, dict[str, Any]], field: str, registry: CollectorRegistry
) -> None:
    given, options = arguments
    with holdfast.connect("memory://") as locks, pytest.raises(BadInput) as refused:
        prometheus.register(locks if given is None else given, registry=registry, **options)
    assert refused.value.field == field
    assert not list(scraped(registry)), "nothing is half registered"


@pytest.mark.requires("R0")
def test_another_prefix_names_the_metrics_and_does_not_mix_with_the_default_one(registry: CollectorRegistry) -> None:
    with holdfast.connect("memory://") as one, holdfast.connect("memory://") as two:
        prometheus.register(one, registry=registry, prefix="acme")
        prometheus.register(two, registry=registry)
        with one.lock("a", ttl=30, family=FAMILY):
            assert registry.get_sample_value("acme_locks_held", {"family": FAMILY}) == 1
            assert value(registry, "locks_held", family=FAMILY) is None
        assert registry.get_sample_value("acme_lock_hold_seconds_count", {"family": FAMILY, "outcome": "released"}) == 1
        with pytest.raises(BadInput, match="prefix: 'acme_' cannot begin"):
            prometheus.register(one, registry=registry, prefix="acme_")
