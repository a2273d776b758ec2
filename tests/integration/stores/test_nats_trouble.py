"""NATS in trouble: refused, unencrypted, hung, restarted, or used by processes that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import holdfast
from holdfast import aio
from holdfast.errors import BackendError, Misconfigured, Timeout, Unavailable
from holdfast.ops.access.nats import lease_access
from holdfast.testing.proxy import FaultProxy
from support.campaigns import campaign
from support.fixtures.tls import TlsFiles
from support.load.processes import HERE, environment
from support.polling import pauses
from support.servers.nats import NatsExecutable, NatsServer, own_bucket, start_nats

pytestmark = pytest.mark.server

LIMIT_S = 60.0


def refused(url: str, word: str, **options: float) -> None:
    """It can never work, says so soon, and shows no secret."""
    with holdfast.connect(url, **options) as locks, pytest.raises(Misconfigured, match=word) as caught:  # type: ignore[arg-type]
        locks.lock("job", ttl=30).try_acquire()
    assert "s3cret" not in str(caught.value)


@contextlib.contextmanager
def configured(executable: NatsExecutable, directory: Path, text: str) -> Iterator[NatsServer]:
    path = directory / "nats.conf"
    path.write_text(text)
    with start_nats(executable, args=["-c", str(path)]) as server:
        yield server


# Who is let in, and to what.


def test_a_wrong_password_or_token_can_never_work(nats_executable: NatsExecutable, tmp_path: Path) -> None:
    with configured(nats_executable, tmp_path, "authorization { user: ada, password: s3cret }") as server:
        place = server.url.removeprefix("nats://")
        refused(f"nats://ada:s3cretly@{place}", "let us in")
        refused(f"nats://{place}", "let us in")
        with holdfast.connect(f"nats://ada:s3cret@{place}") as locks:
            assert locks.lock("job").acquire().release()
    with configured(nats_executable, tmp_path, "authorization { token: s3cret }") as server:
        place = server.url.removeprefix("nats://")
        refused(f"nats://s3cretly@{place}", "let us in")
        with holdfast.connect(f"nats://s3cret@{place}") as locks:
            assert locks.lock("job").acquire().release()


def test_a_forbidden_subject_is_named_and_does_not_cost_the_whole_time_limit(
    nats_executable: NatsExecutable, tmp_path: Path
) -> None:
    config = """
    accounts { A: { jetstream: enabled, users: [
        { user: all, password: s3cret }
        { user: reader, password: s3cret, permissions: {
            publish: ["$JS.API.>"], subscribe: ["_INBOX.>"] } }
        { user: deaf, password: s3cret, permissions: { publish: [">"], subscribe: ["x"] } }
    ] } }
    """
    with configured(nats_executable, tmp_path, config) as server:
        place = server.url.removeprefix("nats://")
        with holdfast.connect(f"nats://all:s3cret@{place}") as locks:
            locks.ping()
        refused(f"nats://reader:s3cret@{place}", r"publish to \$KV\.holdfast\.job", request_timeout=LIMIT_S)
        refused(f"nats://deaf:s3cret@{place}", "subscribe to _inbox", request_timeout=LIMIT_S)


@pytest.mark.threat("X7")
def test_the_printed_users_of_a_bucket_can_do_all_that_they_need_and_no_more(
    nats_executable: NatsExecutable, tmp_path: Path
) -> None:
    (tmp_path / "leases.conf").write_text(lease_access(bucket="locks").text)
    path = tmp_path / "nats.conf"
    path.write_text('include "leases.conf"\n')
    words = {"HOLDFAST_NATS_LOCKS": "s3cret", "HOLDFAST_NATS_OPERATOR": "s3cret"}
    with start_nats(nats_executable, args=["-c", str(path)], environment=words) as server:
        place = server.url.removeprefix("nats://")
        url, operators = (f"nats://holdfast-{user}:s3cret@{place}?bucket=locks" for user in ("locks", "operator"))
        with holdfast.connect(url) as locks, holdfast.connect(operators) as operator:
            lease = locks.lock("job", ttl=60).acquire()
            waiter = threading.Thread(target=lambda: operator.lock("job", ttl=60).acquire(timeout=LIMIT_S).release())
            waiter.start()
            lease.renew()
            assert lease.release()
            waiter.join(LIMIT_S)
            assert not waiter.is_alive()
            broken = locks.lock("job", ttl=60).acquire()
            assert [each.key for each in operator.list()] == ["job"]
            assert operator.force_release("job", reason="stuck") is not None
            assert [each.reason for each in operator.audit()] == ["stuck"]
            assert not broken.release()
            with pytest.raises(Misconfigured, match="KV_locks_audit"):
                locks.audit()
        refused(f"nats://holdfast-locks:s3cret@{place}?bucket=other", "KV_other")


def test_a_server_or_an_account_without_jetstream_can_never_work(
    nats_executable: NatsExecutable, tmp_path: Path
) -> None:
    config = """
    accounts {
        A: { jetstream: enabled, users: [{ user: a, password: s3cret }] }
        B: { users: [{ user: b, password: s3cret }] }
    }
    """
    with configured(nats_executable, tmp_path, config) as server:
        refused(f"nats://b:s3cret@{server.url.removeprefix('nats://')}", "JetStream")


def test_tls_verifies_the_server_and_says_nothing_to_one_without_it(
    nats_executable: NatsExecutable, tmp_path: Path, tls_files: TlsFiles
) -> None:
    def options(name: str) -> list[str]:
        return ["--tls", "--tlscert", tls_files.certificate(name), "--tlskey", tls_files.key(name)]

    with start_nats(nats_executable, args=options("good")) as server:
        place = server.url.removeprefix("nats://")
        with holdfast.connect(f"tls://{place}?ssl_ca_certs={tls_files.ca}") as locks:
            assert locks.lock("job").acquire().release()
        refused(f"tls://{place}", "not trusted")
    for name in ("other", "expired"):
        with start_nats(nats_executable, args=options(name)) as server:
            refused(f"tls://ada:s3cret@{server.url.removeprefix('nats://')}?ssl_ca_certs={tls_files.ca}", "not trusted")
    with start_nats(nats_executable) as server:
        place = server.url.removeprefix("nats://")
        refused(f"tls://ada:s3cret@{place}?ssl_ca_certs={tls_files.ca}", "does not offer TLS")


# Away, hung, back.


def test_a_server_that_is_away_is_unavailable_and_named_without_its_password(nats_executable: NatsExecutable) -> None:
    with start_nats(nats_executable) as server:
        url = f"nats://ada:s3cret@127.0.0.1:{server.port}"
    with holdfast.connect(url) as locks, pytest.raises(Unavailable) as caught:
        locks.lock("job").try_acquire()
    assert str(server.port) in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_lease_survives_a_restart_of_the_server(own_nats: NatsServer) -> None:
    with holdfast.connect(own_nats.url, policy={"patient": "wait"}) as locks:
        lease = locks.lock("job", ttl=60).acquire()
        own_nats.kill()
        with pytest.raises(BackendError):
            lease.renew()
        own_nats.start()
        assert locks.inspect("job").fence == lease.fence
        lease.renew()
        with holdfast.connect(own_nats.url) as others:
            assert others.lock("job", ttl=60).try_acquire() is None
        assert lease.release()


def test_a_connection_that_is_cut_costs_no_more_than_a_second_request(nats_server: NatsServer) -> None:
    query = own_bucket(nats_server).partition("?")[2]
    with FaultProxy(nats_server.port) as proxy, holdfast.connect(f"nats://127.0.0.1:{proxy.port}?{query}") as locks:
        lease = locks.lock("job", ttl=60).acquire()
        for _ in range(3):
            proxy.reset()
            lease.renew()
            proxy.reset()
            assert locks.inspect("job").fence == lease.fence
        proxy.reset()
        assert lease.release()
        proxy.reset()
        assert locks.lock("job", ttl=60).acquire().release()


def test_a_hung_connection_is_given_up_and_another_one_used(nats_server: NatsServer) -> None:
    query = own_bucket(nats_server).partition("?")[2]
    with (
        FaultProxy(nats_server.port) as proxy,
        holdfast.connect(f"nats://127.0.0.1:{proxy.port}?{query}", request_timeout=1.2) as locks,
    ):
        lease = locks.lock("job", ttl=60).acquire()
        proxy.stall("to_client")
        with pytest.raises(Timeout):
            lease.renew()
        proxy.resume_for_new()  # the old connection stays hung
        lease.renew()
        assert lease.release()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])
def test_a_server_that_never_answers_holds_up_no_caller_longer_than_its_time(
    nats_server: NatsServer, asynchronous: bool
) -> None:
    query = own_bucket(nats_server).partition("?")[2]

    def blocking(url: str, proxy: FaultProxy) -> float:
        with holdfast.connect(url) as locks:
            locks.ping()
            proxy.stall("to_client")
            began = time.monotonic()
            with pytest.raises(BackendError):
                locks.lock("job").acquire(timeout=0.3)
            took = time.monotonic() - began
            proxy.resume()
            return took

    async def awaited(url: str, proxy: FaultProxy) -> float:
        async with aio.connect(url) as locks:
            await locks.ping()
            proxy.stall("to_client")
            began = time.monotonic()
            with pytest.raises(BackendError):
                await locks.lock("job").acquire(timeout=0.3)
            took = time.monotonic() - began
            proxy.resume()
            return took

    def once() -> float:
        with FaultProxy(nats_server.port) as proxy:
            url = f"nats://127.0.0.1:{proxy.port}?{query}"
            return asyncio.run(awaited(url, proxy)) if asynchronous else blocking(url, proxy)

    tries = [once()]
    while min(tries) >= 0.35 and len(tries) < 20:  # the machine delays some of them, a mechanism all of them
        tries.append(once())
    assert min(tries) < 0.35, tries


# A fork.


def test_a_forked_child_has_a_connection_of_its_own(nats_leases: str) -> None:
    with holdfast.connect(nats_leases) as locks:
        lease = locks.lock("job", ttl=60).acquire()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                busy = locks.lock("job", ttl=60).try_acquire() is None
                mine = locks.lock("child", ttl=60).acquire()
                code = 0 if busy and mine.release() and not lease.held else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        lease.renew()
        assert lease.release()


# Exclusion.


@pytest.mark.requires("R2", "R86")
def test_no_two_processes_hold_a_lock_at_the_same_time_while_holders_are_killed(
    nats_leases: str, tmp_path: Path
) -> None:
    kills, number, ttl = campaign(6, 60), 16, 0.5
    notes = tmp_path / "notes"
    script = str(HERE / "exclusive_worker.py")

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, script, nats_leases, str(notes), str(ttl)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment())

    def seen() -> list[tuple[int, int]]:
        if not notes.exists():
            return []
        lines = notes.read_text().splitlines()
        return [(int(fence), int(at)) for fence, _, at in (line.partition(" ") for line in lines) if at]

    workers = [start() for _ in range(number)]
    try:
        for kill in range(kills):
            before, until = len({fence for fence, _ in seen()}), time.monotonic() + LIMIT_S
            pause = pauses()
            while len({fence for fence, _ in seen()}) <= before + 5:
                assert time.monotonic() < until, "no process gets the lock any more"
                time.sleep(next(pause))
            victim = workers[kill % number]
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            workers[kill % number] = start()
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    held: dict[int, list[int]] = defaultdict(list)
    for fence, at in seen():
        held[fence].append(at)
    assert len(held) > 5 * kills
    for (fence, times), (later, later_times) in pairwise(sorted(held.items())):
        assert max(times) < min(later_times), f"{fence} and {later} were held at the same time"
