"""The real guards at the far end of a simulated network: late, stale, repeated and killed steps, and no loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing.sim.campaign.totals import replay_command
from holdfast.testing.sim.worlds.faults import Guarding, Profile, draw_swarm
from holdfast.testing.sim.worlds.world import run_seed
from simulation import mutants_scenes as mutants

SEEDS = [*range(38), 62]  # 62 stops at the rare point `guard.generation`
OUTCOMES = {
    *("refused read", "refused write", "late write", "failpoint between", "lost", "forgot"),
    *("failpoint guard.admitted", "failpoint guard.reserved", "failpoint guard.written", "failpoint answer"),
    *("failpoint guard.generation", "failpoint guard.noted"),
}


@pytest.mark.requires("R65", "R73")
def test_no_acknowledged_update_is_lost_and_nobody_is_refused_without_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = run_seed(seed, profile=Profile.GUARDED)
        found = "\n".join([*map(str, outcome.violations), replay_command(seed, Profile.GUARDED)])
        assert not outcome.violations, found
        counts.update({str(what): number for what, number in outcome.counts.items()})
    assert sorted(OUTCOMES - counts.keys()) == []  # what the suite relies on does happen in its worlds
    assert list(tmp_path.iterdir()) == []  # and no world leaves a file behind


def test_every_guard_stands_in_some_of_these_worlds() -> None:
    kinds = Counter(kind for seed in SEEDS for kind in draw_swarm(seed, Profile.GUARDED).guards)
    assert set(kinds) == set(Guarding)
    assert min(kinds.values()) >= 5


@pytest.mark.parametrize(
    ("plant", "rule", "text", "seeds"),
    [
        (mutants.rows_are_fenced_on_writes_alone, "C6", "overwritten unread", [3, 42, 43]),
        (mutants.files_are_fenced_on_writes_alone, "C6", "overwritten unread", [21, 24, 30]),
        (mutants.a_row_takes_each_fence_once, "C7", "refused though", [0, 1, 2]),
        (mutants.a_file_takes_each_fence_once, "C7", "refused though", [1, 5, 6]),
        (mutants.a_deleted_row_is_forgotten_with_its_fence, "C0", "", [0, 1, 3]),
    ],
)
def test_a_planted_bug_of_a_guard_is_found_in_two_of_three_worlds(
    plant: Callable[[pytest.MonkeyPatch], None],
    rule: str,
    text: str,
    seeds: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All three, when this was written; what a seed draws changes with the simulator."""
    plant(monkeypatch)
    worlds = [run_seed(seed, profile=Profile.GUARDED).violations for seed in seeds]
    assert sum(any(each.rule == rule and text in each.text for each in found) for found in worlds) >= 2
