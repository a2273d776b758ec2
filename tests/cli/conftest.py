"""A shell with a store of its own for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.ready import ready
from cli.sessions import Shell


@pytest.fixture(scope="session")
def _ready_command() -> Iterator[None]:
    yield
    if ready.cache_info().currsize:
        ready().end()


@pytest.fixture
def shell(tmp_path: Path, _ready_command: None) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()
