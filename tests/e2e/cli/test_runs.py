"""`holdfast runs` as a user types it: with a plane that runs beside it, without one, and with bad input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.cli.planes import Up, furnish
from support.cli.sessions import Done, Shell, Typing, until

REFUND = """\
name: refund
inputs: {order: whole, amounts: {type: list, default: [1, 2, 3]}}
steps:
  fetch: {topic: double, input: "${ input.order }"}
  each: {topic: double, after: [fetch], for_each: "${ input.amounts }", input: "${ item }", max_parallel: 2}
  ask: {kind: approval, after: [each], message: "refund ${ input.order }?"}
  pay: {topic: double, after: [ask], input: "${ steps.fetch.output }"}
output: "${ steps.pay.output }"
"""

HOPELESS = """\
name: hopeless
steps:
  good: {topic: double, input: 4}
  bad: {topic: hopeless, after: [good]}
  never: {topic: double, after: [bad], input: 1}
"""

WRONG = """\
name: refund
steps:
  fetch: {topic: double, input: "${ stps.x }"}
  pay: {topic: double, after: [fetsh], retires: 3}
"""


@pytest.fixture
def furnished(shell: Shell) -> Shell:
    furnish(shell)
    for name, text in (("refund", REFUND), ("hopeless", HOPELESS), ("wrong", WRONG)):
        (shell.directory / f"{name}.yaml").write_text(text)
    return shell


def lines(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def said(done: Done) -> list[list[str]]:
    """Lines of a timeline or of `follow`, without their times."""
    return [line.split()[1:3] for line in done.out.splitlines()]


def test_a_run_from_its_start_over_an_approval_to_its_end(furnished: Shell) -> None:
    up = Up(furnished)
    started = furnished.run(
        "runs", "start", "refund.yaml", "--input", '{"order": 21}', "--id", "r1", "--tenant", "acme"
    )
    assert started[:2] == (0, "r1\n")
    assert started.err.startswith("holdfast: started: refund version 1 of acme, pending\nholdfast: database: ")

    def waits() -> bool:
        return bool(furnished.run("runs", "show", "r1", "--json").json["run"]["status"] == "waiting")

    until(waits, "a run that waits for an approval")
    unfinished = furnished.run("runs", "follow", "r1", "--timeout", "0.1")
    assert unfinished.code == 124
    assert unfinished.out.splitlines()[-1] == "r1 is waiting and has not finished yet"
    assert unfinished.out.splitlines()[-2].endswith("holdfast approvals show r1:ask@1")
    tree = furnished.run("runs", "show", "r1").out.splitlines()
    assert tree[0].startswith("refund v1 waiting  r1  fence ")
    assert [" ".join(line.split()[1:5]) for line in tree[1:5]] == [
        "✔ fetch double succeeded",
        "✔ each double succeeded",
        "⏸ ask approval waiting",
        "· pay double pending",
    ]
    assert "3 of 3 items finished" in tree[2]
    assert tree[3].endswith("holdfast approvals show r1:ask@1")
    assert tree[5] == 'input   {"order": 21, "amounts": [1, 2, 3]}'
    assert furnished.run("approvals", "approve", "r1:ask@1", "--as", "boss").code == 0
    followed = furnished.run("runs", "follow", "r1")
    assert followed.code == 0
    assert said(followed)[0] == ["run", "submitted"]
    assert said(followed)[-2] == ["run", "succeeded"]
    assert followed.out.splitlines()[-1] == "r1 succeeded: 84"
    assert "fence" not in followed.out
    assert all("fence" in line for line in furnished.run("runs", "timeline", "r1").out.splitlines()[1:])
    told = lines(furnished.run("runs", "timeline", "r1", "--json"))
    assert [(each["step"], each["kind"]) for each in told][-1] == (None, "succeeded")
    whole = lines(furnished.run("runs", "follow", "r1", "--json"))
    assert [each["event"] for each in whole[:-1]] == told
    assert (whole[-1]["run"]["status"], whole[-1]["run"]["output"]) == ("succeeded", 84)
    assert [child["output"] for child in whole[-1]["run"]["steps"]["each"]["children"]] == [2, 4, 6]
    over = furnished.run("runs", "cancel", "r1")
    assert (over.code, over.out) == (1, "r1 has already finished: succeeded\n")
    assert up.end().code == 0


def test_a_run_that_fails_says_where_and_can_be_run_again_with_what_went_well(furnished: Shell) -> None:
    up = Up(furnished)
    done = furnished.run("runs", "start", "hopeless.yaml", "--follow")
    assert done.code == 1
    run = done.out.splitlines()[0]
    assert done.out.splitlines()[-1] == f"{run} ended failed: bad: this will never work"
    tree = furnished.run("runs", "show", run).out
    assert "✘ bad  hopeless  failed" in tree
    assert "○ never  double  skipped  dependency failed" in tree
    again = furnished.run("runs", "rerun", run, "--keep", "--follow", "--json")
    assert again.code == 1
    last = lines(again)[-1]["run"]
    assert (last["rerun_of"], last["steps"]["good"]["job"]) == (run, f"{run}:good@1")  # it was not done again
    assert last["steps"]["bad"]["job"] == f"{last['id']}:bad@1"
    told = furnished.run("runs", "rerun", run, "--idempotency-key", "k")
    assert told.code == 0
    assert told.err.startswith(f"holdfast: a new run of {run}: pending\nholdfast: database: ")
    twice = furnished.run("runs", "rerun", run, "--idempotency-key", "k")
    assert (twice.code, twice.out) == (0, told.out)
    assert twice.err.startswith(f"holdfast: an earlier rerun of {run}: ")
    assert up.end().code == 0


def test_following_is_a_live_tree_on_a_terminal(furnished: Shell) -> None:
    up = Up(furnished)
    typing = Typing(furnished, "runs", "start", "refund.yaml", "--input", '{"order": 4}', "--id", "r1", "--follow")
    try:
        typing.sees("started: refund version 1")
        typing.sees("⏸ ")
        typing.sees("ask")
        typing.sees("Ctrl-C stops following, not the run")
        assert furnished.run("approvals", "approve", "r1:ask@1", "--as", "boss").code == 0
        typing.sees("✔ ")
        typing.sees("pay")
        typing.sees("r1 succeeded: 16")
        assert typing.ends() == 0
    finally:
        typing.close()
    assert up.end().code == 0


def test_runs_wait_in_the_database_until_a_plane_comes(furnished: Shell) -> None:
    assert furnished.run("up", "--prepare").code == 0
    assert furnished.run("runs", "list").out == "No runs found.\n"
    assert furnished.run("runs", "workflows").out.startswith("No workflows found.")
    missing = furnished.run("runs", "start", "refund")
    assert missing[:2] == (1, "")
    assert missing.err.startswith("holdfast: there is no workflow 'refund' (database: sqlite:")
    kept = furnished.run("runs", "define", "refund.yaml")
    assert kept[:2] == (0, "")
    assert kept.err.startswith("holdfast: refund is now version 1\nholdfast: database: ")
    assert furnished.run("runs", "define", "refund.yaml").err.startswith("holdfast: refund was already version 1\n")
    (shown,) = furnished.run("runs", "workflows", "--json").json["items"]
    assert (shown["name"], shown["version"], shown["scope"]) == ("refund", 1, "*")
    head, line = furnished.run("runs", "workflows").out.splitlines()
    assert (head.split()[:3], line.split()[:3]) == (["WORKFLOW", "VERSION", "FOR"], ["refund", "1", "all"])
    whole = furnished.run("runs", "workflows", "refund", "--json").json
    assert shown == {name: value for name, value in whole.items() if name != "definition"}
    assert (shown["steps"], shown["risk"], set(whole["definition"]["steps"])) == (
        4,
        "low",
        {"fetch", "each", "ask", "pay"},
    )
    (furnished.directory / "again.json").write_text(furnished.run("runs", "workflows", "refund", "--version", "1").out)
    assert furnished.run("runs", "define", "again.json").err.startswith("holdfast: refund was already version 1\n")
    assert furnished.run("runs", "workflows", "refund", "--version", "2").code == 1
    assert furnished.run("runs", "workflows", "--version", "1").code == 64
    ids = []
    for number in range(3):
        words = ("--input", json.dumps({"order": number}), "--label", "team=a", "--idempotency-key", f"k{number}")
        first = furnished.run("runs", "start", "refund", *words, "--json").json
        again = furnished.run("runs", "start", "refund", *words, "--json").json
        assert (first["made"], again["made"], again["run"]["id"]) == (True, False, first["run"]["id"])
        assert first["run"]["labels"] == {"team": "a"}
        ids.append(first["run"]["id"])
    used = furnished.run("runs", "start", "refund", "--input", '{"order": 9}', "--idempotency-key", "k1")
    assert (used.code, used.out) == (1, "")
    page = furnished.run("runs", "list", "--limit", "2", "--json").json
    rest = furnished.run("runs", "list", "--limit", "2", "--after", page["next"], "--json").json
    assert [each["id"] for each in (*page["items"], *rest["items"])] == ids[::-1]
    assert rest["next"] is None
    table = furnished.run("runs", "list", "--status", "pending", "--workflow", "refund").out.splitlines()
    assert table[1].split()[:5] == [ids[2], "default", "refund", "v1", "pending"]
    assert furnished.run("runs", "list", "--status", "failed").out == "No runs found.\n"
    assert furnished.run("runs", "rerun", ids[0]).code == 1
    asked = furnished.run("runs", "cancel", ids[0], "--reason", "enough")
    assert (asked.code, asked.out) == (0, f"cancellation requested for {ids[0]} (pending)\n")
    missing = furnished.run("runs", "show", "missing")
    assert missing[:2] == (1, "")
    assert missing.err.startswith("holdfast: there is no run 'missing' (database: ")
    assert furnished.run("runs", "follow", ids[0], "--timeout", "0.1").code == 124


def test_every_problem_of_a_file_has_its_own_line_with_its_place(furnished: Shell) -> None:
    wrong: list[tuple[str, ...]] = [
        ("define", "wrong.yaml"),
        ("define", "wrong.yaml", "--check"),
        ("start", "wrong.yaml"),
    ]
    for words in wrong:
        done = furnished.run("runs", *words)
        assert (done.code, done.out) == (64, "")
        assert [line.split(" step ")[0] for line in done.err.splitlines()] == [
            "holdfast: wrong.yaml:3:37:",
            "holdfast: wrong.yaml:4:32:",
            "holdfast: wrong.yaml:4:40:",
        ]
        assert "did you mean fetch?" in done.err
    assert furnished.run("up", "--prepare").code == 0
    assert furnished.run("runs", "workflows", "--json").json == {"items": []}
    fine = furnished.run("runs", "define", "refund.yaml", "--check")
    assert fine == (0, "", "holdfast: refund is valid: 4 steps, risk class low\n")
    assert furnished.run("runs", "workflows", "--json").json == {"items": []}
    bad: list[tuple[tuple[str, ...], str]] = [
        (("define", "nothing.yaml"), "cannot be read"),
        (("define", "works.py"), "is neither YAML nor JSON by its name"),
        (("start", "refund.yaml", "--input", "{"), "is not JSON"),
        (("start", "refund.yaml", "--input", '{"order": "x"}'), "input.order: is a text, and not whole"),
        (("start", "refund.yaml", "--input", '{"order": 1}', "--id", "a@b"), "cannot be the id of a run"),
        (("list", "--status", "nice"), "is not a status of a run"),
        (("follow", "x", "--timeout", "-1"), "timeout"),
    ]
    for words, text in bad:
        refused = furnished.run("runs", *words)
        assert (refused.code, refused.out) == (64, ""), refused
        assert text in refused.err


def test_workflows_of_an_app_are_known_when_a_worker_with_it_has_started(furnished: Shell) -> None:
    works = furnished.directory / "works.py"
    works.write_text(
        works.read_text()
        + '\n@app.workflow("twice")\ndef twice(flow):\n    return flow.job("a", topic="double", input=21).output\n'
    )
    assert furnished.run("up", "--prepare").code == 0
    alone = furnished.start("worker", "works:app", "--no-probe", "--database", "sqlite:///plane.db")
    until(lambda: furnished.run("runs", "workflows", "--json").json["items"], "the workflow of a worker")
    alone.terminate()
    assert furnished.finish(alone).code == 0
    up = Up(furnished)
    (known,) = furnished.run("runs", "workflows", "--json").json["items"]
    assert (known["name"], known["version"], known["scope"], known["created_by"]) == ("twice", 1, "*", "app works")
    done = furnished.run("runs", "start", "twice", "--follow")
    assert (done.code, done.out.splitlines()[-1].split()[1:]) == (0, ["succeeded:", "42"])
    assert up.end().code == 0
