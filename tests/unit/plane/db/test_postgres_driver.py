"""Without psycopg, its pool or libpq, whatever needs Postgres says which extra to install."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PLANE = "from holdfast.plane.db.open import open_database; open_database('postgresql://localhost/plane')"
TABLES = "from holdfast.guards.install import check; check('postgresql://localhost/plane', 'jobs')"
GUARD = "import holdfast.guards.postgres"
AWAITED = "import holdfast.guards.aio.postgres"
RECORD = "import holdfast.guards.postgres_records"
EVERYTHING = [PLANE, TABLES, GUARD, AWAITED, RECORD]


def error_of(code: str, missing: str, **environment: str) -> str:
    """What a process prints whose import of a module fails."""
    program = f"""
import sys
sys.modules[{missing!r}] = None
import holdfast
try:
    {code}
except holdfast.Misconfigured as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("code", EVERYTHING)
def test_without_psycopg_the_error_names_the_extras(code: str) -> None:
    told = error_of(code, "psycopg")
    assert "needs a driver that is not installed (psycopg)" in told
    assert 'pip install "holdfast[postgres-binary]", or "holdfast[postgres]" where libpq is installed' in told


def test_without_the_pool_the_error_names_the_extras() -> None:
    assert "needs a driver that is not installed (psycopg_pool)" in error_of(PLANE, "psycopg_pool")


@pytest.mark.parametrize("code", EVERYTHING)
def test_without_libpq_the_error_names_the_extra_that_brings_it(code: str) -> None:
    told = error_of(code, "psycopg_binary", PSYCOPG_IMPL="binary")
    assert "needs libpq, and psycopg cannot load it" in told
    assert 'pip install "holdfast[postgres-binary]"' in told


def test_another_import_that_fails_is_no_missing_driver() -> None:
    from holdfast.runtime.postgres_driver import missing_driver

    error = ModuleNotFoundError("No module named 'other'", name="other")
    with pytest.raises(ModuleNotFoundError, match="other"):
        missing_driver("a guard", error)
