"""Fixtures for tests in which the power fails: the library that records processes, and a disk that is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from power_stage import PowerStage, compiled, why_not


@pytest.fixture(scope="session")
def power_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled once per worker."""
    if reason := why_not():
        pytest.skip(reason)
    return compiled(tmp_path_factory.mktemp("power"))


@pytest.fixture
def power_stage(tmp_path: Path, power_library: Path) -> PowerStage:
    """A disk that is empty."""
    return PowerStage(tmp_path, power_library)
