"""OpenTelemetry: the numbers of the table arrive at a real SDK, under names that turn back into those of Prometheus."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import holdfast
from holdfast.core.histogram import LADDER_NS
from holdfast.errors import BadInput
from holdfast.observe import otel
from holdfast.observe.metrics.collect import SOURCES
from holdfast.observe.metrics.table import TABLE, MetricKind
from holdfast.types import NS


class Exported:
    """A meter provider of the SDK, and what its reader gets."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def metrics(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        scopes = [scope for each in (data.resource_metrics if data else ()) for scope in each.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        found = self.metrics().get(name)
        return (
            {} if found is None else {tuple(sorted(each.attributes.items())): each for each in found.data.data_points}
        )

    def value(self, name: str, **attributes: str) -> Any:
        return self.points(name)[tuple(sorted(attributes.items()))].value


@pytest.fixture
def exported() -> Iterator[Exported]:
    made = Exported()
    yield made
    made.provider.shutdown()


def test_counts_gauges_and_histograms_arrive(exported: Exported) -> None:
    with holdfast.connect("memory://") as locks:
        otel.instrument(locks, families=["mail"], meter_provider=exported.provider)
        with locks.lock("secret-key", ttl=30, family="billing") as lease:
            assert exported.value("holdfast.locks.held", family="billing") == 1
            token = lease._lease_record.token
        assert locks.lock("secret-key", ttl=30, family="billing").acquire().release()
        assert exported.value("holdfast.lock.granted", family="billing") == 2
        assert exported.value("holdfast.lock.granted", family="mail") == 0
        ((_, wait),) = exported.points("holdfast.lock.wait").items()
        assert dict(wait.attributes) == {"family": "billing", "outcome": "granted"}
        assert (wait.count, list(wait.explicit_bounds)) == (2, [bound / NS for bound in LADDER_NS])
        assert exported.metrics()["holdfast.lock.wait"].unit == "s"
        everything = repr(exported.metrics())
        assert "secret-key" not in everything
        assert token not in everything


def test_every_metric_of_a_program_has_an_instrument_whose_name_turns_back(exported: Exported) -> None:
    """As the translation from OpenTelemetry to Prometheus has it: dots to underscores, then the unit, then the kind."""
    with holdfast.connect("memory://") as locks:
        otel.instrument(locks, meter_provider=exported.provider)
    names = [otel.name_of(each) for each in TABLE if each.source in SOURCES]
    assert len(names) == len(set(names)) > 25
    for metric in TABLE:
        if metric.source not in SOURCES:
            continue
        name, unit = otel.name_of(metric), otel.unit_of(metric)
        assert re.fullmatch(r"holdfast(\.[a-z_]+)+", name)
        back = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
        assert back + ("_total" if metric.kind is MetricKind.COUNTER else "") == metric.name


def test_several_locks_are_added_up_until_they_end(exported: Exported, caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.connect("memory://") as one, holdfast.connect("memory://") as other:
        first = otel.instrument(one, meter_provider=exported.provider)
        otel.instrument(other, meter_provider=exported.provider)
        otel.instrument(other, meter_provider=exported.provider)
        for locks in (one, other):
            with locks.lock("k", ttl=30):
                pass
        assert exported.value("holdfast.lock.granted", family="default") == 2
        assert exported.points("holdfast.lock.hold")[("family", "default"), ("outcome", "released")].count == 2
        first.end()
        first.end()
        with one.lock("k", ttl=30):
            pass
        assert exported.value("holdfast.lock.granted", family="default") == 2
        assert exported.points("holdfast.lock.hold")[("family", "default"), ("outcome", "released")].count == 2
    assert not caplog.records, "the SDK has nothing to complain of, such as an instrument that was made twice"


def test_families_beyond_a_hundred_share_a_name(exported: Exported) -> None:
    with holdfast.connect("memory://") as locks:
        otel.instrument(locks, meter_provider=exported.provider)
        for number in range(120):
            locks.lock("k", ttl=30, family=f"f{number}").acquire().release()
        assert len(exported.points("holdfast.lock.wait")) == len(exported.points("holdfast.lock.granted")) == 101


@pytest.mark.asyncio
async def test_asyncio_locks_are_instrumented_alike(exported: Exported) -> None:
    async with holdfast.aio.connect("memory://") as locks:
        otel.instrument(locks, meter_provider=exported.provider)
        async with locks.lock("k", ttl=30):
            assert exported.value("holdfast.locks.held", family="default") == 1
        assert exported.value("holdfast.event.loop_lag") < 60  # and this asks the loop, which is blocked immediately
        threading.Event().wait(0.05)
        await asyncio.sleep(0)
        assert exported.value("holdfast.event.loop_lag") >= 0.05


def test_bad_input_is_said() -> None:
    with holdfast.connect("memory://") as locks:
        with pytest.raises(BadInput, match="meter_provider: str is not a meter provider"):
            otel.instrument(locks, meter_provider="global")  # type: ignore[arg-type] # what a caller without types does
        with pytest.raises(BadInput, match="locks: str is not a Locks"):
            otel.instrument("locks")  # type: ignore[arg-type] # likewise


def test_another_prefix_begins_the_names(exported: Exported) -> None:
    with holdfast.connect("memory://") as locks:
        otel.instrument(locks, meter_provider=exported.provider, prefix="my_team")
        assert locks.lock("a", ttl=30, family="billing").acquire().release()
        assert exported.value("my_team.lock.granted", family="billing") == 1
        assert exported.points("my_team.lock.wait")
        assert not [name for name in exported.metrics() if name.startswith("holdfast.")]
        with pytest.raises(BadInput, match="prefix: 'my-team' cannot begin"):
            otel.instrument(locks, meter_provider=exported.provider, prefix="my-team")
