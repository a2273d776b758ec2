"""Where the plane of a drill lives: nothing in the environment leads it elsewhere, and what others have stays."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.app import run_app
from holdfast.cli.commands import drill as drilling
from holdfast.drills.catalog import drill
from holdfast.drills.env.backends import FileBackend, LeaseBackend, with_option
from holdfast.drills.env.deployment import Deployment
from holdfast.drills.env.nats import StreamBackend
from holdfast.drills.env.postgres import SchemaBackend
from holdfast.drills.env.workspace import lease_times, lent_by, own
from holdfast.drills.planner import planned
from holdfast.errors import BadInput
from holdfast.plane.settings.sources import load

GIVEN: dict[str, Any] = {"ttl": None, "slo": None, "duration": None, "store": None, "seed": 0}


def _config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "staging.toml"
    path.write_text(text)
    return str(path)


def test_a_plane_of_the_drills_own_is_led_nowhere_else_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE", "BUS", "LEASES", "URL", "SCHEDULER_JOB_TTL", "CONFIG"):
        monkeypatch.setenv(f"HOLDFAST_{name}", "postgresql://production/plane")
    quarters = own(tmp_path, {"worker.lease_ttl": 3.0})
    assert quarters.settings.database == f"sqlite:///{tmp_path}/plane.db"
    assert (quarters.settings.bus, quarters.settings.leases) == (None, None)
    assert quarters.settings.worker.lease_ttl == 3.0
    assert not any(name.startswith("HOLDFAST_") for name in quarters.variables)
    assert quarters.told == ""


def test_processes_on_a_deployment_have_its_settings_and_places_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_LEASES", "redis://user:secret@leases:6379/2?prefix=team%3A")
    text = (
        'database = "postgresql://db/plane?options=-c%20work_mem%3D8MB&pool_max=4"\nbus = "nats://bus?stream=PLANE"\n'
    )
    config = _config(tmp_path, f"{text}[worker]\nlease_ttl = 12\n[audit]\nenabled = false\n[otel]\nenabled = true\n")
    quarters = lent_by(Deployment(load(config)))
    name, said = quarters.name, quarters.variables
    schema = f"options=-c%20work_mem%3D8MB%20-c%20search_path%3Dholdfast_drill_{name}"
    assert said["HOLDFAST_DATABASE"] == f"postgresql://db/plane?pool_max=4&{schema}"
    assert said["HOLDFAST_BUS"] == f"nats://bus?stream=HOLDFAST_DRILL_{name.upper()}"
    prefix = f"prefix=team%3Aholdfast%3Adrill%3A{name}%3A"
    assert said["HOLDFAST_LEASES"] == f"redis://user:secret@leases:6379/2?{prefix}"
    assert (said["HOLDFAST_AUDIT_ENABLED"], said["HOLDFAST_OTEL_ENABLED"]) == ("true", "false")
    assert quarters.settings.worker.lease_ttl == 12.0
    assert (quarters.options, quarters.directory) == (("--config", config), tmp_path)
    assert "secret" not in f"{quarters.options}{quarters.told}{Deployment(load(config)).shown}"


def test_options_of_the_environment_are_kept_beside_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=8MB")
    found = SchemaBackend("database", "postgresql://db/plane").quarter("0a1b2c3d")
    assert found == "postgresql://db/plane?options=-c%20work_mem%3D8MB%20-c%20search_path%3Dholdfast_drill_0a1b2c3d"
    assert with_option("nats://bus", "stream", "A B") == "nats://bus?stream=A%20B"


@pytest.mark.parametrize("before", ["redis://a", "unix:///run/redis.sock", "redlock://a,b,c/1"])
def test_leases_of_a_drill_are_below_the_prefix_that_leases_have_there_anyway(before: str) -> None:
    found = LeaseBackend("leases", f"{before}?prefix=team%3A&namespace=n").quarter("0a1b2c3d")
    assert found == f"{before}?namespace=n&prefix=team%3Aholdfast%3Adrill%3A0a1b2c3d%3A"
    assert LeaseBackend("leases", before).quarter("0a1b2c3d") == f"{before}?prefix=holdfast%3Adrill%3A0a1b2c3d%3A"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("", [FileBackend]),
        ('database = "sqlite:///plane.db?synchronous=normal"\n', [FileBackend]),
        ('database = "sqlite:///plane.db"\nleases = "redis://leases"\n', [FileBackend, LeaseBackend]),
        ('database = "postgres://db/plane"\nleases = "sqlite:///leases.db"\n', [SchemaBackend, FileBackend]),
        (
            'database = "postgresql://db/plane"\nbus = "nats://bus"\nleases = "rediss://leases"\n',
            [SchemaBackend, StreamBackend, LeaseBackend],
        ),
    ],
)
def test_a_deployment_may_be_embedded_in_part(tmp_path: Path, text: str, places: list[type]) -> None:
    assert [type(each) for each in Deployment(load(_config(tmp_path, text))).places] == places


def test_asking_whether_a_file_is_marked_neither_makes_it_nor_changes_it(tmp_path: Path) -> None:
    place = FileBackend("database", f"sqlite:///{tmp_path}/plane.db?synchronous=normal")
    assert not place.is_marked()
    assert not place.unmark()
    assert not place.path.exists()
    with closing(sqlite3.connect(place.path)) as connection:
        connection.execute("CREATE TABLE plane_job (id TEXT)")
    assert not place.is_marked()
    with closing(sqlite3.connect(place.path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("plane_job",)]


def test_a_quarter_of_a_file_is_a_file_beside_it_and_goes_without_its_neighbours(tmp_path: Path) -> None:
    place = FileBackend("database", f"sqlite:///{tmp_path}/plane[1].db?synchronous=normal")
    place.mark(60)
    assert place.is_marked()
    url = place.quarter("0a1b2c3d")
    assert url == f"sqlite:///{tmp_path}/plane[1].db.drill-0a1b2c3d?synchronous=normal"
    with holdfast.connect(url.partition("?")[0]) as locks, locks.lock("theirs"):
        pass
    theirs = tmp_path / "plane[1].db.drill-notes"
    theirs.touch()
    killed = tmp_path / "plane[1].db.drill-ffffffff-wal"
    killed.touch()
    place.clear("0a1b2c3d")
    assert {path.name for path in tmp_path.iterdir()} >= {killed.name, theirs.name, place.path.name}
    assert not list(tmp_path.glob("*0a1b2c3d*"))
    assert place.sweep() == ["file plane[1].db.drill-ffffffff"]
    assert theirs.exists()
    assert not killed.exists()
    assert place.is_marked()


def test_what_is_said_on_the_command_line_comes_before_the_settings(tmp_path: Path) -> None:
    config = _config(
        tmp_path, f'database = "sqlite:///{tmp_path}/plane.db"\ntakeover = 200\n[worker]\nlease_ttl = 12\n'
    )
    plan = planned(drill("kill"), **drilling._filled(drill("kill"), None, config, GIVEN))
    assert plan.deployment is not None
    assert (plan.ttl_s, plan.slo_s, plan.deployment.said) == (60.0, 200.0, {})
    assert plan.deployment.settings.worker.lease_ttl == 12.0, "as it is set up: that is what is measured"
    assert drilling._replay("kill", plan) == f"holdfast drill kill --config {config} --slo 200"
    url = "redis://leases:6379"
    plan = planned(drill("kill"), **drilling._filled(drill("kill"), url, config, {**GIVEN, "ttl": 5.0}))
    assert plan.deployment is not None
    assert plan.url == url
    assert plan.deployment.said == {"leases": url, **lease_times(5.0)}
    assert drilling._replay("kill", plan) == f"holdfast drill kill --config {config} --url {url} --ttl 5 --slo 200"
    for name, given in (("kill", {**GIVEN, "store": "redis"}), ("pause", GIVEN)):
        filled = drilling._filled(drill(name), None, config, given)
        assert filled["deployment"] is None, "a store of its own, or leases alone"
    with pytest.raises(BadInput, match="not on leases alone"):
        planned(drill("rolling-restart"), **drilling._filled(drill("rolling-restart"), url, config, GIVEN))


@pytest.mark.parametrize("ttl", [0.5, 3.0, 10.0, 60.0, 600.0])
def test_a_plane_can_work_with_leases_of_any_length_that_a_drill_takes(tmp_path: Path, ttl: float) -> None:
    assert own(tmp_path, lease_times(ttl)).settings.scheduler.job_ttl == max(3.0, ttl)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kill", "--config", "missing.toml"), "cannot be read"),
        (("rolling-restart", "--config", "bad.toml"), "is not a key"),
        (("rolling-restart", "--config", "plane.toml"), "database sqlite:///plane.db is not marked"),
        (("kill", "--config", "plane.toml", "--ttl", "nan"), "--ttl"),
        (("kill", "--config", "slow.toml", "--ttl", "5"), "scheduler.job_renew_every"),
        (("mark", "--config", "plane.toml", "--url", "redis://leases"), "use one of them"),
        (("mark", "--config", "plane.toml", "--for", "0"), "--for"),
        (("unmark", "--config", "missing.toml"), "cannot be read"),
    ],
)
def test_a_deployment_that_is_not_marked_or_not_one_is_exit_code_64_and_nothing_is_made(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text('databse = "sqlite:///plane.db"\n')
    (tmp_path / "plane.toml").write_text('database = "sqlite:///plane.db"\n')
    (tmp_path / "slow.toml").write_text("[scheduler]\njob_renew_every = 15\n")
    assert run_app(["drill", *words]) == 64
    heard = capsys.readouterr()
    assert (heard.out, said in heard.err) == ("", True), heard
    assert {path.name for path in tmp_path.iterdir()} == {"bad.toml", "plane.toml", "slow.toml"}
