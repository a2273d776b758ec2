"""Runbooks without an id: the suspects, the reasons, and the report without suspects."""

from __future__ import annotations

import json
import re
import sqlite3
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.history.events import EventKind, Record
from holdfast.errors import Unavailable
from holdfast.observe.ledger.codec import line
from holdfast.observe.ledger.writer import Ledger
from holdfast.ops.runbooks import RUNBOOKS
from holdfast.ops.runbooks.collectors.searches import (
    id_in,
    is_sign,
    suspects_of_jobs,
    suspects_of_locks,
    suspects_of_records,
)
from holdfast.ops.runbooks.evidence.ledger import LedgerFact, recent
from holdfast.ops.runbooks.evidence.locks import LockFact, LocksFact
from holdfast.ops.runbooks.evidence.plane import JobFact, at_work, jobs_at_work
from holdfast.ops.runbooks.examples import SEARCHED, held_lock, policy, rates, searched_of
from holdfast.ops.runbooks.model import EvidenceSource, Fact, FindingSeverity
from holdfast.ops.runbooks.suspects import SUSPECTS_MAX, Suspect, SuspectsFact, lately
from holdfast.ops.runbooks.text import report_lines
from holdfast.plane.db.ports import Tx
from holdfast.plane.locks.registry import RECONCILER, REPLAYER, SCHEDULER_JOB, WORKER_JOB, WORKFLOW_RUN
from holdfast.plane.model.job_states import JobState
from holdfast.plane.model.records import Job
from holdfast.plane.process.components import open_components
from holdfast.plane.settings.sections import EngineSettings
from holdfast.plane.settings.settings import Settings
from holdfast.plane.workflows.core.definition_codec import from_document
from holdfast.runtime.system import SystemClock
from holdfast.types import NS
from support.fixtures.scheduling import Planes, PushedClock, Replica, finished, run_of, started, submitted
from support.fixtures.workflows import ASKER
from support.ops.runbook_facts import FREE_LOOP, LOOPS
from support.ops.runbook_harness import found, reported

NOW = 1_000 * NS
DUPLICATES = RUNBOOKS["duplicate-dispatch"]


# Who is suspicious.


def seen(kind: EventKind, ago: float, key: str, **more: Any) -> Record:
    return Record(kind, NOW - round(ago * NS), key, "f", "o@h:1/x", fence=5, **more)


def test_the_ids_of_jobs_and_runs_are_read_from_the_keys_of_their_locks() -> None:
    assert id_in("holdfast:scheduler:job:a:b@1", SCHEDULER_JOB, WORKER_JOB) == "a:b@1"
    assert id_in("holdfast:worker:job:a", SCHEDULER_JOB, WORKER_JOB) == "a"
    assert id_in("holdfast:wf:run:lock:r-1", WORKFLOW_RUN) == "r-1"
    assert id_in("holdfast:wf:run:lock:r-1", SCHEDULER_JOB, WORKER_JOB) is None
    assert id_in("holdfast:worker:job:", WORKER_JOB) is None
    assert id_in("holdfast:worker:job:no spaces; rm", WORKER_JOB) is None


def test_records_make_suspects_the_worst_first_and_then_the_newest() -> None:
    job, work = "holdfast:scheduler:job:", "holdfast:worker:job:"
    records = [
        seen(EventKind.LOST, 5, f"{work}new", reason="expired"),
        seen(EventKind.LOST, 50, f"{job}old"),
        seen(EventKind.RELEASE_REFUSED, 1, f"{job}slight"),
        seen(EventKind.WRITE, 60, f"{job}fenced", ok=False),
        seen(EventKind.DUPLICATE, 90, f"{job}twice", ok=False),
        seen(EventKind.DUPLICATE, 80, f"{job}twice", ok=False),
        seen(EventKind.LOST, 2, "holdfast:reconciler:default"),
    ]
    suspects = suspects_of_records(records, NOW, SCHEDULER_JOB, WORKER_JOB)
    assert [each.id for each in suspects] == ["twice", "fenced", "new", "old", "slight"]
    assert suspects[0].why == "2 second ends refused, the last 80 s ago"
    assert not is_sign(seen(EventKind.WRITE, 1, "k"), frozenset({EventKind.WRITE}))
    assert is_sign(seen(EventKind.WRITE, 1, "k", ok=False), frozenset({EventKind.WRITE}))


def row(id: str, ends: int, dispatches: int, attempt: int, ago: float = 1) -> dict[str, Any]:
    numbers = {"ends": ends, "dispatches": dispatches, "attempt": attempt, "max_attempts": 3}
    return {"id": id, "state": "RUNNING", "updated_ns": NOW - round(ago * NS), **numbers}


def test_rows_of_jobs_make_suspects_the_worst_first_and_then_the_newest() -> None:
    rows = [
        *(row("well", 1, 1, 1), row("new", 0, 0, 0), row("again", 0, 2, 2, 9), row("later", 0, 2, 2, 3)),
        *(row("handed out", 0, 2, 1, 90), row("ended", 2, 1, 1, 99)),
    ]
    suspects = suspects_of_jobs(rows, NOW)
    assert [each.id for each in suspects] == ["ended", "handed out", "later", "again"]
    assert suspects[0].why == "ended 2 times, attempt 1 of 3, RUNNING since 99 s ago"
    assert suspects[1].why.startswith("dispatched 2 times, attempt 1")


def test_locks_make_suspects_of_runs_that_are_held_too_long_or_waited_for() -> None:
    def lock(run: str, age: float, waiters: int = 0) -> LockFact:
        return held_lock(f"holdfast:wf:run:lock:{run}", "o", age=age, waiters=waiters, ttl=30.0)

    locks = [lock("quick", 0.9), lock("slow", 1.0), lock("wanted", 0.1, 1), lock("stuck", 30.0), lock("long", 29.0)]
    suspects = suspects_of_locks(locks)
    assert [each.id for each in suspects] == ["stuck", "wanted", "long", "slow"]
    assert suspects[1].why == "its lock is held by o for 0.1 s, and 1 waits"


@pytest.mark.parametrize(
    ("steps", "works"),
    [
        ({}, False),
        ({"a": {"status": "succeeded"}, "b": {"status": "pending"}}, False),
        ({"a": {"status": "running", "job": "live"}}, True),
        ({"a": {"status": "running", "job": "over"}}, False),
        ({"a": {"status": "waiting", "job": "gate"}}, True),
        ({"a": {"status": "running", "due_ns": NOW + 1}}, True),
        ({"a": {"status": "running", "due_ns": NOW}}, False),
        ({"a": {"status": "pending", "due_ns": NOW + 1}}, True),
        ({"a": {"status": "running", "children": [{"status": "running", "job": "over"}]}}, False),
        ({"a": {"status": "running", "children": [{"status": "running", "job": "live"}]}}, True),
    ],
)
def test_a_run_with_something_to_wait_for_is_no_suspect(steps: dict[str, Any], works: bool) -> None:
    assert at_work(steps, frozenset({"over"}), NOW) is works
    assert set(jobs_at_work(steps)) <= {"live", "over"}


def test_a_search_shows_a_few_and_counts_the_rest() -> None:
    fact = SuspectsFact.of("looked", (Suspect(f"j-{each}", "why") for each in range(8)), complete=False)
    assert (len(fact.suspects), fact.more) == (SUSPECTS_MAX, 3)
    assert fact.lines()[0] == "looked; the time limit was too short to read all of it"
    assert fact.lines()[-1] == "… and 3 more"
    assert [lately(each) for each in (900.0, 7200.0, 905.0, 90.0)] == ["15 min", "2 h", "15 min 05 s", "90 s"]


@pytest.mark.parametrize("name", ["job_suspects", "run_unchanged"])
def test_no_search_walks_through_all_jobs_or_runs(name: str) -> None:
    sql = files("holdfast.plane") / "sql"
    text = (sql / f"{name}.sql").read_text(encoding="utf-8")
    database = sqlite3.connect(":memory:")
    try:
        for tables in ("schema", "run_schema"):
            database.executescript((sql / f"{tables}.sql").read_text(encoding="utf-8"))
        places = dict.fromkeys(re.findall(r":(\w+)", re.sub(r"--.*", "", text)), 1)
        plan = [each[3] for each in database.execute(f"EXPLAIN QUERY PLAN {text}", places)]
    finally:
        database.close()
    assert any("plane_" in each for each in plan)
    assert [each for each in plan if re.match(r"SCAN plane_\w+$", each)] == [], plan


def test_reading_a_ledger_ends_at_its_deadline_however_few_records_are_wanted(tmp_path: Path) -> None:
    now = SystemClock().now().wall
    text = b"".join(line(Record(EventKind.GRANTED, now, f"k:{each}", "f", "o", fence=each)) for each in range(3000))
    (tmp_path / "h-1-0.000001.jsonl").write_bytes(text)
    assert recent(str(tmp_path), SystemClock(), lambda _: False).complete
    assert not recent(str(tmp_path), SystemClock(), lambda _: False, limit_ns=0).complete


# What follows.

JOB = JobFact("a", "acme", "t", JobState.SUCCEEDED, 1, 3, 5.0, 50, 51, "w", (), ())
LOCKS = LocksFact((LockFact(SCHEDULER_JOB.key(job="a"), False), LockFact(WORKER_JOB.key(job="a"), False)))
WELL: dict[str, Fact | Exception] = {"job": JOB, "locks": LOCKS}
TWO = SuspectsFact("9 records", (Suspect("a", "1 second end refused"), Suspect("b", "1 lease lost")))
NONE = SuspectsFact("nothing to see")


@pytest.mark.requires("R59")
def test_each_suspect_has_its_findings_and_what_is_about_all_is_said_once() -> None:
    ledger = LedgerFact(900.0, 3, {str(EventKind.DUPLICATE): 1}, ())
    problem = JobFact("b", "acme", "t", JobState.FAILED, 1, 3, 5.0, 50, 51, "w", ("it ended 2 times",), ())
    facts: dict[str, Fact | Exception] = {
        "jobs in ledger": TWO,
        "jobs in database": SuspectsFact("rows", (Suspect("c", "attempt 2"),)),
        "loops": FREE_LOOP,
        "policy": policy(),
        "rates": rates(DUPLICATES, second_ends={"": 0.5}),
    }
    report = searched_of(DUPLICATES, facts, {"a": {**WELL, "ledger": ledger}, "b": {**WELL, "job": problem}})
    assert [(each.id, each.severity) for each in report.suspects] == [
        ("b", FindingSeverity.ACT),
        ("a", FindingSeverity.WATCH),
    ]
    assert {each.source for each in report.suspects} == {EvidenceSource.LEDGER}
    told = {each.id: {finding.rule for finding in each.findings} for each in report.suspects}
    assert told == {"b": {"wrong history"}, "a": {"refused end"}}
    assert "A second end of a was reported" in report.suspects[1].findings[0].sentence
    assert {each.rule for each in report.findings} == {"no leader", "refused end", "suspects"}
    named = next(each for each in report.findings if each.rule == "suspects")
    assert "a (1 second end refused, by the audit ledger); b (1 lease lost, by the audit ledger)" in named.sentence
    assert named.severity is FindingSeverity.ACT
    commands = [each.command for each in report.next]
    assert commands[0] == "holdfast jobs show b"
    assert {"holdfast jobs show a", "holdfast runbook duplicate-dispatch b"} <= set(commands)
    assert report.severity is FindingSeverity.ACT


def test_what_should_never_be_is_looked_at_whichever_search_has_found_it() -> None:
    mild = [Suspect(f"m-{each}", "1 lease lost") for each in range(7)]
    facts: dict[str, Fact | Exception] = {
        "jobs in ledger": SuspectsFact.of("records", [Suspect("both", "fenced out", grave=True), *mild]),
        "jobs in database": SuspectsFact.of(
            "rows", [Suspect("both", "twice", True), Suspect("ended", "twice", True), Suspect("retried", "attempt 2")]
        ),
    }
    report = searched_of(DUPLICATES, {**facts, "loops": LOOPS}, {})
    assert [each.id for each in report.suspects] == ["both", "ended", "m-0", "m-1", "m-2"]
    assert "and 4 more that were not examined" in found(report, "suspects").sentence
    assert report.suspects[0].source is EvidenceSource.LEDGER


def test_a_suspect_with_which_nothing_is_wrong_is_said_to_be_well() -> None:
    facts: dict[str, Fact | Exception] = {"jobs in database": SuspectsFact("rows", (Suspect("a", "attempt 2"),))}
    report = searched_of(DUPLICATES, {**facts, "jobs in ledger": NONE, "loops": LOOPS}, {"a": WELL})
    (only,) = report.suspects
    assert (only.severity, only.source) == (FindingSeverity.FINE, EvidenceSource.DATABASE)
    assert only.findings[0].sentence.startswith("a has at most one end")
    assert report.severity is FindingSeverity.FINE
    assert "Nothing is wrong there." in found(report, "suspects").sentence
    gone = searched_of(DUPLICATES, {**facts, "loops": LOOPS}, {"a": {**WELL, "job": Unavailable("gone")}})
    assert gone.severity is FindingSeverity.UNKNOWN


@pytest.mark.parametrize(
    ("facts", "severity", "words"),
    [
        (
            {"jobs in ledger": NONE, "jobs in database": NONE},
            FindingSeverity.FINE,
            "Nothing suspicious in the last 15 min.",
        ),
        ({"jobs in database": NONE}, FindingSeverity.FINE, "Searched: nothing to see."),
        ({"jobs in database": Unavailable("down")}, FindingSeverity.UNKNOWN, "jobs in database (down)"),
        (
            {"jobs in ledger": SuspectsFact("a part", complete=False)},
            FindingSeverity.UNKNOWN,
            "too short to read all of it",
        ),
        ({}, FindingSeverity.UNKNOWN, "Give its id"),
    ],
)
def test_no_suspects_are_reported_only_after_a_complete_search(
    facts: dict[str, Fact | Exception], severity: FindingSeverity, words: str
) -> None:
    report = searched_of(DUPLICATES, {**facts, "loops": LOOPS}, {})
    assert report.severity is severity
    said = next(each for each in report.findings if each.rule == "no suspects")
    assert words in said.sentence
    unread = 2 - sum(each is NONE for each in facts.values())
    assert (said.sure == "sure") is (unread == 0)
    down = searched_of(DUPLICATES, {"jobs in database": NONE, "loops": Unavailable("down")}, {})
    assert down.severity is FindingSeverity.UNKNOWN, "there is no suspect, and the leaders of the loops are not known"


@pytest.mark.parametrize("book", SEARCHED)
def test_a_report_with_suspects_is_the_same_for_people_and_programs(book: str) -> None:
    report = SEARCHED[book]()
    said = json.loads(json.dumps(report.as_dict()))
    text = "\n".join(each.text for each in report_lines(report))
    assert said["severity"] == str(report.severity)
    for suspect in said["suspects"]:
        assert f": {suspect['id']}\n  by the {suspect['source']}: {suspect['why']}" in text
        for each in suspect["findings"]:
            assert each["sentence"] in text
        assert [each["what"] for each in suspect["evidence"]] == [s.name for s in report.runbook.steps if s.about]
    for each in said["next"]:
        assert f"$ {each['command']}" in text


# On real planes.


async def done(plane: Replica) -> Job:
    """A job that was dispatched, run and ended, once each."""
    await plane.beat()
    job = await plane.submit(tenant="acme")
    await plane.scheduler.on_submit(submitted(job))
    await plane.scheduler.on_started(started(job, 1, run_of(job)))
    await plane.scheduler.on_result(finished(job, 1, run_of(job)))
    return await plane.job(job)


@pytest.mark.asyncio
@pytest.mark.requires("R59", "R131")
async def test_a_job_that_ended_twice_is_found_among_others_and_named(planes: Planes, tmp_path: Path) -> None:
    plane, place = await planes.open(), Settings(database=planes.url, leases=planes.locks_url)
    async with RECONCILER.lock(plane.locks), REPLAYER.lock(plane.locks):
        well = await done(plane)
        calm = await reported("duplicate-dispatch", place, clock=plane.clock)
        assert calm.severity is FindingSeverity.FINE, calm.findings
        assert "1 job of the database" in found(calm, "no suspects").sentence
        twice = await done(plane)

        async def doctor(tx: Tx) -> None:
            await tx.query(
                "INSERT INTO plane_event (job, version, step, at_ns, before, after, attempt, fence, actor) "
                "VALUES (:job, :version, 0, :at, 'SUCCEEDED', 'FAILED', 1, 1, 'psql')",
                {"job": twice.id, "version": twice.version + 1, "at": twice.updated_ns + 1},
            )
            await tx.query("UPDATE plane_job SET attempt = 2 WHERE id = :id", {"id": well.id})

        await plane.database.write(doctor)
        report = await reported("duplicate-dispatch", place, clock=plane.clock)
        assert [each.id for each in report.suspects] == [twice.id, well.id]
        assert report.suspects[0].why.startswith("ended 2 times, attempt 1 of 3, SUCCEEDED since")
        assert f"The history of {twice.id} contains impossible events" in report.suspects[0].findings[0].sentence
        assert report.suspects[1].severity is FindingSeverity.FINE
        assert report.next[0].command.startswith(f"holdfast jobs show {twice.id}")
        with Ledger(tmp_path / "audit", clock=plane.clock) as ledger:
            ledger.note(Record(EventKind.DUPLICATE, plane.now_ns, SCHEDULER_JOB.key(job=well.id), ok=False))
        told = await reported("duplicate-dispatch", place, clock=plane.clock, ledger=str(tmp_path / "audit"))
        sources = {each.id: each.source for each in told.suspects}
        assert sources == {well.id: EvidenceSource.LEDGER, twice.id: EvidenceSource.DATABASE}
        assert next(each for each in told.suspects if each.id == well.id).findings[0].rule == "refused end"
        plane.clock.push(3600)
        later = await reported("duplicate-dispatch", place, clock=plane.clock, ledger=str(tmp_path / "audit"))
    assert found(later, "no suspects").severity is FindingSeverity.FINE


@pytest.mark.asyncio
@pytest.mark.requires("R60")
async def test_a_run_that_does_not_advance_is_found(plane_url: str, tmp_path: Path) -> None:
    place = Settings(
        database=plane_url, leases=f"sqlite:///{tmp_path / 'leases.db'}", engine=EngineSettings(run_ttl=1.0)
    )
    clock = PushedClock()
    async with open_components(place) as components:
        await components.locks.ping()
        await components.flows.define(ASKER, from_document({"name": "flow", "steps": {"a": {"topic": "t"}}}))
        await components.flows.start(ASKER, "flow", run_id="r-1")
        fresh = await reported("workflow-contention", place, clock=clock)
        assert fresh.suspects == ()
        assert found(fresh, "no suspects").severity is FindingSeverity.FINE
        clock.push(3600)
        late = await reported("workflow-contention", place, clock=clock)
        await components.database.write(lambda tx: tx.query("UPDATE plane_run SET wake_ns = NULL"))
        report = await reported("workflow-contention", place, clock=clock)
    assert [each.findings[0].rule for each in late.suspects] == ["overdue"]
    (only,) = report.suspects
    assert (only.id, only.source) == ("r-1", EvidenceSource.DATABASE)
    assert re.match("unchanged for 60 min .* none of its steps runs", only.why)
    assert {each.what for each in only.evidence} == {"lock", "run", "ledger"}
    assert "Run r-1 has nothing to wait for, but has not advanced" in only.findings[0].sentence
