"""Every store on a real server, behind proxies that inject faults, and behind TLS and a password.

A `Site` is plain: its proxies carry what clients say. A `SecuredSite` has a certificate and a password, which can be
exchanged while clients are connected. Each store has a function for both; a new store is one entry in `STORES`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.stores.redis.slots import SLOTS
from holdfast.testing.proxy import FaultProxy
from support.fixtures.tls import TlsFiles
from support.load.processes import until
from support.servers.etcd import etcd_executables, start_etcd
from support.servers.nats import nats_executables, own_bucket, start_nats
from support.servers.postgres import PostgresServer, postgres_executables, start_postgres
from support.servers.redis import RedisServer, redis_executables, start_redis
from support.servers.redis_cluster import cluster_port
from support.servers.sentinel import SERVICE, start_sentinel
from support.servers.tls_front import TlsFront

OLD, NEW = "old-s3cret", "new-s3cret"


@dataclass(frozen=True)
class Site:
    """A store behind proxies."""

    url: str
    direct: str  # past the proxies, where the store's own servers do not lead clients back to them
    proxies: list[FaultProxy]
    named: dict[int, int | str] = field(default_factory=dict)  # ports of the URL, and the servers behind them

    def all(self, fault: Callable[[FaultProxy], None]) -> None:
        """The same fault on each way to the store."""
        for proxy in self.proxies:
            fault(proxy)

    def mend(self) -> None:
        """End every fault, and the connections that have met one."""
        self.all(FaultProxy.mend)
        self.all(FaultProxy.reset)


@dataclass(frozen=True)
class SecuredSite:
    """A store with TLS and a password, `OLD` at first."""

    url: Callable[[str], str]  # of a password
    present: Callable[[str], None]  # another certificate of `TlsFiles`; open connections are cut
    rotate: Callable[[str], None]  # another password; sessions of the former one are ended


def _data_of(server: RedisServer) -> str:
    return f"127.0.0.1:{server.port}"


def _redis(stack: ExitStack) -> Site:
    server = stack.enter_context(start_redis(redis_executables()[-1]))
    proxy = stack.enter_context(FaultProxy(server.port))
    return Site(f"redis://{proxy.address}", server.url, [proxy], {proxy.port: server.port})


def _quorum(stack: ExitStack) -> Site:
    servers = [stack.enter_context(start_redis(redis_executables()[-1])) for _ in range(3)]
    proxies = [stack.enter_context(FaultProxy(server.port)) for server in servers]
    direct = ",".join(map(_data_of, servers))
    named: dict[int, int | str] = {proxy.port: server.port for proxy, server in zip(proxies, servers, strict=True)}
    return Site(f"redlock://{','.join(proxy.address for proxy in proxies)}", f"redlock://{direct}", proxies, named)


def _sentinel(stack: ExitStack) -> Site:
    server = stack.enter_context(start_redis(redis_executables()[-1]))
    data = stack.enter_context(FaultProxy(server.port))
    sentinel = stack.enter_context(start_sentinel(redis_executables()[-1], data.port))
    proxy = stack.enter_context(FaultProxy(sentinel.port))
    url = f"redis+sentinel://{proxy.address}/{SERVICE}"
    return Site(url, server.url, [data, proxy], {proxy.port: sentinel.port})


def start_cluster_node(stack: ExitStack, *args: str, password: str | None = None) -> RedisServer:
    """A cluster of one node, which serves all slots."""
    words = ["--cluster-enabled", "yes", *args]
    node = stack.enter_context(start_redis(redis_executables()[-1], args=words, port=cluster_port()))
    with node.client(password=password, decode_responses=True) as raw:
        raw.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        until(lambda: _serves(raw), "it serves")
    return node


def _serves(raw: Any) -> bool:
    info = raw.execute_command("CLUSTER INFO")
    return "cluster_state:ok" in info if isinstance(info, str) else info["cluster_state"] == "ok"


def _announce(node: RedisServer, port: int, password: str | None = None) -> None:
    """Lead clients to this port of a proxy."""
    with node.client(password=password) as raw:
        raw.config_set("cluster-announce-port", port)


def _cluster(stack: ExitStack) -> Site:
    node = start_cluster_node(stack)
    data, seed = (stack.enter_context(FaultProxy(node.port)) for _ in range(2))
    _announce(node, data.port)
    url = f"redis+cluster://{seed.address}"
    return Site(url, url, [data, seed], {seed.port: node.port, data.port: node.port})


def _nats(stack: ExitStack) -> Site:
    server = stack.enter_context(start_nats(nats_executables()[0]))
    proxy = stack.enter_context(FaultProxy(server.port))
    direct = own_bucket(server)
    return Site(f"nats://{proxy.address}?{direct.partition('?')[2]}", direct, [proxy], {proxy.port: server.port})


def _etcd(stack: ExitStack) -> Site:
    server = stack.enter_context(start_etcd(etcd_executables()[0]))
    proxy = stack.enter_context(FaultProxy(server.port))
    return Site(f"etcd://{proxy.address}", server.url, [proxy], {proxy.port: server.port})


def _socket_of(server: PostgresServer) -> str:
    return str(server.directory / ".s.PGSQL.5432")


def _postgres(stack: ExitStack) -> Site:
    server = stack.enter_context(start_postgres(postgres_executables()[-1]))
    proxy = stack.enter_context(FaultProxy(_socket_of(server)))
    url = f"postgresql://postgres@{proxy.address}/postgres?sslmode=disable"  # a name would mean verified TLS
    return Site(url, server.url(), [proxy], {proxy.port: _socket_of(server)})


# With TLS and a password.


class _Fronts:
    """Ends the TLS of several servers."""

    def __init__(self, stack: ExitStack, files: TlsFiles) -> None:
        self._stack, self._files = stack, files
        self._fronts: list[TlsFront] = []

    def before(self, target: int | str, *, postgres: bool = False) -> TlsFront:
        front = self._stack.enter_context(TlsFront(target, self._files, postgres=postgres))
        self._fronts.append(front)
        return front

    def present(self, name: str) -> None:
        for front in self._fronts:
            front.present(name)
            front.reset()


def _rotate_redis(servers: list[RedisServer]) -> Callable[[str], None]:
    passwords = [OLD]

    def rotate(password: str) -> None:
        for server in servers:
            with server.client(password=passwords[-1]) as raw:
                raw.config_set("requirepass", password)
                raw.client_kill_filter(_type="normal", skipme=True)
        passwords.append(password)

    return rotate


_STRICT: Final = ("--requirepass", OLD)


def _secured_redis(stack: ExitStack, files: TlsFiles) -> SecuredSite:
    server = stack.enter_context(start_redis(redis_executables()[-1], args=_STRICT))
    fronts = _Fronts(stack, files)
    place = f"127.0.0.1:{fronts.before(server.port).port}"
    return SecuredSite(
        lambda password: f"rediss://:{password}@{place}?ssl_ca_certs={files.ca}",
        fronts.present,
        _rotate_redis([server]),
    )


def _secured_quorum(stack: ExitStack, files: TlsFiles) -> SecuredSite:
    servers = [stack.enter_context(start_redis(redis_executables()[-1], args=_STRICT)) for _ in range(3)]
    fronts = _Fronts(stack, files)
    ports = [fronts.before(server.port).port for server in servers]

    def url(password: str) -> str:
        places = ",".join(f":{password}@127.0.0.1:{port}" for port in ports)
        return f"redlock://{places}?tls=true&ssl_ca_certs={files.ca}"

    return SecuredSite(url, fronts.present, _rotate_redis(servers))


def _secured_sentinel(stack: ExitStack, files: TlsFiles) -> SecuredSite:
    server = stack.enter_context(start_redis(redis_executables()[-1], args=_STRICT))
    fronts = _Fronts(stack, files)
    sentinel = stack.enter_context(start_sentinel(redis_executables()[-1], fronts.before(server.port).port))
    place = f"127.0.0.1:{fronts.before(sentinel.port).port}/{SERVICE}"
    return SecuredSite(
        lambda password: f"rediss+sentinel://:{password}@{place}?ssl_ca_certs={files.ca}",
        fronts.present,
        _rotate_redis([server]),
    )


def _secured_cluster(stack: ExitStack, files: TlsFiles) -> SecuredSite:
    node = start_cluster_node(stack, *_STRICT, password=OLD)
    fronts = _Fronts(stack, files)
    port = fronts.before(node.port).port
    _announce(node, port, OLD)
    return SecuredSite(
        lambda password: f"rediss+cluster://:{password}@127.0.0.1:{port}?ssl_ca_certs={files.ca}",
        fronts.present,
        _rotate_redis([node]),
    )


def _secured_nats(stack: ExitStack, files: TlsFiles) -> SecuredSite:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hf-")))
    now = {"password": OLD, "certificate": "good"}

    def write() -> Path:
        path = directory / "nats.conf"
        name = now["certificate"]
        path.write_text(
            f"authorization {{ user: ada, password: {now['password']} }}\n"
            f'tls {{ cert_file: "{files.certificate(name)}", key_file: "{files.key(name)}" }}\n'
        )
        return path

    server = stack.enter_context(start_nats(nats_executables()[0], args=["-c", str(write())]))

    def change(name: str, value: str) -> None:
        """Restart it: a reload would keep the sessions that there are."""
        now[name] = value
        write()
        server.kill()
        server.start()

    return SecuredSite(
        lambda password: f"tls://ada:{password}@127.0.0.1:{server.port}?ssl_ca_certs={files.ca}",
        lambda name: change("certificate", name),
        lambda password: change("password", password),
    )


def _secured_etcd(stack: ExitStack, files: TlsFiles) -> SecuredSite:
    server = stack.enter_context(start_etcd(etcd_executables()[0], args=("--bcrypt-cost", "4")))
    for words in (
        *(("user", "add", "root:root"), ("user", "grant-role", "root", "root")),
        *(("user", "add", f"ada:{OLD}"), ("user", "grant-role", "ada", "root"), ("auth", "enable")),
    ):
        server.ctl(*words)
    fronts = _Fronts(stack, files)
    port = fronts.before(server.port).port

    def rotate(password: str) -> None:
        server.ctl("user", "passwd", "ada", "--interactive=false", typed=f"{password}\n", ETCDCTL_USER="root:root")

    return SecuredSite(
        lambda password: f"etcds://ada:{password}@127.0.0.1:{port}?ssl_ca_certs={files.ca}", fronts.present, rotate
    )


def _secured_postgres(stack: ExitStack, files: TlsFiles) -> SecuredSite:
    server = stack.enter_context(start_postgres(postgres_executables()[-1]))
    rules = server.directory / "data" / "pg_hba.conf"
    rules.write_text("local all ada scram-sha-256\n" + rules.read_text())
    fronts = _Fronts(stack, files)
    port = fronts.before(_socket_of(server), postgres=True).port

    def rotate(password: str) -> None:
        with server.connect() as connection:
            connection.execute(f"ALTER ROLE ada PASSWORD '{password}'")
            connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'ada'")

    with server.connect() as connection:
        connection.execute("CREATE ROLE ada SUPERUSER LOGIN")
        connection.execute("SELECT pg_reload_conf()")
    rotate(OLD)
    return SecuredSite(
        lambda password: (
            f"postgresql://ada:{password}@127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert={files.ca}"
        ),
        fronts.present,
        rotate,
    )


@dataclass(frozen=True)
class StoreSites:
    """Both kinds of sites of one store."""

    plain: Callable[[ExitStack], Site]
    secured: Callable[[ExitStack, TlsFiles], SecuredSite]


STORES: Final = {
    "Redis, Valkey": StoreSites(_redis, _secured_redis),
    "Redis Sentinel": StoreSites(_sentinel, _secured_sentinel),
    "Redis Cluster": StoreSites(_cluster, _secured_cluster),
    "a quorum of Redis": StoreSites(_quorum, _secured_quorum),
    "etcd": StoreSites(_etcd, _secured_etcd),
    "NATS": StoreSites(_nats, _secured_nats),
    "Postgres": StoreSites(_postgres, _secured_postgres),
}
