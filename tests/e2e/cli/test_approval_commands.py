"""`holdfast approvals`: from what waits to what was decided, with every exit code, and with nothing but files."""

from __future__ import annotations

import getpass

import pytest

import holdfast
from holdfast.plane.locks.registry import SCHEDULER_JOB
from support.cli.sessions import Shell

SETTINGS = """
database = "sqlite:///plane.db?synchronous=normal"
leases = "sqlite:///leases.db"

[[approvals.rules]]
name = "frozen"
effect = "deny"
topics = ["bank.close"]

[[approvals.rules]]
name = "payments"
topics = ["bank.*"]
message = "Check the amount."
"""


@pytest.fixture
def desk(shell: Shell) -> Shell:
    """A place where payments need approval, with one that waits."""
    (shell.directory / "holdfast.toml").write_text(SETTINGS)
    made = shell.run("jobs", "submit", "bank.pay", "--payload", '{"amount": 12}', "--id", "j1", "--json")
    assert (made.code, made.json["job"]["state"]) == (0, "APPROVAL_REQUIRED")
    return shell


def test_a_decision_from_the_list_to_its_repetition(desk: Shell) -> None:
    listed = desk.run("approvals", "list").out.splitlines()
    assert listed[0].split()[:3] == ["JOB", "TENANT", "STATUS"]
    assert listed[1].split()[:3] == ["j1", "default", "waiting"]
    assert listed[1].endswith("Check the amount.")
    (outline,) = desk.run("approvals", "list", "--json").json["items"]
    shown = desk.run("approvals", "show", "j1", "--json").json
    assert outline == {name: value for name, value in shown.items() if name not in ("message", "topic", "payload")}
    assert (outline["about"], shown["message"]) == ("Check the amount.", "Check the amount.")
    assert (shown["rule"], shown["payload"], shown["revision"]) == ("payments", {"amount": 12}, 0)
    assert shown["requested_by"].startswith(getpass.getuser())
    own = desk.run("approvals", "approve", "j1", "--json")
    assert (own.code, own.json["code"]) == (1, "self_approval_denied")
    late = desk.run("approvals", "approve", "j1", "--as", "boss", "--revision", "3")
    assert (late.code, late.out) == (1, "")
    assert "read it again" in late.err
    taken = desk.run("approvals", "approve", "j1", "--as", "boss", "--note", "fine", "--revision", "0", "--json").json
    assert (taken["taken"], taken["status"], taken["state"]) == (True, "approved", "PENDING")
    assert (taken["decided_by"], taken["note"], taken["revision"]) == ("boss", "fine", 1)
    again = desk.run("approvals", "approve", "j1", "--as", "other")
    assert (again.code, again.out) == (0, "j1 was already approved by boss\n")
    other = desk.run("approvals", "reject", "j1", "--as", "other", "--json")
    assert (other.code, other.json["taken"], other.json["code"]) == (1, False, "approval_already_resolved")
    assert desk.run("approvals", "list").out == "No pending approvals found.\n"
    assert [each["job"] for each in desk.run("approvals", "list", "--status", "all", "--json").json["items"]] == ["j1"]


def test_what_is_refused_busy_or_out_of_reach_has_its_own_exit_code(desk: Shell) -> None:
    frozen = desk.run("jobs", "submit", "bank.close")
    assert (frozen.code, frozen.out) == (1, "")
    assert "the rule frozen refuses this job" in frozen.err
    missing = desk.run("approvals", "approve", "unknown", "--as", "boss")
    assert (missing.code, missing.out) == (1, "")
    assert desk.run("approvals", "list", "--status", "odd").code == 64
    with (
        holdfast.connect(f"sqlite:///{desk.directory / 'leases.db'}") as locks,
        locks.lock(SCHEDULER_JOB.key(job="j1"), ttl=60),
    ):
        busy = desk.run("approvals", "approve", "j1", "--as", "boss")
    assert (busy.code, busy.out) == (75, "")
    assert "approval lock busy" in busy.err
    down = desk.run("approvals", "approve", "j1", "--as", "boss", "--leases", "redis://127.0.0.1:1")
    assert (down.code, down.out) == (69, "")
    assert "lock acquire: " in down.err
    rejected = desk.run("approvals", "reject", "j1", "--as", "boss", "--note", "too much")
    assert (rejected.code, rejected.out) == (0, "rejected j1 (now DENIED)\n")
