"""`holdfast run`: the command's environment, the exit code, and when the lock is taken and released."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from support.cli.sessions import Shell, until
from support.servers.redis import free_port


def test_the_command_finds_the_lease_in_its_environment(shell: Shell) -> None:
    before = time.time()
    done = shell.run(
        "run", "nightly", "--", "sh", "-c", 'echo "$HOLDFAST_KEY|$HOLDFAST_FENCE|$HOLDFAST_OWNER|$HOLDFAST_DEADLINE"'
    )
    assert (done.code, done.err) == (0, "")
    key, fence, owner, deadline = done.out.strip().split("|")
    assert key == "nightly"
    assert int(fence) > 0
    assert owner.startswith("holdfast@")
    assert before < float(deadline) < time.time() + 30
    with shell.locks() as locks:
        assert not locks.inspect("nightly").held
        with locks.lock("nightly") as later:
            assert later.fence > int(fence)


def test_the_commands_own_exit_code_is_passed_on(shell: Shell) -> None:
    assert shell.run("run", "n", "--", "sh", "-c", "exit 7").code == 7


def test_a_command_that_a_signal_ended_shows_as_128_and_the_signal(shell: Shell) -> None:
    assert shell.run("run", "n", "--", "sh", "-c", "kill -USR1 $$").code == 128 + signal.SIGUSR1


def test_output_and_input_of_the_command_are_untouched(shell: Shell) -> None:
    done = shell.run("run", "n", "--", "sh", "-c", "cat; echo oops >&2", input="one\ntwo\n")
    assert done == (0, "one\ntwo\n", "oops\n")


def test_a_broken_pipe_ends_the_command_as_it_would_without_us(shell: Shell) -> None:
    """Python ignores SIGPIPE, and what is ignored is inherited; the command must not inherit that."""
    done = shell.run("run", "n", "--", "sh", "-c", "kill -PIPE $$; echo survived")
    assert (done.code, done.out) == (128 + signal.SIGPIPE, "")


def test_a_command_that_is_not_there_is_127_and_the_lock_is_not_taken(shell: Shell) -> None:
    done = shell.run("run", "n", "--", "no-such-command", "--flag")
    assert (done.code, done.err) == (127, "holdfast: no-such-command: command not found\n")
    assert not (shell.directory / "leases.db").exists()


def test_a_file_that_cannot_be_executed_is_126(shell: Shell) -> None:
    (shell.directory / "script").write_text("echo hello\n")
    done = shell.run("run", "n", "--", "./script")
    assert (done.code, done.err) == (126, "holdfast: ./script: cannot be executed\n")
    broken = shell.directory / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    assert shell.run("run", "n", "--", "./broken").code in (126, 127)


@pytest.mark.requires("R24")
@pytest.mark.parametrize(
    "how", [("--on-busy", "fail"), ("--timeout", "0.3"), ("--on-busy", "fail", "--timeout", "0.3")]
)
def test_a_busy_lock_is_75_and_says_who_has_it(shell: Shell, how: tuple[str, ...]) -> None:
    with shell.locks() as locks, locks.lock("nightly", ttl=60) as lease:
        done = shell.run("run", "nightly", *how, "--", "echo", "ran")
        assert (done.code, done.out) == (75, "")
        assert done.err.startswith(f"holdfast: busy: nightly is held by {lease.owner}, ")
        assert len(done.err.splitlines()) == 1


def test_skipped_is_0_and_never_silent(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("nightly", ttl=60) as lease:
        done = shell.run("run", "nightly", "--on-busy", "skip", "--", "echo", "ran")
        assert (done.code, done.out) == (0, "")
        assert "holdfast: skipped: nightly is held by" in done.err
        machine = shell.run("run", "nightly", "--on-busy", "skip", "--json", "--", "echo", "ran")
        skipped = machine.events()["skipped"]
        assert (machine.code, machine.out, skipped["holder"]) == (0, "", lease.owner)


def test_json_says_every_step_on_stderr_and_leaves_stdout_to_the_command(shell: Shell) -> None:
    done = shell.run("run", "n", "--json", "--", "sh", "-c", 'echo "$HOLDFAST_FENCE"; exit 3')
    events = done.events()
    assert list(events) == ["store", "granted", "ended"]
    assert events["granted"]["fence"] == int(done.out)
    assert events["granted"]["guaranteed"] is True
    assert (events["ended"]["code"], done.code) == (3, 3)


def test_who_waits_runs_as_soon_as_the_lock_is_free(shell: Shell) -> None:
    with shell.locks() as locks:
        lease = locks.lock("nightly", ttl=60).acquire()
        waiting = shell.start("run", "nightly", "--json", "--", "echo", "ran")
        assert waiting.stderr is not None
        assert '"event": "store"' in waiting.stderr.readline()
        assert '"event": "busy"' in waiting.stderr.readline()
        assert lease.release()
        done = shell.finish(waiting)
        assert (done.code, done.out) == (0, "ran\n")
        assert done.events()["granted"]["fence"] > lease.fence


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_wait_and_nothing_runs(shell: Shell, number: signal.Signals) -> None:
    with shell.locks() as locks, locks.lock("nightly", ttl=60) as lease:
        waiting = shell.start("run", "nightly", "--json", "--", "echo", "ran")
        assert waiting.stderr is not None
        assert '"event": "store"' in waiting.stderr.readline()
        assert '"event": "busy"' in waiting.stderr.readline()
        waiting.send_signal(number)
        done = shell.finish(waiting)
        assert (done.code, done.out) == (128 + number, "")
        assert done.events()["interrupted"]["text"].endswith("the command was not run")
        lease.ensure_held()


def test_the_lock_is_kept_for_at_least_as_long_as_asked(shell: Shell) -> None:
    assert shell.run("run", "report", "--ttl", "60", "--at-least", "60", "--", "true").code == 0
    done = shell.run("run", "report", "--on-busy", "fail", "--", "echo", "ran")
    assert (done.code, done.out) == (75, "")


def test_the_family_can_be_seen(shell: Shell) -> None:
    os.mkfifo(shell.directory / "gate")
    holding = shell.start("run", "n", "--family", "billing", "--", "sh", "-c", "read line < gate")
    with shell.locks() as locks:
        until(lambda: locks.inspect("n").held, "the lock to be taken")
        assert locks.inspect("n").family == "billing"
    holding.terminate()
    assert shell.finish(holding).code == 128 + signal.SIGTERM


@pytest.mark.requires("R99")
def test_without_a_store_nothing_runs(shell: Shell) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    done = shell.run("run", "n", "--url", url, "--", "echo", "ran")
    assert (done.code, done.out) == (69, "")
    assert len(done.err.splitlines()) == 1


@pytest.mark.requires("R100", "R104")
def test_the_policy_of_the_risk_class_decides_what_a_store_error_means(shell: Shell, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[risk]\nlow = "fail_open"\nmoney = "fail_closed"\n')
    url = f"redis://127.0.0.1:{free_port()}"
    options = ("--url", url, "--policy-file", str(policy))
    opened = shell.run("run", "n", *options, "--risk", "low", "--", "sh", "-c", 'echo "fence=[$HOLDFAST_FENCE]"')
    assert (opened.code, opened.out) == (0, "fence=[]\n")
    assert "WITHOUT" in opened.err
    closed = shell.run("run", "n", *options, "--risk", "money", "--", "echo", "ran")
    assert (closed.code, closed.out) == (77, "")
    assert "risk class money fails closed" in closed.err
    assert len(closed.err.splitlines()) == 1


def test_a_private_store_is_called_by_its_name(shell: Shell) -> None:
    done = shell.run("run", "n", "--url", "memory://", "--", "echo", "ran")
    assert (done.code, done.out) == (0, "ran\n")
    assert "excludes no other process" in done.err


@pytest.mark.requires("R39")
def test_the_command_never_sees_the_token(shell: Shell) -> None:
    """The file keeps a digest of the token. No word of the environment or of the output has that digest."""
    gate = shell.directory / "gate"
    os.mkfifo(gate)
    running = shell.start("run", "n", "--json", "--", "sh", "-c", "env > seen; mv seen environment; read line < gate")
    until((shell.directory / "environment").exists, "the command to start")
    with sqlite3.connect(shell.directory / "leases.db") as file:
        text = "\n".join(file.iterdump())
    digests = set(re.findall(r"[0-9a-f]{64}", text))
    file.close()
    gate.write_text("go\n")
    done = shell.finish(running)
    assert digests
    shown = (shell.directory / "environment").read_text() + done.out + done.err
    for word in set(re.findall(r"[0-9a-f]{16,}", shown)):
        assert hashlib.sha256(word.encode()).hexdigest() not in digests
