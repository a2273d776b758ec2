"""The roles that `holdfast access etcd` makes: everything that each is for works, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import BadInput, Misconfigured
from holdfast.ops.access.etcd import etcd_access
from support.servers.etcd import EtcdExecutable, EtcdServer, start_etcd

pytestmark = [pytest.mark.server, pytest.mark.threat("X7")]

PASSWORD = "of-a-test"


@pytest.fixture(scope="module")
def restricted(etcd_executable: EtcdExecutable) -> Iterator[EtcdServer]:
    """A server that was given the text, twice, and whose users were made as the page says."""
    with start_etcd(etcd_executable) as server:
        made = etcd_access(prefix="app")
        path = f"{Path(etcd_executable.path).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": f"127.0.0.1:{server.port}"}
        for _ in range(2):
            subprocess.run(["sh", "-e"], input=made.text, text=True, env=environment, check=True, capture_output=True)
        for user in ("root", *made.accounts):
            server.ctl("user", "add", f"{user}:{PASSWORD}")
            server.ctl("user", "grant-role", user, user)
        server.ctl("put", "stranger", "theirs")
        server.ctl("auth", "enable")
        yield server


def url_of(server: EtcdServer, user: str, prefix: str = "app") -> str:
    return server.url.replace("etcd://", f"etcd://{user}:{PASSWORD}@") + f"/{prefix}"


def test_locks_live_their_whole_life_and_an_operator_looks_and_breaks(restricted: EtcdServer) -> None:
    with (
        holdfast.connect(url_of(restricted, "holdfast-locks")) as locks,
        holdfast.connect(url_of(restricted, "holdfast-locks")) as others,
        holdfast.connect(url_of(restricted, "holdfast-operator")) as operators,
    ):
        for fair in (False, True):
            lease = locks.lock("job", ttl=30, fair=fair).acquire(timeout=5)
            got: list[int] = []

            def wait(fair: bool = fair, got: list[int] = got) -> None:
                with others.lock("job", ttl=30, timeout=30, fair=fair) as next_lease:
                    got.append(next_lease.fence)

            waiter = threading.Thread(target=wait)
            waiter.start()
            lease.renew()
            assert [each.key for each in locks.list()] == ["job"]
            assert lease.release()
            waiter.join(30)
            assert got
            assert got[0] > lease.fence
        lease = locks.lock("job", ttl=30).acquire()
        assert operators.inspect("job").owner == lease.owner
        with pytest.raises(Misconfigured, match="holdfast access etcd"):
            locks.force_release("job", reason="not allowed")
        record = operators.force_release("job", reason="stuck")
        assert record is not None
        assert [each.reason for each in operators.audit()] == ["stuck"]
        with pytest.raises(Misconfigured):
            locks.audit()


@pytest.mark.parametrize("user", ["holdfast-locks", "holdfast-operator"])
def test_no_role_reaches_other_keys_or_the_cluster(restricted: EtcdServer, user: str) -> None:
    login = {"ETCDCTL_USER": f"{user}:{PASSWORD}"}
    for words in (
        ("get", "stranger"),
        ("put", "stranger", "ours"),
        ("get", "--prefix", ""),
        ("get", "--prefix", "app"),
        ("user", "add", "more:secret"),
        ("role", "add", "more"),
        ("auth", "disable"),
    ):
        with pytest.raises(RuntimeError, match="permission denied"):
            restricted.ctl(*words, **login)
    with holdfast.connect(url_of(restricted, user, "apple")) as elsewhere, pytest.raises(Misconfigured):
        elsewhere.lock("job", ttl=30).acquire()


@pytest.mark.parametrize("prefix", ["", "/", "a\nb", "x" * 200])
def test_a_prefix_that_cannot_be_one_is_refused(prefix: str) -> None:
    with pytest.raises(BadInput, match="--prefix"):
        etcd_access(prefix=prefix)


def test_a_prefix_is_quoted_for_the_shell() -> None:
    assert "'it'\"'\"'s/lock/'" in etcd_access(prefix="it's").text
