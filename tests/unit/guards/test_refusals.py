"""What guards refuse is counted for the whole process, by guard and reason, with a bounded number of names."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import holdfast
from holdfast.errors import FencedOut
from holdfast.guards import admission
from holdfast.guards.admission import GUARDS_MAX, OTHER, REASONS, Refusals
from holdfast.guards.settings import sql
from holdfast.guards.sqlite import GuardedTable
from holdfast.observe import prometheus
from holdfast.observe.metrics import collect
from support.fixtures.guards import carried


def test_a_guard_is_there_before_its_first_refusal_and_each_reason_is_counted() -> None:
    refusals = Refusals()
    name = refusals.begin("sqlite:invoices")
    assert refusals.reading().values["refused"] == {(name, reason): 0 for reason in REASONS.values()}
    for decided in ("refused", "refused", "lost", "accepted", "missing"):
        refusals.count(name, decided)
    counts = refusals.reading().values["refused"]
    assert counts == {(name, "stale"): 2, (name, "lost"): 1, (name, "not_entered"): 0, (name, "unfenced"): 0}


def test_names_are_bounded() -> None:
    refusals = Refusals()
    names = {refusals.begin(f"table-{number}") for number in range(GUARDS_MAX + 50)}
    assert len(names) == GUARDS_MAX + 1
    assert refusals.begin("table-7") == "table-7"
    refusals.count(OTHER, "refused")
    counts = refusals.reading().values["refused"]
    assert isinstance(counts, dict)
    assert counts[OTHER, "stale"] == 1


def test_a_stale_write_in_a_program_without_a_plane_is_scraped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals, registry = Refusals(), CollectorRegistry()
    for module in (admission, collect):
        monkeypatch.setattr(module, "REFUSALS", refusals)
    data = sqlite3.connect(tmp_path / "app.db")
    data.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total INTEGER, holdfast_fence INTEGER)")
    data.execute(sql("ledger_sqlite"))
    data.commit()
    table = GuardedTable(data, "invoices")
    with holdfast.connect("memory://") as locks:
        prometheus.register(locks, registry=registry)
        labels = {"guard": "sqlite:invoices", "reason": "stale"}
        assert registry.get_sample_value("holdfast_guard_refused_total", labels) == 0
        table.insert(carried(7), 1, {"total": 1})
        with pytest.raises(FencedOut):
            table.update(carried(6), 1, {"total": 2})
        assert registry.get_sample_value("holdfast_guard_refused_total", labels) == 1
    data.close()
