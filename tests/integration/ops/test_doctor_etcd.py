"""Each finding of `holdfast doctor` about etcd, produced on real members or, for other versions, by its facts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.exit_codes import Exit
from holdfast.core.diagnosis import Severity, StoreFinding
from holdfast.core.diagnosis import grade as graded
from holdfast.errors import BackendError
from holdfast.ops.doctor import Diagnosis
from holdfast.stores.etcd.diagnosis import EtcdFacts, MemberFacts, findings
from holdfast.testing.proxy import FaultProxy
from holdfast.types import MS, NS, Guarantee
from support.cli.sessions import Shell
from support.fixtures.etcd import StartCluster, StartEtcd
from support.harness.doctor import Look, answered, awaited, bad, of
from support.load.processes import until
from support.servers.etcd import EtcdServer

pytestmark = [pytest.mark.server, pytest.mark.slow]

ONE = MemberFacts((3, 6, 1), "c", leads=True, has_leader=True, size=1, quota=None, index=9, applied=9, took_ns=MS)
OLD = {"version"}  # the server of the tests is 3.5.1, which may lose entries


def judged(facts: EtcdFacts, check: str) -> StoreFinding:
    return of(Diagnosis("etcd", Guarantee.FENCED, tuple(findings(facts))), check)


def test_one_member_is_usable_and_its_missing_redundancy_noted(etcd_server: EtcdServer, look: Look) -> None:
    found = look(etcd_server.url)
    assert bad(found) <= OLD | {"round_trip", "threads", "ttl_resolution"}  # a busy machine
    assert of(found, "members").found == "1 voting members, 1 in the URL"
    assert of(found, "members").severity is Severity.NOTE
    assert of(found, "permissions").found == "authentication is off"
    assert of(found, "leader").found == f"127.0.0.1:{etcd_server.port}"
    assert of(found, "ttl_resolution").severity is Severity.OK
    assert of(awaited(etcd_server.url), "alarms").found == "none"


def test_accounts_are_seen_with_and_without_the_right_to_ask(own_etcd: StartEtcd) -> None:
    server = own_etcd()
    for user in ("root", "app"):
        server.ctl("user", "add", f"{user}:s3")
    server.ctl("role", "add", "app")
    for user in ("root", "app"):
        server.ctl("user", "grant-role", user, user)
    server.ctl("auth", "enable")
    for user in ("root", "app"):
        found = answered(server.url.replace("://", f"://{user}:s3@"))
        assert of(found, "permissions").found == "clients need a user"


def test_a_full_database_is_critical_and_the_command_says_so(own_etcd: StartEtcd, tmp_path: Path) -> None:
    server = own_etcd(args=("--quota-backend-bytes", str(16 * 4096 * 16)))
    server.fill()
    shell = Shell(tmp_path)
    try:
        done = shell.run("doctor", "--json", server.url)
    finally:
        shell.close()
    assert done.code == Exit.NO
    [alarms] = [each for each in json.loads(done.out)["findings"] if each["check"] == "alarms"]
    assert (alarms["severity"], alarms["found"]) == ("critical", "NOSPACE")
    assert "etcdctl alarm disarm" in alarms["fix"]


def test_members_that_are_away_cut_off_or_slow_are_named(etcd_cluster: StartCluster) -> None:
    cluster = etcd_cluster(proxied=True)
    found = answered(cluster.url)
    assert of(found, "members").found == "3 voting members, 3 in the URL"
    assert bad(found) - {"slow_member"} <= OLD
    leader, (first, second) = cluster.leader(), cluster.followers()
    assert of(found, "leader").found == f"127.0.0.1:{leader.port}"
    with FaultProxy(second.port) as proxy:
        proxy.slow("to_client", 0.3)
        found = answered(f"etcd://127.0.0.1:{leader.port},{proxy.address}", 5 * NS)
    assert of(found, "members").severity is Severity.NOTE
    assert f"{proxy.address} answered after" in of(found, "slow_member").found
    cluster.cut_off(first)
    until(lambda: of(answered(cluster.url), "leader").found == f"127.0.0.1:{first.port} knows no leader", "it notices")
    assert of(answered(cluster.url), "leader").severity is Severity.WARNING
    first.kill()
    away = of(answered(cluster.url), "quorum")
    assert (away.severity, away.found) == (Severity.WARNING, f"no answer of 127.0.0.1:{first.port}")
    assert away.reason == "if one more fails, no lease is granted or renewed"


def test_without_a_majority_the_members_that_are_left_tell_why_nothing_is_granted(
    etcd_cluster: StartCluster, look: Look
) -> None:
    cluster = etcd_cluster()
    last, *others = cluster.members
    for each in others:
        each.kill()
    until(lambda: of(answered(cluster.url), "leader").severity is Severity.CRITICAL, "it notices")
    found = look(cluster.url, request_timeout_ns=NS)
    assert (found.worst, of(found, "quorum").severity) == (Severity.CRITICAL, Severity.WARNING)
    assert of(found, "leader").found == f"127.0.0.1:{last.port} knows no leader"
    last.kill()
    with pytest.raises(BackendError):
        answered(cluster.url)


def test_members_of_two_clusters_in_one_url_are_critical(etcd_server: EtcdServer, own_etcd: StartEtcd) -> None:
    found = answered(f"{etcd_server.url},127.0.0.1:{own_etcd().port}")
    assert of(found, "cluster").severity is Severity.CRITICAL
    assert "cluster" in found.limits


@pytest.mark.parametrize(
    ("version", "severity", "grade"),
    [
        ((3, 3, 27), Severity.CRITICAL, Guarantee.EFFICIENCY_ONLY),
        ((3, 4, 30), Severity.OK, Guarantee.FENCED),
        ((3, 5, 1), Severity.WARNING, Guarantee.EFFICIENCY_ONLY),
        ((3, 5, 3), Severity.OK, Guarantee.FENCED),
        ((3, 6, 0), Severity.OK, Guarantee.FENCED),
    ],
)
def test_versions_that_lose_entries_are_graded_down(
    version: tuple[int, ...], severity: Severity, grade: Guarantee
) -> None:
    found = findings(EtcdFacts({"a": replace(ONE, version=version)}, 1, [], True))
    assert (found[0].severity, graded(Guarantee.FENCED, found)) == (severity, grade)


def test_what_no_server_of_the_tests_reports_is_judged_by_its_facts() -> None:
    full = EtcdFacts({"a": replace(ONE, size=90, quota=100)}, 3, ["CORRUPT"], True)
    assert judged(full, "space").severity is Severity.WARNING
    assert judged(full, "alarms").limit is Guarantee.EFFICIENCY_ONLY
    behind = EtcdFacts({"a": replace(ONE, index=5000), "b": replace(ONE, index=5000, applied=5000)}, 2, None, True)
    assert judged(behind, "slow_member").found == "a is 4991 entries behind"
    assert judged(behind, "members").reason.startswith("one member less")
    assert judged(behind, "alarms").severity is Severity.NOTE
