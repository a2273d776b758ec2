"""A password in the URL of a store is shown by no command: not in errors, not in echoes of settings, not in JSON."""

from __future__ import annotations

import pytest

from support.cli.planes import furnish
from support.cli.sessions import Shell

SECRET = "S3cretWord"
REDIS = f"redis://ada:{SECRET}@127.0.0.1:1/0"
ETCD = f"etcd://ada:{SECRET}@127.0.0.1:1/team"
POSTGRES = f"postgresql://ada:{SECRET}@127.0.0.1:1/plane?connect_timeout=1"
QUERY = f"postgresql://127.0.0.1:1/plane?user=ada&password={SECRET}&connect_timeout=1"
NATS = f"nats://ada:{SECRET}@127.0.0.1:1"
WRONG = f"gopher://ada:{SECRET}@nowhere/x"

ASKED = [
    *(("locks",), ("inspect", "k"), ("audit",), ("release", "k", "--reason", "r", "--yes")),
    ("run", "k", "--timeout", "0", "--on-busy", "fail", "--", "echo", "ran"),
]
PLANE = [
    *(("jobs", "list"), ("jobs", "submit", "double", "--payload", "1"), ("runs", "list"), ("approvals", "list")),
    *(("policy", "show"), ("up", "--prepare")),
]


@pytest.mark.threat("X3")
@pytest.mark.parametrize("url", [REDIS, ETCD, WRONG], ids=["redis", "etcd", "wrong"])
@pytest.mark.parametrize("words", ASKED, ids=lambda words: words[0])
def test_a_store_that_cannot_be_had_is_named_without_its_password(
    shell: Shell, words: tuple[str, ...], url: str
) -> None:
    more = () if words[0] == "run" else ("--json",)
    head, behind = (words[: words.index("--")], words[words.index("--") :]) if "--" in words else (words, ())
    done = shell.run("--url", url, *head, *more, *behind)
    assert done.code in (64, 69, 75)
    assert SECRET not in done.out + done.err
    assert "127.0.0.1:1" in done.err or "***" in done.err or "gopher" in done.err


@pytest.mark.threat("X3")
@pytest.mark.parametrize("url", [POSTGRES, QUERY, WRONG], ids=["postgres", "query", "wrong"])
@pytest.mark.parametrize("words", PLANE, ids=lambda words: "-".join(words[:2]))
def test_a_plane_that_cannot_be_had_is_named_without_its_password(
    shell: Shell, words: tuple[str, ...], url: str
) -> None:
    furnish(shell)
    done = shell.run(*words, "--database", url, "--json")
    assert done.code in (64, 69)
    assert SECRET not in done.out + done.err


@pytest.mark.threat("X3")
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_the_settings_are_shown_without_their_passwords(shell: Shell, more: tuple[str, ...]) -> None:
    furnish(shell)
    done = shell.run("up", "--check", *more, "--database", POSTGRES, "--bus", NATS, "--leases", REDIS)
    assert done.code == 0
    assert SECRET not in done.out + done.err
    assert done.out.count("ada:***@127.0.0.1:1") == 3
    queried = shell.run("up", "--check", *more, "--database", QUERY, "--bus", NATS, "--leases", REDIS)
    assert SECRET not in queried.out + queried.err


@pytest.mark.threat("X3")
@pytest.mark.parametrize("debugging", ["", "1"])
def test_and_a_plane_says_so_in_its_log_too(shell: Shell, debugging: str) -> None:
    furnish(shell)
    words = ("up", "--log-level", "debug", "--log-format", "json", "--bus", NATS, "--leases", REDIS)
    done = shell.run(*words, env={"HOLDFAST_DEBUG": debugging, "HOLDFAST_GRACE": "0"})
    assert done.code != 0
    assert SECRET not in done.out + done.err
