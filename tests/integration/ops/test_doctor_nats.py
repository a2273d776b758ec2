"""Each finding of `holdfast doctor` about NATS, produced on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

import holdfast
from holdfast.core.diagnosis import Severity
from holdfast.errors import BackendError, Misconfigured
from holdfast.ops.access.nats import lease_access
from holdfast.stores.nats.bucket import BucketNames
from holdfast.stores.nats.diagnosis import NatsFacts, findings
from holdfast.types import Guarantee
from support.harness.doctor import Look, answered, awaited, bad, of
from support.load.processes import until
from support.servers.nats import NatsExecutable, NatsServer, cluster_url, own_bucket, start_nats, start_nats_cluster

pytestmark = [pytest.mark.server, pytest.mark.slow]

_SYNCED = """
jetstream { sync_interval: %s }
system_account: SYS
accounts {
  SYS: { users: [{user: sys, password: s3}], exports: [{service: "$SYS.REQ.SERVER.PING.JSZ"}] }
  APP: { jetstream: enabled, users: [{user: app, password: s3}]
         imports: [{service: {account: SYS, subject: "$SYS.REQ.SERVER.PING.JSZ"}}] }
}
"""


@contextlib.contextmanager
def configured(executable: NatsExecutable, directory: Path, text: str, **environment: str) -> Iterator[NatsServer]:
    path = directory / "nats.conf"
    path.write_text(text)
    with start_nats(executable, args=["-c", str(path)], environment=environment) as server:
        yield server


def changed(server: NatsServer, url: str, **settings: Any) -> None:
    """Change settings of the bucket's stream, as an operator does."""

    async def change() -> None:
        client = await nats.connect(server.url)
        stream = BucketNames(url.partition("bucket=")[2].partition("&")[0]).stream
        info = json.loads((await client.request(f"$JS.API.STREAM.INFO.{stream}", b"")).data)
        wanted = json.dumps({**info["config"], **settings}).encode()
        answer = json.loads((await client.request(f"$JS.API.STREAM.UPDATE.{stream}", wanted)).data)
        await client.close()
        assert "error" not in answer, answer

    asyncio.run(change())


def test_one_replica_whose_writes_are_not_synced_is_graded_down(nats_leases: str, look: Look) -> None:
    found = look(nats_leases)
    assert (found.grade, found.limits) == (Guarantee.EFFICIENCY_ONLY, ("persistence",))
    assert of(found, "persistence").found == "sync_interval unknown (2 minutes by default)"
    assert of(found, "replicas").severity is Severity.NOTE
    assert bad(found) <= {"persistence", "round_trip", "threads", "ttl_resolution"}  # a busy machine
    assert {"clock", "ttl_resolution"} <= {each.check for each in found.findings}
    assert of(awaited(nats_leases), "version").found.startswith("nats-server 2.")
    with holdfast.connect(nats_leases) as locks, pytest.raises(Misconfigured, match="persistence: sync_interval unkn"):
        locks.lock("money", guarantee="fenced").acquire(timeout=5)


@pytest.mark.parametrize(
    ("setting", "found", "grade"),
    [
        ("always", "sync_interval always", Guarantee.FENCED),
        ("10s", "sync_interval 10 s", Guarantee.EFFICIENCY_ONLY),
    ],
)
def test_the_sync_interval_is_known_where_the_account_may_see_it(
    nats_executable: NatsExecutable, tmp_path: Path, setting: str, found: str, grade: Guarantee
) -> None:
    with configured(nats_executable, tmp_path, _SYNCED % setting) as server:
        seen = answered(own_bucket(server).replace("nats://", "nats://app:s3@"))
        assert (of(seen, "persistence").found, seen.grade) == (found, grade)


def test_a_user_with_the_least_rights_is_diagnosed(nats_executable: NatsExecutable, tmp_path: Path) -> None:
    passwords = {"HOLDFAST_NATS_LOCKS": "s3", "HOLDFAST_NATS_OPERATOR": "s3"}
    with configured(nats_executable, tmp_path, lease_access(bucket="b").text, **passwords) as server:
        found = answered(f"nats://holdfast-locks:s3@127.0.0.1:{server.port}?bucket=b")
    assert of(found, "space").found == "no limit"
    assert found.limits == ("persistence",)


def test_a_bucket_that_loses_or_refuses_leases_is_seen(nats_server: NatsServer, nats_leases: str, look: Look) -> None:
    with contextlib.ExitStack() as held:
        locks = held.enter_context(holdfast.connect(nats_leases))
        for number in range(9):
            held.enter_context(locks.lock(f"job{number}"))
        changed(nats_server, nats_leases, max_msgs=10)
        found = of(answered(nats_leases), "space")
        assert (found.severity, found.found) == (Severity.WARNING, "the bucket: 9 of 10 messages")
        changed(nats_server, nats_leases, max_msgs=-1, max_bytes=10_000_000)
        assert of(answered(nats_leases), "space").severity is Severity.OK
    changed(nats_server, nats_leases, max_bytes=10_000_000, discard="old")
    found = of(look(nats_leases), "bucket")
    assert (found.severity, found.limit) == (Severity.CRITICAL, Guarantee.EFFICIENCY_ONLY)
    assert "discards old keys when it is full, held ones too" in found.found
    assert found.fix == "remove its limits, or set discard to new"


def test_replicas_of_a_cluster_that_are_away_are_named(nats_executable: NatsExecutable) -> None:
    with start_nats_cluster(nats_executable) as servers:
        url = cluster_url(servers)

        def ready() -> bool:
            with contextlib.suppress(BackendError):
                return of(answered(url), "cluster").severity is Severity.OK
            return False

        until(ready, "the cluster keeps a bucket", 60)
        found = answered(url)
        assert (found.grade, bad(found)) == (Guarantee.FENCED, set())
        assert of(found, "replicas").found == "3 replicas"
        assert of(found, "persistence").severity is Severity.NOTE
        servers[2].kill()

        def named() -> bool:
            with contextlib.suppress(BackendError):
                return of(answered(url), "cluster").found in ("n2 is offline", "n2 is behind")
            return False

        until(named, "the loss is seen", 60)
        assert of(answered(url), "cluster").severity is Severity.WARNING


def test_what_no_server_of_the_tests_reports_is_judged_by_its_facts() -> None:
    config = {"num_replicas": 2, "storage": "file"}
    version, _, replicas, cluster, *_ = findings(NatsFacts("2.10.4", config, cluster={}), BucketNames("b"), 1)
    assert (version.severity, version.limit) == (Severity.CRITICAL, Guarantee.EFFICIENCY_ONLY)
    assert replicas.reason.startswith("one replica less")
    assert (cluster.severity, cluster.found) == (Severity.CRITICAL, "the bucket has no leader")
