"""What the loops read: never all jobs or runs that are stored, because those only grow."""

from __future__ import annotations

import re
import sqlite3
from importlib.resources import files

import pytest

_SQL = files("holdfast.plane") / "sql"
LOOPS = ("reconcile_", "replay_", "cleanup_", "loop_", "run_due", "run_live")
TABLES = ("schema", "bus_schema", "run_schema", "approval_schema")
NAMES = sorted(each.name for each in _SQL.iterdir() if each.name.startswith(LOOPS))


def test_the_statements_of_all_loops_are_looked_at() -> None:
    assert {next(loop for loop in LOOPS if name.startswith(loop)) for name in NAMES} == set(LOOPS)


@pytest.mark.parametrize("name", NAMES)
def test_no_statement_of_a_loop_walks_through_all_jobs(name: str) -> None:
    text = (_SQL / name).read_text(encoding="utf-8")
    database = sqlite3.connect(":memory:")
    try:
        for tables in TABLES:
            database.executescript((_SQL / f"{tables}.sql").read_text(encoding="utf-8"))
        places = dict.fromkeys(re.findall(r":(\w+)", re.sub(r"--.*", "", text)), 1)
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", places)]
    finally:
        database.close()
    # Dead letters are few. Everything else is looked up, under whatever name a statement gives it.
    walked = [line for line in plan if re.match(r"SCAN (?!plane_dead_letter\b)", line)]
    assert walked == [], plan
