"""The table of metrics: nothing that is counted is left out, names are as Prometheus wants them, labels are bounded."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from holdfast.observe import exposition
from holdfast.observe.metrics import TABLE, Metric, MetricKind, Sample, markdown, samples
from holdfast.plane import readings, sample
from holdfast.plane.assembly import PARTS, Plane
from holdfast.plane.readings import Reading, bounded
from holdfast.plane.settings import Settings
from holdfast.plane.worker_statistics import WorkerStatistics

PROMTOOL = shutil.which("promtool")
UNBOUNDED = {"key", "job", "worker", "tenant", "owner", "host", "run", "fence", "address", "caller"}
POSTGRES = {
    "writes": 1,
    "reads": 2,
    "failed": 3,
    "run_again": 4,
    "unknown": 5,
    "active": 6,
    "pool_wait_ns": 7,
    "hint_reconnects": 8,
    "bells": 9,
}
HTTP = Reading("http", {"answers": {("GET", 200): 3}, "limited": 1, "callers": 2})
JOBS = Reading("jobs", {"live": {"PENDING": 4}})
RUNS = Reading("runs", {"live": {"waiting": 2}})


async def everything(tmp_path: Path) -> list[Reading]:
    """What a process with all its own parts says, what the other engines would, and what only a server counts."""
    settings = Settings(database=f"sqlite:///{tmp_path}/plane.db?synchronous=normal")
    parts = [part for part in PARTS if part != "api"]
    async with Plane(settings, parts, app=sample.app) as plane:
        found = list(plane.vitals.readings())
    other = [*readings.of_database(POSTGRES), *readings.of_bus({"handled": 1, "handling": 0, "relayed": 2})]
    return [*found, *other, HTTP, JOBS, RUNS]


@pytest.mark.asyncio
async def test_whatever_is_counted_is_a_metric_and_every_metric_is_counted(tmp_path: Path) -> None:
    told = {(each.source, field) for each in await everything(tmp_path) for field in each.values}
    declared = {(each.source, each.field) for each in TABLE}
    missing = {("loop", "last_tick_ns")}  # none before the first tick has ended
    assert told | missing == declared


def test_every_count_of_a_worker_is_read() -> None:
    read = {*readings.ENDS, *readings.NOT_TAKEN, *readings.WORKER_REST, "beats", "beats_failed"}
    assert read == set(readings.flat(WorkerStatistics()))


def test_names_and_kinds_are_as_prometheus_wants_them() -> None:
    assert max(Counter(each.name for each in TABLE).values()) == 1
    for each in TABLE:
        assert re.fullmatch(r"holdfast_[a-z_]+", each.name), each.name
        assert each.name.endswith("_total") == (each.kind is MetricKind.COUNTER), each.name
        assert re.fullmatch(r"[A-Z].*\.", each.help), each.name
        assert not UNBOUNDED & set(each.labels), each.name
        in_seconds = each.field.endswith("_ns") or each.field in ("keeper_lag", "renew_tail")
        assert ("_seconds" in each.name) == in_seconds, each.name


def test_topics_are_bounded_and_their_counts_never_fall() -> None:
    counts = Counter({f"t{number}": number + 1 for number in range(150)})
    before = bounded(counts)
    assert len(before) == 101
    assert sum(before.values()) == sum(counts.values())
    counts.update(["t120", "new", "other"])
    after = bounded(counts)
    assert set(after) == set(before)
    assert all(after[name] >= number for name, number in before.items())


def test_labels_and_help_are_escaped_and_numbers_are_plain() -> None:
    odd = Metric("holdfast_odd", MetricKind.GAUGE, "A \\ and\na line.", "x", "y", ("topic",))
    text = exposition.rendered([Sample(odd, {"topic": 'a"b\\c\n'}, value) for value in (2.0, 0.25, float("inf"))])
    assert text == (
        "# HELP holdfast_odd A \\\\ and\\na line.\n# TYPE holdfast_odd gauge\n"
        'holdfast_odd{topic="a\\"b\\\\c\\n"} 2\nholdfast_odd{topic="a\\"b\\\\c\\n"} 0.25\n'
        'holdfast_odd{topic="a\\"b\\\\c\\n"} +Inf\n'
    )


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
    text = exposition.rendered(samples(await everything(tmp_path)))
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)  # noqa: ASYNC221 - nothing else runs here
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
