"""`holdfast inventory`: every lock of the plane, for people, programs and pages."""

from __future__ import annotations

import pytest

from holdfast.plane.locks.registry import FAMILIES
from support.cli.sessions import Shell


@pytest.mark.requires("R70")
def test_it_lists_every_lock_with_its_kind(shell: Shell) -> None:
    done = shell.run("inventory")
    assert (done.code, done.err) == (0, "")
    head, *rows = done.out.splitlines()
    assert head.split()[:8] == ["FAMILY", "KEY", "SCOPE", "TTL", "RENEWED", "GIVES", "UP", "RELEASED"]
    assert [row.split()[0] for row in rows] == list(FAMILIES)
    assert rows[0].split()[1:10] == [
        "holdfast:scheduler:job:<job>",
        "per",
        "item",
        "60",
        "s",
        "20",
        "s",
        "3",
        "failures",
    ]


def test_the_times_are_those_of_the_settings(shell: Shell) -> None:
    (shell.directory / "holdfast.toml").write_text("[reconciler]\ninterval = 7\nlead = 'rotating'\n")
    found = {each["family"]: each for each in shell.run("inventory", "--json").json}
    assert set(found) == set(FAMILIES)
    assert (found["reconciler"]["ttl"], found["reconciler"]["renew_every"]) == (14.0, None)
    assert found["reconciler"]["failures"] is None
    assert found["reconciler"]["release"] == "expiry"
    assert found["scheduler.job"]["on_busy"] == "wait 2 s, then retry after 500 ms"


def test_it_can_be_put_on_a_page(shell: Shell) -> None:
    done = shell.run("inventory", "--markdown")
    assert done.out.splitlines()[0].startswith("| family | key | scope |")
    both = shell.run("inventory", "--markdown", "--json")
    assert (both.code, both.out) == (64, "")
    assert "use one of them" in both.err


def test_bad_settings_are_said(shell: Shell) -> None:
    (shell.directory / "holdfast.toml").write_text("[reconciler]\ninterval = 'often'\n")
    done = shell.run("inventory")
    assert (done.code, done.out) == (64, "")
    assert "holdfast.toml:2: reconciler.interval" in done.err
