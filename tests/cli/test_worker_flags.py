"""`holdfast worker` as a user types it: its flags, and what it says when they are wrong."""

from __future__ import annotations

import pytest

from cli.planes import furnish
from cli.sessions import Shell


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--leases", "http://h"), "--leases: 'http://h' cannot be used here"),
        (("--url", "http://h"), "--url: leases: 'http://h' cannot be used here"),
        (("--url", "redis://a", "--leases", "redis://b"), "--url: names another store than --leases"),
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
