"""OpenTelemetry from real processes: a collector gets what `/metrics` says, to the end, and may as well hang."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from holdfast.observe.metrics.table import TABLE, MetricKind
from holdfast.observe.otel import name_of
from support.cli.planes import SETTINGS, Up, furnish
from support.cli.sessions import Done, Shell, until
from support.servers.otlp_receiver import Collector, Export, Labels

OTEL = '\n[otel]\nendpoint = "{address}"\ninterval = 0.2\n'
NAMES = {each.name: name_of(each) for each in TABLE}
STEADY = {  # the gauges that are the same at two looks and between them; others tell of a moment
    "holdfast_part_running",
    "holdfast_draining",
    "holdfast_loop_interval_seconds",
    "holdfast_worker_capacity",
    "holdfast_store_breaker_open",
    "holdfast_policy_mode",
    "holdfast_policy_revision",
    "holdfast_policy_escalation_armed",
}

Values = dict[tuple[str, Labels], float]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def furnished(shell: Shell, collector: Collector) -> None:
    furnish(shell)
    (shell.directory / "holdfast.toml").write_text(SETTINGS + OTEL.format(address=collector.address))


def scraped(address: str) -> dict[str, Metric]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        return {each.name: each for each in text_string_to_metric_families(answer.read().decode())}


def numbers(found: dict[str, Metric]) -> Values:
    """Every sample, under the name that it has with OpenTelemetry; of histograms the buckets one by one."""
    values: Values = {}
    for metric in TABLE:
        family = found.get(metric.name.removesuffix("_total"))
        for each in () if family is None else family.samples:
            if not each.name.endswith("_created"):
                labels = tuple(sorted(each.labels.items()))
                values[each.name.replace(metric.name, NAMES[metric.name]), labels] = each.value
    return values


def received(export: Export) -> Values:
    """The same of an export."""
    values: Values = {}
    for (name, labels), each in export.points.items():
        if each.kind != "histogram":
            values[name, labels] = each.value
            continue
        point, passed = each.point, 0
        values[f"{name}_sum", labels] = point.sum
        values[f"{name}_count", labels] = point.count
        bounds = (*(f"{each:g}" for each in point.explicit_bounds), "+Inf")
        for bound, count in zip(bounds, point.bucket_counts, strict=True):
            passed += count
            values[f"{name}_bucket", tuple(sorted((*labels, ("le", bound))))] = passed
    return values


def test_a_collector_gets_what_a_scrape_says_and_the_last_word(
    shell: Shell, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "plane-of-a-test")
    furnished(shell, collector)
    up = Up(shell, "--otel")
    body = {"topic": "double", "payload": 21, "tenant": "secretive"}
    request = urllib.request.Request(
        f"{up.address}/api/v1/jobs", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        job = json.load(answer)["id"]
    until(
        lambda: collector.exports and collector.exports[-1].value("holdfast.worker.attempts", outcome="succeeded"),
        "its end",
    )
    before = numbers(scraped(up.address))
    export = collector.next()
    after, got = numbers(scraped(up.address)), received(export)
    missing = {name for name, _ in before} - {name for name, _ in got}
    assert not missing, "every metric that is scraped is sent"
    assert not {name for name, _ in got} - {name for name, _ in after}, "and no other"
    risen = {NAMES[each.name] for each in TABLE if each.kind is not MetricKind.GAUGE}
    steady = {NAMES[each] for each in STEADY}
    compared: Counter[str] = Counter()
    for key, value in before.items():
        name = key[0].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        if name in risen:
            assert value - 1e-9 <= got[key] <= after[key] + 1e-9, key
            compared["counts"] += value > 0  # those that are zero say little
        elif name in steady:
            assert got[key] == pytest.approx(value), key
            compared[name] += 1
    assert compared["counts"] > 50
    assert set(compared) == {"counts", *steady}
    assert export.value("holdfast.plane.jobs", state="RUNNING") is not None, (
        "the API's process tells of the whole plane"
    )
    assert export.resource["service.name"] == "plane-of-a-test"
    assert str(up.process.pid) in export.resource["service.instance.id"]
    assert up.end().code == 0
    assert collector.exports[-1].value("holdfast.draining") == 1, "what was counted to the end is sent"
    sent = b"".join(each.body for each in collector.exports)
    assert not [each for each in (job, "secretive", "holdfast:worker:job") if each.encode() in sent]


def test_a_worker_works_and_ends_although_the_collector_hangs(shell: Shell, collector: Collector) -> None:
    furnished(shell, collector)
    collector.answers.clear()
    log = shell.directory / "log"
    worker = shell.start_into(log, "worker", "works:app", "--otel", "--json", "--no-probe")
    until(lambda: collector.asked, "a request that hangs")
    until(lambda: '"event": "ready"' in log.read_text(), "a worker that takes jobs")
    worker.send_signal(signal.SIGTERM)
    done = shell.finish(worker)
    assert (done.code, collector.exports) == (0, [])
    events = Done(done.code, "", log.read_text()).events()
    assert events["ended"]["interrupted"] == 0
    assert "not taken within" in events["metrics could not be sent"]["holdfast"]["reason"]


def test_the_settings_say_where_metrics_go_without_passwords(shell: Shell) -> None:
    furnish(shell)
    env = {"HOLDFAST_OTEL_ENDPOINT": "https://me:hidden@collector:4318", "HOLDFAST_OTEL_INTERVAL": "15"}
    done = shell.run("up", "--otel", "--check", "--json", env=env)
    shown = done.json.get("settings", done.json)
    assert shown["otel.enabled"] == {"value": True, "from": "--otel"}
    assert shown["otel.interval"]["value"] == 15
    assert "hidden" not in done.out
    assert shell.run("up", "--check", env={"HOLDFAST_OTEL_ENDPOINT": "collector:4318"}).code == 64
