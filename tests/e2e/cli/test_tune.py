"""`holdfast tune`: by hand, from a ledger, into the settings, as a check; bad input is said and nothing half done."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.core.duration_text import parse_duration_ns
from holdfast.errors import BadInput
from holdfast.types import MS, NS
from support.cli.sessions import Shell
from tuning_picture import write_day


@pytest.fixture(scope="module")
def _day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_day(tmp_path_factory.mktemp("day"), 0.1)


@pytest.fixture
def day(_day: Path, shell: Shell) -> Path:
    """The ledger of a day, under a name without a directory."""
    return Path(shutil.copytree(_day, shell.directory / "audit"))


@pytest.mark.requires("R113", "R114", "R115")
def test_the_worked_example_by_hand(shell: Shell) -> None:
    words = ("tune", "--hold-p99", "18s", "--jitter", "4s", "--guard", "2s", "--slo", "30s")
    done = shell.run(*words)
    assert (done.code, done.err) == (0, "")
    assert "  TTL 24 s = p99 hold 18 s + jitter 4 s + guard 2 s" in done.out.splitlines()
    assert "  if it is renewed: every 8 s, a third of the TTL" in done.out.splitlines()
    told = shell.run(*words, "--json").json
    assert (told["recommended"]["ttl"], told["recommended"]["renew_every"]) == (24.0, 8.0)
    assert (told["binding"], told["takeover"], told["slo"], told["possible"]) == ("hold", 25.0, 30.0, True)


@pytest.mark.requires("R116")
def test_an_impossible_slo_exits_1_and_names_other_mechanisms(shell: Shell) -> None:
    done = shell.run("tune", "--ttl", "60s", "--slo", "30s")
    assert (done.code, done.err) == (1, "")
    assert "a takeover SLO of 30 s is impossible with a TTL of 60 s unless something else than expiry" in done.out
    assert "instead: a supervisor that knows of the death breaks the lock immediately" in done.out
    told = shell.run("tune", "--hold-p99", "48s", "--jitter", "4s", "--slo", "30s", "--json")
    assert told.code == 1
    assert told.json["possible"] is False
    assert told.json["mechanisms"][0].startswith("renew the lease while the work runs")


def test_a_ledger_gives_a_table_sentences_and_json(shell: Shell, day: Path) -> None:
    done = shell.run("tune", "--history", "audit", "--slo", "30s")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "data: audit"
    assert lines[1].split()[:6] == ["FAMILY", "CLASS", "HOLDS", "P50", "P95", "P99"]
    job = next(line for line in lines if line.startswith("scheduler.job"))
    assert job.split()[1] == "600"
    assert "29.5 s" in job
    assert any(line.startswith("500 ± 200 ms ") for line in lines), "the recorded contention was replayed"
    told = shell.run("tune", "--history", "audit", "--slo", "30s", "--family", "worker.job", "--json").json
    (family,) = told["families"]
    assert family["setting"] == "worker.lease_ttl"
    assert family["holds"]["all"]["enough"]
    assert all(each["from"] for each in family["terms"])


def test_the_ledger_of_the_settings_is_taken_when_no_source_is_named(shell: Shell, day: Path) -> None:
    (shell.directory / "holdfast.toml").write_text('[audit]\npath = "audit"\n')
    assert "data: audit" in shell.run("tune").out
    (shell.directory / "holdfast.toml").write_text('[audit]\npath = "elsewhere"\n')
    done = shell.run("tune")
    assert (done.code, done.out) == (64, "")
    assert "is not given: no source is named, and the settings have no audit ledger yet" in done.err


@pytest.mark.requires("R116", "R138")
def test_what_is_applied_is_what_was_shown_and_then_the_check_passes(shell: Shell, day: Path) -> None:
    path = shell.directory / "holdfast.toml"
    path.write_text("takeover = 30\n\n[scheduler]\njob_ttl = 60  # as always\n")
    checked = shell.run("tune", "--history", "audit", "--check")
    assert checked.code == 1
    wrong = "scheduler.job_ttl (scheduler.job), takeover SLO: TTL 60 s is taken over after up to 60.5 s, 30.5 s beyond"
    assert wrong in checked.out
    shown = shell.run("tune", "--history", "audit", "--diff")
    assert "+job_ttl = 29.5  # as always\n+job_renew_every = 9.833\n+job_failures = 3\n" in shown.out
    assert "+[approvals]\n+lock_ttl = 10\n+lock_renew_every = 2.5\n+lock_failures = 4\n" in shown.out
    assert "job_ttl = 60" in path.read_text(), "it was only shown"
    applied = shell.run("tune", "--history", "audit", "--apply", "--json")
    assert applied.code == 0
    assert applied.json["plan"]["applied"] is True
    assert applied.json["plan"]["changes"]["scheduler.job_ttl"] == {"from": 60.0, "to": 29.5}
    assert "job_ttl = 29.5  # as always" in path.read_text()
    assert "job_ttl = 60" in (shell.directory / "holdfast.toml.before").read_text()
    again = shell.run("tune", "--history", "audit", "--check")
    assert again.code == 0
    assert "the settings agree with the data" in again.out
    assert "nothing to change" in shell.run("tune", "--history", "audit", "--apply").out
    assert shell.run("up", "--check").code == 0, "a plane takes the promise now"
    path.write_text(path.read_text().replace("lock_failures = 4", "lock_failures = 1"))
    checked = shell.run("tune", "--history", "audit", "--check")
    assert checked.code == 1
    assert (
        "approvals.lock_failures (approval), evidence: 1 failed renewal ends a lease that is renewed every 2.5 s"
        in (checked.out)
    )
    path.write_text(path.read_text().replace("lock_renew_every = 2.5", "lock_renew_every = 8"))
    refused = shell.run("up", "--check")
    assert (refused.code, "approvals.lock_renew_every (holdfast.toml:" in refused.err) == (64, True)


def test_a_check_that_could_judge_nothing_is_not_passed(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("once"):
        pass
    (shell.directory / "audit").mkdir()
    (shell.directory / "audit" / "a.000001.jsonl").write_text('{"kind":"granted","at_ns":5,"key":"k","fence":1}\n')
    done = shell.run("tune", "--history", "audit", "--check")
    assert done.code == 1
    assert "no judgement: there is not enough data" in done.out


def test_a_picture_is_written(shell: Shell, day: Path) -> None:
    pytest.importorskip("matplotlib")
    done = shell.run("tune", "--history", "audit", "--plot", "day.png", "--json")
    assert (done.code, done.err) == (0, "")
    assert (shell.directory / "day.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["--hold-p99", "soon", "--jitter", "1s"], 64, "hold-p99: 'soon' is not a length of time"),
        (["--hold-p99", "nan", "--jitter", "1s"], 64, "hold-p99: 'nan' is not a length of time"),
        (["--hold-p99", "-3s", "--jitter", "1s"], 64, "'-3s' is not a length of time"),
        (["--hold-p99", "999999999d", "--jitter", "1s"], 64, "out of range"),
        (["--hold-p99", "18s"], 64, "--jitter: is missing"),
        (["--jitter", "4s"], 64, "--hold-p99: is missing"),
        (["--hold-p99", "18s", "--jitter", "1s", "--apply"], 64, "belongs to a manual calculation"),
        (["--metrics", "http://x/metrics", "--history", "audit"], 64, "cannot be combined with another source"),
        (["--history", "nowhere"], 64, "nowhere does not exist"),
        (["--metrics", "file:///etc/passwd"], 64, "--metrics: is not an address of a server"),
        (["--metrics", "http://127.0.0.1:1/metrics"], 69, "could not be reached"),
        (["--prometheus", "http://127.0.0.1:1"], 69, "could not be reached"),
        (["--prometheus", "http://127.0.0.1:1", "--window", "week"], 64, "window: 'week' is not a duration"),
        (["--history", "nowhere", "--slo", "0"], 64, "slo: 0 s is out of range"),
    ],
)
def test_bad_input_is_said_and_nothing_is_written(shell: Shell, words: list[str], code: int, problem: str) -> None:
    done = shell.run("tune", *words)
    assert (done.code, done.out) == (code, "")
    assert problem in done.err
    assert sorted(each.name for each in shell.directory.iterdir()) == []


def test_an_unknown_family_and_an_impossible_jitter_are_refused(shell: Shell, day: Path) -> None:
    unknown = shell.run("tune", "--history", "audit", "--family", "missing")
    assert unknown.code == 64
    assert "'missing' is neither in the data nor in the plane" in unknown.err
    wide = shell.run("tune", "--history", "audit", "--retry-jitter", "2s")
    assert (wide.code, wide.out) == (64, "")
    assert "not below the base" in wide.err


def test_lengths_are_read_as_people_type_them() -> None:
    assert [parse_duration_ns("x", text) for text in ("30", "30s", "500ms", "1h30m", "1.5 s", "2M")] == [
        *(30 * NS, 30 * NS, 500 * MS, 5400 * NS, 1500 * MS, 120 * NS)
    ]
    for text in ("", "s", "1e9", "5 parsecs", "1s-2s", "+5", "٣"):
        with pytest.raises(BadInput, match="is not a length of time"):
            parse_duration_ns("x", text)
