"""The stores that processes can share: a file, the oldest Redis there is, etcd and NATS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fixtures.etcd import ETCD
from support.fixtures.nats import NATS
from support.fixtures.redis import OLDEST
from support.servers.etcd import EtcdExecutable, start_etcd
from support.servers.nats import NatsExecutable, start_nats
from support.servers.redis import RedisExecutable, RedisServer, start_redis


@pytest.fixture(params=["sqlite", *OLDEST, *ETCD, *NATS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store of this test's own."""
    if isinstance(request.param, RedisExecutable):
        with start_redis(request.param) as server:
            yield server.url
    elif isinstance(request.param, EtcdExecutable):
        with start_etcd(request.param) as etcd:
            yield etcd.url
    elif isinstance(request.param, NatsExecutable):
        with start_nats(request.param) as nats:
            yield nats.url
    else:
        yield f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture(params=OLDEST)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A Redis that the test may stop and start."""
    with start_redis(request.param) as server:
        yield server
