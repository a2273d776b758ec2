"""The stores that processes can share: a file, and the oldest Redis there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fixtures.redis import OLDEST
from support.servers.redis import RedisExecutable, RedisServer, start_redis


@pytest.fixture(params=["sqlite", *OLDEST])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of this test's own."""
    if isinstance(request.param, RedisExecutable):
        with start_redis(request.param) as server:
            yield server.url
    else:
        yield f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture(params=OLDEST)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A Redis that the test may stop and start."""
    with start_redis(request.param) as server:
        yield server
