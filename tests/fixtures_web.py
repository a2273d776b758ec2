"""Fixtures with a plane behind its HTTP API, on files of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from holdfast.plane.service.service import Service
from web_stage import Stage, service_at, stage_at


@pytest_asyncio.fixture
async def web(tmp_path: Path) -> AsyncIterator[Stage]:
    """A plane behind its API, with one token of each kind."""
    async with stage_at(tmp_path) as made:
        yield made


@pytest_asyncio.fixture
async def plane_service(tmp_path: Path) -> AsyncIterator[Service]:
    """The service of a plane."""
    async with service_at(tmp_path) as made:
        yield made
