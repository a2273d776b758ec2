"""Servers are spoken to with TLS where that was requested, or where they are elsewhere: verified, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import ssl
import textwrap
import threading
from collections.abc import Iterator
from typing import Any, Self

import nats.aio.client
import pytest

from holdfast.errors import BackendError, Misconfigured, Unavailable
from holdfast.guards.install import install
from holdfast.guards.postgres_records import PostgresRecord
from holdfast.plane.bus.nats.connection import NatsConnection
from holdfast.plane.bus.nats.naming import NatsNames
from holdfast.plane.db.open import open_database
from holdfast.runtime.postgres_driver import VERIFIED, tls_options
from holdfast.runtime.run_sync import run_now
from holdfast.types import NS
from support.fixtures.tls import TlsFiles
from support.servers.nats import NatsExecutable, NatsServer, start_nats

pytestmark = pytest.mark.threat("X8")

SECRET = "S3cretWord"
SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
INFO = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"jetstream":true}\r\n'


class Listener:
    """Says one thing first or second, and remembers everything that it is sent, in clear or out of TLS."""

    def __init__(self, *, first: bytes = b"", answer: bytes = b"", tls: ssl.SSLContext | None = None) -> None:
        self._first, self._answer, self._tls = first, answer, tls
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)

    def _serve(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), end:
                end.settimeout(10)
                self._talk(end)

    def _talk(self, end: socket.socket) -> None:
        end.sendall(self._first)
        if self._answer:
            self.heard.append(end.recv(8))
            end.sendall(self._answer)
        if self._tls is None:
            self.heard.append(end.recv(4096))
            return
        with self._tls.wrap_socket(end, server_side=True) as secure:
            self.heard.append(secure.recv(4096))


def served_with(files: TlsFiles, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate(name), files.key(name))
    return context


# Postgres. `127.1` is this machine under a name that says nothing of it, so it is treated as any other host.


@pytest.fixture
def _no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGSSLMODE", "PGSERVICE", "PGREQUIRESSL", "PGHOST", "PGHOSTADDR", "PGSSLROOTCERT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_certificates")
@pytest.mark.parametrize(
    ("url", "verified"),
    [
        ("postgresql://u@db.example/x", True),
        ("postgresql://u@10.0.0.7:5432/x", True),
        ("postgresql://u@[2001:db8::1]/x", True),
        ("postgresql://u@localhost.example/x", True),
        ("postgresql://u@127.0.0.1,10.0.0.7/x", True),
        ("postgresql://u@x/?hostaddr=10.0.0.7", True),
        ("host=db.example dbname=x", True),
        ("postgresql://u@localhost/x", False),
        ("postgresql://u@127.0.0.1:5432/x", False),
        ("postgresql://u@[::1]/x", False),
        ("postgresql:///x", False),
        ("postgresql://u@/x?host=/var/run/postgresql", False),
        ("postgresql://u@%2Fvar%2Frun/x", False),
        ("postgresql://u@db.example/x?sslmode=disable", False),
        ("postgresql://u@db.example/x?sslmode=require", False),
        ("postgresql://u@db.example/x?service=known", False),
    ],
)
def test_another_host_is_verified_unless_the_url_says_otherwise(url: str, verified: bool) -> None:
    assert tls_options(url) == (VERIFIED if verified else {})


def test_what_the_environment_says_of_tls_and_hosts_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    assert tls_options("postgresql:///x") == VERIFIED
    monkeypatch.setenv("PGSSLMODE", "disable")
    assert tls_options("postgresql:///x") == {}
    assert tls_options("postgresql://u@db.example/x") == {}


async def _of_the_plane(url: str) -> None:
    database = open_database(url)
    try:
        await database.read(lambda tx: tx.query("SELECT 1 AS one"))
    finally:
        await database.close()


def _of_a_record(url: str) -> None:
    with contextlib.closing(PostgresRecord(url, timeout=2)) as record:
        run_now(record.seen("place", "resource"))


@pytest.mark.asyncio
@pytest.mark.usefixtures("_no_certificates")
@pytest.mark.parametrize("offered", ["nothing", "good", "other", "expired"])
async def test_a_postgres_that_proves_nothing_is_not_told_the_password(tls_files: TlsFiles, offered: str) -> None:
    tls = None if offered == "nothing" else served_with(tls_files, offered)
    with Listener(answer=b"N" if tls is None else b"S", tls=tls) as server:
        url = f"postgresql://ada:{SECRET}@127.1:{server.port}/x?connect_timeout=5&pool_timeout=3"
        trusted = f"{url}&sslrootcert={tls_files.ca}"
        for each in [trusted] if offered != "good" else [url]:  # whose certificate is not trusted here
            with pytest.raises(Misconfigured, match="sslmode=disable is plain text") as refused:
                await _of_the_plane(each)
            assert SECRET not in str(refused.value)
        plain = url.replace("&pool_timeout=3", "")
        for use in (lambda: install(plain, "invoices"), lambda: _of_a_record(plain)):
            with pytest.raises(BackendError):
                use()
    assert server.heard
    assert {each for each in server.heard if each} <= {SSL_REQUEST}


@pytest.mark.asyncio
@pytest.mark.usefixtures("_no_certificates")
async def test_a_postgres_that_proves_who_it_is_is_spoken_to_inside(tls_files: TlsFiles) -> None:
    with Listener(answer=b"S", tls=served_with(tls_files, "good")) as server:
        url = f"postgresql://ada:{SECRET}@127.1:{server.port}/x?connect_timeout=5&pool_timeout=3"
        with pytest.raises(Unavailable):  # it ends there: this is no Postgres
            await _of_the_plane(f"{url}&sslrootcert={tls_files.ca}")
    assert any(b"user\x00ada" in each for each in server.heard)


# NATS.


@pytest.fixture(scope="module")
def secure_nats(nats_executable: NatsExecutable, tls_files: TlsFiles) -> Iterator[dict[str, NatsServer]]:
    with contextlib.ExitStack() as stack:
        servers = {}
        for name in ("good", "other", "expired"):
            words = ("--tls", "--tlscert", tls_files.certificate(name), "--tlskey", tls_files.key(name))
            servers[name] = stack.enter_context(start_nats(nats_executable, args=words))
        yield servers


async def _of_the_bus(url: str, connect_timeout_ns: int = 10 * NS) -> None:
    connection = NatsConnection([url], "nats", NatsNames("S"), connect_timeout_ns=connect_timeout_ns)
    try:
        await (await connection.client()).flush()
    finally:
        await connection.close()


@pytest.mark.server
@pytest.mark.asyncio
async def test_a_nats_server_with_tls_is_verified_whatever_the_url_begins_with(
    secure_nats: dict[str, NatsServer], tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: f"127.0.0.1:{server.port}" for name, server in secure_nats.items()}
    untrusted = [_refused(f"{scheme}://{places['good']}", "SSL_CERT_FILE") for scheme in ("tls", "nats")]
    await asyncio.gather(*untrusted)
    monkeypatch.setenv("SSL_CERT_FILE", tls_files.ca)
    for scheme in ("tls", "nats"):
        await _of_the_bus(f"{scheme}://{places['good']}")
    named = places["good"].replace("127.0.0.1", "localhost")
    wrong = [f"tls://{place}" for place in (places["other"], places["expired"], named)]
    await asyncio.gather(*(_refused(url, "not trusted") for url in [*wrong, f"nats://{places['other']}"]))


async def _refused(url: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        await _of_the_bus(url, 2 * NS)  # the client does not end sooner, though it knows


@pytest.mark.asyncio
async def test_a_nats_server_that_was_stripped_of_tls_is_told_nothing() -> None:
    with Listener(first=INFO) as server:
        with pytest.raises(Misconfigured, match="does not offer TLS"):
            await _of_the_bus(f"tls://ada:{SECRET}@127.0.0.1:{server.port}")
        assert set(server.heard) == {b""}


@pytest.mark.asyncio
async def test_tls_that_is_offered_and_not_demanded_is_taken(
    tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", tls_files.ca)
    offers = INFO.replace(b"}", b',"tls_available":true}')
    with Listener(first=offers, tls=served_with(tls_files, "good")) as server:
        with pytest.raises(Unavailable):  # it ends there: this is no NATS
            await _of_the_bus(f"tls://ada:{SECRET}@127.0.0.1:{server.port}")
        assert any(SECRET.encode() in each for each in server.heard)


def _library_calls(monkeypatch: pytest.MonkeyPatch, new: str) -> None:
    """Replace the statement by which the library calls our check."""
    client = nats.aio.client.Client
    source = textwrap.dedent(inspect.getsource(client._process_connect_init))
    call = "await self._process_info(srv_info, initial_connection=True)"
    assert source.count(call) == 1
    made: dict[str, Any] = {}
    exec(source.replace(call, new), vars(nats.aio.client), made)
    monkeypatch.setattr(client, "_process_connect_init", made["_process_connect_init"])


@pytest.mark.asyncio
async def test_a_library_that_does_not_await_our_check_is_refused_before_it_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As nats-py 2.9.0 and 2.9.1: an ordinary function, called without `await`, so that an override never runs."""
    _library_calls(monkeypatch, "self._process_info(srv_info, initial_connection=True)")
    monkeypatch.setattr(nats.aio.client.Client, "_process_info", lambda self, info, initial_connection=False: None)
    with Listener(first=INFO) as server:
        with pytest.raises(Misconfigured, match=r"no connection was made.*nats-py>=2\.12,<3"):
            await _of_the_bus(f"tls://ada:{SECRET}@127.0.0.1:{server.port}")
        assert server.heard == []


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["_process_info", "_connect_command"])
async def test_a_library_without_a_method_that_we_override_is_refused(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(nats.aio.client.Client, method)
    with Listener(first=INFO) as server:
        with pytest.raises(Misconfigured, match="no connection was made"):
            await _of_the_bus(f"tls://ada:{SECRET}@127.0.0.1:{server.port}")
        assert server.heard == []


@pytest.mark.asyncio
async def test_a_library_that_skips_our_check_sends_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    _library_calls(monkeypatch, "pass")
    with Listener(first=INFO) as server:
        with pytest.raises(Misconfigured, match="does not offer TLS"):
            await _of_the_bus(f"tls://ada:{SECRET}@127.0.0.1:{server.port}")
        assert set(server.heard) == {b""}
