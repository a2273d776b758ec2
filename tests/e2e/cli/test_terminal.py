"""`holdfast` on a terminal: Ctrl-C, programs that read from it, questions, and tables that move."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.cli.sessions import Shell, Typing, alive, pid_in, until


@contextmanager
def typing(shell: Shell, *words: str, program: str | None = None) -> Iterator[Typing]:
    session = Typing(shell, *words, program=program, module=False) if program else Typing(shell, *words)
    try:
        yield session
    finally:
        session.close()


def test_a_command_can_read_from_the_terminal(shell: Shell) -> None:
    with typing(shell, "run", "n", "--", "sh", "-c", 'printf "who? "; read who; echo "hello $who"') as session:
        session.sees("who? ")
        session.type("ada\r")
        session.sees("hello ada")
        assert session.ends() == 0


def test_ctrl_c_ends_the_command_and_us_before_it_ever_asked_for_the_terminal(shell: Shell) -> None:
    with typing(shell, "run", "n", "--", "sh", "-c", "echo $$ > child; exec sleep 600") as session:
        child = pid_in(shell.directory / "child")
        session.type("\x03")
        assert session.ends() == -signal.SIGINT
        assert not alive(child)


def test_ctrl_c_reaches_a_command_that_has_the_terminal_and_then_us(shell: Shell) -> None:
    script = 'read line; echo "$line"; exec cat'
    with typing(shell, "run", "n", "--", "sh", "-c", script) as session:
        session.type("mine\r")
        session.sees("mine\r\nmine\r\n")
        session.type("\x03")
        assert session.ends() == -signal.SIGINT


def test_ctrl_c_stops_the_script_that_we_are_part_of(shell: Shell) -> None:
    script = shell.directory / "script.sh"
    run = f"{sys.executable} -m holdfast run n -- sh -c 'echo $$ > child; exec sleep 600'"
    script.write_text(f"{run}\necho THE SCRIPT WENT ON\n")
    with typing(shell, str(script), program="/bin/bash") as session:
        pid_in(shell.directory / "child")
        session.type("\x03")
        assert session.ends() == -signal.SIGINT
        assert "WENT ON" not in session.shown


def test_ctrl_z_and_fg_work_in_a_shell_with_job_control(shell: Shell) -> None:
    with typing(shell, "--norc", "--noprofile", "-i", program="/bin/bash") as session:
        session.sees("% ")
        script = "echo reads-$((1+1)); read a; echo one-$a; read b; echo two-$b"
        session.type(f"{sys.executable} -m holdfast run n --ttl 600 -- sh -c '{script}'\r")
        session.sees("reads-2")  # a line typed earlier, into the editor of the shell, would have no end
        session.type("x\r")
        session.sees("one-x")
        session.type("\x1a")
        session.sees("Stopped")
        session.sees("% ")
        session.type("echo back-$((1+1))\r")
        session.sees("back-2")
        session.sees("% ")
        session.type("fg\r")
        session.sees("holdfast run n")
        session.type("y\r")
        session.sees("two-y")
        session.sees("% ")
        session.type("echo code-$?\r")
        session.sees("code-0")
        session.type("exit\r")
        assert session.ends() == 0


def test_release_asks_and_no_means_no(shell: Shell) -> None:
    with shell.locks() as locks, locks.lock("nightly", ttl=600) as lease:
        with typing(shell, "release", "nightly", "--reason", "stuck") as session:
            session.sees(f"nightly is held by {lease.owner}")
            session.sees("Fence its holder out? [y/N]:")
            session.type("n\r")
            assert session.ends() == 1
            session.sees("aborted")
        lease.renew()
        assert locks.audit() == []


@pytest.mark.requires("R39")
def test_release_asks_and_yes_fences_the_holder_out(shell: Shell) -> None:
    with shell.locks() as locks:
        lease = locks.lock("nightly", ttl=600).acquire()
        with typing(shell, "release", "nightly", "--reason", "stuck") as session:
            session.sees("[y/N]:")
            session.type("y\r")
            assert session.ends() == 0
            session.sees("released nightly")
            session.sees(f"fence {lease.fence}")
        assert not locks.inspect("nightly").held


@pytest.mark.requires("R22")
def test_watch_draws_a_table_and_ends_cleanly_with_ctrl_c(shell: Shell) -> None:
    with shell.locks() as locks:
        locks.ping()  # makes the file: watching does not
        with typing(shell, "watch", "--interval", "0.1") as session:
            session.sees("No locks found.")
            lease = locks.lock("nightly", ttl=600).acquire()
            session.sees("nightly taken by test@")
            session.sees(str(lease.fence))
            assert lease.release()
            session.sees("nightly free")
            session.type("\x03")
            assert session.ends() == 0
            assert "Traceback" not in session.shown


def test_a_terminal_is_told_for_whom_it_waits(shell: Shell) -> None:
    with shell.locks() as locks:
        lease = locks.lock("nightly", ttl=600).acquire()
        with typing(shell, "run", "nightly", "--", "echo", "ran") as session:
            session.sees(f"holdfast: nightly is held by {lease.owner}")
            assert lease.release()
            session.sees("ran")
            assert session.ends() == 0
        until(lambda: not locks.inspect("nightly").held, "the lock to be released")
