"""How often a process of ours looks for garbage in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from holdfast.runtime.garbage import PATIENCE, collect_patiently


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    if enabled:
        gc.enable()


def test_it_looks_more_rarely_and_still_looks() -> None:
    gc.set_threshold(700, 7, 8)
    collect_patiently()
    assert gc.get_threshold() == (PATIENCE, 7, 8)
    assert gc.isenabled()


@pytest.mark.parametrize("chosen", [0, PATIENCE, 5 * PATIENCE])
def test_an_interpreter_that_looks_as_rarely_already_is_left_alone(chosen: int) -> None:
    gc.set_threshold(chosen, 7, 8)
    collect_patiently()
    assert gc.get_threshold() == (chosen, 7, 8)


def test_one_that_does_not_look_at_all_is_left_alone() -> None:
    gc.set_threshold(700, 7, 8)
    gc.disable()
    collect_patiently()
    assert gc.get_threshold() == (700, 7, 8)
    assert not gc.isenabled()
