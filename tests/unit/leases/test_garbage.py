"""How often a process of ours looks for garbage in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from holdfast.cli.app import run_app
from holdfast.cli.server.lifecycle import GC_THRESHOLD, collect_less_often


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    if enabled:
        gc.enable()


def test_it_looks_more_rarely_and_still_looks() -> None:
    gc.set_threshold(700, 7, 8)
    collect_less_often()
    assert gc.get_threshold() == (GC_THRESHOLD, 7, 8)
    assert gc.isenabled()


@pytest.mark.parametrize("chosen", [0, GC_THRESHOLD, 5 * GC_THRESHOLD])
def test_an_interpreter_that_looks_as_rarely_already_is_left_alone(chosen: int) -> None:
    gc.set_threshold(chosen, 7, 8)
    collect_less_often()
    assert gc.get_threshold() == (chosen, 7, 8)


def test_one_that_does_not_look_at_all_is_left_alone() -> None:
    gc.set_threshold(700, 7, 8)
    gc.disable()
    collect_less_often()
    assert gc.get_threshold() == (700, 7, 8)
    assert not gc.isenabled()


@pytest.mark.parametrize(
    "words", [["worker", "no_such_app:app"], ["up", "--only", "worker", "--app", "no_such_app:app"]]
)
def test_commands_that_run_a_process_do_so_before_they_load_what_is_not_theirs(words: list[str]) -> None:
    gc.set_threshold(700, 7, 8)
    assert run_app(words) == 64
    assert gc.get_threshold() == (GC_THRESHOLD, 7, 8)
