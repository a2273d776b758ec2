"""The commands about leases, on a real etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from support.cli.sessions import Shell

pytestmark = pytest.mark.server


@pytest.fixture
def shell(tmp_path: Path, etcd_url: str) -> Iterator[Shell]:
    made = Shell(tmp_path, etcd_url)
    yield made
    made.close()


def test_a_lease_is_run_under_listed_inspected_watched_broken_and_audited(shell: Shell, etcd_url: str) -> None:
    ran = shell.run("run", "nightly", "--", "sh", "-c", 'echo "$HOLDFAST_KEY $HOLDFAST_FENCE"')
    assert (ran.code, ran.err) == (0, "")
    key, fence = ran.out.split()
    assert key == "nightly"
    assert shell.run("locks", "--json").json == []
    with holdfast.connect(etcd_url, service="holder") as locks:
        lease = locks.lock("nightly", ttl=60).acquire()
        assert lease.fence > int(fence)
        (shown,) = shell.run("locks", "--json").json
        assert (shown["key"], shown["owner"], shown["fence"]) == ("nightly", lease.owner, lease.fence)
        assert shell.run("inspect", "nightly", "--json").json["fence"] == lease.fence
        watched = shell.run("watch", "--count", "1", "--json")
        assert watched.code == 0
        assert "nightly" in watched.out
        busy = shell.run("run", "nightly", "--timeout", "0", "--on-busy", "fail", "--", "echo", "ran")
        assert (busy.code, busy.out) == (75, "")
        broken = shell.run("release", "nightly", "--reason", "stuck", "--yes")
        assert broken.code == 0
        assert not locks.inspect("nightly").held
    (record,) = shell.run("audit", "--json").json
    assert (record["key"], record["reason"], record["previous_fence"]) == ("nightly", "stuck", lease.fence)
    assert record["fence"] > lease.fence
