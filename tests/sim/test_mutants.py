"""The simulation is tested itself: every planted bug is found, by the right rule, within a few dozen worlds."""

from __future__ import annotations

import pytest

from holdfast.testing.simworld import run_seed
from sim.mutants import MUTANTS, Patch

SEEDS_MAX = 60  # all of them are among those in which the unchanged code breaks no rule (test_simulation)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.__name__ for mutant in MUTANTS])
def test_a_planted_bug_is_found(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    rules: set[str] = set()
    for seed in range(SEEDS_MAX):
        rules |= {violation.rule for violation in run_seed(seed).violations}
        if rules & MUTANTS[mutant]:
            break
    assert rules & MUTANTS[mutant], (
        f"not caught by {MUTANTS[mutant]} in {SEEDS_MAX} worlds, only by {rules or 'nothing'}"
    )


def test_without_a_mutant_the_same_worlds_are_clean() -> None:
    assert [seed for seed in range(10) if run_seed(seed).violations] == []
