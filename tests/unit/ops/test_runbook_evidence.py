"""How runbooks get at numbers, causes and places: from `/metrics`, a Prometheus, a ledger, and the settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

import holdfast.aio
from holdfast.core.history.events import EventKind, Record
from holdfast.errors import BadInput, Misconfigured
from holdfast.observe import prometheus
from holdfast.observe.ledger.codec import line
from holdfast.ops.runbooks import RUNBOOKS
from holdfast.ops.runbooks.evidence.ledger import Cause, cause_of, ledger_fact
from holdfast.ops.runbooks.evidence.locks import span
from holdfast.ops.runbooks.evidence.metrics import (
    Aggregation,
    MetricQuery,
    Samples,
    Scrape,
    ScrapedProcess,
    answer,
    quantile,
    queried,
    samples_of,
    vector_of,
)
from holdfast.ops.runbooks.model import EvidenceSource, NotGiven
from holdfast.ops.runbooks.sources import RunbookContext, RunbookOptions
from holdfast.plane.settings.settings import Settings
from holdfast.runtime.system import SystemClock
from holdfast.types import NS, LossReason
from support.ops.alert_plans import needs_promtool, promtool
from support.servers.prometheus import needs_prometheus, start_prometheus

TEXT = """
# TYPE holdfast_lock_busy_total counter
holdfast_lock_busy_total{family="a"} %d
holdfast_lock_busy_total{family="b"} 7
# TYPE holdfast_locks_held gauge
holdfast_locks_held{family="a"} 3
# TYPE holdfast_job_lock_wait histogram
holdfast_job_lock_wait_bucket{part="scheduler",le="0.5"} %d
holdfast_job_lock_wait_bucket{part="scheduler",le="1"} %d
holdfast_job_lock_wait_bucket{part="scheduler",le="+Inf"} %d
"""


def looked(first: str, last: str) -> ScrapedProcess:
    """Two looks at one process, two seconds apart."""
    return ScrapedProcess("h:1", Scrape(samples_of(first), 0), Scrape(samples_of(last), 2 * NS))


def test_rates_gauges_and_quantiles_come_from_two_looks() -> None:
    process = [looked(TEXT % (10, 100, 100, 100), TEXT % (14, 100, 104, 104))]
    assert answer(MetricQuery("busy", "holdfast_lock_busy_total", by=("family",)), process) == {"a": 2.0, "b": 0.0}
    assert answer(MetricQuery("busy", "holdfast_lock_busy_total", where=(("family", "a"),)), process) == {"": 2.0}
    assert answer(MetricQuery("held", "holdfast_locks_held", Aggregation.NOW, ("instance",)), process) == {"h:1": 3.0}
    waits = answer(MetricQuery("wait", "holdfast_job_lock_wait", Aggregation.P50, ("part",)), process)
    assert waits == {"scheduler": 0.75}  # of what came between the looks: all four took longer than 0.5 s
    assert answer(MetricQuery("missing", "holdfast_lock_forced_total"), process) is None


def test_a_process_that_was_restarted_counts_from_zero_and_a_quiet_one_from_its_start() -> None:
    restarted = [looked(TEXT % (10, 100, 100, 100), TEXT % (4, 0, 2, 2))]
    assert answer(MetricQuery("busy", "holdfast_lock_busy_total", where=(("family", "a"),)), restarted) == {"": 2.0}
    quiet = [looked(TEXT % (1, 10, 20, 20), TEXT % (1, 10, 20, 20))]
    assert answer(MetricQuery("wait", "holdfast_job_lock_wait", Aggregation.P50), quiet) == {"": 0.5}


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ({}, 0.5, None),
        ({1.0: 0, float("inf"): 0}, 0.5, None),
        ({1.0: 10, 2.0: 20, float("inf"): 20}, 0.5, 1.0),
        ({1.0: 10, 2.0: 20, float("inf"): 20}, 0.75, 1.5),
        ({1.0: 10, 2.0: 20, float("inf"): 40}, 0.99, 2.0),
    ],
)
def test_a_quantile_is_estimated_as_prometheus_does(
    buckets: Mapping[float, float], share: float, value: float | None
) -> None:
    assert quantile(buckets, share) == value


def test_what_is_not_metrics_is_said() -> None:
    with pytest.raises(Misconfigured, match="no page of metrics"):
        samples_of("<html>{")
    with pytest.raises(Misconfigured, match="not an answer of a Prometheus"):
        vector_of("<html>", MetricQuery("x", "x"))
    nan = {"data": {"result": [{"metric": {"family": "a"}, "value": [0, "NaN"]}]}}
    assert vector_of(json.dumps(nan), MetricQuery("x", "x", by=("family",))) == {}
    assert vector_of('{"data": {"result": []}}', MetricQuery("x", "x")) is None


@needs_promtool
def test_every_query_is_one_that_a_prometheus_understands(tmp_path: Path) -> None:
    queries = {query.promql for book in RUNBOOKS.values() for step in book.steps for query in step.queries}
    rules = [{"record": f"asked:{number}", "expr": query} for number, query in enumerate(sorted(queries))]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))


@needs_prometheus
@pytest.mark.asyncio
async def test_a_real_prometheus_is_asked(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    async with holdfast.aio.connect(f"sqlite:///{tmp_path / 'leases.db'}") as locks:
        registration = prometheus.register(locks, families=("scheduler.job",), registry=registry)
        server, thread = start_http_server(0, "127.0.0.1", registry=registry)
        try:
            async with locks.lock("job:1", ttl=30, family="scheduler.job"):
                place = f"127.0.0.1:{server.server_port}"
                with start_prometheus(tmp_path, [place], scrape_interval="200ms") as asked:
                    asked.wait_for("holdfast_locks_held", lambda points: points[0].value == 1)
                    held = MetricQuery("held", "holdfast_locks_held", Aggregation.NOW, ("family",))
                    missing = MetricQuery("missing", "holdfast_never_total")
                    fact = await queried(asked.url, (held, missing), limit_ns=20 * NS)
        finally:
            registration.end()
            server.shutdown()
            server.server_close()
            thread.join()
    assert fact.get("held", "scheduler.job") == 1.0
    assert fact.total("missing") is None
    assert fact.long
    assert fact.lines()[0] == "rates over 5 min, from a Prometheus"


RENEWED = {"unrenewed_ns": 26 * NS, "allowed_ns": 26 * NS, "renew_every_ns": 10 * NS, "renewals": []}
SENT = [{"ago_ns": 10 * NS, "took_ns": 2 * NS, "answered": False}]


@pytest.mark.requires("R25")
@pytest.mark.parametrize(
    ("reason", "known", "cause"),
    [
        (LossReason.EXPIRED, {**RENEWED, "unrenewed_ns": 40 * NS, "renewals": SENT}, Cause.PAUSE),
        (LossReason.EXPIRED, {**RENEWED, "suspended_ns": NS}, Cause.PAUSE),
        (LossReason.UNCONFIRMED, {**RENEWED, "keeper_lag_ns": NS, "renewals": SENT}, Cause.PAUSE),
        (LossReason.UNCONFIRMED, RENEWED, Cause.PAUSE),
        (LossReason.UNCONFIRMED, {**RENEWED, "renewals": SENT}, Cause.NETWORK),
        (LossReason.EXPIRED, {"unrenewed_ns": 30 * NS, "allowed_ns": 30 * NS}, Cause.OUTLIVED),
        (LossReason.MAX_HOLD, RENEWED, Cause.OUTLIVED),
        (LossReason.STALLED, {}, Cause.OUTLIVED),
        (LossReason.STOLEN, RENEWED, Cause.TAKEN),
        (LossReason.STOLEN, {}, Cause.TAKEN),
        (LossReason.STOLEN, {**RENEWED, "unrenewed_ns": 40 * NS}, Cause.PAUSE),
        (LossReason.EXPIRED, {**RENEWED, "stepped_ns": 20 * NS}, Cause.CLOCK),
        (LossReason.REVOKED, RENEWED, Cause.OTHER),
        (None, {}, Cause.OTHER),
        (LossReason.EXPIRED, {"unrenewed_ns": "soon", "renewals": 7}, Cause.OTHER),
    ],
)
def test_the_autopsy_of_a_loss_tells_the_causes_apart(reason: str | None, known: dict[str, Any], cause: Cause) -> None:
    assert cause_of(reason, known) is cause


def test_a_ledger_is_read_for_the_last_while_of_all_keys_and_as_a_whole_of_one(tmp_path: Path) -> None:
    now, clock = SystemClock().now().wall, SystemClock()

    def seen(kind: EventKind, ago: float, key: str, fence: int, **more: Any) -> Record:
        at_ns = now - round(ago * NS)
        return Record(kind, at_ns, key, "f", "o@h:1/x", fence=fence, began_ns=at_ns - 1, **more)

    records = [
        seen(EventKind.GRANTED, 7200, "k", 9),
        seen(EventKind.GRANTED, 60, "k", 5),
        seen(EventKind.RELEASE_REFUSED, 50, "k", 5, ok=False),
        seen(EventKind.GRANTED, 40, "other", 6),
        seen(EventKind.LOST, 30, "other", 6, reason="expired", ok=False),
        seen(EventKind.RELEASE_REFUSED, 20, "other", 6, ok=False),
    ]
    (tmp_path / "h-1-0.000001.jsonl").write_bytes(b"".join(map(line, records)) + b"torn")
    lately = ledger_fact(str(tmp_path), clock, 900.0)
    assert (lately.records, lately.count(EventKind.GRANTED), lately.damaged) == (5, 2, 1)
    assert [(each.key, each.cause) for each in lately.losses] == [("other", Cause.OTHER), ("k", Cause.TAKEN)]
    assert lately.violations == ()
    whole = ledger_fact(str(tmp_path), clock, 900.0, frozenset({"k"}))
    assert whole.violations[0].startswith("C2 k:")
    with pytest.raises(NotGiven, match="there is no ledger"):
        ledger_fact(str(tmp_path / "gone"), clock, 900.0)


SETTINGS = Settings(database="sqlite:///plane.db", leases="redis://:hush@leases:6379/0")


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        ("holdfast inspect k", "holdfast inspect k --config h.toml --database sqlite:///plane.db"),
        ("holdfast policy show", "holdfast policy show --config h.toml --database sqlite:///plane.db"),
        ("holdfast tune --family f", "holdfast tune --family f --config h.toml"),
        ("holdfast check LEDGER", "holdfast check '/var/my ledger'"),
        ("A=1 holdfast up --check", "A=1 holdfast up --check --config h.toml --database sqlite:///plane.db"),
        ("redis-cli PING", "redis-cli PING"),
    ],
)
def test_commands_name_the_places_that_were_looked_at_and_no_password(command: str, typed: str) -> None:
    given = RunbookOptions(config="h.toml", database="sqlite:///plane.db", ledger="/var/my ledger")
    assert RunbookContext(SETTINGS, given).exact(command) == typed


def test_a_store_that_the_environment_names_needs_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://leases:6379/0")
    scene = RunbookContext(Settings(), RunbookOptions())
    assert scene.where(EvidenceSource.LEASES) == "redis://leases:6379/0"
    assert scene.exact("holdfast inspect k") == "holdfast inspect k"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (RunbookOptions(metrics=("ftp://h",)), "--metrics"),
        (RunbookOptions(prometheus="h:9090"), "--prometheus"),
        (RunbookOptions(prometheus="http://h:9090", metrics=("http://h:1",)), "--prometheus"),
        (RunbookOptions(spacing=0.0), "--interval"),
        (RunbookOptions(spacing=3600.0), "--interval"),
        (RunbookOptions(window=0.1), "--since"),
        (RunbookOptions(patience=0.0), "--timeout"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is(given: RunbookOptions, field: str) -> None:
    with pytest.raises(BadInput) as refused:
        given.check()
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.0, "0 ms"), (0.0123, "12.3 ms"), (0.5, "0.5 s"), (42.0, "42 s"), (212.0, "3 min 32 s")],
)
def test_lengths_of_time_are_said_as_people_do(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_samples_keep_their_labels() -> None:
    found: Samples = samples_of(TEXT % (1, 2, 3, 4))
    assert found["holdfast_lock_busy_total", (("family", "a"),)] == 1.0
