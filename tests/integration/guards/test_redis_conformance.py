"""The guard kit on real servers: string keys and hash keys, in both colors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis
from redis import asyncio as redis_asyncio

from holdfast.guards.conformance import Check, checks_for, run_check
from support.guards.subjects_redis import AsyncHashSubject, AsyncStringSubject, HashSubject, StringSubject
from support.servers.redis import RedisServer

pytestmark = pytest.mark.server

# What other processes can do is a matter of the scripts, which all of them share.
CASES = [
    pytest.param(subject, asynchronous, check, id=f"{subject.__name__}-{check}")
    for subject, asynchronous in [
        (StringSubject, False),
        (HashSubject, False),
        (AsyncStringSubject, True),
        (AsyncHashSubject, True),
    ]
    for check in checks_for(deletes=True, processes=subject is StringSubject)
]


@pytest.fixture(autouse=True)
def only_text_is_packed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """hiredis, which redis-py packs with, may crash when a signal handler raises while it converts an int."""
    others: set[object] = set()
    for client in (redis.Redis, redis_asyncio.Redis):

        def spy(self: Any, *words: Any, _send: Any = client.execute_command, **options: Any) -> Any:
            others.update(word for word in words if type(word) not in (str, bytes))
            return _send(self, *words, **options)

        monkeypatch.setattr(client, "execute_command", spy)
    yield
    assert not others


@pytest.mark.requires("R28", "R29", "R34", "R47")
@pytest.mark.parametrize(("subject", "asynchronous", "check"), CASES)
def test_guarded_keys_keep_the_contract(
    check: Check, subject: Any, asynchronous: bool, redis_server: RedisServer
) -> None:
    run_check(check, partial(subject, redis_server.url), asynchronous=asynchronous)
