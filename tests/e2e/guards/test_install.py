"""Installing from many concurrent processes, and a check that is killed in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.guards import install
from support.fixtures.tables import Place

WORKER = Path(__file__).parent / "install_worker.py"


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(workers: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return [(worker.returncode, out) for worker in workers for out, _ in [worker.communicate(timeout=60)]]


@pytest.mark.parametrize("act", ["install", "churn"])
@pytest.mark.parametrize("modes", [("strict", "strict", "strict"), ("strict", "rising", "none")], ids="-".join)
def test_concurrent_installations_all_succeed(place: Place, act: str, modes: tuple[str, ...]) -> None:
    ended = finished([start(act, place.url, mode) for mode in modes])
    assert ended == [(0, "")] * len(modes)
    proof = install.check(place.url, "invoices")
    assert proof.held, proof
    assert proof.trigger in modes


@pytest.mark.parametrize("mode", ["none", "rising", "strict"])
def test_a_check_that_is_killed_leaves_no_trace(place: Place, mode: str) -> None:
    install.install(place.url, "invoices", trigger=mode)
    before = place.content()
    assert finished([start("check", place.url, mode)]) == [(9, "")]
    assert place.content() == before
    assert install.check(place.url, "invoices", expect=mode).held
    assert place.content() == before
