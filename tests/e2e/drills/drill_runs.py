"""A drill that is really played, in a test: the verdict, and that nothing is left of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.drills.catalog import drill
from holdfast.drills.env.redis_server import redis_server
from holdfast.drills.model import DrillPlan, DrillVerdict
from holdfast.drills.runner import run
from holdfast.errors import Misconfigured

SLO_S = 40.0  # generous: what is tested is that nothing is lost, and not how fast this machine is today


def _no_redis() -> str:
    try:
        redis_server()
    except Misconfigured as missing:
        return str(missing)
    return ""


needs_redis = pytest.mark.skipif(bool(_no_redis()), reason=_no_redis())


def children() -> set[int]:
    """The processes that we have started and that are not over."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def played(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: DrillPlan) -> DrillVerdict:
    """Play a drill, and see that it leaves neither files nor threads."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(threading.enumerate())
    told: list[str] = []

    def tell(scene: str, text: str, *, good: bool | None = None) -> None:
        told.append(f"{scene}: {text} ({good})")

    verdict = run(drill(name), plan, tell, f"holdfast drill {name}")
    assert verdict.passed, [each.problems for each in verdict.judged] + told
    assert list(tmp_path.iterdir()) == []
    assert [each for each in threading.enumerate() if each not in before] == []
    return verdict
