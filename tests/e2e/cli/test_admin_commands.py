"""`holdfast workers`, `tenants`, `tokens` and `config`, and changes of many jobs, as an administrator types them."""

from __future__ import annotations

import tomllib

import pytest

from holdfast.errors import BadInput
from holdfast.web.middleware.auth import TokenEntry, digest_of
from support.cli.planes import Up, furnish
from support.cli.sessions import Shell, Typing, until


@pytest.fixture
def furnished(shell: Shell) -> Shell:
    furnish(shell)
    return shell


def test_workers_and_tenants_of_a_plane_are_listed_and_limited(furnished: Shell) -> None:
    up = Up(furnished)
    until(lambda: furnished.run("workers", "list", "--json").json["items"], "a worker")
    first = furnished.run("workers", "list", "--json").json["items"][0]
    assert (first["pool"], first["alive"], "double" in first["topics"]) == ("default", True, True)
    listed = furnished.run("workers", "list", "--topic", "double").out
    assert [line.split()[0] for line in listed.splitlines()][:2] == ["WORKER", first["worker"]]
    assert furnished.run("workers", "list", "--pool", "eu").out == "No workers found.\n"

    limited = furnished.run("tenants", "limit", "acme", "4")
    assert (limited.code, limited.out) == (0, "acme: at most 4; 0 on workers now\n")
    item = furnished.run("tenants", "list", "--json").json["items"][0]
    assert item == {"tenant": "acme", "running": 0, "slots": 4, "own": True}
    assert furnished.run("tenants", "limit", "acme", "--default", "--json").json["own"] is False
    for words, hint in ((("acme",), "SLOTS"), (("acme", "4", "--default"), "SLOTS"), (("acme", "--", "-1"), "slots")):
        refused = furnished.run("tenants", "limit", *words)
        assert (refused.code, hint in refused.err) == (64, True), refused
    assert up.end().code == 0
    silent = furnished.run("workers", "list", "--all", "--json").json["items"]
    assert not [each for each in silent if each["alive"]]


def test_many_jobs_are_cancelled_and_retried_with_a_filter(furnished: Shell) -> None:
    assert furnished.run("up", "--prepare").code == 0
    for number in range(3):
        furnished.run("jobs", "submit", "double", "--id", f"d{number}", "--delay", "1h")
    furnished.run("jobs", "submit", "slow", "--id", "other", "--delay", "1h")
    shown = furnished.run("jobs", "cancel", "--topic", "double", "--dry-run")
    assert (shown.code, shown.out.splitlines()[0]) == (0, "3 unfinished jobs match: 3 PENDING")
    told = furnished.run("jobs", "cancel", "--topic", "double", "--dry-run", "--json").json
    assert (told["matched"], told["more"], {each["id"] for each in told["items"]}) == (3, False, {"d0", "d1", "d2"})
    unasked = furnished.run("jobs", "cancel", "--topic", "double")
    assert (unasked.code, "--yes: is missing" in unasked.err) == (64, True)
    some = furnished.run("jobs", "cancel", "--topic", "double", "--limit", "2", "--yes")
    assert some.out == "cancellation requested: 2 of 2 unfinished jobs\n"
    assert "more match" in some.err
    done = furnished.run("jobs", "cancel", "--topic", "double", "--yes", "--json").json
    assert done == {"matched": 3, "changed": 3, "unchanged": 0, "more": False}
    assert furnished.run("jobs", "cancel", "--topic", "none", "--yes").out == "No unfinished jobs found.\n"
    assert furnished.run("jobs", "retry", "--topic", "none", "--yes", "--json").json["matched"] == 0
    for words, hint in (
        (("cancel",), "ID: is missing"),
        (("retry",), "ID: is missing"),
        (("cancel", "d0", "--topic", "double"), "together with a filter"),
        (("cancel", "--state", "failed", "--yes"), "state: 'failed' is a finished state"),
        (("cancel", "--state", "lost", "--yes"), "state: 'lost'"),
    ):
        refused = furnished.run("jobs", *words)
        assert (refused.code, hint in refused.err) == (64, True), refused


def test_a_change_of_many_jobs_asks_on_a_terminal(furnished: Shell) -> None:
    assert furnished.run("up", "--prepare").code == 0
    furnished.run("jobs", "submit", "double", "--id", "one", "--delay", "1h")
    typing = Typing(furnished, "jobs", "cancel", "--topic", "double")
    try:
        typing.sees("1 unfinished jobs match: 1 PENDING")
        typing.sees("Cancel them?")
        typing.type("n\n")
        typing.sees("aborted")
        assert typing.ends() == 1
    finally:
        typing.close()
    assert furnished.run("jobs", "show", "one", "--json").json["job"]["state"] == "PENDING"


def test_a_token_is_printed_once_with_an_entry_that_the_api_accepts(shell: Shell) -> None:
    made = shell.run("tokens", "create", "ada", "--role", "operator", "--role", "approver", "--tenant", "acme")
    assert made.code == 0
    token = made.out.strip()
    lines = made.err.splitlines()
    (entry,) = tomllib.loads("\n".join(lines[lines.index("[[tokens]]") :]))["tokens"]
    assert TokenEntry(**{**entry, "roles": tuple(entry["roles"])}).check().principal.tenant == "acme"
    assert entry["digest"] == digest_of(token)
    assert token not in made.err
    told = shell.run("tokens", "create", "ada", "--expires", "90d", "--json").json
    (again,) = tomllib.loads(told["toml"])["tokens"]
    assert (again["roles"], again["expires"].isoformat()[:4] >= "2026", told["token"] != token) == (
        ["viewer"],
        True,
        True,
    )
    for words, hint in (
        (("",), "tokens.name"),
        (("a", "--role", "boss"), "tokens.roles"),
        (("a", "--role", "admin", "--tenant", "acme"), "tokens.tenant"),
        (("a", "--expires", "0"), "expires"),
    ):
        refused = shell.run("tokens", "create", *words)
        assert (refused.code, refused.out, hint in refused.err) == (64, "", True), refused
    with pytest.raises(BadInput, match="digest"):
        TokenEntry(**{**entry, "digest": token}).check()


def test_settings_are_shown_with_their_sources_and_without_secrets(shell: Shell) -> None:
    (shell.directory / "holdfast.toml").write_text('leases = "redis://:hunter22@cache:6379/0"\n[worker]\ncount = 3\n')
    shown = shell.run("config", "show", env={"HOLDFAST_GRACE": "5s"})
    assert shown.code == 0
    rows = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines() if line}
    assert rows["worker.count"] == ["3", "holdfast.toml:3"]
    assert rows["grace"] == ["5.0", "$HOLDFAST_GRACE"]
    assert "hunter22" not in shown.out + shown.err
    section = shell.run("config", "show", "worker", "--json").json["settings"]
    assert section["worker.count"] == {"value": 3, "from": "holdfast.toml:3"}
    assert all(each.startswith("worker.") for each in section)
    missing = shell.run("config", "show", "wroker")
    assert (missing.code, "KEY: 'wroker' is not a setting" in missing.err) == (64, True)
    bad = shell.run("config", "show", env={"HOLDFAST_GRACE": "soon"})
    assert (bad.code, "HOLDFAST_GRACE" in bad.err) == (64, True)
