"""The picture on docs/tuning.md: `python tools/tuning_picture.py [FILE.png]`, drawn from a made-up day of a plane.

The day is made of the same numbers every time. `write_day` writes it as an audit ledger, which tests read as well.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.core.history.events import EventKind, Record
from holdfast.core.tuning.percentiles import SourcedDuration
from holdfast.observe.ledger.writer import Ledger
from holdfast.ops.tuning.history import read_history
from holdfast.ops.tuning.plot import draw as draw_reports
from holdfast.ops.tuning.report import family_report
from holdfast.ops.tuning.subjects import subjects
from holdfast.plane.settings.settings import Settings
from holdfast.types import MS, NS

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "tuning.png"
_BEGAN_NS = 1_760_000_000 * NS
_HOLDS = {  # family: how many, median in seconds, spread (sigma of the logarithm)
    "scheduler.job": (6000, 0.008, 0.8),
    "worker.job": (3000, 9.0, 1.1),
    "workflow.run": (2000, 0.04, 0.9),
}
_PATTERNS = {
    "scheduler.job": "holdfast:scheduler:job:{}",
    "worker.job": "holdfast:worker:job:{}",
    "workflow.run": "holdfast:wf:run:lock:{}",
}


def day(share: float = 1.0) -> Iterator[Record]:
    """Every record of the day, or of so much of it, in the order of time."""
    chance = random.Random(0)
    found: list[Record] = []
    fence = 0
    for family, (whole, median, sigma) in _HOLDS.items():
        at, number = _BEGAN_NS, round(share * whole)
        for count in range(number):
            fence += 1
            at += round(chance.expovariate(1.0) * 86_400 * NS / number)
            trip = round(MS * (0.4 + chance.expovariate(1.5)) + (40 * MS * chance.random() if count % 300 == 0 else 0))
            key, owner = _PATTERNS[family].format(count), f"plane@host:{1 + count % 3}/a"
            held = round(median * math.exp(chance.gauss(0, sigma)) * NS)
            common: dict[str, Any] = {"key": key, "family": family, "owner": owner, "fence": fence}
            found.append(Record(EventKind.GRANTED, at + trip, began_ns=at, **common))
            found.append(Record(EventKind.RELEASED, at + trip + held, **common))
    facts = {"held_ns": 30 * NS, "keeper_lag_ns": 1200 * MS, "renew_every_ns": 10 * NS, "ttl_ns": 30 * NS}
    lost = Record(
        EventKind.LOST, _BEGAN_NS + 40_000 * NS, "holdfast:worker:job:x", "worker.job", "plane@host:9/a", fence + 2
    )
    lost.reason, lost.facts = "expired", facts
    found.append(Record(EventKind.GRANTED, lost.at_ns - 30 * NS, lost.key, lost.family, lost.owner, lost.fence))
    found.append(lost)
    found += _crowd(chance, fence + 10, round(20 * share))
    return iter(sorted(found, key=lambda record: record.at_ns))


def _crowd(chance: random.Random, fence: int, waves: int) -> Iterator[Record]:
    """Forty processes that want the lock of one run at the same moment, and retry after exactly 500 ms."""
    for wave in range(waves):
        start = _BEGAN_NS + (3600 + 600 * wave) * NS
        key, free = f"holdfast:wf:run:lock:wave{wave}", start
        for place in range(40):
            owner, came = f"plane@host:{place}/b", start + round(chance.random() * 5 * MS)
            held = round(0.15 * math.exp(chance.gauss(0, 0.5)) * NS)
            had = came
            while had < free:
                yield Record(EventKind.BUSY, had, key, "workflow.run", owner)
                had += 500 * MS
            free = had + held
            fence += 1
            common: dict[str, Any] = {"key": key, "family": "workflow.run", "owner": owner, "fence": fence}
            yield Record(EventKind.GRANTED, had + MS, began_ns=had, **common)
            yield Record(EventKind.RELEASED, free, **common)


def write_day(directory: Path, share: float = 1.0) -> Path:
    """The day as a ledger."""
    path = directory / "audit"
    with Ledger(path, everything=True, sync=None) as ledger:
        for record in day(share):
            ledger.note(record)
        ledger.flush(60)
    return path


def draw(target: Path) -> None:
    """The picture."""
    with tempfile.TemporaryDirectory() as directory:
        gathered, _ = read_history(write_day(Path(directory)))
    found = subjects(Settings(), SourcedDuration(30 * NS, "--slo"), gathered.families)
    draw_reports([family_report(each, gathered) for each in found], target, "a day of a plane, takeover SLO 30 s")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
