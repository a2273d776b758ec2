"""`holdfast history` and `holdfast check`: what a ledger says about a key, and about every rule."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.parse_time import moment_ns, seconds_ago
from holdfast.core.history.events import EventKind, Record
from holdfast.errors import BadInput
from holdfast.observe.ledger.codec import Remark, line
from holdfast.observe.ledger.writer import Ledger
from holdfast.types import NS
from support.cli.sessions import Shell

NOON = round(datetime(2026, 3, 1, 12, 0, 0).astimezone().timestamp()) * NS


def seen(kind: EventKind, at: float, fence: int | None = None, owner: str = "a@h:1/x", **more: Any) -> Record:
    times = {name: NOON + round(more.pop(name) * NS) for name in ("began_ns", "until_ns") if name in more}
    return Record(kind, NOON + round(at * NS), "invoice:42", "billing", owner, fence=fence, **times, **more)


LOST_FACTS = {
    "held_ns": 60 * NS,
    "unrenewed_ns": 40 * NS,
    "allowed_ns": 26 * NS,
    "ttl_ns": 30 * NS,
    "renew_every_ns": 10 * NS,
    "renewals": [{"ago_ns": 30 * NS, "took_ns": 2 * NS, "answered": False}],
    "store_error": "Timeout: no answer",
    "store_error_ago_ns": 28 * NS,
}
STORY = [
    seen(EventKind.GRANTED, 0, 7, began_ns=-0.1, until_ns=26),
    seen(EventKind.RELEASED, 10, 7, began_ns=9.9),
    seen(EventKind.GRANTED, 20, 8, "b@h:2/y", began_ns=19.9, until_ns=46),
    seen(EventKind.LOST, 80, 8, "b@h:2/y", until_ns=66, reason="unconfirmed", ok=False, facts=LOST_FACTS),
    seen(EventKind.GRANTED, 70, 9, began_ns=69, until_ns=96),
    seen(EventKind.WRITE, 81, 8, "b@h:2/y", ok=False, began_ns=80.5, facts={"seen": 9}, resource="table row"),
]


def write(path: Path, *entries: Record | Remark) -> Path:
    path.write_bytes(b"".join(map(line, entries)))
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    directory = tmp_path / "ledger"
    directory.mkdir()
    write(directory / "h-1-0.000001.jsonl", *STORY[:2], *STORY[4:5])
    write(directory / "h-2-0.000001.jsonl", *STORY[2:4], *STORY[5:])
    return directory


def test_history_shows_the_holders_their_fences_and_why_one_was_lost(shell: Shell, ledger: Path) -> None:
    done = shell.run("history", "invoice:42", "--ledger", str(ledger))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["FROM", "HELD", "FENCE", "OWNER", "END"]
    assert lines[1].split()[2:] == ["10", "s", "7", "a@h:1/x", "released"]
    assert lines[2].split()[2:] == ["46", "s", "8", "b@h:2/y", "lost:", "unconfirmed"]
    assert lines[3].split()[2:] == ["?", "9", "a@h:1/x", "no", "end", "is", "recorded"]
    assert [each.strip() for each in lines[4:]] == [
        "",
        "fence 8 of b@h:2/y: lost: unconfirmed",
        "the store did not confirm a renewal in time",
        "held for 60 s; last confirmed 40 s before, of at most 26 s (TTL 30 s)",
        "noticed 14 s after the deadline: the process did not run when it came",
        "renewals since: 30 s before (no answer after 2 s)",
        "the store's last error, 28 s before: Timeout: no answer",
        "1 of its writes were refused: storage had seen a newer fence",
        "taken over by a@h:1/x with fence 9, 4.0 s later",
    ]


def test_history_is_for_programs_too_and_can_be_narrowed(shell: Shell, ledger: Path) -> None:
    environment = {"HOLDFAST_LEDGER": str(ledger)}
    found = shell.run("history", "invoice:42", "--json", env=environment).json
    assert [(each["fence"], each["end"], each["seconds"]) for each in found] == [
        (7, "released", 10.0),
        (8, "lost", 46.0),
        (9, "unknown", None),
    ]
    assert found[1]["facts"] == LOST_FACTS
    assert (found[1]["next"]["owner"], found[1]["next"]["fence"], found[1]["next"]["after_seconds"]) == (
        "a@h:1/x",
        9,
        4,
    )
    since = shell.run("history", "invoice:42", "--since", "2026-03-01 12:00:11", "--json", env=environment).json
    until = shell.run("history", "invoice:42", "--until", "2026-03-01 12:00:11", "--json", env=environment).json
    assert ([each["fence"] for each in since], [each["fence"] for each in until]) == ([8, 9], [7])
    nothing = shell.run("history", "other", env=environment)
    assert (nothing.code, nothing.out) == (1, "the ledger has no hold of other\n")


@pytest.mark.parametrize(
    ("at", "code", "words"),
    [
        (
            "2026-03-01 12:00:05",
            0,
            "was held at 2026-03-01 12:00:05.000 by a@h:1/x with fence 7, from 12:00:00.000 until",
        ),
        ("2026-03-01 12:00:15", 1, "was not held at 2026-03-01 12:00:15.000, according to the ledger"),
        ("2026-03-01 12:01:30", 0, "was held at 2026-03-01 12:01:30.000 by a@h:1/x with fence 9"),
        ("2026-03-01 12:05", 0, "was perhaps held at 2026-03-01 12:05:00.000 by a@h:1/x with fence 9"),
    ],
)
def test_who_held_it_at_a_moment(shell: Shell, ledger: Path, at: str, code: int, words: str) -> None:
    done = shell.run("history", "invoice:42", "--ledger", str(ledger), "--at", at)
    assert done.code == code
    assert f"invoice:42 {words}" in done.out
    found = shell.run("history", "invoice:42", "--ledger", str(ledger), "--at", at, "--json").json
    assert len(found["holders"]) == (1 if code == 0 else 0)


def test_a_check_of_nothing_says_so(shell: Shell, ledger: Path) -> None:
    done = shell.run("check", str(ledger), "--key", "missing")
    assert done.code == 0
    assert done.out.startswith("nothing to check: no grant is on record (0 records")


def test_check_says_that_every_rule_holds(shell: Shell, ledger: Path) -> None:
    done = shell.run("check", str(ledger))
    assert (done.code, done.err) == (0, "")
    verdict, _, summary, loss_line = done.out.splitlines()
    assert verdict == "every rule holds (6 records, 3 grants of 1 keys, 2 files)"
    assert summary == "1 lease was lost (1 unconfirmed); holdfast history KEY explains"
    whose, then = loss_line.strip().split("; ")
    assert whose == "2026-03-01 12:01:06.000 invoice:42 fence 8 of b@h:2/y: unconfirmed"
    assert then == "taken over by a@h:1/x with fence 9, 4.0 s later"
    found = shell.run("check", str(ledger), "--json").json
    assert (found["ok"], found["records"], found["violations"], found["lost"]) == (True, 6, [], 1)
    [loss] = found["losses"]
    assert (loss["key"], loss["reason"], loss["next"]["owner"]) == ("invoice:42", "unconfirmed", "a@h:1/x")
    assert shell.run("check", str(ledger), "--key", "other").out.count("\n") == 1


def test_check_shows_the_two_that_conflict_and_exits_1(shell: Shell, tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.jsonl", *STORY[:2], seen(EventKind.GRANTED, 30, 5, "b@h:2/y", began_ns=29, until_ns=57))
    done = shell.run("check", str(bad))
    assert done.code == 1
    assert "a rule was broken (3 records, 2 grants of 1 keys, 1 files)" in done.out
    assert "C2  invoice:42: a grant asked for later has the lower fence" in done.out
    assert "2026-03-01 12:00:00.000 a@h:1/x: granted fence 7" in done.out
    assert "2026-03-01 12:00:30.000 b@h:2/y: granted fence 5" in done.out
    found = shell.run("check", str(bad), "--json").json
    assert [(each["rule"], [record["fence"] for record in each["records"]]) for each in found["violations"]] == [
        ("C2", [7, 5])
    ]
    assert shell.run("check", str(bad), "--skew", "60").code == 0
    assert shell.run("check", str(bad), "--key", "other").code == 0


def test_damage_and_gaps_are_said_and_are_no_broken_rule(shell: Shell, tmp_path: Path) -> None:
    file = write(tmp_path / "torn.jsonl", STORY[0], Remark("dropped", NOON, {"count": 3}), STORY[1])
    file.write_bytes(file.read_bytes() + b"\xff\x00 rubbish\n" + line(STORY[2])[:-4])
    done = shell.run("check", str(file))
    assert done.code == 0
    assert done.err.splitlines() == [
        f"holdfast: {file}:4: skipped, it is not JSON; a torn or damaged line",
        f"holdfast: {file}:5: skipped, it is unfinished: torn by a crash, or being written",
        "holdfast: 3 records could not be written at the time; the ledger lacks them",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["check", "nowhere"],
        ["history", "k"],
        ["history", "k", "--ledger", "nowhere"],
        ["history", "k", "--ledger", ".", "--at", "soon"],
        ["check", ".", "--skew", "-1"],
    ],
)
def test_bad_usage_is_said(shell: Shell, words: list[str]) -> None:
    done = shell.run(*words, env={"HOLDFAST_LEDGER": ""} if words == ["history", "k"] else None)
    assert (done.code, done.out) == (64, "")
    assert done.err.startswith("holdfast: ")


def test_a_real_ledger_is_read_and_shows_no_token(shell: Shell, tmp_path: Path) -> None:
    import holdfast

    path = tmp_path / "real"
    with Ledger(path) as ledger, holdfast.connect(shell.url, observers=[ledger]) as locks:
        with locks.lock("nightly", ttl=600) as lease:
            token = lease._lease_record.token
        stuck = locks.lock("nightly", ttl=0.5).acquire()
        locks.force_release("nightly", reason="stuck", actor="ops")
        assert stuck.lost.wait(60)
    shown = ""
    for words in (["history", "nightly", "--ledger", str(path)], ["check", str(path)]):
        for more in ([], ["--json"]):
            done = shell.run(*words, *more)
            assert done.code == 0, done.err
            shown += done.out
    assert "broken by ops: stuck" in shown
    assert "every rule holds" in shown
    assert token not in shown
    assert stuck._lease_record.token not in shown
    assert json.loads(shown.splitlines()[-1])["grants"] == 2


HERE = datetime(2026, 3, 1, 9, 30, tzinfo=datetime.now().astimezone().tzinfo)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("09:15", HERE - timedelta(minutes=15)),
        ("9:15:30", HERE - timedelta(minutes=14, seconds=30)),
        ("14:03", HERE - timedelta(hours=19, minutes=27)),  # yesterday's: today's has not been yet
        ("10m", HERE - timedelta(minutes=10)),
        ("1.5h ago", HERE - timedelta(minutes=90)),
        ("2026-02-01T00:00:00+00:00", datetime.fromisoformat("2026-02-01T00:00:00+00:00")),
    ],
)
def test_moments_are_read_as_people_mean_them(text: str, expected: datetime) -> None:
    assert moment_ns("at", text, HERE) == round(expected.timestamp()) * NS


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2026-13-01", "9e999d", "-5"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"--at: .* is not a time; give 15m for 15 minutes ago"):
        moment_ns("--at", text, HERE)


@pytest.mark.parametrize("text", ["900", "0.5", "20260301"])
def test_a_bare_number_is_no_moment_because_it_could_be_seconds_or_a_date(text: str) -> None:
    with pytest.raises(BadInput, match=f"--since: '{text}' has no unit; write {text}s for {text} seconds ago"):
        moment_ns("--since", text, HERE)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900.0), ("09:15", 900.0), ("2026-03-01T09:29", 60.0), ("2h", 7200.0)]
)
def test_a_period_until_now_begins_at_a_moment(text: str, seconds: float) -> None:
    assert seconds_ago("--since", text, HERE) == seconds


@pytest.mark.parametrize(
    "words",
    [
        ("history", "invoice:42", "--since"),
        ("history", "invoice:42", "--at"),
        ("check", "--since"),
        ("tune", "--since"),
    ],
)
def test_every_command_refuses_a_bare_number_in_the_same_words(
    shell: Shell, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = write(tmp_path / "story.jsonl", *STORY)
    where = (
        ("--history", str(file))
        if words[0] == "tune"
        else ("--ledger", str(file))
        if words[0] == "history"
        else (str(file),)
    )
    refused = shell.run(*words, "900", *where)
    assert (refused.code, refused.out) == (64, "")
    assert f"{words[-1]}: '900' has no unit; write 900s for 900 seconds ago" in refused.err


def test_a_broken_lease_shows_who_did_it_why_and_whose_it_was(shell: Shell, tmp_path: Path) -> None:
    whose = {"holder": "a@h:1/x", "holder_fence": 7}
    forced = seen(EventKind.FORCED, 5, 8, "ops@desk", detail="the host is gone", facts=whose)
    file = write(tmp_path / "forced.jsonl", STORY[0], forced, seen(EventKind.GRANTED, 4, 6, began_ns=3, until_ns=30))
    shown = shell.run("history", "invoice:42", "--ledger", str(file)).out
    assert "broken by ops@desk: the host is gone" in shown
    found = shell.run("history", "invoice:42", "--ledger", str(file), "--json").json
    assert [each["forced_by"] for each in found if each["fence"] == 7] == ["ops@desk"]
    assert [each["forced_because"] for each in found if each["fence"] == 7] == ["the host is gone"]
    bad = write(tmp_path / "bad.jsonl", STORY[0], forced, seen(EventKind.GRANTED, 30, 7, "c", began_ns=29, until_ns=57))
    assert shell.run("check", str(bad)).code == 1


def test_without_a_name_the_ledger_is_the_planes(shell: Shell, tmp_path: Path) -> None:
    (shell.directory / "holdfast.toml").write_text('database = "sqlite:///plane.db"\n')
    beside = shell.directory / "plane.db.audit"
    beside.mkdir()
    write(beside / "h-1-0.000001.jsonl", *STORY[:2])
    assert "released" in shell.run("history", "invoice:42").out
    assert shell.run("check").out == "every rule holds (2 records, 1 grants of 1 keys, 1 files)\n"
    (shell.directory / "other.toml").write_text("[audit]\nenabled = false\n")
    refused = shell.run("check", "--config", "other.toml")
    assert (refused.code, refused.out) == (64, "")
    assert "ledger: is not given, and the plane's settings have none" in refused.err
