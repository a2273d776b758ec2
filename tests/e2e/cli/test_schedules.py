"""`holdfast schedules` as a user types it: without a plane beside it, with its errors, and with JSON for programs."""

from __future__ import annotations

from support.cli.sessions import Shell

NIGHTLY = ("schedules", "create", "nightly", "report.build", "--cron", "0 3 * * *", "--tz", "Europe/Berlin")
HERE = ("--database", "sqlite:///plane.db")


def test_a_schedule_from_its_creation_to_its_end(shell: Shell) -> None:
    made = shell.run(*NIGHTLY, "--payload", '{"full": true}', *HERE)
    assert made.code == 0, made.err
    assert "due          0 3 * * * (Europe/Berlin)" in made.out.splitlines()
    assert made.out.count("03:00") + made.out.count("01:00") + made.out.count("02:00") >= 5
    same = shell.run(*NIGHTLY, "--payload", '{"full": true}', "--json", *HERE)
    assert (same.code, same.json["version"], len(same.json["upcoming"])) == (0, 1, 5)
    other = shell.run(*NIGHTLY, *HERE)
    assert (other.code, "there is a schedule nightly already" in other.err) == (1, True)
    replaced = shell.run(*NIGHTLY, "--replace", "--json", *HERE)
    assert (replaced.code, replaced.json["payload"]) == (0, None)
    paused = shell.run("schedules", "pause", "nightly", "--reason", "incident 7", *HERE)
    assert (paused.code, paused.out) == (0, "nightly is paused\n")
    assert shell.run("schedules", "pause", "nightly", *HERE).out == "nightly was already paused\n"
    listed = shell.run("schedules", "list", *HERE)
    assert [line.split()[0] for line in listed.out.splitlines()] == ["NAME", "nightly"]
    (item,) = shell.run("schedules", "list", "--json", *HERE).json["items"]
    assert (item["state"], item["paused_reason"], item["next_at"]) == ("paused", "incident 7", None)
    run = shell.run("schedules", "run", "nightly", "--id", "my-run", "--json", *HERE)
    assert (run.code, run.json["made"], run.json["job"]["id"]) == (0, True, "my-run")
    assert shell.run("schedules", "run", "nightly", "--id", "my-run", *HERE).out == "my-run\n"
    resumed = shell.run("schedules", "resume", "nightly", "--json", *HERE)
    assert (resumed.json["changed"], resumed.json["schedule"]["last_job"]) == (True, "my-run")
    assert shell.run("schedules", "delete", "nightly", *HERE).out == "deleted nightly\n"
    gone = shell.run("schedules", "show", "nightly", *HERE)
    assert (gone.code, "there is no schedule 'nightly'" in gone.err) == (1, True)


def test_bad_input_names_the_option_and_the_fix_and_stores_nothing(shell: Shell) -> None:
    assert shell.run(*NIGHTLY, *HERE).code == 0
    for words, problem in (
        (("--cron", "0 0 30 2 *"), "cron: '0 0 30 2 *' has a bad day-of-month"),
        (("--cron", "* * * *"), "cron: '* * * *' has 4 fields"),
        ((), "cron: and an interval exclude each other"),
        (("--every", "soon"), "every: 'soon'"),
        (("--every", "10m", "--tz", "Europe/Berlin"), "tz: is for cron expressions"),
        (("--every", "10m", "--catch-up", "all"), "catch_up: is all, and overlap skip would skip"),
        (("--every", "10m", "--payload", "{"), "payload: is not JSON"),
    ):
        refused = shell.run("schedules", "create", "other", "report.build", *words, *HERE)
        assert (refused.code, problem in refused.err) == (64, True), refused.err
    assert len(shell.run("schedules", "list", "--json", *HERE).json["items"]) == 1
    missing = shell.run("schedules", "list", "--database", "sqlite:///none.db")
    assert missing.code != 0
    assert not (shell.directory / "none.db").exists()
