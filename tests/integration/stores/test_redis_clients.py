"""`connect(client=…)`: the settings of a redis-py client, with connections of the store's own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.credentials import CredentialProvider

import holdfast
from holdfast.errors import BadInput, Unavailable
from support.fixtures.redis import StartRedis
from support.fixtures.tls import TlsFiles
from support.servers.redis import RedisServer, free_port

pytestmark = pytest.mark.server


class Rotating(CredentialProvider):
    """Gives the password that is valid now."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        if not self.password:
            raise RuntimeError("secret-vault-token-123")
        return ("default", self.password)


def both(client: Any) -> None:
    """A lock of the client's server, taken in both colors."""

    async def main() -> None:
        async with holdfast.aio.connect(client=client) as locks, locks.lock("client:aio") as lease:
            assert lease.held

    with holdfast.connect(client=client) as locks, locks.lock("client:sync") as lease:
        assert lease.held
    asyncio.run(main())


@pytest.fixture(params=[redis.Redis, redis.asyncio.Redis], ids=["redis", "redis.asyncio"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_host_port_and_database_are_those_of_the_client(redis_server: RedisServer, kind: Any) -> None:
    client = kind(host="127.0.0.1", port=redis_server.port, db=5, decode_responses=True)
    with holdfast.connect(client=client) as locks, locks.lock("client:db") as lease:
        assert redis_server.cli("GET", "client:db", db=5).startswith(lease.owner)
        assert redis_server.cli("EXISTS", "client:db", db=0) == 0
        with pytest.raises(TypeError, match="by URL"):
            locks.reconnection()
    both(client)


def test_a_url_and_a_socket_are_understood(own_redis: StartRedis, kind: Any) -> None:
    both(kind(unix_socket_path=str(own_redis(unix=True).socket_path)))


def test_a_rotated_password_is_asked_for_with_each_new_connection(own_redis: StartRedis, kind: Any) -> None:
    server, provider = own_redis(), Rotating("first")
    server.cli("CONFIG", "SET", "requirepass", "first")
    with holdfast.connect(client=kind(port=server.port, credential_provider=provider)) as locks:
        locks.ping()
        with server.client(password="first") as raw:
            raw.config_set("requirepass", "second")
            provider.password = "second"
            raw.client_kill_filter(_type="normal", skipme=True)
        locks.lock("client:rotated").acquire(timeout=10).release()
        assert provider.asked >= 2
    both(kind(port=server.port, credential_provider=provider))


def test_a_provider_that_fails_is_unavailable_without_its_words(own_redis: StartRedis, kind: Any) -> None:
    client = kind(port=own_redis().port, credential_provider=Rotating(""))
    with holdfast.connect(client=client) as locks:
        with pytest.raises(Unavailable, match=r"the credential provider failed \(RuntimeError\)") as caught:
            locks.ping()
        assert "vault" not in str(caught.value)

    async def main() -> None:
        async with holdfast.aio.connect(client=client) as locks:
            with pytest.raises(Unavailable, match=r"the credential provider failed \(RuntimeError\)"):
                await locks.ping()

    asyncio.run(main())


def test_tls_settings_are_those_of_the_client(own_redis: StartRedis, tls_files: TlsFiles, kind: Any) -> None:
    server = own_redis()
    if not server.executable.has_tls:
        with pytest.raises(BadInput, match="client: has TLS settings that cannot be used"):
            holdfast.connect(client=kind(ssl=True, ssl_ca_certs="missing.pem"))
        return
    files = ("--tls-cert-file", tls_files.certificate("good"), "--tls-key-file", tls_files.key("good"))
    port = free_port()
    options = ("--tls-port", str(port), *files, "--tls-ca-cert-file", tls_files.ca, "--tls-auth-clients", "no")
    tls = own_redis(args=options)
    assert tls.cli("PING")
    both(kind(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=tls_files.ca))
    untrusting = kind(host="127.0.0.1", port=port, ssl=True)
    with (
        holdfast.connect(client=untrusting) as locks,
        pytest.raises(holdfast.BackendError, match="certificate is not trusted"),
    ):
        locks.ping()
    both(kind(host="127.0.0.1", port=port, ssl=True, ssl_cert_reqs="none", ssl_check_hostname=False))


def test_what_cannot_be_followed_is_refused_by_name(kind: Any, tmp_path: Path) -> None:
    class Own(redis.Connection):
        pass

    for client, says in (
        (kind(redis_connect_func=print), "client: has a redis_connect_func; give a URL, or a client without it"),
        (redis.Redis(ssl=True, ssl_validate_ocsp=True), "client: has ssl_validate_ocsp;"),
        (redis.Redis(connection_pool=redis.ConnectionPool(connection_class=Own)), r"of its own kind \(Own\)"),
        (kind(ssl=True, ssl_ca_certs=str(tmp_path / "missing")), "cannot be used"),
        (object(), "client: object is not a client of redis-py; give one of those, or a URL"),
        (redis.Redis, r"client: \w+ is not a client of redis-py"),
    ):
        for connect in (holdfast.connect, holdfast.aio.connect):
            with pytest.raises(BadInput, match=says):
                connect(client=client)
    with pytest.raises(BadInput, match="more than one of them is given"):
        holdfast.connect("memory://", client=kind())


def test_the_client_itself_is_not_used_and_not_closed(redis_server: RedisServer) -> None:
    client: Any = redis.Redis(port=redis_server.port, max_connections=1)
    with client.monitor(), holdfast.connect(client=client) as locks:  # its only connection is busy
        locks.lock("client:own").acquire(timeout=10).release()
    assert client.ping()
    client.close()
