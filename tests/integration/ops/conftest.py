"""Accounts and diagnoses are tested on each server: command categories differ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fixtures.redis import each_redis as redis_executable
from support.harness.doctor import Look, looking

__all__ = ["redis_executable"]


@pytest.fixture
def look() -> Iterator[Look]:
    """Diagnoses the store of a URL."""
    with looking() as examined:
        yield examined
