"""Sending metrics with OpenTelemetry: what arrives, under which name, and that a collector never delays a process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

from holdfast.cli.server import telemetry
from holdfast.core.histogram import LADDER_NS, Histogram
from holdfast.core.metric_reading import Reading
from holdfast.errors import BadInput, Misconfigured
from holdfast.observe.metrics.table import TABLE, MetricKind
from holdfast.observe.otel import exporters, name_of, push, unit_of
from holdfast.plane.settings.sections import OtelSettings
from holdfast.plane.settings.settings import Settings
from holdfast.types import NS
from support.cli.sessions import until
from support.servers.otlp_receiver import Collector, Export


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the environment of the tests, and no waiting for a collector that is away."""
    for name in [each for each in os.environ if each.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # exporters before 1.35 read whole seconds only


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def on(address: str) -> OtelSettings:
    return OtelSettings(enabled=True, endpoint=address)


def sent(collector: Collector, *readings: Reading) -> Export:
    with push.opened(on(collector.address)) as sending:
        assert sending is not None
        sending.send(readings)
    return collector.exports[-1]


def test_every_kind_of_metric_arrives_with_its_value_its_unit_and_its_attributes(collector: Collector) -> None:
    held = Histogram.of([3_000_000, 70 * NS, 2 * 3600 * NS])
    export = sent(
        collector,
        Reading("worker", {"taken": 7, "capacity": 4, "held_ns": {"mail": held}}),
        Reading("lock", {"held": 2, "granted": 9}, {"family": "billing"}),
        Reading("process", {"draining": True, "parts": {"api": True}}),
        Reading("http", {"answers": {("GET", 200): 3}}),
        Reading("http", {"answers": {("GET", 200): 4}}),
        Reading("database", {"busy": 5, "busy_ns": NS // 2}),
    )
    kinds = {name: point.kind for (name, _), point in export.points.items()}
    assert kinds["holdfast.worker.taken"] == "sum"
    assert kinds["holdfast.worker.capacity"] == "gauge"
    assert kinds["holdfast.locks.held"] == "updown"
    assert (export.value("holdfast.worker.taken"), export.value("holdfast.draining")) == (7, 1)
    assert export.value("holdfast.lock.granted", family="billing") == 9
    assert export.value("holdfast.http.requests", method="GET", status="200") == 7, "of two servers together"
    assert export.value("holdfast.database.busy") == 5
    assert export.value("holdfast.database.busy_seconds") == 0.5
    spread = export.points["holdfast.worker.hold", (("topic", "mail"),)]
    assert (spread.kind, spread.unit, spread.point.count) == ("histogram", "s", 3)
    assert list(spread.point.explicit_bounds) == [bound / NS for bound in LADDER_NS]
    assert list(spread.point.bucket_counts) == list(held.counts)
    assert spread.point.sum == pytest.approx(held.total_ns / NS)
    assert not spread.point.HasField("min"), "what is not known is not said"
    assert not spread.point.HasField("max")
    assert 0 < spread.point.start_time_unix_nano <= spread.point.time_unix_nano
    assert export.scope == "holdfast"


def test_names_of_the_whole_table_are_different_and_turn_back() -> None:
    """As Prometheus translates them: dots to underscores, the unit unless the name has it, then the kind."""
    assert len({name_of(each) for each in TABLE}) == len(TABLE)
    for metric in TABLE:
        back = name_of(metric).replace(".", "_")
        if unit_of(metric) == "s" and "seconds" not in back.split("_"):
            back += "_seconds"
        assert back + ("_total" if metric.kind is MetricKind.COUNTER else "") == metric.name


def test_the_resource_is_the_process_and_the_variables_have_the_last_word(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sent(collector).resource
    assert first["service.name"] == "holdfast"
    assert first["service.version"]
    assert sent(collector).resource["service.instance.id"] != first["service.instance.id"]
    monkeypatch.setenv("OTEL_SERVICE_NAME", "billing-plane")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-7,deployment.environment.name=test")
    told = sent(collector).resource
    assert (told["service.name"], told["service.instance.id"]) == ("billing-plane", "pod-7")
    assert told["deployment.environment.name"] == "test"


def test_address_and_headers_come_from_the_variables_of_the_sdk(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    with push.opened(OtelSettings(enabled=True)) as sending:
        assert sending is not None
        sending.send([])
    assert [each["x-key"] for each in collector.headers] == ["secret"]


def test_a_collector_that_refuses_is_told_of_once_and_once_when_it_is_back(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records]

    collector.status = 400
    with push.opened(on(collector.address)) as sending:
        assert sending is not None
        for number in range(1, 4):
            sending.send([])
            until(partial(_failed, sending, number), "an export in vain")
        (only,) = said()
        assert only.startswith("metrics could not be sent: exporter=otlp_proto_http reason=")
        assert "400" in only
        collector.status = 200
        sending.send([])
        until(lambda: exports(sending)["sent"] == 1, "an export")
    assert said()[1:] == ["metrics are sent again: exporter=otlp_proto_http failures=3"]


def test_a_missing_collector_costs_the_sender_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Collector() as gone:
        address = gone.address
    with push.opened(on(address)) as sending:
        assert sending is not None
        sending.send([])
        until(lambda: exports(sending)["failed"] == 1, "an export in vain")
    assert [each.getMessage().partition(" reason=")[0] for each in caplog.records] == [
        "metrics could not be sent: exporter=otlp_proto_http"
    ]


def test_a_collector_that_hangs_delays_no_caller_and_not_the_end(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")
    monkeypatch.setattr(push, "CLOSE_S", 0.05)
    collector.answers.clear()
    with push.opened(on(collector.address)) as sending:
        assert sending is not None
        sending.send([])
        until(lambda: collector.asked, "a request that hangs")
        for _ in range(50):
            sending.send([])
        assert exports(sending) == {"sent": 0, "failed": 0, "left_out": 48}, "two wait, and no more"
    assert not collector.exports, "it is over, and the collector hangs still"
    assert "not taken within 0.05 s at the end" in caplog.text


def test_the_last_moment_is_sent_at_the_end(collector: Collector) -> None:
    with push.opened(on(collector.address)) as sending:
        assert sending is not None
        sending.send([Reading("worker", {"taken": 1})])
        sending.send([Reading("worker", {"taken": 2})])
    sending.close()
    assert collector.exports[-1].value("holdfast.worker.taken") == 2


def _failed(sending: push.MetricPush, number: int) -> bool:
    return bool(exports(sending)["failed"] == number)


def exports(sending: push.MetricPush) -> Any:
    return sending.reading().values["exports"]


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_METRICS_EXPORTER", "none")], ids=["sdk", "exporter"]
)
def test_the_sdk_switched_off_sends_nothing(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with push.opened(OtelSettings(enabled=True)) as sending:
        assert sending is None


def test_nothing_is_sent_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    with telemetry.opened(Settings()) as sending:
        assert sending is None


def test_other_exporters_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console, otlp")
    made = exporters.exporters_of(OtelSettings(enabled=True))
    assert list(made) == ["console", "otlp_proto_http"]
    assert isinstance(made["console"], ConsoleMetricExporter)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke", "'smoke' is not known; use http/protobuf or grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta", "cumulativetodelta"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often", "'often' is no interval; give milliseconds"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0", "'0' is no interval"),
    ],
)
def test_variables_that_cannot_work_are_named(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadInput, match=said), push.opened(OtelSettings(enabled=True)):
        raise AssertionError("it was made")


def test_an_exporter_that_waits_to_be_asked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = metadata.EntryPoint("pull", "opentelemetry.sdk.metrics.export:InMemoryMetricReader", "x")
    monkeypatch.setattr(exporters, "entry_points", lambda **_: (reader,))
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "pull")
    with pytest.raises(BadInput, match="answered at /metrics anyway"):
        exporters.exporters_of(OtelSettings(enabled=True))


def test_an_exporter_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "entry_points", lambda **_: (metadata.EntryPoint("x", "holdfast:nothing", "x"),))
    with pytest.raises(BadInput, match=r"otlp_proto_http cannot be made: .*nothing.*; check the OTEL_\* variables"):
        exporters.exporters_of(OtelSettings(enabled=True))


@pytest.mark.parametrize(
    ("named", "install"),
    [
        ("otlp", r"pip install 'holdfast\[otlp\]'"),
        ("otlp_proto_grpc", "pip install opentelemetry-exporter-otlp-proto-grpc"),
        ("carrier-pigeon", "set OTEL_METRICS_EXPORTER=otlp"),
    ],
)
def test_an_exporter_that_is_not_installed_is_named_with_what_to_do(
    named: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "entry_points", lambda **_: ())
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", named)
    with pytest.raises(Misconfigured, match=install):
        exporters.exporters_of(OtelSettings(enabled=True))


def test_without_the_sdk_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.observe.otel.push")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics.export", None)
    with (
        pytest.raises(Misconfigured, match=r"pip install 'holdfast\[otlp\]'"),
        telemetry.opened(Settings(otel=OtelSettings(enabled=True))),
    ):
        raise AssertionError("it was made")


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://c:4318", "http://c:4318/v1/metrics"),
        ("http://c:4318/", "http://c:4318/v1/metrics"),
        ("https://c/otlp", "https://c/otlp/v1/metrics"),
        ("https://c/otlp/v1/metrics", "https://c/otlp/v1/metrics"),
    ],
)
def test_an_address_is_completed(given: str, used: str) -> None:
    (made,) = exporters.exporters_of(on(given)).values()
    assert made._endpoint == used  # type: ignore[attr-defined] # of the exporter, which does not tell
    made.shutdown()


def test_how_often_is_said_by_the_settings_then_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exporters.interval_of(OtelSettings()) == 60
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "15000")
    assert exporters.interval_of(OtelSettings()) == 15
    assert exporters.interval_of(OtelSettings(interval=5.0)) == 5


def test_the_exporters_own_log_goes_on_where_it_went(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    sent(collector)
    logging.getLogger("opentelemetry.exporter").warning("of other software")
    assert "of other software" in caplog.text
