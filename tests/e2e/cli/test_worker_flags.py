"""`holdfast worker` as a user types it: its flags, and what it says when they are wrong."""

from __future__ import annotations

import os
import signal

import pytest

from support.cli.planes import furnish
from support.cli.sessions import Shell, until


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--leases", "http://h"), "--leases: 'http://h' cannot be used here"),
        (("--url", "http://h"), "--url: leases: 'http://h' cannot be used here"),
        (("--url", "redis://a", "--leases", "redis://b"), "--url: differs from --leases"),
        (("--concurrency", "0"), "--concurrency: worker.concurrency: 0 is out of range"),
        (("--pool", "a b"), "--pool: worker.pools: 'a b' is not a name"),
        (("--lease-ttl", "0"), "--lease-ttl: worker.lease_ttl: 0 s is out of range"),
        (("--drain-timeout", "-1"), "--drain-timeout: "),
    ],
)
def test_what_is_wrong_is_named_as_it_was_typed(shell: Shell, words: tuple[str, ...], said: str) -> None:
    furnish(shell)
    done = shell.run("worker", "works:app", "--database", "sqlite:///plane.db", *words)
    assert (done.code, done.out) == (64, ""), done.err
    assert done.err.startswith(f"holdfast: {said}")


def test_a_name_is_one_workers_until_that_has_left_or_died(shell: Shell) -> None:
    furnish(shell)
    words = ("worker", "works:app", "--no-probe", "--database", "sqlite:///plane.db", "--name", "ada")

    def alive() -> bool:
        done = shell.run("jobs", "stats", "--json", "--database", "sqlite:///plane.db")
        return done.code == 0 and bool(done.json["workers"])

    first = shell.start(*words)
    until(alive, "a worker that is heard of")
    second = shell.run(*words)
    assert (second.code, second.out) == (64, "")
    assert f"--name: ada is the name of a worker on {os.uname().nodename}, process {first.pid}, heard of" in second.err
    assert "if that one has died, its name is free in" in second.err
    os.kill(first.pid, signal.SIGKILL)
    shell.finish(first)
    third = shell.start(*words)  # immediately, though the registry still considers the first one alive
    assert third.stderr is not None
    assert "worker ada serves default" in third.stderr.readline()
    third.terminate()
    assert shell.finish(third).code == 0
