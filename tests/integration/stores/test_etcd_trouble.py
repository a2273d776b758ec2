"""When a member, the network, the accounts or the certificates go wrong: honest errors in bounded time."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.core.ports import Store
from holdfast.errors import BackendError, BadInput, Misconfigured, Timeout, Unavailable
from holdfast.runtime.run_sync import run_now
from holdfast.stores.etcd.url import parse_etcd_url
from holdfast.stores.registry import open_engine, redacted
from holdfast.testing.proxy import FaultProxy
from holdfast.types import MS, NS, Grant, Renewal
from support.fixtures.etcd import StartEtcd
from support.fixtures.redis import Play
from support.fixtures.tls import TlsFiles
from support.harness.etcd_requests import SOON, ask, renewal, take
from support.servers.etcd import EtcdServer
from support.servers.redis import free_port

pytestmark = pytest.mark.server
BRIEF = 300 * MS


def calls(store: Store) -> list[Any]:
    return [
        store.acquire(ask("job"), BRIEF),
        store.acquire(ask("job", ticket="t"), BRIEF),
        store.release("job", "t", None, 0, BRIEF),
        store.renew_many([Renewal("job", "t", "c", NS)], BRIEF),
        store.inspect("job", BRIEF),
        store.holdings("", 10, BRIEF),
        store.force_release("job", "a", "r", BRIEF),
        store.audit(1, BRIEF),
        store.leave("job", "t", BRIEF),
        store.ping(BRIEF),
    ]


# Members that are away, or hang.


def test_a_cluster_that_is_not_there_is_unavailable(play: Play) -> None:
    async def scenario(store: Store) -> None:
        for call in calls(store):
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+ could not be reached"):
                await call

    play(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{free_port()}", scenario)


@pytest.mark.parametrize("endpoints", [1, 3])
def test_members_that_accept_and_never_answer_end_every_call_at_its_deadline(play: Play, endpoints: int) -> None:
    async def scenario(store: Store) -> None:
        for call in calls(store):
            began = time.monotonic()
            with pytest.raises(BackendError):
                await call
            late.append(time.monotonic() - began - BRIEF / NS)

    late: list[float] = []
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(endpoints)]
    try:
        places = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in listeners)
        play(f"etcd://{places}", scenario)
    finally:
        for each in listeners:
            each.close()
    # A busy machine may delay a few of them; a time limit that is not kept delays all.
    assert sorted(late)[len(late) // 2] < 0.05


def test_a_member_that_hangs_costs_its_share_of_the_time_and_the_next_call_begins_elsewhere(
    play: Play, etcd_server: EtcdServer, etcd_url: str
) -> None:
    prefix = etcd_url.rpartition("/")[2]

    async def scenario(store: Store) -> None:
        asked, grant = await take(store, "job")
        assert proxy.accepted
        seen = proxy.accepted
        assert await store.renew_many([renewal(asked, grant)], SOON) == [True]
        assert await store.release("job", asked.token, grant.claim, 0, SOON)
        assert proxy.accepted == seen  # not asked again

    with FaultProxy(etcd_server.port) as proxy:
        proxy.stall("to_server")
        play(f"etcd://127.0.0.1:{proxy.port},127.0.0.1:{etcd_server.port}/{prefix}", scenario)
        proxy.resume()


def test_a_lost_answer_is_unknown_and_the_token_cleans_up(play: Play, etcd_server: EtcdServer, etcd_url: str) -> None:
    prefix = etcd_url.rpartition("/")[2]

    async def scenario(store: Store) -> None:
        asked, grant = await take(store, "job")
        proxy.stall("to_client")
        with pytest.raises(Timeout):
            await store.release("job", asked.token, grant.claim, 0, BRIEF)
        proxy.wait_held("to_client")  # so it did take effect
        proxy.resume_after_reset()
        assert await store.inspect("job", SOON) is None
        assert isinstance(await store.acquire(ask("job"), SOON), Grant)
        await store.force_release("job", "test", "end", SOON)

    with FaultProxy(etcd_server.port) as proxy:
        play(f"etcd://127.0.0.1:{proxy.port}/{prefix}", scenario)


def test_connections_that_the_server_has_closed_cost_no_request(play: Play, own_etcd: StartEtcd) -> None:
    server = own_etcd()

    async def scenario(store: Store) -> None:
        asked, grant = await take(store, "job")
        server.kill()
        server.start()
        assert await store.renew_many([renewal(asked, grant)], SOON) == [True]
        assert await store.release("job", asked.token, grant.claim, 0, SOON)

    play(server.url, scenario)


# Servers that are something else.


@contextmanager
def http_server(status: int, body: bytes) -> Iterator[int]:
    """Answers every POST in the same way."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (404, b"404 page not found", Misconfigured),
        (200, b"not json", Timeout),
        (200, b"[]", Timeout),
        (200, b"{}", Timeout),
        (200, b'{"header": {"revision": "x", "cluster_id": "1"}}', Timeout),
        (200, b"[" * 100_000, Timeout),
        (502, b"bad gateway", Timeout),
        (503, b'{"error":"etcdserver: no leader","code":14}', Unavailable),
        (500, b'{"error":"etcdserver: request timed out","code":14}', Timeout),
        (429, b'{"error":"etcdserver: mvcc: database space exceeded","code":8}', Unavailable),
        (429, b'{"error":"etcdserver: too many requests","code":8}', Unavailable),
        (403, b'{"error":"etcdserver: permission denied","code":7}', Misconfigured),
        (400, b'{"error":"etcdserver: user name is empty","code":3}', Misconfigured),
        (400, b'{"error":"etcdserver: too many operations in txn request","code":3}', Misconfigured),
    ],
)
def test_an_answer_that_is_no_grant_is_never_taken_for_one(
    play: Play, status: int, body: bytes, error: type[BackendError]
) -> None:
    async def scenario(store: Store) -> None:
        for call in (store.inspect("job", SOON), store.release("job", "t", None, 0, SOON), store.ping(SOON)):
            with pytest.raises(error):
                await call
        with pytest.raises(BackendError) as caught:
            await store.acquire(ask("job"), SOON)
        assert isinstance(caught.value, error if error is not Timeout else Unavailable)  # nothing was asked of a lock

    with http_server(status, body) as port:
        play(f"etcd://127.0.0.1:{port}", scenario)


# Accounts.


def with_accounts(server: EtcdServer) -> None:
    """Turn authentication on: root, a user of the prefix `app`, and one without a role."""
    for name in ("root", "app", "nothing"):
        server.ctl("user", "add", f"{name}:secret-{name}")
    server.ctl("user", "grant-role", "root", "root")
    server.ctl("role", "add", "app")
    server.ctl("role", "grant-permission", "app", "--prefix=true", "readwrite", "app/")
    server.ctl("user", "grant-role", "app", "app")
    server.ctl("auth", "enable")


def at(server: EtcdServer, userinfo: str, prefix: str = "app") -> str:
    return f"etcd://{userinfo}@127.0.0.1:{server.port}/{prefix}"


def test_accounts_are_used_and_refused_ones_are_named_without_their_password(play: Play, own_etcd: StartEtcd) -> None:
    server = own_etcd()
    with_accounts(server)

    async def works(store: Store) -> None:
        asked, grant = await take(store, "job")
        assert await store.renew_many([renewal(asked, grant)], SOON) == [True]
        assert await store.release("job", asked.token, grant.claim, 0, SOON)

    async def refused(store: Store) -> None:
        for call in (store.acquire(ask("job"), SOON), store.inspect("job", SOON), store.ping(SOON)):
            with pytest.raises(Misconfigured) as caught:
                await call
            assert "secret" not in str(caught.value)
            assert "wrong" not in str(caught.value)

    play(at(server, "app:secret-app"), works)
    play(at(server, "app:wrong"), refused)
    play(at(server, "stranger:wrong"), refused)
    play(at(server, "nothing:secret-nothing"), refused)
    play(at(server, "app:secret-app", prefix="other"), refused)
    play(f"etcd://127.0.0.1:{server.port}/app", refused)


def test_a_session_that_ended_and_a_rotated_password_are_noticed(play: Play, own_etcd: StartEtcd) -> None:
    server = own_etcd()
    with_accounts(server)
    root = {"ETCDCTL_USER": "root:secret-root"}

    async def scenario(store: Store) -> None:
        asked, grant = await take(store, "job")
        server.kill()  # its sessions are in memory
        server.start()
        assert await store.renew_many([renewal(asked, grant)], SOON) == [True]
        done = server.ctl("user", "grant-role", "nothing", "app", **root)  # makes older sessions invalid
        assert "granted" in done
        assert await store.release("job", asked.token, grant.claim, 0, SOON)

    play(at(server, "app:secret-app"), scenario)


def test_a_user_is_no_error_where_authentication_is_off(play: Play, etcd_server: EtcdServer) -> None:
    async def scenario(store: Store) -> None:
        asked, grant = await take(store, "job")
        assert await store.release("job", asked.token, grant.claim, 0, SOON)

    play(at(etcd_server, "app:secret-app", prefix="no-auth"), scenario)


# TLS.


def tls_args(files: TlsFiles, name: str, *more: str) -> tuple[str, ...]:
    return ("--cert-file", files.certificate(name), "--key-file", files.key(name), *more)


def test_tls_is_verified_and_a_plain_connection_is_told_so(
    play: Play, own_etcd: StartEtcd, tls_files: TlsFiles
) -> None:
    server = own_etcd(args=tls_args(tls_files, "good"), tls=True)

    async def works(store: Store) -> None:
        asked, grant = await take(store, "job")
        assert await store.release("job", asked.token, grant.claim, 0, SOON)

    async def refused(store: Store) -> None:
        with pytest.raises(error, match=expected):
            await store.acquire(ask("job"), SOON)

    play(f"{server.url}?ssl_ca_certs={tls_files.ca}", works)
    error: type[BackendError] = Misconfigured
    expected = "not trusted"
    play(server.url, refused)  # the system does not know our CA
    error, expected = Unavailable, "etcds://"
    play(f"etcd://127.0.0.1:{server.port}", refused)


@pytest.mark.parametrize(("name", "problem"), [("expired", "expired"), ("other", "not trusted")])
def test_a_certificate_that_expired_or_names_another_host_is_refused(
    play: Play, own_etcd: StartEtcd, tls_files: TlsFiles, name: str, problem: str
) -> None:
    server = own_etcd(args=tls_args(tls_files, name), tls=True)

    async def refused(store: Store) -> None:
        with pytest.raises(Misconfigured, match=problem):
            await store.acquire(ask("job"), SOON)

    play(f"{server.url}?ssl_ca_certs={tls_files.ca}", refused)


def test_a_client_certificate_is_presented(play: Play, own_etcd: StartEtcd, tls_files: TlsFiles) -> None:
    wants = ("--client-cert-auth", "--trusted-ca-file", tls_files.ca)
    server = own_etcd(args=tls_args(tls_files, "good", *wants), tls=True)

    async def works(store: Store) -> None:
        asked, grant = await take(store, "job")
        assert await store.release("job", asked.token, grant.claim, 0, SOON)

    async def refused(store: Store) -> None:
        with pytest.raises(Misconfigured, match="ssl_certfile"):
            await store.acquire(ask("job"), SOON)

    own = f"&ssl_certfile={tls_files.certificate('good')}&ssl_keyfile={tls_files.key('good')}"
    play(f"{server.url}?ssl_ca_certs={tls_files.ca}{own}", works)
    play(f"{server.url}?ssl_ca_certs={tls_files.ca}", refused)


def test_a_plain_port_is_not_taken_for_tls(play: Play, etcd_server: EtcdServer) -> None:
    async def refused(store: Store) -> None:
        with pytest.raises(Unavailable, match="not for TLS, write etcd://"):
            await store.ping(SOON)

    play(f"etcds://127.0.0.1:{etcd_server.port}", refused)


def test_a_full_database_is_unavailable_and_says_what_to_do(play: Play, own_etcd: StartEtcd) -> None:
    server = own_etcd(args=("--quota-backend-bytes", str(16 * 4096 * 16)))
    server.fill()

    async def scenario(store: Store) -> None:
        with pytest.raises(Unavailable, match="auto-compaction-retention"):
            await store.acquire(ask("job"), SOON)

    play(server.url, scenario)


# URLs.


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("etcd://a:1:2", "url host"),
        ("etcd://a:99999", "url host"),
        ("etcd://a:0", "url host"),
        ("etcd://a,,b", "url host"),
        ("etcd://a,a", "url host"),
        ("etcd://a..b", "url host"),
        ("etcd://" + ",".join(f"h{n}" for n in range(17)), "url host"),
        ("etcd://user@a", "url user"),
        ("etcd://:secret@a", "url user"),
        ("etcd://a#b", "url"),
        ("etcd://a?color=red", "url option"),
        ("etcd://a?ssl_ca_certs=/x", "url option ssl_ca_certs"),
        ("etcds://a?ssl_ca_certs=/nowhere/ca.pem", "url option ssl_ca_certs"),
        ("etcds://a?ssl_keyfile=/dev/null", "url option ssl_keyfile"),
        ("etcd://a/" + "x" * 121, "url prefix"),
        ("etcd://a/%00", "url prefix"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_its_part(url: str, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_engine(url)
    assert caught.value.field == field
    assert "secret" not in str(caught.value)


def test_a_url_names_endpoints_user_and_prefix() -> None:
    found = parse_etcd_url("etcd://us%40er:p%2Fw@h1:1,[::1]:2,h3/team/locks/")
    assert [str(each) for each in found.endpoints] == ["h1:1", "[::1]:2", "h3:2379"]
    assert (found.username, found.password, found.prefix, found.tls) == ("us@er", "p/w", "team/locks", None)
    assert "p/w" not in repr(found)
    assert "secret" not in redacted("etcd://app:secret@h1,h2/x")
    assert parse_etcd_url("etcd:///").endpoints[0].host == "localhost"


def test_an_engine_shows_no_password() -> None:
    engine = open_engine("etcd://app:secret@h1,h2/x")
    assert "secret" not in repr(engine) + repr(engine.blocking)
    assert json.dumps(str(engine)) == '"<EtcdEngine at h1:2379,h2:2379/x>"'
    run_now(engine.blocking.close())
