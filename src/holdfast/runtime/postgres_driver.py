"""The error of a missing Postgres driver: psycopg and the library that it loads, libpq, are installed separately."""

from __future__ import annotations

from typing import Final

from holdfast.errors import Misconfigured

_DISTRIBUTIONS: Final = ("psycopg", "psycopg_pool")


def missing_driver(needed_by: str, error: ImportError) -> Misconfigured:
    """The error of an import of psycopg that failed, with the fix. Raises `error` again if another import failed."""
    name = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError):
        if name not in _DISTRIBUTIONS:
            raise error
        return Misconfigured(
            f'{needed_by} needs a driver that is not installed ({name}): pip install "holdfast[postgres-binary]", '
            'or "holdfast[postgres]" where libpq is installed'
        )
    return Misconfigured(
        f"{needed_by} needs libpq, and psycopg cannot load it: "
        'pip install "holdfast[postgres-binary]", or install it (on Debian and Ubuntu: libpq5)'
    )
