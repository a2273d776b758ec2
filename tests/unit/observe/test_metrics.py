"""The table of metrics: nothing that is counted is left out, names are as Prometheus wants them, labels are bounded."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from holdfast.core.histogram import Distribution, Histogram
from holdfast.core.metric_reading import Reading
from holdfast.observe import prometheus
from holdfast.observe.ledger.writer import Ledger
from holdfast.observe.metrics.samples import markdown, samples
from holdfast.observe.metrics.table import TABLE, MetricKind
from holdfast.plane.process import metrics as readings
from holdfast.plane.process import sample
from holdfast.plane.process.metrics import bounded
from holdfast.plane.process.plane import PARTS, Plane
from holdfast.plane.settings.settings import Settings
from holdfast.plane.worker.worker import WorkerStatistics
from holdfast.types import NS

PROMTOOL = shutil.which("promtool")
UNBOUNDED = {"key", "job", "worker", "tenant", "owner", "host", "run", "fence", "address", "caller"}
POSTGRES = {
    "writes": 1,
    "reads": 2,
    "failed": 3,
    "run_again": 4,
    "unknown": 5,
    "held": 10,
    "active": 6,
    "pool_wait_ns": 7,
    "hint_reconnects": 8,
    "bells": 9,
}
KEPT = {f"holdfast_{kind}_lock_{what}" for kind in ("job", "run") for what in ("wait", "hold")}  # as articles call them
HTTP = Reading(
    "http", {"answers": {("GET", 200): 3}, "limited": 1, "callers": 2, "connections": 3, "closed": {"idle": 1}}
)
JOBS = Reading("jobs", {"live": {"PENDING": 4}})
RUNS = Reading("runs", {"live": {"waiting": 2}})
CLOCK = Reading("clock", {"ahead_ns": 0})
OTEL = Reading("otel", {"exports": {"sent": 1}})


async def everything(tmp_path: Path) -> list[Reading]:
    """What a process with all its own parts says, what the other engines would, and what only a server counts."""
    settings = Settings(database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal")
    parts = [part for part in PARTS if part != "api"]
    with Ledger(tmp_path / "audit") as ledger:
        async with Plane(settings, parts, app=sample.app, audit=ledger) as plane:
            found = [*plane.process_health.readings(), *await plane.process_health.asked(jobs=True)]
    other = [*readings.of_database(POSTGRES), *readings.of_bus({"handled": 1, "handling": 0, "relayed": 2})]
    return [*found, *other, HTTP, JOBS, RUNS, OTEL, CLOCK]


@pytest.mark.asyncio
async def test_whatever_is_counted_is_a_metric_and_every_metric_is_counted(tmp_path: Path) -> None:
    told = {(each.source, field) for each in await everything(tmp_path) for field in each.values}
    declared = {(each.source, each.field) for each in TABLE}
    missing = {("loop", "last_tick_ns")}  # none before the first tick has ended
    assert told | missing == declared


def test_every_count_of_a_worker_is_read() -> None:
    read = {*readings.ENDS, *readings.NOT_TAKEN, *readings.WORKER_REST, "beats", "beats_failed", "held"}
    assert read == set(readings.flat(WorkerStatistics()))


@pytest.mark.threat("X14")
def test_names_and_kinds_are_as_prometheus_wants_them() -> None:
    assert max(Counter(each.name for each in TABLE).values()) == 1
    for each in TABLE:
        assert re.fullmatch(r"holdfast_[a-z_]+", each.name), each.name
        assert each.name.endswith("_total") == (each.kind is MetricKind.COUNTER), each.name
        assert re.fullmatch(r"[A-Z].*\.", each.help), each.name
        assert not UNBOUNDED & set(each.labels), each.name
        in_seconds = each.field.endswith("_ns") or each.kind is MetricKind.HISTOGRAM
        assert ("_seconds" in each.name) == in_seconds or each.name in KEPT, each.name


@pytest.mark.threat("X14")
def test_topics_are_bounded_and_their_counts_never_fall() -> None:
    counts = Counter({f"t{number}": number + 1 for number in range(150)})
    before = bounded(counts)
    assert len(before) == 101
    assert sum(before.values()) == sum(counts.values())
    counts.update(["t120", "new", "other"])
    after = bounded(counts)
    assert set(after) == set(before)
    assert all(after[name] >= number for name, number in before.items())


def test_times_by_topic_are_bounded_likewise() -> None:
    workers = [WorkerStatistics(held={f"t{n}": Distribution() for n in range(150)}) for _ in range(2)]
    for worker in workers:
        for topic in worker.held:
            worker.held_for(topic, NS)
    reading, _ = readings.of_workers(workers, 8)
    held = reading.values["held_ns"]
    assert isinstance(held, dict)
    assert (len(held), held["t0"], held["other"]) == (101, Histogram.of([NS] * 2), Histogram.of([NS] * 100))


@pytest.mark.requires("R137")
@pytest.mark.asyncio
async def test_every_process_of_a_plane_says_how_late_its_loop_is_and_what_each_class_of_job_holds(
    tmp_path: Path,
) -> None:
    found = {(each.metric.name, *each.labels.values()): each.value for each in samples(await everything(tmp_path))}
    lag, topics = found["holdfast_event_loop_lag_seconds",], set(sample.app.functions)
    assert isinstance(lag, float)
    assert lag >= 0
    assert {name[1] for name in found if name[0] == "holdfast_worker_hold_seconds"} == topics, "before their first job"


def test_nanoseconds_become_seconds_and_what_is_not_known_is_left_out() -> None:
    found = {
        each.metric.name: each.value for each in samples(readings.of_database({**POSTGRES, "pool_wait_ns": 15 * 10**8}))
    }
    assert found["holdfast_database_pool_wait_seconds_total"] == 1.5
    assert "holdfast_database_commits_total" not in found


def test_the_page_has_a_line_for_each() -> None:
    assert markdown().count("\n") == len(TABLE) + 2


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.asyncio
async def test_promtool_finds_nothing_to_say(tmp_path: Path) -> None:
    text = prometheus.rendered(await everything(tmp_path))[0].decode()
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)  # noqa: ASYNC221 - nothing else runs here
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
