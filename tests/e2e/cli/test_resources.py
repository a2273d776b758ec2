"""`holdfast resources`: who holds what, taking one away, and the record of it, as an operator types it."""

from __future__ import annotations

from holdfast.cli.plane_options import on_plane
from holdfast.plane.resources.model import ResourceGrant
from support.cli.planes import furnish
from support.cli.sessions import Shell


def taken(shell: Shell, tenant: str, resource: str, mode: str = "exclusive") -> ResourceGrant:
    """An outside caller holds it."""
    return on_plane(
        lambda components, _: components.service.resources.acquire(
            tenant, resource, owner=f"of {tenant}", mode=mode, ttl=3600
        ),
        str(shell.directory / "holdfast.toml"),
        database=f"sqlite:///{shell.directory}/plane.db",
    )


def test_a_resource_of_a_dead_holder_is_found_released_and_recorded(shell: Shell) -> None:
    furnish(shell)
    assert shell.run("up", "--prepare").code == 0
    assert shell.run("resources", "list").out == "No held resources found.\n"
    grants = [taken(shell, tenant, "db/main") for tenant in ("acme", "globex")]
    first = shell.run("resources", "list", "--limit", "1", "--json").json
    rest = shell.run("resources", "list", "--after", first["next"], "--json").json
    assert [each["tenant"] for each in (*first["items"], *rest["items"])] == ["acme", "globex"]
    assert rest["next"] is None
    heading, line = shell.run("resources", "list", "--tenant", "globex").out.splitlines()
    assert heading.split() == ["TENANT", "RESOURCE", "OWNER", "MODE", "FENCE", "SINCE", "LEFT"]
    assert line.split()[:2] == ["globex", "db/main"]

    release = ("resources", "release", "db/main", "--tenant", "acme", "--reason", "its host is gone")
    unsure = shell.run(*release)
    assert (unsure.code, unsure.out) == (64, "")
    assert "add --yes if you are sure" in unsure.err
    done = shell.run(*release, "--yes")
    assert (done.code, done.out) == (0, f"released of acme, fence {grants[0].holder.fence}, exclusive\n")
    again = shell.run(*release, "--yes", "--json")
    assert (again.code, again.json) == (1, {"broken": []})
    assert [each["tenant"] for each in shell.run("resources", "list", "--json").json["items"]] == ["globex"]

    (record,) = shell.run("resources", "audit", "--json").json["items"]
    assert (record["owner"], record["reason"], record["fence"]) == (
        "of acme",
        "its host is gone",
        grants[0].holder.fence,
    )
    assert "its host is gone" in shell.run("resources", "audit").out
    assert shell.run("resources", "audit", "--tenant", "globex").out == "No forced releases found.\n"


def test_one_of_several_holders_is_taken_out_by_its_fence(shell: Shell) -> None:
    furnish(shell)
    assert shell.run("up", "--prepare").code == 0
    readers = [taken(shell, "default", "db", "shared") for _ in range(3)]
    words = ("resources", "release", "db", "--reason", "stuck", "--yes", "--fence", str(readers[1].holder.fence))
    assert len(shell.run(*words, "--json").json["broken"]) == 1
    left = shell.run("resources", "list", "--resource", "db", "--json").json["items"]
    assert [each["fence"] for each in left] == [readers[0].holder.fence, readers[2].holder.fence]
    assert shell.run("resources", "list", "--resource", "other").out == "No held resources found.\n"


def test_what_cannot_be_right_is_said(shell: Shell) -> None:
    furnish(shell)
    assert shell.run("up", "--prepare").code == 0
    for words, said in (
        (("release", "db", "--reason", " ", "--yes"), "reason: is empty"),
        (("release", " ", "--reason", "why", "--yes"), "resource: is blank"),
        (("list", "--after", "5~x"), "after: is not a cursor"),
        (("audit", "--after", "x"), "after: is not a cursor"),
    ):
        done = shell.run("resources", *words)
        assert (done.code, said in done.err) == (64, True), done.err
