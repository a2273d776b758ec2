"""`holdfast locks`, `inspect`, `watch`, `release` and `audit`: what they show, to people and to programs."""

from __future__ import annotations

import json
import signal
from datetime import datetime
from typing import Any

import pytest

from support.cli.sessions import Shell
from support.servers.redis import RedisExecutable, start_redis

STORE = {"store", "source"}
FIELDS = {"key", "held", "owner", "fence", "family", "since", "remaining", "waiters", "fingerprint"}


@pytest.mark.requires("R22")
def test_locks_shows_who_holds_what_since_when_and_for_how_long(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("invoice:42", ttl=600, family="billing") as lease, locks.lock("job:1"):
        table = shell.run("locks")
        assert table.code == 0
        heading, invoice, job = table.out.splitlines()
        assert heading.split() == ["KEY", "OWNER", "SINCE", "REMAINING", "FENCE", "FAMILY", "WAITERS"]
        assert {"invoice:42", lease.owner, str(lease.fence), "billing"} <= set(invoice.split())
        assert job.split()[0] == "job:1"
        found = shell.run("locks", "invoice", "--json").json
        assert [each["key"] for each in found] == ["invoice:42"]
        check_shape(found[0], lease.fence)
        assert found[0]["family"] == "billing"
        assert len(shell.run("locks", "--limit", "1", "--json").json) == 1


def check_shape(look: dict[str, Any], fence: int) -> None:
    assert set(look) - STORE == FIELDS
    assert (look["held"], look["fence"]) == (True, fence)
    assert 0 < look["remaining"] <= 600
    assert datetime.fromisoformat(look["since"]).tzinfo is not None


def test_that_nothing_is_held_is_said(shell: Shell) -> None:
    shell.make_store()
    line = f"holdfast: lease store: {shell.url} (from $HOLDFAST_URL)\n"
    assert shell.run("locks") == (0, "No locks found.\n", line)
    assert shell.run("locks", "x:") == (0, "No locks with the prefix x: found.\n", line)
    assert shell.run("locks", "--json").json == []


@pytest.mark.requires("R22", "R39")
def test_inspect_answers_with_its_exit_code_too(shell: Shell) -> None:
    shell.make_store()
    assert shell.run("inspect", "nightly")[:2] == (1, "nightly is free\n")
    assert shell.run("inspect", "nightly", "--json").json["held"] is False
    with shell.locks() as locks, locks.lock("nightly", ttl=600) as lease:
        text = shell.run("inspect", "nightly")
        assert text.code == 0
        rows = dict(line.split(maxsplit=1) for line in text.out.splitlines())
        assert (rows["owner"], rows["fence"]) == (lease.owner, str(lease.fence))
        check_shape(shell.run("inspect", "nightly", "--json").json, lease.fence)


@pytest.mark.requires("R22", "R39")
def test_no_command_ever_shows_a_token(shell: Shell) -> None:
    with shell.locks() as locks:
        lease = locks.lock("nightly", ttl=600).acquire()
        token = lease._lease_record.token
        shown = ""
        for words in (["locks"], ["inspect", "nightly"], ["watch", "--count", "1"]):
            for more in ([], ["--json"]):
                done = shell.run(*words, *more)
                assert "nightly" in done.out
                shown += done.out + done.err
        for words in (["run", "nightly", "--on-busy", "fail", "--json", "--", "env"], ["audit", "--json"]):
            done = shell.run(*words)
            shown += done.out + done.err
        done = shell.run("release", "nightly", "--reason", "test", "--yes", "--json")
        shown += done.out + done.err + shell.run("audit").out
        assert token not in shown
        assert lease.fingerprint in shown


def test_a_name_cannot_play_tricks_on_the_terminal(shell: Shell) -> None:
    """Names with control characters cannot be locked; markup in a name is only text."""
    with shell.locks() as locks, locks.lock("[bold red]x[/]:smile:", ttl=600):
        assert "[bold red]x[/]:smile:" in shell.run("locks").out


def test_release_by_force_leaves_an_audit_record(shell: Shell) -> None:
    with shell.locks() as locks:
        lease = locks.lock("nightly", ttl=600).acquire()
        record = shell.run("release", "nightly", "--reason", "worker hangs", "--yes", "--json").json
        assert record["released"] is True
        assert (record["key"], record["reason"]) == ("nightly", "worker hangs")
        assert (record["previous_owner"], record["previous_fence"]) == (lease.owner, lease.fence)
        assert record["fence"] > lease.fence
        assert not locks.inspect("nightly").held
    kept = shell.run("audit", "--json").json
    assert [each["fence"] for each in kept] == [record["fence"]]
    assert {"nightly", "worker", str(record["fence"])} <= set(shell.run("audit").out.split())


def test_releasing_a_free_lock_does_nothing_and_says_so(shell: Shell) -> None:
    shell.make_store()
    line = f"holdfast: lease store: {shell.url} (from $HOLDFAST_URL)\n"
    done = shell.run("release", "n", "--reason", "x", "--yes")
    assert done == (1, "", f"{line}holdfast: n is free; nothing was done\n")
    told = shell.run("release", "n", "--reason", "x", "--yes", "--json").json
    assert told == {"key": "n", "released": False, "store": shell.url, "source": "$HOLDFAST_URL"}
    assert shell.run("audit") == (0, "No forced releases found.\n", line)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--reason", "  ", "--yes"),
        (
            "--reason",
            "no terminal for confirmation",
        ),
    ],
)
def test_release_needs_a_reason_and_a_confirmation(shell: Shell, words: tuple[str, ...]) -> None:
    with shell.locks() as locks, locks.lock("nightly", ttl=600) as lease:
        done = shell.run("release", "nightly", *words)
        assert (done.code, done.out) == (64, "")
        assert done.err.splitlines()[-1].startswith("holdfast: ")
        assert "lease store:" not in done.err.splitlines()[-1]
        lease.renew()


def test_watch_tells_programs_what_changed(shell: Shell) -> None:
    shell.make_store()
    with shell.locks() as locks:
        watching = shell.start("watch", "nightly", "--json", "--interval", "0.05")
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["locks"] == []
        lease = locks.lock("nightly", ttl=600).acquire()
        other = None
        seen: list[dict[str, Any]] = []
        for line in watching.stdout:
            look = json.loads(line)
            seen += look["changes"]
            if [each["event"] for each in seen] == ["taken"] and lease.held:
                check_shape(look["locks"][0], lease.fence)
                assert lease.release()
                other = locks.lock("nightly", ttl=600).acquire()
            elif len(seen) == 2:
                break
        watching.send_signal(signal.SIGINT)
        done = shell.finish(watching)
        assert done.code == 0
        assert "Traceback" not in done.err
        assert other is not None
        assert (seen[1]["event"], seen[1]["fence"]) in [("taken over", other.fence), ("free", None)]


def test_watch_in_a_pipe_prints_lines(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("nightly", ttl=600) as lease:
        done = shell.run("watch", "--count", "2", "--interval", "0.05")
        (line,) = done.out.splitlines()
        assert line.endswith(f"nightly held by {lease.owner}, fence {lease.fence}")


@pytest.mark.server
@pytest.mark.requires("R22")
def test_a_lock_of_another_library_is_shown_as_such(shell: Shell, redis_executable: RedisExecutable) -> None:
    with start_redis(redis_executable) as server:
        server.cli("SET", "theirs", "some-token", "NX", "PX", 600_000)
        done = shell.run("inspect", "theirs", "--url", server.url)
        assert done.code == 0
        assert "another library" in done.out
        assert shell.run("inspect", "theirs", "--url", server.url, "--json").json["fence"] is None
