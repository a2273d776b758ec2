"""A plane that cannot write is not ready, says why and what to do, and becomes ready again: in real processes."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import httpx

from e2e.cli.test_probes import Working, asked
from holdfast.plane.process.parts import writes_needed
from holdfast.plane.settings.settings import Settings
from support.cli.planes import Up, furnish
from support.cli.sessions import Shell, until
from support.faults.small_disk import small_disk

NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def readiness(address: str) -> tuple[int, dict[str, Any]]:
    status, said = asked(f"{address}/readyz")
    return status, json.loads(said)


def becomes(address: str, status: int) -> dict[str, Any]:
    """Wait until it says so; what it says."""
    until(lambda: readiness(address)[0] == status, f"{status} from /readyz")
    return readiness(address)[1]


def submitted(address: str, payload: object) -> int:
    """The status with which a job was accepted, or not."""
    return httpx.post(f"{address}/api/v1/jobs", json={"topic": "double", "payload": payload}, timeout=60).status_code


def place(shell: Shell, directory: Path) -> str:
    """Have the plane's file on another disk."""
    furnish(shell)
    settings = shell.directory / "holdfast.toml"
    settings.write_text(settings.read_text().replace("sqlite:///plane.db", f"sqlite:///{directory}/plane.db"))
    return f"sqlite:///{directory}/plane.db"


def test_a_full_disk_is_said_before_a_job_is_lost_and_ready_again_once_there_is_room(
    shell: Shell, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        where = place(shell, disk.place)
        up = Up(shell, "--only", "api,scheduler")
        working = Working(shell, "--database", where)
        worker = working.said("ready")[0]["probe"]
        assert readiness(up.address)[0] == readiness(worker)[0] == 200

        disk.fill(leave=4_000_000)  # there is room for some; but what was begun has to end
        said = becomes(up.address, 503)
        assert said["code"] == "not-ready"
        assert said["parts"]["database"].startswith("plane.db should not grow: its disk has ")
        assert said["parts"]["database"].endswith("16.0 MB are kept for what was begun; free space there")
        assert str(disk.place) not in json.dumps(said), "the client may be a stranger"
        assert said["parts"]["leases"] == "ok"
        assert "plane.db" in said["detail"]
        page = json.loads(asked(f"{up.address}/api/v1/status")[1])
        assert page["parts"]["database"].startswith("plane.db should not grow"), "the page says it too"
        other = becomes(worker, 503)["parts"]["database"]
        assert other.startswith("plane.db should not grow"), "its messages are in the file"
        assert asked(f"{up.address}/healthz")[0] == 200, "a restart would not help"
        assert shell.run("jobs", "submit", "double", "--payload", "4", "--follow").code == 0, "no caller is refused"

        disk.fill()
        until(lambda: submitted(up.address, "x" * 900_000) == 503, "a job for which there is no room")
        becomes(up.address, 503)
        disk.free()
        assert set(becomes(up.address, 200)["parts"].values()) == {"ok"}
        assert set(becomes(worker, 200)["parts"].values()) == {"ok"}
        assert shell.run("jobs", "submit", "double", "--payload", "4", "--follow").code == 0
        working.process.terminate()
        assert working.ended() == 0
        done = up.end()
        assert done.code == 0
        lines = [json.loads(line) for line in done.err.splitlines()]
        (first, *_), (last, *_) = (
            [each for each in lines if each["event"] == text] for text in ("not ready", "ready again")
        )
        assert str(disk.place / "plane.db") in first["holdfast"]["error"], "the operator sees the path"
        assert last["holdfast"]["part"] == "database"


def test_a_file_that_cannot_grow_is_noticed_by_writing_to_it(shell: Shell) -> None:
    furnish(shell)
    up = Up(shell, "--only", "api")
    assert readiness(up.address)[0] == 200
    resource.prlimit(up.process.pid, resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    said = becomes(up.address, 503)
    assert said["parts"]["database"].startswith("plane.db cannot be written: ")
    assert "limit" in said["parts"]["database"]
    assert submitted(up.address, 4) == 503
    resource.prlimit(up.process.pid, resource.RLIMIT_FSIZE, NO_LIMIT)
    assert becomes(up.address, 200)["parts"]["database"] == "ok"
    assert submitted(up.address, 4) == 201
    assert up.end().code == 0


def test_a_worker_that_works_without_the_database_is_not_held_up_by_it() -> None:
    apart = Settings(database="postgresql://db/plane", bus="nats://bus", leases="redis://store")
    assert not writes_needed(apart, ("worker",))
    for parts in (("api",), ("scheduler",), ("worker", "api"), ("reconciler",), ("engine",)):
        assert writes_needed(apart, parts)
    inside = Settings(database="postgresql://db/plane", leases="redis://store")
    one_file = Settings(database="sqlite:///plane.db?synchronous=normal", bus="nats://bus")
    for each in (Settings(), inside, one_file):
        assert writes_needed(each, ("worker",))
