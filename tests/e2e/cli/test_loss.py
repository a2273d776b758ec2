"""`holdfast run` when things go wrong: loss, kill, freeze, signals, background processes. Real processes, no fakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from support.cli.sessions import Done, Shell, alive, pid_in, state, until
from support.servers.redis import RedisExecutable, start_redis

# A command whose child and grandchild ignore TERM, and who say who they are.
STUBBORN = 'trap "" TERM; sh -c "echo \\$\\$ > grandchild; while :; do sleep 1; done" & echo $$ > child; wait; wait'


def started(shell: Shell, *options: str, script: str = STUBBORN) -> tuple[subprocess.Popen[str], int, int]:
    process = shell.start("run", "job", *options, "--", "sh", "-c", script)
    return process, pid_in(shell.directory / "child"), pid_in(shell.directory / "grandchild")


def broken_by_force(shell: Shell) -> None:
    with shell.locks() as locks:
        assert locks.force_release("job", reason="a test") is not None


@pytest.mark.requires("R39")
def test_a_loss_ends_the_whole_group_even_those_who_ignore_term(shell: Shell) -> None:
    process, child, grandchild = started(shell, "--ttl", "1", "--grace", "0.2")
    broken_by_force(shell)
    done = shell.finish(process)
    assert done.code == 76
    assert "holdfast: lease lost (stolen): job; ending the command" in done.err
    assert not alive(child)
    assert not alive(grandchild)


def test_a_loss_asks_politely_first(shell: Shell) -> None:
    script = 'trap "echo tidied up; exit 5" TERM; sleep 600 & echo $! > grandchild; echo $$ > child; wait'
    process, child, grandchild = started(shell, "--ttl", "1", "--grace", "600", script=script)
    broken_by_force(shell)
    done = shell.finish(process)
    assert (done.code, done.out) == (76, "tidied up\n")
    assert "the command ended with exit code 5" in done.err
    assert not alive(child)
    assert not alive(grandchild)


@pytest.mark.requires("R124")
def test_a_lost_lock_is_not_released_from_under_its_new_owner(shell: Shell) -> None:
    process, _, _ = started(shell, "--ttl", "1", "--grace", "0.2")
    broken_by_force(shell)
    with shell.locks() as locks, locks.lock("job", ttl=60) as successor:
        assert shell.finish(process).code == 76
        successor.renew()
        assert locks.inspect("job").fence == successor.fence


@pytest.mark.server
@pytest.mark.requires("R39")
def test_a_store_that_dies_costs_the_lease_and_so_the_command(shell: Shell, redis_executable: RedisExecutable) -> None:
    with start_redis(redis_executable) as server:
        process, child, grandchild = started(shell, "--url", server.url, "--ttl", "1", "--grace", "0.2")
        server.kill()
        done = shell.finish(process)
        assert done.code == 76
        assert "holdfast: lease lost (unconfirmed): job; ending the command" in done.err
        assert done.err.count("a renewal was not confirmed") == 1
        assert not alive(child)
        assert not alive(grandchild)


def test_a_command_may_hold_no_longer_than_max_hold(shell: Shell) -> None:
    done = shell.run("run", "job", "--ttl", "1", "--max-hold", "0.5", "--", "sleep", "600")
    assert done.code == 76
    assert "lease lost (max_hold)" in done.err


@pytest.mark.requires("R39")
def test_if_we_are_killed_the_command_does_not_live_on_unprotected(shell: Shell) -> None:
    process, child, grandchild = started(shell, "--ttl", "600")
    process.kill()
    until(lambda: not alive(child), "the command to die with us")
    until(lambda: not alive(grandchild), "what the command started to die with us")
    with shell.locks() as locks:
        assert locks.lock("job").acquire(timeout=30).release()


@pytest.mark.requires("R39")
def test_if_we_are_frozen_the_command_ends_before_its_lease_does(shell: Shell) -> None:
    """The lease is not renewed while we are stopped, so the guardian has to end the command."""
    process, child, grandchild = started(shell, "--ttl", "1")
    process.send_signal(signal.SIGSTOP)
    with shell.locks() as locks:
        successor = locks.lock("job", ttl=60).acquire(timeout=30)
        until(lambda: not alive(child), "the command to be ended")
        until(lambda: not alive(grandchild), "what the command started to be ended")
        process.send_signal(signal.SIGCONT)
        done = shell.finish(process)
        assert done.code == 76
        assert "`holdfast run` was stopped" in done.err
        assert "lease lost" in done.err
        successor.ensure_held()


def test_a_guardian_that_is_killed_is_replaced(shell: Shell) -> None:
    process, child, _ = started(shell, "--ttl", "600")

    def guardians() -> set[int]:
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
        return {int(pid) for pid in found.stdout.split()} - {child}

    until(lambda: len(guardians()) == 1, "the guardian")
    (first,) = guardians()
    os.kill(first, signal.SIGKILL)
    until(lambda: guardians() - {first}, "another guardian")
    process.kill()
    until(lambda: not alive(child), "the command to die with us")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
)
def test_signals_are_passed_on_to_the_command_which_decides(shell: Shell, number: signal.Signals) -> None:
    script = f'trap "echo heard; exit 9" {number.name[3:]}; echo $$ > child; while :; do sleep 0.05; done'
    process = shell.start("run", "job", "--", "sh", "-c", script)
    pid_in(shell.directory / "child")
    process.send_signal(number)
    assert shell.finish(process)[:2] == (9, "heard\n")


def test_a_signal_that_ends_the_command_shows_in_the_exit_code(shell: Shell) -> None:
    process = shell.start("run", "job", "--", "sh", "-c", "echo $$ > child; exec sleep 600")
    child = pid_in(shell.directory / "child")
    process.send_signal(signal.SIGTERM)
    assert shell.finish(process).code == 128 + signal.SIGTERM
    assert not alive(child)


def test_who_dies_of_ctrl_c_says_so_the_way_scripts_understand(shell: Shell) -> None:
    process = shell.start("run", "job", "--", "sh", "-c", "echo $$ > child; exec sleep 600")
    pid_in(shell.directory / "child")
    process.send_signal(signal.SIGINT)
    assert shell.finish(process).code == -signal.SIGINT


def test_the_lock_is_kept_until_everything_the_command_started_has_ended(shell: Shell) -> None:
    os.mkfifo(shell.directory / "gate")
    script = "(read line < gate; echo late) & echo early; exit 3"
    process = shell.start("run", "job", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "early\n"
    assert "the lease is kept until its children have ended" in process.stderr.readline()
    with shell.locks() as locks:
        assert locks.inspect("job").held
        (shell.directory / "gate").write_text("go\n")
        assert shell.finish(process)[:2] == (3, "late\n")
        assert not locks.inspect("job").held


def test_stopping_us_stops_the_command_and_going_on_lets_it_go_on(shell: Shell) -> None:
    os.mkfifo(shell.directory / "gate")
    script = "echo $$ > child; read line < gate; echo went on"
    process = shell.start("run", "job", "--ttl", "600", "--", "sh", "-c", script)
    child = pid_in(shell.directory / "child")
    process.send_signal(signal.SIGTSTP)
    until(lambda: state(child) == "T", "the command to stop")
    until(lambda: state(process.pid) == "T", "us to stop")
    process.send_signal(signal.SIGCONT)
    (shell.directory / "gate").write_text("go\n")
    assert shell.finish(process)[:2] == (0, "went on\n")


def test_who_goes_on_after_the_lease_ran_out_finds_the_command_ended(shell: Shell) -> None:
    process = shell.start("run", "job", "--ttl", "1", "--", "sh", "-c", "echo $$ > child; exec sleep 600")
    child = pid_in(shell.directory / "child")
    process.send_signal(signal.SIGTSTP)
    until(lambda: not alive(child), "the guardian to end the command")
    process.send_signal(signal.SIGCONT)
    done: Done = shell.finish(process)
    assert done.code == 76


def test_a_bug_of_ours_does_not_leave_the_command_running_without_a_lease(shell: Shell) -> None:
    planted = (
        "import os, sys\n"
        "from holdfast.cli import main; from holdfast.cli.supervise import supervisor as supervision\n"
        "step = supervision.Supervisor._step\n"
        "def broken(self, group):\n"
        "    step(self, group)\n"
        "    if os.path.exists('child'): raise RuntimeError('planted')\n"
        "supervision.Supervisor._step = broken\n"
        "sys.exit(main(['run', 'job', '--', 'sh', '-c', 'echo $$ > new; mv new child; exec sleep 600']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", planted],
        cwd=shell.directory,
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, "planted" in done.stderr) == (70, True)
    assert not alive(pid_in(shell.directory / "child"))
    with shell.locks() as locks:
        assert not locks.inspect("job").held
