"""Who may connect and how: passwords, ACL users, databases, unix sockets, TLS. Errors name the field and the fix."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.core.ports import Store
from holdfast.errors import Misconfigured, Unavailable
from holdfast.stores.redis.protocol import OPERATOR_COMMANDS, USER_COMMANDS
from holdfast.types import MS, Grant
from support.fixtures.redis import Play, StartRedis
from support.harness.redis_requests import SOON, ask, give_back, meet, renewal, take
from support.servers.redis import RedisExecutable, RedisServer, free_port
from support.servers.scripted_redis import ScriptedRedis

pytestmark = pytest.mark.server

LEAST, OPERATOR = USER_COMMANDS.split(), OPERATOR_COMMANDS.split()


async def _use(store: Store) -> None:
    grant = await take(store, "app:job")
    assert await store.renew_many([renewal(grant)], SOON) == [True]
    assert await give_back(store, grant)


def _login(server: RedisServer, login: str) -> str:
    return server.url.replace("redis://", f"redis://{login}@")


@pytest.mark.threat("X3")
def test_a_password_opens_the_server_and_a_wrong_one_is_never_shown(play: Play, own_redis: StartRedis) -> None:
    server = own_redis(args=["--requirepass", "right"])

    async def refused(store: Store) -> None:
        for call in (store.acquire(ask("job"), SOON), store.watch("job")):
            with pytest.raises(Misconfigured, match="url user and password") as caught:
                await call
            assert "hunter2" not in str(caught.value)
            assert "hunter2" not in repr(caught.value.__cause__)

    play(_login(server, ":right"), _use)
    play(_login(server, "default:right"), _use)
    play(_login(server, ":hunter2"), refused)
    play(_login(server, "nobody:hunter2"), refused)
    play(server.url, refused)


def test_a_password_for_a_server_without_one_says_so(play: Play, redis_server: RedisServer) -> None:
    async def refused(store: Store) -> None:
        with pytest.raises(Misconfigured, match="none if it has none"):
            await store.ping(SOON)

    play(_login(redis_server, ":superfluous"), refused)


@pytest.mark.threat("X7")
def test_a_user_with_the_least_privileges_can_use_locks(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()
    server.cli(
        "ACL", "SETUSER", "app", "on", ">pw", "~app:*", "~holdfast:*", "resetchannels", "&holdfast:ear:*", *LEAST
    )

    async def scenario(store: Store) -> None:
        await _use(store)
        held = await take(store, "app:fair", ticket="t1")
        await meet(store, "app:fair", ticket="t2")
        watch = await store.watch("app:fair")
        await meet(store, "app:fair", ticket="t2")
        assert await store.release("app:fair", held.token, None, 0, SOON)
        assert await watch.wait(SOON)
        await watch.close()
        await store.leave("app:fair", "t2", SOON)
        held = await take(store, "app:plain")
        watch = await store.watch("app:plain")
        await meet(store, "app:plain")
        assert not await watch.wait(MS)
        assert await give_back(store, held)
        assert await watch.wait(SOON)
        await give_back(store, await take(store, "app:plain"))
        await watch.close()
        kept = await take(store, "app:kept")
        assert await store.release("app:kept", kept.token, kept.claim, 1000, SOON)

    async def beyond(store: Store) -> None:
        with pytest.raises(Misconfigured, match="url user: grant user 'app'"):
            await store.acquire(ask("other:job"), SOON)

    play(_login(server, "app:pw"), scenario)
    play(_login(server, "app:pw"), beyond)


def test_an_operator_needs_only_a_little_more(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()
    server.cli("ACL", "SETUSER", "ops", "on", ">pw", "~*", "resetchannels", "&holdfast:ear:*", *LEAST, *OPERATOR)

    async def scenario(store: Store) -> None:
        await take(store, "app:job")
        assert await store.inspect("app:job", SOON) is not None
        assert len(await store.holdings("app:", 10, SOON)) == 1
        assert await store.force_release("app:job", "ops", "why", SOON) is not None
        assert len(await store.audit(10, SOON)) == 1
        await store.ping(SOON)
        server.cli("DEL", "holdfast:audit")

    play(_login(server, "ops:pw"), scenario)


def test_without_permission_for_channels_locks_work_and_listening_is_refused(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()
    server.cli("ACL", "SETUSER", "app", "on", ">pw", "~*", "resetchannels", *LEAST)

    async def scenario(store: Store) -> None:
        await _use(store)
        for _ in range(2):
            with pytest.raises(Misconfigured, match=r"&holdfast:ear:\*"):
                await store.watch("app:job")
        await _use(store)

    play(_login(server, "app:pw"), scenario)


def test_a_user_who_may_not_run_scripts_is_told_which_permission_is_missing(play: Play, own_redis: StartRedis) -> None:
    server = own_redis()
    server.cli("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-@scripting")

    async def scenario(store: Store) -> None:
        request = ask("job")
        with pytest.raises(Misconfigured, match=r"url user: grant user 'app' .*\+eval") as caught:
            await store.acquire(request, SOON)
        assert request.token not in str(caught.value)

    play(_login(server, "app:pw"), scenario)


def test_databases_are_apart(play: Play, redis_server: RedisServer, redis_url: str) -> None:
    name = redis_url.partition("prefix=")[2][:10]

    async def scenario(store: Store) -> None:
        grant = await take(store, name)
        assert redis_server.cli("GET", name, db=7) == grant.claim
        assert redis_server.cli("GET", name, db=0) is None
        await give_back(store, grant)

    play(f"{redis_server.url}/7", scenario)


def test_a_database_that_does_not_exist_is_a_clear_error(play: Play, redis_server: RedisServer) -> None:
    async def scenario(store: Store) -> None:
        with pytest.raises(Misconfigured, match="url db"):
            await store.acquire(ask("job"), SOON)

    play(f"{redis_server.url}/4711", scenario)


def test_a_unix_socket_serves_both_colours(play: Play, own_redis: StartRedis) -> None:
    server = own_redis(unix=True)
    play(f"{server.url}?db=3", _use)

    async def scenario(store: Store) -> None:
        grant = await take(store, "job")
        assert server.cli("GET", "job", db=3) == grant.claim
        watch = await store.watch("job")
        await give_back(store, grant)
        assert await watch.wait(SOON)
        await watch.close()

    play(f"{server.url}?db=3", scenario)


def test_a_unix_socket_that_is_not_there_is_unavailable(play: Play, tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        with pytest.raises(Unavailable, match=r"missing\.sock could not be reached"):
            await store.ping(SOON)

    play(f"unix://{tmp_path}/missing.sock", scenario)


@dataclass(frozen=True)
class Certificates:
    """A CA, a server's and a client's certificate, and a CA that signed neither."""

    directory: Path

    def __getattr__(self, name: str) -> str:
        return str(self.directory / name.replace("_", "."))


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    for ca in ("ca", "stranger"):
        openssl(
            "req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={ca}",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", f"{ca}.key", "-out", f"{ca}.crt",
        )  # fmt: skip
    for name, san in (("server", "IP:127.0.0.1"), ("client", "DNS:client")):
        (directory / f"{name}.ext").write_text(f"subjectAltName={san}\n")
        openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt",
        )  # fmt: skip
    return Certificates(directory)


@pytest.mark.threat("X8")
def test_tls_is_verified_and_strangers_are_refused(
    play: Play, own_redis: StartRedis, redis_executable: RedisExecutable, certificates: Certificates
) -> None:
    if not redis_executable.has_tls:
        pytest.skip(f"{redis_executable} is built without TLS")
    port = free_port()
    files = ["--tls-cert-file", certificates.server_crt, "--tls-key-file", certificates.server_key]
    own_redis(args=["--tls-port", str(port), *files, "--tls-ca-cert-file", certificates.ca_crt])
    client = f"ssl_certfile={certificates.client_crt}&ssl_keyfile={certificates.client_key}"
    base = f"rediss://127.0.0.1:{port}"

    async def scenario(store: Store) -> None:
        await _use(store)
        grant = await take(store, "job")
        watch = await store.watch("job")
        assert await store.renew_many([renewal(grant)] * 2000, SOON) == [True] * 2000
        assert not await watch.wait(1)
        await give_back(store, grant)
        assert await watch.wait(SOON)
        await watch.close()

    async def untrusted(store: Store) -> None:
        with pytest.raises(Misconfigured, match="ssl_ca_certs"):
            await store.ping(SOON)

    async def unknown_client(store: Store) -> None:
        with pytest.raises(Unavailable):
            await store.ping(SOON)

    play(f"{base}?ssl_ca_certs={certificates.ca_crt}&{client}", scenario)
    play(f"{base}?ssl_cert_reqs=none&{client}", scenario)
    play(f"{base}?ssl_ca_certs={certificates.stranger_crt}&{client}", untrusted)
    play(f"{base}?{client}", untrusted)
    play(f"{base}?ssl_ca_certs={certificates.ca_crt}", unknown_client)


def test_tls_on_a_plain_port_is_unavailable_with_a_hint(play: Play, redis_server: RedisServer) -> None:
    async def scenario(store: Store) -> None:
        with pytest.raises(Unavailable, match="could not be reached in time"):
            await store.acquire(ask("job"), 300 * MS)

    play(redis_server.url.replace("redis://", "rediss://"), scenario)


def test_a_server_that_is_no_redis_is_not_taken_for_one(play: Play) -> None:
    async def scenario(store: Store) -> None:
        with pytest.raises(Unavailable):
            await store.acquire(ask("job"), SOON)

    with ScriptedRedis(lambda _command: None, greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        play(server.url, scenario)
        play(server.url.replace("redis://", "rediss://"), scenario)


def test_nothing_is_sent_when_a_store_is_opened() -> None:
    from holdfast.stores.redis.engine import open_engine

    engine = open_engine(f"redis://127.0.0.1:{free_port()}")
    engine.asynchronous()
    assert engine.capabilities.engine == "redis"
    assert not isinstance(engine.blocking, Grant)
    engine.close()


@pytest.mark.parametrize("renamed", ["EVALSHA", "EVAL", "PTTL"])
def test_a_command_that_was_renamed_away_is_named_with_the_fix(play: Play, own_redis: StartRedis, renamed: str) -> None:
    server = own_redis(args=("--rename-command", renamed, ""))
    named = "command of a script" if renamed == "PTTL" else f"the command {renamed}"

    async def scenario(store: Store) -> None:
        request = ask("job")
        with pytest.raises(Misconfigured, match=rf"does not know .*{named}.*rename-command.*EVAL EVALSHA") as caught:
            await store.acquire(request, SOON)
            await store.inspect("job", SOON)
            await store.acquire(ask("job"), SOON)  # busy: asks how long
        assert request.token not in str(caught.value)

    play(server.url, scenario)
