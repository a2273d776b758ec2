"""Calls that are allowed and look as if they meant something else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import BadInput, UsageWarning
from holdfast.leases import lock_spec
from support.harness.leases import Stage


@pytest.fixture(autouse=True)
def nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_spec, "_warned", set())


@pytest.mark.parametrize(
    "describe", [lambda locks: locks.lock("k", timeout=5), lambda locks: locks.exclusive("k", timeout=5)]
)
async def test_a_timeout_without_a_ttl_is_explained_once(stage: Stage, describe: Callable[[Any], Any]) -> None:
    locks = stage.locks()
    with pytest.warns(UsageWarning, match=r"default ttl of 30 s.*redis-py, timeout is what ttl is here") as told:
        describe(locks)
    if not stage.blocking:
        assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        describe(locks)
        locks.lock("another", timeout=5)


async def test_a_timeout_with_a_ttl_or_none_at_all_is_not(stage: Stage) -> None:
    locks = stage.locks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        locks.lock("k", ttl=5, timeout=5)
        locks.lock("k", ttl=5)
        locks.lock("k", timeout=None)
        locks.lock("k")


@pytest.mark.parametrize("theirs", [{"blocking_timeout": 2}, {"sleep": 0.1, "thread_local": False}])
async def test_settings_of_redis_py_are_refused_with_their_names_here(stage: Stage, theirs: Any) -> None:
    with pytest.raises(BadInput, match=r"not a setting of a lock.*its blocking_timeout is timeout"):
        stage.locks().lock("k", **theirs)
