"""What is said about a plane: its own takeover bounds, its settings, and what may be written into them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.tuning.percentiles import SourcedDuration, of_durations
from holdfast.errors import BadInput
from holdfast.ops.tuning.apply import apply, plan
from holdfast.ops.tuning.evidence import TuningData
from holdfast.ops.tuning.plot import draw
from holdfast.ops.tuning.report import FamilyReport, delays, family_report, retry_report
from holdfast.ops.tuning.subjects import TuningSubject, subjects
from holdfast.plane.locks.registry import FAMILIES
from holdfast.plane.settings.consistency import takeovers
from holdfast.plane.settings.lock_times import FAMILY_KEYS, LOOPS
from holdfast.plane.settings.sections import ApprovalSettings, EngineSettings
from holdfast.plane.settings.settings import ReconcilerSettings, SchedulerSettings, Settings, WorkerSettings
from holdfast.plane.settings.sources import load
from holdfast.types import MS, NS
from tuning_picture import PICTURE, day, write_day

SLO = SourcedDuration(30 * NS, "--slo")
SHARE = 0.1


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> TuningData:
    """A made-up day of a plane, read from a real ledger."""
    from holdfast.ops.tuning.history import read_history

    return read_history(write_day(tmp_path_factory.mktemp("day"), SHARE))[0]


def reports(settings: Settings, gathered: TuningData, slo: SourcedDuration | None = SLO) -> dict[str, FamilyReport]:
    found = subjects(settings, slo, gathered.families)
    return {each.family: family_report(each, gathered) for each in found}


def by_name(settings: Settings) -> dict[str, TuningSubject]:
    return {each.family: each for each in subjects(settings, None)}


@pytest.mark.requires("R111", "R115")
@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(
            scheduler=SchedulerSettings(job_ttl=24.0, busy_delay=0.7, busy_jitter=0.2),
            worker=WorkerSettings(lease_ttl=12.0),
            engine=EngineSettings(run_ttl=7.0),
            reconciler=ReconcilerSettings(interval=9.0, lead="rotating"),
        ),
    ],
)
def test_takeover_bounds_are_those_by_which_settings_are_refused(settings: Settings) -> None:
    found = by_name(settings)
    assert set(found) == set(FAMILIES)
    stated = {each.key: each.seconds for each in takeovers(settings)}
    ours = {"scheduler.job": "scheduler.job_ttl", "worker.job": "worker.lease_ttl", "workflow.run": "engine.run_ttl"}
    ours |= {"approval": "approvals.lock_ttl"} | {family.name: f"{loop}.interval" for loop, family in LOOPS.items()}
    assert set(ours) == set(FAMILIES)
    for family, key in ours.items():
        demand = found[family].demand
        assert found[family].names.ttl == key
        assert demand.present is not None
        bound = demand.present.ns + demand.detection.of(demand.present.ns)
        assert bound / NS == pytest.approx(stated[key]), family
    assert found["reconciler"].renewed is (settings.reconciler.lead == "sticky")


@pytest.mark.requires("R112", "R113", "R138")
def test_a_plane_is_told_what_to_change_for_its_slo(gathered: TuningData) -> None:
    found = reports(Settings(), gathered)
    job = found["scheduler.job"]
    assert (job.found.ttl_ns, str(job.found.binding)) == (29_500 * MS, "takeover SLO")
    assert job.wanted == {
        "scheduler.job_ttl": 29.5,
        "scheduler.job_renew_every": 9.833,
        "scheduler.job_failures": 3,
    }
    assert found["reconciler"].wanted["reconciler.interval"] == 10.0, (
        "its TTL is twice its interval, and others look once in an interval"
    )
    assert found["approval"].wanted == {
        "approvals.lock_ttl": 10.0,
        "approvals.lock_renew_every": 2.5,
        "approvals.lock_failures": 4,
    }, "jitter is high for such a TTL"
    assert found["deadletter.cleanup"].found.slo is None
    assert (found["deadletter.cleanup"].stays, found["deadletter.cleanup"].wanted) == (True, {})
    assert {name for name, each in found.items() if each.disagreements} == {
        *("scheduler.job", "worker.job", "workflow.run", "reconciler", "replayer"),
    }
    told = job.as_dict()
    assert told["recommended"]["renew_every"] == pytest.approx(29.5 / 3)
    assert told["settings"] == {
        "ttl": "scheduler.job_ttl",
        "renew_every": "scheduler.job_renew_every",
        "failures": "scheduler.job_failures",
    }
    assert (told["present_renew_every"], told["present_failures"]) == (20.0, 3)
    assert told["terms"][1]["from"] == "the renewer was late, by the autopsy of a loss"
    assert told["false_loss"]["requests"] > 1_000


@pytest.mark.requires("R138")
def test_what_is_recommended_is_written_and_then_agrees(gathered: TuningData, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("# ours\n[scheduler]\njob_ttl = 60 # as always\n")
    settings = load(path, environment={})
    made = plan(settings, reports(settings, gathered).values())
    assert made.changes["scheduler.job_ttl"] == (60.0, 29.5)
    assert made.changes["reconciler.interval"] == (30.0, 10.0)
    assert (made.changes["approvals.lock_renew_every"], made.changes["approvals.lock_failures"]) == (
        (3.333, 2.5),
        (3, 4),
    )
    changed = {name for name, family in FAMILY_KEYS.items() if made.changes.keys() >= set(family[:3])}
    assert changed == set(FAMILIES) - {"deadletter.cleanup"}, "all three of a family, of all that are to change"
    assert "+job_ttl = 29.5 # as always\n+job_renew_every = 9.833\n+job_failures = 3\n" in made.difference
    assert "+[approvals]\n+lock_ttl = 10\n+lock_renew_every = 2.5\n+lock_failures = 4\n" in made.difference
    assert apply(made) == tmp_path / "holdfast.toml.before"
    after = load(path, environment={})
    again = reports(after, gathered)
    assert [each.disagreements for each in again.values() if each.disagreements] == []
    assert plan(after, again.values()).changes == {}
    assert again["approval"].found.timing == again["approval"].subject.demand.timing
    assert path.read_text().startswith("# ours\n")
    promised = path.read_text().replace("# ours", "takeover = 30")
    path.write_text(promised)
    assert load(path, environment={}).takeover == 30.0, "the plane takes the promise now"


def test_what_a_file_cannot_change_is_said_and_left(gathered: TuningData, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("")
    settings = load(path, environment={"HOLDFAST_WORKER_LEASE_TTL": "45"})
    made = plan(settings, reports(settings, gathered).values())
    assert "worker.lease_ttl" not in made.changes
    (said,) = (each for each in made.left if each.startswith("worker.job"))
    assert said.endswith("worker.lease_ttl is set by $HOLDFAST_WORKER_LEASE_TTL, which the file cannot override")
    gathered_more = replace(gathered, holds=gathered.holds | {("billing", ""): of_durations([MS] * 200, "holds")})
    left = plan(settings, reports(settings, gathered_more).values()).left
    assert "billing: no setting exists for it; set its times in the lock spec" in left
    budget = load(path, environment={"HOLDFAST_APPROVALS_LOCK_FAILURES": "1"})
    left = plan(budget, reports(budget, gathered).values()).left
    assert "approval: approvals.lock_failures is set by $HOLDFAST_APPROVALS_LOCK_FAILURES, " in str(left)
    same = load(path, environment={"HOLDFAST_APPROVALS_LOCK_FAILURES": "4"})
    changes = plan(same, reports(same, gathered).values()).changes
    assert "approvals.lock_failures" not in changes, "it is what it should be"
    assert changes["approvals.lock_ttl"] == (10.0, 10.0)
    tight = plan(settings, reports(settings, gathered, SourcedDuration(2500 * MS, "--slo")).values())
    assert "scheduler.job_ttl" not in tight.changes
    assert "scheduler.job: unchanged, because no TTL keeps the takeover SLO" in tight.left


def test_settings_that_a_plane_would_refuse_are_not_written(gathered: TuningData, tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("[scheduler]\nack_wait = 40\n")
    settings = load(path, environment={})
    with pytest.raises(BadInput, match=r"would not work together: scheduler\.ack_wait"):
        plan(settings, reports(settings, gathered).values())
    assert path.read_text() == "[scheduler]\nack_wait = 40\n"


@pytest.mark.requires("R153", "R157", "R158")
def test_recorded_contention_is_lived_through_with_both_delays(gathered: TuningData) -> None:
    run = next(each for each in subjects(Settings(), SLO) if each.family == "workflow.run")
    found = retry_report(run, gathered.contention["workflow.run"], delays(0.5, 0.2))
    (fixed, none), (spread, nothing) = found.replayed
    assert (fixed.name, spread.name) == ("500 ms", "500 ± 200 ms")
    assert (none, nothing) == ((), ())
    assert spread.p95_wait_ns < fixed.p95_wait_ns
    assert "500 ± 200 ms instead of 500 ms: p95 wait" in found.sentences[0]
    assert found.as_dict()["delays"][1]["unfinished"] == 0
    with pytest.raises(BadInput, match="not below the base"):
        delays(0.2, 0.2)


def test_a_rotating_loop_is_measured_by_its_ticks(gathered: TuningData) -> None:
    settings = Settings(reconciler=ReconcilerSettings(interval=2.0, lead="rotating"))
    ticks = replace(gathered, ticks={"reconciler": SourcedDuration(9 * NS, "the longest tick")})
    found = reports(settings, ticks, None)["reconciler"]
    assert found.found.terms[0][:2] == ("p99 hold", 9 * NS)
    assert (found.disagreements[0].setting, str(found.disagreements[0].against)) == ("reconciler.interval", "evidence")
    ((key, value),) = found.wanted.items()
    assert (key, value * 2) == ("reconciler.interval", (found.found.ttl_ns or 0) / NS), "it is not renewed"


@pytest.mark.requires("R118", "R119")
def test_renewals_that_are_too_rare_or_given_up_too_soon_disagree_with_the_evidence(gathered: TuningData) -> None:
    settings = Settings(
        worker=WorkerSettings(lease_ttl=20.0, lease_renew_every=14.0),
        approvals=ApprovalSettings(lock_failures=1),
    )
    found = reports(settings, gathered)
    wrong = {each.setting: each.text for each in found["worker.job"].disagreements}
    assert list(wrong) == ["worker.lease_renew_every"]
    assert wrong["worker.lease_renew_every"].startswith("renewed every 14 s, a lease of 20 s outlives ")
    (budget,) = found["approval"].disagreements
    assert (budget.setting, budget.text.partition(",")[0]) == (
        *("approvals.lock_failures", "1 failed renewal ends a lease that is renewed every 3.33 s"),
    )


def test_a_picture_is_drawn_and_the_one_in_the_documentation_is_such_a_picture(
    gathered: TuningData, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    draw(list(reports(Settings(), gathered).values()), tmp_path / "day.png", "a day")
    for path in (tmp_path / "day.png", PICTURE):
        assert path.read_bytes().startswith(b"\x89PNG\r\n")
        assert path.stat().st_size < 100_000


def test_there_is_no_picture_of_nothing_and_none_where_it_cannot_be(gathered: TuningData, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no holds to draw"):
        draw([], tmp_path / "x.png", "here")
    found = list(reports(Settings(), gathered).values())
    with pytest.raises(BadInput, match="is not a directory"):
        draw(found, tmp_path / "no" / "x.png", "here")
    with pytest.raises(BadInput, match="is not the name of an image"):
        draw(found, tmp_path / "x.noise", "here")


def test_the_day_is_the_same_every_time() -> None:
    assert list(day(0.02)) == list(day(0.02))
