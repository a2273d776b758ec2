"""`holdfast access`: texts for servers on standard output, and what is left to do for the person on the other."""

from __future__ import annotations

import pytest

from holdfast.ops.access.etcd import etcd_access
from holdfast.ops.access.nats import nats_access
from holdfast.ops.access.postgres import postgres_access, writer_access
from holdfast.ops.access.redis import redis_access, sentinel_access
from support.cli.sessions import Shell

MADE = {
    ("redis", "--prefix", "app:"): redis_access(prefix="app:"),
    ("redis", "--sentinel", "--name", "team"): sentinel_access(name="team"),
    ("postgres", "--name", "plane"): postgres_access(name="plane"),
    ("postgres", "--guarded", "a", "--guarded", "b.c"): writer_access(["a", "b.c"]),
    ("etcd", "--prefix", "team/locks"): etcd_access(prefix="team/locks"),
    ("nats", "--stream", "BLUE"): nats_access(stream="BLUE"),
}


@pytest.mark.threat("X7")
@pytest.mark.parametrize("words", MADE, ids=" ".join)
def test_a_text_can_be_piped_written_and_read_by_programs(shell: Shell, words: tuple[str, ...]) -> None:
    made = MADE[words]
    done = shell.run("access", *words)
    assert (done.code, done.out) == (0, made.text)
    for account, purpose in made.accounts.items():
        assert f"{account}: {purpose}" in done.err
    assert made.next in done.err
    written = shell.run("access", *words, "--out", "text", "--json")
    assert (written.code, written.json) == (0, made.as_dict())
    assert (shell.directory / "text").read_text() == made.text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("redis", "--prefix", "a b"), "--prefix"),
        (("redis", "--sentinel", "--prefix", "a:"), "--sentinel"),
        (("nats", "--out", "nowhere/text"), "cannot be written"),
        (("oracle",), "No such command"),
    ],
)
def test_what_cannot_be_right_is_said_on_one_line(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell.run("access", *words)
    assert (done.code, done.out) == (64, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1
